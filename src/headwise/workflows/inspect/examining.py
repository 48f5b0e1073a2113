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
    Annotate,
    Bookmark,
    Recorder,
    Seen,
    Sources,
    Stream,
    Sums,
    read_through,
)
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.progress import counting

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


@dataclass(frozen=True, eq=False)
class Examination:
    """Inputs of an inspection.

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

    subject: Subject
    corpus: Corpus
    config: InspectConfig
    ranks: WordRanks | None = None
    mentions: Corpus | None = None
    aligned: Corpus | None = None
    run: Run | None = None
    sources: Sources = field(default_factory=dict[str, str])

    def examined(self) -> Examined:
        """Read the corpus, find antecedents of mentions, and measure importance on a sample."""
        config, counted = self.config, self.corpus.count()
        ranks = self.ranks or (counted.ranks if counted else None)
        sample = Sample(config.sample, first=config.samples, seed=config.seed)
        sentences = sample.watch(self._cut(self.corpus).read())
        seen, pointed = self._read(Stream(sentences, counted.sentences if counted else 0), ranks)
        traces: dict[str, Any] = {}
        if self.mentions is not None:
            traces["antecedents"] = self._resolve(self.mentions, pointed)
        if self.aligned is not None:
            pointed.add(self._pointing("aligning", self.aligned, Annotation().alignments))
        columns, reasons = self._importance(sample)
        sites = [site.name for site in find_sites(self.subject.model)]
        table = HeadTable.of(ordered({**columns, **pointed.columns}, sites))
        traces |= {
            "baselines": dict(sorted(pointed.baselines.items())),
            "offsets": dict(sorted(pointed.offsets.items())),
            "attention": self._shown(sample),
        }
        left_out = {**_too_few(seen), **reasons, **self._missing(pointed, columns, ranks)}
        table = _with_originals(with_roles(table, pointed.baselines), self.subject.model)
        return Examined(table, seen, traces, left_out)

    def _cut(self, corpus: Corpus) -> Corpus:
        return corpus.within(characters_for(self.subject.max_tokens))

    def _bookmark(self, name: str) -> Bookmark | None:
        return None if self.run is None else Bookmark(self.run, name, self.sources)

    def _pass(
        self,
        name: str,
        stream: Stream,
        recorders: Sequence[Recorder],
        annotate: Annotate,
        extra: Sequence[Sums] = (),
    ) -> Seen:
        with counting(name) as count:
            return read_through(
                self.subject,
                stream,
                recorders,
                annotate,
                batch_size=self.config.batch_size,
                extra=extra,
                bookmark=self._bookmark(name),
                progress=count,
            )

    def _read(self, stream: Stream, ranks: WordRanks | None) -> tuple[Seen, _Pointed]:
        annotation = Annotation(self.config.relations, ranks, self.subject.knows_words)
        profile, pointing = Profile(seed=self.config.seed), Pointing(seed=self.config.seed)
        seen = self._pass("reading", stream, (profile, pointing), annotation.whole)
        if not seen.words:
            raise ValueError(NO_TEXT)
        pointed = _Pointed(profile.drain(), {}, {})
        pointed.add(pointing)
        return seen, pointed

    def _pointing(
        self, name: str, corpus: Corpus, annotate: Annotate, extra: Sequence[Sums] = ()
    ) -> Pointing:
        """Record what heads point at in a corpus with gold."""
        pointing = Pointing(seed=self.config.seed)
        stream = Stream(self._cut(corpus).read(), corpus.size())
        self._pass(name, stream, (pointing,), annotate, extra)
        return pointing

    def _resolve(self, mentions: Corpus, pointed: _Pointed) -> dict[str, dict[str, float]]:
        """Add how often heads find antecedents; returns what rules reach, by label."""
        annotation = Annotation(knows_words=self.subject.knows_words)
        pointing = self._pointing(
            "resolving mentions", mentions, annotation.coreference, [annotation.rules]
        )
        pointed.add(pointing)
        rules = annotation.rules.shares()
        for label, distance in pointing.baselines().items():
            rules[label]["fixed_distance"] = distance
            # a role must beat whatever needs no model and no gold mentions
            pointed.baselines[label] = max(rules[label][rule] for rule in FREE_RULES)
        return rules

    def _importance(self, sample: Sample) -> tuple[Columns, dict[str, str]]:
        """Measure importance; returns columns, and why output norms are missing, if they are."""
        reasons: dict[str, str] = {}
        try:
            OutputNorms(self.subject.model)
        except ValueError as problem:
            reasons = {"output_norm": str(problem)}
        with counting("measuring importance") as count:
            means = measure_importance(
                self.subject,
                sample.drawn,
                self.config,
                output_norm=not reasons,
                bookmark=self._bookmark("importance"),
                progress=count,
            )
        return means.columns(), reasons

    @torch.no_grad()
    def _shown(self, sample: Sample) -> dict[str, object]:
        """Return attention of the first sentences, and of some that show heads at work."""
        if not self.config.samples:
            return {"sentences": []}
        short = [pair for pair in sample.drawn if len(pair[1].words) <= LONGEST_EXAMPLE]
        candidates = dict(short[:CANDIDATES])
        samples, examples = Samples(), Examples()
        first = dict(sample.beginning)
        sentences = first | candidates
        for number, sentence in sentences.items():
            prepared = self.subject.prepare([sentence])
            samples.start({stack: list(tokens) for stack, tokens in prepared.tokens[0].items()})
            examples.reading = Reading([number], prepared.words)
            with observe(
                self.subject.model, samples, *([examples] if number in candidates else [])
            ):
                self.subject.attend(prepared.inputs)
        recorded = dict(zip(sentences, samples.drain()["sentences"], strict=True))
        heads = choose_examples(examples.drain(), sentences=EXAMPLES)
        kept = [number for number in sentences if number in heads or number in first]
        names = {number: [str(head) for head in heads.get(number, ())] for number in kept}
        return {"sentences": [{**recorded[number], "examples": names[number]} for number in kept]}

    def _missing(
        self, pointed: _Pointed, columns: Columns, ranks: WordRanks | None
    ) -> dict[str, str]:
        """Return each measure that is missing, and why."""
        found: dict[str, str] = {}
        if not self.subject.knows_words:
            found["words"] = (
                "The tokenizer does not say where in a text its tokens stand, so every token "
                "counts as a word, and syntax and coreference are left out."
            )
        elif unseen := _unseen(self.config.relations, pointed):
            found["syntax"] = unseen
        if ranks is None:
            found["rarest"] = "The data can be read only once, so that no words were counted."
        elif "rarest" not in pointed.columns:
            found["rarest"] = (
                "No sentence has a word outside the 500 commonest; give the counts of a larger "
                "corpus (--ranks)."
            )
        if not self.config.sample:
            found["importance"] = "No sample was asked for."
        elif "gradient_importance" not in columns:
            found["relevance, gradient_importance"] = (
                "The model gives hidden states, no predictions."
            )
        return found


def _with_originals(table: HeadTable, model: nn.Module) -> HeadTable:
    """Add the original names of heads as a first column, if the model was pruned."""
    record = innermost(model).__dict__.get(PRUNED)  # a PruningRecord
    if record is None:
        return table
    names = tuple(str(record.original(head)) for head in table.heads)
    return HeadTable(table.heads, {"original": names, **table.columns})


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
