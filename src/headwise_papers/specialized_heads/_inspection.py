"""Inspections of translators, each found by its settings in the cache or made now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headwise.analysis import with_roles
from headwise.recording import HeadTable, Run
from headwise.text import WordRanks, words_in
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise_papers.core import Job, find_or_train
from headwise_papers.data.annotations import TREEBANKS, treebank_file
from headwise_papers.data.source import data_folder
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.specialized_heads._models import (
    RECIPE,
    TINY,
    Model,
    Tuning,
    first_pairs,
    job,
    read_texts,
    recipe_of,
    trained,
    translator,
)

TREEBANK = "en_ewt"
RANKS = "data/ranks.json"


@dataclass(frozen=True)
class Inspection:
    """Settings of an inspection of a translator."""

    model: Model
    data: Literal["lines", "trees"]  # held-out sentences of its domain, or of the treebank
    sentences: int
    max_words: int = 20  # of a sentence of the treebank
    sample: int = 0  # sentences whose predictions are traced back to heads
    trained_ranks: bool = True  # how common words are in the training text; else in the data


class Inspected(NamedTuple):
    """Result of an inspection."""

    table: HeadTable
    baselines: dict[str, float]  # what one fixed distance reaches, by label


@dataclass(frozen=True)
class Study:
    """Settings: translators and the amount of text they are inspected on."""

    translators: tuple[str, ...] = ("en-ru", "en-de", "en-fr", "en-ru subtitles")
    seeds: int = 2
    least_bleu: float = 15.0  # of a translator that is inspected, on the test set
    lines: int = 1000  # held-out sentences of a translator's own domain
    sample: int = 200  # of them, for relevance
    trees: int = 5000  # sentences of the treebank; 0 takes all
    max_words: int = 20  # of them; Tatoeba's sentences have 6.5 on average
    tuning_steps: int = 300  # on subtitles
    recipe: TranslationConfig = RECIPE

    def models(self, name: str) -> list[Model]:
        """Return the settings of a translator, one per seed."""
        seeds = range(self.seeds)
        return [translator(self.recipe, name, seed, tuning=self.tuning_steps) for seed in seeds]

    def on_lines(self, model: Model) -> Inspection:
        """Return the settings of an inspection on held-out lines."""
        return Inspection(model, "lines", self.lines, sample=self.sample)

    def on_trees(self, model: Model) -> Inspection:
        """Return the settings of an inspection on the treebank."""
        return Inspection(model, "trees", self.trees, self.max_words)

    def jobs(self, *, lines: bool = False, trees: bool = False) -> Iterator[Job]:
        """Yield translators, then inspections of those that need no tuning."""
        every = [model for name in self.translators for model in self.models(name)]
        yield from map(job, every)
        for model in every:
            if lines and not isinstance(model, Tuning):
                yield Job(inspect_model, self.on_lines(model))
            if trees and not isinstance(model, Tuning):
                yield Job(inspect_model, self.on_trees(model))


SHORT: dict[str, Any] = {  # of smoke runs
    "translators": ("en-ru",),
    "seeds": 1,
    "least_bleu": 0.0,
    "lines": 24,
    "sample": 4,
    "trees": 50,
    "max_words": 10,
    "tuning_steps": 10,
    "recipe": TINY,
}


def inspected(config: Inspection) -> Inspected:
    """Return what is found in a translator, inspected now unless the cache has it."""
    return open_inspection(find_or_train(inspect_model, config).folder / "inspection")


def open_inspection(folder: Path) -> Inspected:
    """Read what `headwise inspect` has written."""
    run = Run.open(folder)
    return Inspected(run.heads(), dict(run.read_json("trace/baselines.json")))


def inspect_model(config: Inspection, folder: Path) -> Run:
    """Inspect a translator; return the finished run, which holds the run of `headwise inspect`."""
    with Run.create(folder, config) as run:
        inspect_into(run, config, trained(config.model).folder)
    return run


def inspect_into(run: Run, config: Inspection, model: Path) -> None:
    """Inspect the model of a folder, a translator or one pruned from it; finish the run."""
    ranks = ""
    if config.trained_ranks:
        word_ranks(config.model).save(run.path(RANKS))
        ranks = str(run.path(RANKS))
    settings = InspectConfig(
        model=str(model),
        data=str(_data(config, run)),
        ranks=ranks,
        sample=config.sample,
        steps=None,  # all of them, as in the paper
        ablation_lines=0,
        batch_size=256,
    )
    table = inspect_folder(settings, run.path("inspection"))
    run.save_figures({"heads": len(table)})


def _data(config: Inspection, run: Run) -> Path:
    if config.data == "trees":
        return short_trees(run, max_words=config.max_words, count=config.sentences)
    lines = held_out(config.model, config.sentences)
    run.write_text("data/lines.txt", "".join(f"{line}\n" for line in lines))
    return run.path("data/lines.txt")


def held_out(model: Model, count: int) -> list[str]:
    """Return English sentences of the validation part of a translator's domain."""
    return read_texts(model).valid.source[:count]


def word_ranks(model: Model) -> WordRanks:
    """Count how common English words are in what a translator was trained on, last of all."""
    lines = first_pairs(read_texts(model).train, recipe_of(model).train_pairs).source
    return WordRanks.count(map(words_in, lines))


def joined_roles(lines: Inspected, trees: Inspected) -> HeadTable:
    """Return the table on lines with roles of grammar, measured on trees, next to its own."""
    grammar = {
        name: values
        for name, values in trees.table.columns.items()
        if "_to_head" in name or "_to_dependent" in name
    }
    own = {name: v for name, v in lines.table.columns.items() if name not in grammar}
    baselines = {label: v for label, v in trees.baselines.items() if label in grammar}
    table = HeadTable(lines.table.heads, {**own, **grammar})
    return with_roles(table, {**lines.baselines, **baselines})


def short_trees(run: Run, *, max_words: int, count: int) -> Path:
    """Write the short sentences of all parts of the treebank as one CoNLL-U file of a run.

    Args:
        run: that keeps the file.
        max_words: of a sentence.
        count: of sentences, evenly from all of them; 0 takes all.
    """
    name = f"data/{TREEBANK}-up-to-{max_words}-words{f'-{count}' if count else ''}.conllu"
    if not run.has(name):
        short = [block for block in _blocks() if _words(block) <= max_words]
        kept = min(count, len(short)) or len(short)
        chosen = [short[place * len(short) // kept] for place in range(kept)]
        run.write_text(name, "".join("\n".join([*block, "", ""]) for block in chosen))
    return run.path(name)


def _blocks() -> Iterator[list[str]]:
    """Yield the lines of each sentence of the treebank."""
    for part in TREEBANKS[TREEBANK]:
        file = treebank_file(TREEBANK, part)
        folder = data_folder(None, wanted=TREEBANK, origin=file.origin)
        block: list[str] = []
        for line in file.lines(folder):
            if line.strip():
                block.append(line)
            elif block:
                yield block
                block = []
        if block:
            yield block


def _words(block: Sequence[str]) -> int:
    return sum(line.partition("\t")[0].isdecimal() for line in block)
