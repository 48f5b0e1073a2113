"""An inspection: what all heads do on a corpus, and how much each of them matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from headwise.analysis.importance import OutputNorms
from headwise.analysis.propagation.settings import Rule
from headwise.analysis.roles import with_roles
from headwise.hf.adoption import innermost
from headwise.recording import HeadTable, Pointing, Profile, Run, Samples
from headwise.recording.reading import Reading
from headwise.recording.tally import FEWEST_SENTENCES
from headwise.sites import PRUNED, Head, find_sites, observe
from headwise.text.frequencies import WordRanks
from headwise.text.words import characters_for
from headwise.workflows.inspect.annotating import ALL, Annotation
from headwise.workflows.inspect.columns import ordered
from headwise.workflows.inspect.corpus import NO_TEXT, Corpus, Numbered
from headwise.workflows.inspect.examples import Examples, choose_examples
from headwise.workflows.inspect.gold_pass import pointed_at
from headwise.workflows.inspect.identity import Sources
from headwise.workflows.inspect.importance import Weighing, weigh
from headwise.workflows.inspect.passing import Bookmark, Seen, Stream, read_through
from headwise.workflows.inspect.sampling import Sample
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.progress import counting

__all__ = ["Examined", "Options", "examine"]

EXAMPLES = 6  # sentences that show heads at work
CANDIDATES = 24  # that they are chosen from
LONGEST_EXAMPLE = 40  # words
FREE_RULES = ("fixed_distance", "random", "previous", "first", "nearest_noun")
Columns = dict[str, dict[str, list[float | int | None]]]


@runtime_checkable
class Options(Protocol):
    """The settings that `examine` reads; see `InspectConfig`."""

    @property
    def relations(self) -> tuple[str, ...]: ...
    @property
    def sample(self) -> int: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def relevance(self) -> bool: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def ablation_lines(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class Examined:
    """What was found."""

    table: HeadTable
    seen: Seen
    traces: Mapping[str, Any]  # what reports read, by name
    left_out: Mapping[str, str]  # what could not be measured, and why


@dataclass
class _Pointed:
    """Where heads look, as far as it is known."""

    columns: Columns
    baselines: dict[str, float]
    offsets: dict[str, dict[int, int]]


def examine(
    subject: Subject,
    corpus: Corpus,
    options: Options,
    *,
    ranks: WordRanks | None = None,
    mentions: Corpus | None = None,
    aligned: Corpus | None = None,
    run: Run | None = None,
    sources: Sources | None = None,
) -> Examined:
    """Read a corpus, find antecedents of mentions, and weigh heads on a sample of the corpus.

    Args:
        subject: a model and how it reads.
        corpus: the sentences.
        options: settings.
        ranks: how common words are; None counts those of the corpus where it can be read twice.
        mentions: passages to find antecedents in.
        aligned: sentences with translations, to find what their words are translations of.
        run: where to leave bookmarks, so that a killed inspection can go on.
        sources: from `sources_of`; a bookmark is of these.
    """
    counted, longest = corpus.count(), characters_for(subject.room)
    corpus = corpus.within(longest)
    known = ranks or (counted.ranks if counted else None)
    annotation = Annotation(options.relations, known, subject.knows_words)
    sample = Sample(options.sample, first=options.samples, seed=options.seed)
    sentences = Stream(sample.watch(corpus.read()), counted.sentences if counted else 0)
    bookmark = _bookmark(run, "reading", sources)
    seen, pointed = _read(subject, sentences, annotation, options, bookmark)
    traces: dict[str, Any] = {}
    if mentions is not None:
        bookmark = _bookmark(run, "mentions", sources)
        traces["antecedents"] = _resolve(
            subject, mentions.within(longest), options, pointed, bookmark
        )
    if aligned is not None:
        bookmark = _bookmark(run, "alignments", sources)
        _align(subject, aligned.within(longest), options, pointed, bookmark)
    weighing, reasons = _weighing(subject, options)
    with counting("weighing") as count:
        bookmark = _bookmark(run, "weighing", sources)
        means = weigh(subject, sample.drawn, weighing, bookmark=bookmark, progress=count)
    columns = means.columns()
    sites = [site.name for site in find_sites(subject.model)]
    table = HeadTable.of(ordered({**columns, **pointed.columns}, sites))
    traces |= {
        "baselines": dict(sorted(pointed.baselines.items())),
        "offsets": dict(sorted(pointed.offsets.items())),
        "attention": _draw(subject, sample, options),
    }
    left_out = {**_too_few(seen), **reasons, **_missing(subject, options, pointed, columns, known)}
    table = _with_originals(with_roles(table, pointed.baselines), subject.model)
    return Examined(table, seen, traces, left_out)


def _with_originals(table: HeadTable, model: nn.Module) -> HeadTable:
    """The table; of a pruned model with a first column more, what its heads were called before."""
    record = getattr(innermost(model), PRUNED, None)  # as `headwise.pruning` leaves it there
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
    options: Options,
    bookmark: Bookmark | None,
) -> tuple[Seen, _Pointed]:
    profile, pointing = Profile(seed=options.seed), Pointing(seed=options.seed)
    with counting("reading") as count:
        seen = read_through(
            subject,
            sentences,
            (profile, pointing),
            annotation.whole,
            batch_size=options.batch_size,
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
    options: Options,
    pointed: _Pointed,
    bookmark: Bookmark | None,
) -> dict[str, dict[str, float]]:
    """Add how often heads find antecedents to what is known; what rules reach, by label."""
    asked = Annotation(knows_words=subject.knows_words)
    pointing = pointed_at(
        subject,
        mentions,
        asked.coreference,
        said="resolving mentions",
        batch_size=options.batch_size,
        seed=options.seed,
        beside=[asked.rules],
        bookmark=bookmark,
    )
    rules = asked.rules.shares()
    for label, distance in pointing.baselines().items():
        rules[label]["fixed_distance"] = distance
        # a role must beat whatever needs no model and no gold mentions
        pointed.baselines[label] = max(rules[label][rule] for rule in FREE_RULES)
    pointed.offsets |= pointing.offsets()
    pointed.columns |= pointing.drain()
    return rules


def _align(
    subject: Subject,
    aligned: Corpus,
    options: Options,
    pointed: _Pointed,
    bookmark: Bookmark | None,
) -> None:
    """Add how often heads find the source of the word that is predicted."""
    pointing = pointed_at(
        subject,
        aligned,
        Annotation().alignments,
        said="aligning",
        batch_size=options.batch_size,
        seed=options.seed,
        bookmark=bookmark,
    )
    pointed.baselines |= pointing.baselines()
    pointed.offsets |= pointing.offsets()
    pointed.columns |= pointing.drain()


def _weighing(subject: Subject, options: Options) -> tuple[Weighing, dict[str, str]]:
    """What can be measured of this model, and what cannot and why."""
    weighing = Weighing(
        steps=options.steps,
        relevance=options.relevance,
        rule=options.rule,
        ablation_lines=options.ablation_lines,
        batch_size=options.batch_size,
        seed=options.seed,
    )
    try:
        OutputNorms(subject.model)
    except ValueError as problem:
        return replace(weighing, output_norm=False), {"output_norm": str(problem)}
    return weighing, {}


def _missing(
    subject: Subject,
    options: Options,
    pointed: _Pointed,
    columns: Mapping[str, Any],
    ranks: WordRanks | None,
) -> dict[str, str]:
    """Each measure that is not there, and why."""
    found: dict[str, str] = {}
    if not subject.knows_words:
        found["words"] = (
            "The tokenizer does not say where in a text its tokens stand, so every token counts as "
            "a word, and syntax and coreference are left out."
        )
    elif unseen := _unseen(options.relations, pointed):
        found["syntax"] = unseen
    if ranks is None:
        found["rarest"] = "The data can be read only once, so that no words were counted."
    elif "rarest" not in pointed.columns:
        found["rarest"] = (
            "No sentence has a word outside the 500 commonest; give the counts of a larger corpus "
            "(--ranks)."
        )
    if not options.sample:
        found["importance"] = "No sample was asked for."
    elif "gradient_importance" not in columns:
        found["relevance, gradient_importance"] = "The model gives hidden states, no predictions."
    return found


def _too_few(seen: Seen) -> dict[str, str]:
    few = f"Fewer than {FEWEST_SENTENCES} sentences say too little of others for that."
    return {"intervals and roles": few} if seen.sentences < FEWEST_SENTENCES else {}


def _unseen(relations: Sequence[str], pointed: _Pointed) -> str:
    """Which relations were not met, in a sentence; nothing where all were."""
    met = {label.rpartition("_to_")[0] for label in pointed.baselines if "_to_" in label}
    missing = [relation for relation in relations if relation not in met and relation != ALL]
    if not met:
        return "The data have none of the relations; a treebank in CoNLL-U has."
    return f"The treebank has no {', '.join(missing)} that could be found." if missing else ""


@torch.no_grad()
def _draw(subject: Subject, sample: Sample, options: Options) -> dict[str, object]:
    """Attention of the first sentences, and of some that show heads at work, token by token."""
    if not options.samples:
        return {"sentences": []}
    short = [pair for pair in sample.drawn if len(pair[1].words) <= LONGEST_EXAMPLE]
    shown = _examples(subject, short[:CANDIDATES])
    sentences = dict(sample.began) | {n: s for n, s in short if n in shown}
    samples = Samples()
    for sentence in sentences.values():
        prepared = subject.prepare([sentence])
        samples.start({stack: list(tokens) for stack, tokens in prepared.tokens[0].items()})
        with observe(subject.model, samples):
            subject.look(prepared.inputs)
    drawn = samples.drain()
    for number, sentence in zip(sentences, drawn["sentences"], strict=True):
        sentence["examples"] = [str(head) for head in shown.get(number, ())]
    return drawn


def _examples(subject: Subject, candidates: Sequence[Numbered]) -> dict[int, list[Head]]:
    examples = Examples()
    for number, sentence in candidates:
        prepared = subject.prepare([sentence])
        examples.reading = Reading([number], prepared.words)
        with observe(subject.model, examples):
            subject.look(prepared.inputs)
    return choose_examples(examples.drain(), sentences=EXAMPLES)
