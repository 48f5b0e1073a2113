"""Examination of all heads: what they attend to on a corpus, and how much each of them matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headwise.analysis.importance import OutputNorms
from headwise.analysis.roles import with_roles
from headwise.hf.adoption import innermost
from headwise.ops.attended import Attended
from headwise.recording import HeadTable, Pointing, Profile, Run, Samples
from headwise.recording.columns import ordered
from headwise.recording.reading import Reading, reading_of
from headwise.recording.tally import FEWEST_SENTENCES
from headwise.sites import PRUNED, Head, Site, find_sites, observe
from headwise.text.frequencies import WordRanks
from headwise.text.words import characters_for
from headwise.workflows.inspect.annotation import Annotation
from headwise.workflows.inspect.config import ALL, InspectConfig
from headwise.workflows.inspect.corpus import NO_TEXT, Corpus, Sample
from headwise.workflows.inspect.importance import measure_importance
from headwise.workflows.inspect.stream import (
    Bookmark,
    Seen,
    Sources,
    Stream,
    pointed_at,
    read_through,
)
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.progress import counting

__all__ = ["Examined", "Examples", "choose_examples", "examine"]

EXAMPLES = 6  # sentences that show heads at work
CANDIDATES = 24  # sentences that examples are chosen from
LONGEST_EXAMPLE = 40  # words
FREE_RULES = ("fixed_distance", "random", "previous", "first", "nearest_noun")
Columns = dict[str, dict[str, list[float | int | None]]]
Scores = dict[Head, dict[int, float]]  # of each head, {sentence: how well it shows the head}


@dataclass(frozen=True)
class Examined:
    """Result of an examination."""

    table: HeadTable
    seen: Seen
    traces: Mapping[str, Any]  # for reports, by name
    left_out: Mapping[str, str]  # what could not be measured, and why


@dataclass
class _Pointed:
    """Columns of what heads attend to, with their baselines."""

    columns: Columns
    baselines: dict[str, float]
    offsets: dict[str, dict[int, int]]

    def add(self, pointing: Pointing) -> None:
        """Add the columns of another pass."""
        self.baselines |= pointing.baselines()
        self.offsets |= pointing.offsets()
        self.columns |= pointing.drain()


def examine(
    subject: Subject,
    corpus: Corpus,
    config: InspectConfig,
    *,
    ranks: WordRanks | None = None,
    mentions: Corpus | None = None,
    aligned: Corpus | None = None,
    run: Run | None = None,
    sources: Sources | None = None,
) -> Examined:
    """Read a corpus, find antecedents of mentions, and measure importance on a sample.

    Args:
        subject: a model and how it reads.
        corpus: the sentences.
        config: settings.
        ranks: how common words are; None counts those of the corpus where it can be read twice.
        mentions: passages to find antecedents in.
        aligned: sentences with translations and links between their words.
        run: where to save bookmarks, so that a killed inspection can resume.
        sources: from `sources_of`, kept in bookmarks.
    """
    counted, longest = corpus.count(), characters_for(subject.max_tokens)
    corpus = corpus.within(longest)
    known = ranks or (counted.ranks if counted else None)
    annotation = Annotation(config.relations, known, subject.knows_words)
    sample = Sample(config.sample, first=config.samples, seed=config.seed)
    sentences = Stream(sample.watch(corpus.read()), counted.sentences if counted else 0)
    bookmark = _bookmark(run, "reading", sources)
    seen, pointed = _read(subject, sentences, annotation, config, bookmark)
    traces: dict[str, Any] = {}
    if mentions is not None:
        bookmark = _bookmark(run, "mentions", sources)
        traces["antecedents"] = _resolve(
            subject, mentions.within(longest), config, pointed, bookmark
        )
    if aligned is not None:
        bookmark = _bookmark(run, "alignments", sources)
        pointed.add(_aligned(subject, aligned.within(longest), config, bookmark))
    reasons = _no_output_norm(subject)
    with counting("measuring importance") as count:
        means = measure_importance(
            subject,
            sample.drawn,
            config,
            output_norm=not reasons,
            bookmark=_bookmark(run, "importance", sources),
            progress=count,
        )
    columns = means.columns()
    sites = [site.name for site in find_sites(subject.model)]
    table = HeadTable.of(ordered({**columns, **pointed.columns}, sites))
    traces |= {
        "baselines": dict(sorted(pointed.baselines.items())),
        "offsets": dict(sorted(pointed.offsets.items())),
        "attention": _shown(subject, sample, config),
    }
    left_out = {**_too_few(seen), **reasons, **_missing(subject, config, pointed, columns, known)}
    table = _with_originals(with_roles(table, pointed.baselines), subject.model)
    return Examined(table, seen, traces, left_out)


def _with_originals(table: HeadTable, model: nn.Module) -> HeadTable:
    """Add the original names of heads as a first column, if the model was pruned."""
    record = innermost(model).__dict__.get(PRUNED)  # a PruningRecord
    if record is None:
        return table
    names = tuple(str(record.original(head)) for head in table.heads)
    return HeadTable(table.heads, {"original": names, **table.columns})


def _bookmark(run: Run | None, name: str, sources: Sources | None) -> Bookmark | None:
    return None if run is None else Bookmark(run, name, sources or {})


def _read(
    subject: Subject,
    sentences: Stream,
    annotation: Annotation,
    config: InspectConfig,
    bookmark: Bookmark | None,
) -> tuple[Seen, _Pointed]:
    profile, pointing = Profile(seed=config.seed), Pointing(seed=config.seed)
    with counting("reading") as count:
        seen = read_through(
            subject,
            sentences,
            (profile, pointing),
            annotation.whole,
            batch_size=config.batch_size,
            bookmark=bookmark,
            progress=count,
        )
    if not seen.words:
        raise ValueError(NO_TEXT)
    columns: Columns = {**profile.drain(), **pointing.drain()}
    return seen, _Pointed(columns, pointing.baselines(), pointing.offsets())


def _resolve(
    subject: Subject,
    mentions: Corpus,
    config: InspectConfig,
    pointed: _Pointed,
    bookmark: Bookmark | None,
) -> dict[str, dict[str, float]]:
    """Add how often heads find antecedents; returns what rules reach, by label."""
    annotation = Annotation(knows_words=subject.knows_words)
    pointing = pointed_at(
        subject,
        mentions,
        annotation.coreference,
        label="resolving mentions",
        batch_size=config.batch_size,
        seed=config.seed,
        extra=[annotation.rules],
        bookmark=bookmark,
    )
    rules = annotation.rules.shares()
    distances = pointing.baselines()
    pointed.add(pointing)
    for label, distance in distances.items():
        rules[label]["fixed_distance"] = distance
        # a role must beat whatever needs no model and no gold mentions
        pointed.baselines[label] = max(rules[label][rule] for rule in FREE_RULES)
    return rules


def _aligned(
    subject: Subject, aligned: Corpus, config: InspectConfig, bookmark: Bookmark | None
) -> Pointing:
    """Record how often heads find the source of the word that is predicted."""
    return pointed_at(
        subject,
        aligned,
        Annotation().alignments,
        label="aligning",
        batch_size=config.batch_size,
        seed=config.seed,
        bookmark=bookmark,
    )


def _no_output_norm(subject: Subject) -> dict[str, str]:
    """Say why output norms cannot be measured, if they cannot."""
    try:
        OutputNorms(subject.model)
    except ValueError as problem:
        return {"output_norm": str(problem)}
    return {}


def _missing(
    subject: Subject,
    config: InspectConfig,
    pointed: _Pointed,
    columns: Mapping[str, Any],
    ranks: WordRanks | None,
) -> dict[str, str]:
    """Return each measure that is missing, and why."""
    found: dict[str, str] = {}
    if not subject.knows_words:
        found["words"] = (
            "The tokenizer does not say where in a text its tokens stand, so every token counts as "
            "a word, and syntax and coreference are left out."
        )
    elif unseen := _unseen(config.relations, pointed):
        found["syntax"] = unseen
    if ranks is None:
        found["rarest"] = "The data can be read only once, so that no words were counted."
    elif "rarest" not in pointed.columns:
        found["rarest"] = (
            "No sentence has a word outside the 500 commonest; give the counts of a larger corpus "
            "(--ranks)."
        )
    if not config.sample:
        found["importance"] = "No sample was asked for."
    elif "gradient_importance" not in columns:
        found["relevance, gradient_importance"] = "The model gives hidden states, no predictions."
    return found


def _too_few(seen: Seen) -> dict[str, str]:
    few = f"Fewer than {FEWEST_SENTENCES} sentences say too little of others for that."
    return {"intervals and roles": few} if seen.sentences < FEWEST_SENTENCES else {}


def _unseen(relations: Sequence[str], pointed: _Pointed) -> str:
    """Name the relations that did not occur in one sentence; "" where all did."""
    met = {label.rpartition("_to_")[0] for label in pointed.baselines if "_to_" in label}
    missing = [relation for relation in relations if relation not in met and relation != ALL]
    if not met:
        return "The data have none of the relations; a treebank in CoNLL-U has."
    return f"The treebank has no {', '.join(missing)} that could be found." if missing else ""


@torch.no_grad()
def _shown(subject: Subject, sample: Sample, config: InspectConfig) -> dict[str, object]:
    """Return attention of the first sentences, and of some that show heads at work, by token."""
    if not config.samples:
        return {"sentences": []}
    short = [pair for pair in sample.drawn if len(pair[1].words) <= LONGEST_EXAMPLE]
    candidates = dict(short[:CANDIDATES])
    samples, examples = Samples(), Examples()
    first = dict(sample.beginning)
    sentences = first | candidates
    for number, sentence in sentences.items():
        prepared = subject.prepare([sentence])
        samples.start({stack: list(tokens) for stack, tokens in prepared.tokens[0].items()})
        examples.reading = Reading([number], prepared.words)
        with observe(subject.model, samples, *([examples] if number in candidates else [])):
            subject.attend(prepared.inputs)
    recorded = dict(zip(sentences, samples.drain()["sentences"], strict=True))
    heads = choose_examples(examples.drain(), sentences=EXAMPLES)
    kept = [number for number in sentences if number in heads or number in first]
    names = {number: [str(head) for head in heads.get(number, ())] for number in kept}
    return {"sentences": [{**recorded[number], "examples": names[number]} for number in kept]}


@dataclass
class Examples:
    """Recorder of the mean largest weight of each head in each sentence."""

    name: str = "examples"
    reading: Reading | None = None
    _scores: Scores = field(default_factory=dict[Head, dict[int, float]])

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        reading = reading_of("Examples", self.reading)
        rows = reading.rows(site, attended)
        count_BH = rows.seen.sum(dim=2)
        mean_BH = ((rows.peak * rows.seen).sum(dim=2) / count_BH.clamp(min=1)).tolist()
        for number, means in zip(reading.sentences, mean_BH, strict=True):
            for head, mean in zip(site.heads, means, strict=True):
                self._scores.setdefault(head, {})[number] = mean

    def drain(self) -> Scores:
        """Return {head: {sentence: mean largest weight}} since the last drain."""
        scores, self._scores = self._scores, {}
        return scores


def choose_examples(
    scores: Mapping[Head, Mapping[int, float]], *, sentences: int, each: int = 2
) -> dict[int, list[Head]]:
    """Choose a few sentences that show all heads: {sentence: heads it is an example of}.

    Sentences are chosen one by one, each time the one that raises the sum of the heads' best scores
    most. Then every head gets the best of them.

    Args:
        scores: from `Examples.drain`.
        sentences: the most to choose.
        each: examples per head.

    >>> dog, cat = Head("encoder.0.self", 0), Head("encoder.0.self", 1)
    >>> scores = {dog: {0: 0.9, 1: 0.2, 2: 0.1}, cat: {0: 0.1, 1: 0.2, 2: 0.8}}
    >>> choose_examples(scores, sentences=2, each=1) == {0: [dog], 2: [cat]}
    True
    """
    numbers = sorted({number for by_number in scores.values() for number in by_number})
    best = dict.fromkeys(scores, 0.0)
    taken: list[int] = []

    def gain(number: int) -> float:
        return sum(max(by.get(number, 0.0) - best[head], 0.0) for head, by in scores.items())

    while len(taken) < min(sentences, len(numbers)):
        number = max((n for n in numbers if n not in taken), key=gain)
        taken.append(number)
        best = {head: max(best[head], by.get(number, 0.0)) for head, by in scores.items()}
    shown: dict[int, list[Head]] = {number: [] for number in sorted(taken)}
    for head, by_number in scores.items():
        for number in sorted(taken, key=lambda n: -by_number.get(n, 0.0))[:each]:
            shown[number].append(head)
    return shown
