"""Looking at trained translators with `headwise inspect`: on held-out lines, and on a treebank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple

from headwise.analysis import with_roles
from headwise.recording import HeadTable, Run
from headwise.text.frequencies import WordRanks
from headwise.text.source import data_folder
from headwise.text.words import words_in
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise_papers.data.annotations import TREEBANKS, treebank_file
from headwise_papers.data.translation import Lines, read_parallel_texts
from headwise_papers.specialized_heads._training import (
    MULTI30K,
    RECIPE,
    TUNING,
    Job,
    Training,
    find_file,
    train_at_once,
    translator_run,
)

__all__ = [
    "TREEBANK",
    "Inspected",
    "Looking",
    "Seen",
    "entering",
    "held_out",
    "inspected",
    "joined_roles",
    "look",
    "look_at_once",
    "ranks_path",
    "short_trees",
    "treebank_path",
]

TREEBANK = "en_ewt"
Data = Literal["lines", "trees"]  # what a translator is looked at with
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # section 5.2


@dataclass(frozen=True)
class Looking(Training):
    """How translators are looked at; for their training see `Training`."""

    lines: int = 1000  # held-out sentences of a translator's own domain
    sample: int = 200  # of them, whose predictions are traced back to heads
    trees: int = 5000  # sentences of the treebank; 0 takes all
    longest_tree: int = 20  # words; Tatoeba's sentences have 6.5 on average


class Inspected(NamedTuple):
    """What `headwise inspect` found."""

    table: HeadTable
    baselines: dict[str, float]  # what one fixed distance reaches, by label


@dataclass(frozen=True, eq=False)
class Seen:
    """A translator that is looked at, when somebody asks and unless that was done."""

    config: Looking
    run: Run  # of the experiment
    job: Job
    translator: Run

    @property
    def bleu(self) -> float:
        """On the test part."""
        return float(self.translator.figures()["bleu"])

    @property
    def title(self) -> str:
        """For pictures, with its BLEU."""
        return f"{self.job.name}, BLEU {self.bleu:.1f}"

    @cached_property
    def lines(self) -> Inspected:
        """What was found on held-out lines of its domain."""
        return _inspected(self, "lines")

    @cached_property
    def trees(self) -> Inspected:
        """What was found on the treebank."""
        return _inspected(self, "trees")


def entering(
    config: Training, run: Run, jobs: Sequence[Job], figures: dict[str, list[float]]
) -> list[Job]:
    """Train some translators, add their BLEU to the figures, and say whose is high enough."""
    scores = {job: float(translator_run(config, run, job).figures()["bleu"]) for job in jobs}
    for job, score in scores.items():
        figures.setdefault(f"{job.name}: BLEU", []).append(score)
        figures.setdefault(f"{job.name}: enters", []).append(float(score >= config.least_bleu))
    entered = [job for job, score in scores.items() if score >= config.least_bleu]
    if not entered:
        run.write_json(
            f"skipped-{jobs[0].name.replace(' ', '-')}.json",
            f"BLEU is below {config.least_bleu}: this data cannot test what is claimed of "
            f"{jobs[0].name}.",
        )
    return entered


def look(config: Looking, run: Run, job: Job) -> Seen:
    """A translator to look at; it is trained if that was not done."""
    return Seen(config, run, job, translator_run(config, run, job))


def look_at_once(config: Looking, run: Run, jobs: Sequence[Job], *data: Data) -> None:
    """Train translators and look at them, several at a time if the setting `at_once` says so."""
    for job in jobs if config.at_once > 1 else ():  # files they share are written by one process
        _lines_path(config, run, job)
        ranks_path(config, run, job)
        treebank_path(config, run)
    train_at_once(config, run, jobs, partial(_look, config, data))


def _look(config: Looking, data: Sequence[Data], run: Run, job: Job) -> None:
    seen = look(config, run, job)
    for what in data if seen.bleu >= config.least_bleu else ():
        _inspected(seen, what)


def joined_roles(seen: Seen) -> HeadTable:
    """The table on lines with roles of grammar, measured on trees, beside its own."""
    grammar = {
        name: values
        for name, values in seen.trees.table.columns.items()
        if "_to_head" in name or "_to_dependent" in name
    }
    own = {name: v for name, v in seen.lines.table.columns.items() if name not in grammar}
    baselines = {label: v for label, v in seen.trees.baselines.items() if label in grammar}
    table = HeadTable(seen.lines.table.heads, {**own, **grammar})
    return with_roles(table, {**seen.lines.baselines, **baselines})


def held_out(config: Looking, job: Job) -> list[str]:
    """English sentences of the validation part of a translator's domain."""
    return _texts(job, "valid").source[: config.lines]


