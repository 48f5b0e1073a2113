"""Translators for the experiments on sparse attention: recipes, and runs that are found or made.

A translator lies in a folder of its own below the run of its experiment, such as
`multi30k-en-de/topk-8-seed-0`. What it is depends on its corpus, attention and seed alone, so
experiments lend each other their translators: `trained=` names the runs to look into.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headwise.config import changed, suggestion
from headwise.recording.run import Run
from headwise.training import FitConfig
from headwise_papers.core import lending
from headwise_papers.core.at_once import note_company
from headwise_papers.recipes.translation import SIZES, TranslationConfig, train_translation
from headwise_papers.sparse_transformer._method_pairs import folder_name

__all__ = [
    "ALL",
    "TASKS",
    "Job",
    "Task",
    "Training",
    "found_or_trained",
    "settings_of",
    "translator_run",
]

ALL = ("softmax", "topk:8", "sparsemax", "entmax:1.5", "entmax:learned")  # as in Table 4
PAIR = ("softmax", "topk:8")  # as in Table 1
Further = Literal["tst2012", "tst2013"]  # parts of IWSLT'15 to test on too


class Task(NamedTuple):
    """A corpus, how it is trained on, and what of the paper it is compared with."""

    recipe: TranslationConfig
    paper: Literal["En-De", "En-Vi", "De-En"]  # the paper's column with the same languages
    judged: Literal["bleu", "tokenised_bleu"]  # the kind of BLEU the paper has there
    methods: tuple[str, ...]
    further: tuple[Further, ...] = ()  # out of the domain
    validated: bool = False  # the validation part is translated too, which others then need not do


def _recipe(corpus: str, source: str, target: str, **changes: Any) -> TranslationConfig:
    """Three and three layers of width 256 and batches of 8,192 pieces, unless changed."""
    plain = TranslationConfig(
        corpus=corpus,
        source=source,
        target=target,
        subwords="bpe",
        batch_tokens=8192,
        fit=FitConfig(
            steps=1500, warmup=200, learning_rate=2e-3, evaluate_every=100, checkpoint_every=100
        ),
    )
    return replace(plain, **changes)


TASKS = {
    "multi30k-en-de": Task(_recipe("multi30k", "en", "de"), "En-De", "bleu", ALL, validated=True),
    "multi30k-de-en": Task(_recipe("multi30k", "de", "en"), "De-En", "tokenised_bleu", PAIR),
    "tatoeba-en-de": Task(
        _recipe(
            "tatoeba",
            "en",
            "de",
            vocab_size=10_000,
            model=SIZES["iwslt"],
            fit=FitConfig(steps=3000, warmup=1000, evaluate_every=500, checkpoint_every=500),
        ),
        "En-De",
        "bleu",
        ("softmax", "topk:8", "entmax:1.5"),
    ),
    "iwslt14-de-en": Task(_recipe("iwslt14", "de", "en"), "De-En", "tokenised_bleu", PAIR),
    "help-en-vi": Task(
        _recipe("libreoffice-help", "en", "vi"),
        "En-Vi",
        "tokenised_bleu",
        PAIR,
        ("tst2012", "tst2013"),
    ),
}


@dataclass(frozen=True)
class Training:
    """How to train. What is None stays as the recipe of each corpus has it, see `TASKS`."""

    seeds: int = 3
    trained: tuple[str, ...] = ()  # folders of runs of sparse/*, whose translators are taken
    at_once: int = 1  # trainings at a time, each in a process of its own
    steps: int | None = None
    warmup: int | None = None
    learning_rate: float | None = None
    tokens: int | None = None  # pieces in a batch
    pieces: int | None = None  # learnt
    max_length: int | None = None
    width: int | None = None
    heads: int | None = None
    layers: int | None = None
    feed_forward: int | None = None
    dropout: float | None = None
    beams: int | None = None
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    average: int | None = None
    train_pairs: int | None = None
    valid_pairs: int | None = None
    test_pairs: int | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}.")


# where a recipe has what an experiment changes
PLACES = {
    "steps": ("fit.steps",),
    "warmup": ("fit.warmup",),
    "learning_rate": ("fit.learning_rate",),
    "tokens": ("batch_tokens",),
    "pieces": ("vocab_size",),
    "max_length": ("model.max_length",),
    "width": ("model.width",),
    "heads": ("model.heads",),
    "layers": ("model.encoder_layers", "model.decoder_layers"),
    "feed_forward": ("model.feed_forward",),
    "dropout": ("model.dropout",),
    "beams": ("beams",),
    "evaluate_every": ("fit.evaluate_every",),
    "checkpoint_every": ("fit.checkpoint_every",),
    "average": ("fit.average",),
    "train_pairs": ("train_pairs",),
    "valid_pairs": ("valid_pairs",),
    "test_pairs": ("test_pairs",),
    "compile": ("fit.compile",),
}
# so small that a test can afford them
TINY: dict[str, Any] = {
    "steps": 24,
    "warmup": 6,
    "learning_rate": 1e-2,
    "tokens": 512,
    "pieces": 600,
    "max_length": 32,
    "width": 32,
    "heads": 2,
    "layers": 1,
    "feed_forward": 64,
    "dropout": 0.0,
    "beams": 1,
    "evaluate_every": 6,
    "checkpoint_every": 12,
    "average": 2,
    "train_pairs": 300,
    "valid_pairs": 12,
    "test_pairs": 6,
}


class Job(NamedTuple):
    """One translator to train."""

    corpus: str  # of TASKS
    attention: str  # at all three places, as in headwise.ops.named
    seed: int
    sparse_in: Literal["both", "training"] = "both"

    @property
    def folder(self) -> str:
        """Where it lies in a run.

        >>> Job("multi30k-en-de", "topk:8", 2).folder
        'multi30k-en-de/topk-8-seed-2'
        """
        phase = "-in-training" if self.sparse_in == "training" else ""
        return f"{self.corpus}/{folder_name(self.attention + phase, self.seed)}"


def task_named(corpus: str) -> Task:
    """A task of `TASKS`; other names are refused with a suggestion."""
    if corpus not in TASKS:
        raise ValueError(f"There is no recipe for {corpus!r}. {suggestion(corpus, TASKS)}")
    return TASKS[corpus]


def settings_of(config: Training, job: Job) -> TranslationConfig:
    """With which a translator is trained: its recipe, and what the experiment changes."""
    given = {at: getattr(config, name) for name, places in PLACES.items() for at in places}
    changes = {name: value for name, value in given.items() if value is not None}
    for where in ("encoder", "decoder", "cross"):
        changes[f"model.{where}_attention"] = job.attention
    changes |= {"model.sparse_in": job.sparse_in, "fit.seed": job.seed}
    return changed(task_named(job.corpus).recipe, changes)


def places(config: Training, run: Run) -> Iterator[Path]:
    """Where to look for what is done already: here first, then in the runs `trained` names."""
    return lending.places(run, config.trained, kin="sparse_transformer/translation and its kin")


def translator_run(config: Training, run: Run, job: Job) -> Run:
    """The finished run of a translator, found or trained now; what only resuming needs is deleted.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        job: which translator.
    """
    return found_or_trained(config, run, job.folder, settings_of(config, job))


def found_or_trained(config: Training, run: Run, folder: str, settings: TranslationConfig) -> Run:
    """The same of a translator with any settings, in a folder of this run or of one that lends."""
    for place in places(config, run):
        if (place / folder / "figures.json").is_file():
            return lending.checked(Run.open(place / folder), settings)
    done = train_translation(settings, run.folder / folder)
    lending.forget_checkpoints(done)
    note_company(config, done)
    return done