def treebank_path(config: Looking, run: Run) -> Path:
    """The short sentences of the treebank, of this run or of one that lends its translators."""
    found = find_file(config, run, _trees_name(config.longest_tree, config.trees))
    return found or short_trees(run, longest=config.longest_tree, count=config.trees)


def short_trees(run: Run, *, longest: int, count: int) -> Path:
    """The short sentences of all parts of the treebank as one CoNLL-U file of a run.

    Args:
        run: where the file goes, if it is not there.
        longest: sentence, in words.
        count: of sentences, evenly from all of them; 0 takes all.
    """
    name = _trees_name(longest, count)
    if not run.has(name):
        short = [block for block in _blocks() if _words(block) <= longest]
        kept = min(count, len(short)) or len(short)
        chosen = [short[place * len(short) // kept] for place in range(kept)]
        run.write_text(name, "".join("\n".join([*block, "", ""]) for block in chosen))
    return run.path(name)


def _trees_name(longest: int, count: int) -> str:
    return f"data/{TREEBANK}-up-to-{longest}-words{f'-{count}' if count else ''}.conllu"


def inspected(
    folder: Path,
    *,
    model: str,
    data: Path,
    ranks: Path | None = None,
    relations: Sequence[str] = RELATIONS,
    coreference: str = "none",
    sample: int = 0,
    batch_size: int = 256,
) -> Inspected:
    """`headwise inspect` as a run; one that is finished is not repeated.

    Args:
        folder: of the run.
        model: the folder of the model.
        data: a file of lines, or a treebank.
        ranks: how common words are; None counts the data.
        relations: of the treebank.
        coreference: a set of mentions to look at too.
        sample: sentences whose predictions are traced back to heads.
        batch_size: sentences.
    """
    if not (folder / "figures.json").is_file():
        settings = InspectConfig(
            model=model,
            data=str(data),
            ranks=str(ranks or ""),
            relations=tuple(relations),
            coreference=coreference,
            sample=sample,
            steps=None,  # all of them, as in the paper
            ablation_lines=0,
            batch_size=batch_size,
        )
        inspect_folder(settings, folder)
    there = Run.open(folder)
    return Inspected(there.heads(), dict(there.read_json("trace/baselines.json")))


def _inspected(seen: Seen, what: Data) -> Inspected:
    config, run, job = seen.config, seen.run, seen.job
    name = f"inspected/{job.folder}/{what}"
    found = find_file(config, run, f"{name}/figures.json")
    on_lines = what == "lines"
    return inspected(
        found.parent if found else run.folder / name,
        model=str(seen.translator.folder),
        data=_lines_path(config, run, job) if on_lines else treebank_path(config, run),
        ranks=ranks_path(config, run, job),
        sample=config.sample if on_lines else 0,
    )


def _lines_path(config: Looking, run: Run, job: Job) -> Path:
    name = f"data/{job.domain}-en-{job.target}-{config.lines}.txt"
    found = find_file(config, run, name)
    if found is None:
        run.write_text(name, "".join(f"{line}\n" for line in held_out(config, job)))
    return found or run.path(name)


def ranks_path(config: Looking, run: Run, job: Job) -> Path:
    """How common English words are in what a translator was trained on, last of all."""
    name = f"data/{job.domain}-en-{job.target}-ranks.json"
    found = find_file(config, run, name)
    if found is None:
        pairs = RECIPE.train_pairs if config.train_pairs is None else config.train_pairs
        lines = _texts(job, "train").source[:pairs]
        WordRanks.count(map(words_in, lines)).save(run.path(name))
    return found or run.path(name)


def _texts(job: Job, part: str) -> Lines:
    recipe = {"tatoeba": RECIPE, "multi30k": MULTI30K, "subtitles": TUNING}[job.domain]
    plain = job.domain == "subtitles"
    texts = read_parallel_texts(recipe.corpus, recipe.source, job.target, plain=plain)
    return texts.train if part == "train" else texts.valid


def _blocks() -> Iterator[list[str]]:
    """The lines of each sentence of the treebank."""
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
