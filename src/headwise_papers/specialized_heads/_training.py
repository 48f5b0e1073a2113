"""Translators for the experiments on heads: recipes, and runs that are found or made.

English into German, French and Russian, each from the same number of Tatoeba's sentence pairs, with
six layers of eight heads in encoder and decoder; English into Russian tuned to subtitles; and
English into German from the captions of Multi30k. A
translator lies in a folder of its own below the run of its experiment, such as
`tatoeba-en-de/seed-0`. What it is depends on its languages, its domain and its seed alone, so that
experiments lend each other their translators: `trained=` names the runs to look into.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headwise.config import changed
from headwise.recording.run import Run
from headwise.training import FitConfig
from headwise_papers.core import lending
from headwise_papers.core.at_once import make_at_once
from headwise_papers.recipes.translation import SIZES, TranslationConfig, train_translation
from headwise_papers.sparse_transformer._training import PLACES
from headwise_papers.specialized_heads._tuning import TuningConfig, tune_translator

__all__ = [
    "MULTI30K",
    "RECIPE",
    "TARGETS",
    "TINY",
    "Domain",
    "Job",
    "Training",
    "find_file",
    "found_or_trained",
    "jobs_of",
    "settings_of",
    "train_at_once",
    "translator_run",
]

Domain = Literal["tatoeba", "multi30k", "subtitles"]
TARGETS = ("ru", "de", "fr")
RECIPE = TranslationConfig(
    corpus="tatoeba",
    source="en",
    subwords="bpe",
    vocab_size=8000,  # of each side, as in the paper: joint ones would not suit two alphabets
    joint=False,
    model=replace(SIZES["iwslt"], heads=8),
    train_pairs=46_085,  # all there are in Russian
    batch_tokens=8192,
    fit=FitConfig(steps=2500, warmup=500, evaluate_every=125, checkpoint_every=125),
)
MULTI30K = changed(RECIPE, {"corpus": "multi30k", "train_pairs": 0, "fit.steps": 2000})
TUNING = TuningConfig(
    corpus="opensubtitles",
    source="en",
    target="ru",
    batch_tokens=8192,
    fit=FitConfig(steps=300, warmup=30, learning_rate=3e-4, evaluate_every=25, checkpoint_every=25),
)


@dataclass(frozen=True)
class Training:
    """How to train. What is None stays as `RECIPE` and `TUNING` have it."""

    seeds: int = 2
    trained: tuple[str, ...] = ()  # folders of runs of heads/*, whose translators are taken
    at_once: int = 1  # translators at a time, each in a process of its own
    least_bleu: float = 15.0  # on the test part, of a translator whose heads are looked at
    steps: int | None = None
    tuning_steps: int | None = None  # to subtitles
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

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}.")


# what of these settings tuning takes too; how long it lasts is its own
TUNED = ("batch_tokens", "beams", "fit.average", "train_pairs", "valid_pairs", "test_pairs")
# so small that a test can afford them
TINY: dict[str, Any] = {
    "seeds": 1,
    "least_bleu": 0.0,
    "steps": 20,
    "tuning_steps": 10,
    "warmup": 10,
    "learning_rate": 1e-2,
    "tokens": 512,
    "pieces": 400,
    "max_length": 40,
    "width": 32,
    "heads": 4,
    "layers": 2,
    "feed_forward": 64,
    "dropout": 0.0,
    "beams": 1,
    "evaluate_every": 10,
    "checkpoint_every": 10,
    "average": 2,
    "train_pairs": 200,
    "valid_pairs": 12,
    "test_pairs": 4,
}


class Job(NamedTuple):
    """One translator."""

    target: str
    seed: int
    domain: Domain = "tatoeba"

    @property
    def name(self) -> str:
        """In figures.

        >>> Job("ru", 0).name, Job("ru", 0, "subtitles").name
        ('en-ru', 'en-ru subtitles')
        """
        return f"en-{self.target}" + ("" if self.domain == "tatoeba" else f" {self.domain}")

    @property
    def folder(self) -> str:
        """Where it lies in a run."""
        return f"{self.domain}-en-{self.target}/seed-{self.seed}"


def jobs_of(config: Training, target: str, domain: Domain = "tatoeba") -> list[Job]:
    """The translators of all seeds."""
    return [Job(target, seed, domain) for seed in range(config.seeds)]


def find_file(config: Training, run: Run, name: str) -> Path | None:
    """A file or folder of this run, or of those that lend theirs; None where there is none."""
    places = lending.places(run, config.trained, kin="specialized_heads/importance")
    return next((place / name for place in places if (place / name).exists()), None)


def translator_run(config: Training, run: Run, job: Job) -> Run:
    """The finished run of a translator, found or trained now; what only resuming needs is deleted.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        job: which translator; one for subtitles is tuned from that of Tatoeba with its seed.
    """
    return found_or_trained(config, run, job, job.folder, settings_of(config, job))


def train_at_once(
    config: Training,
    run: Run,
    jobs: Sequence[Job],
    make: Callable[[Run, Job], object] | None = None,
) -> None:
    """Train translators, several at a time if the setting `at_once` says so.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        jobs: which translators.
        make: what is done instead with each of them, for `make_at_once`.
    """
    for tuned in (False, True):  # the latter are tuned from some of the former
        make_at_once(
            make or partial(translator_run, config),
            [job for job in jobs if (job.domain == "subtitles") == tuned],
            run=run,
            processes=config.at_once,
        )


def found_or_trained(
    config: Training,
    run: Run,
    job: Job,
    folder: str,
    settings: TranslationConfig | TuningConfig,
) -> Run:
    """The same of a translator with any settings, in a folder of this run or of one that lends."""
    found = find_file(config, run, f"{folder}/figures.json")
    if found is not None:
        return lending.checked(Run.open(found.parent), settings)
    if isinstance(settings, TuningConfig):
        base = translator_run(config, run, Job(job.target, job.seed))
        done = tune_translator(settings, base, run.folder / folder)
    else:
        done = train_translation(settings, run.folder / folder)
    lending.forget_checkpoints(done)
    return done


def settings_of(config: Training, job: Job) -> TranslationConfig | TuningConfig:
    """With which a translator is trained: its recipe, and what the experiment changes."""
    places = ((at, name) for name, several in PLACES.items() for at in several if name != "compile")
    given = {at: getattr(config, name) for at, name in places}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    changes["fit.seed"] = job.seed
    if job.domain == "subtitles":
        steps = config.tuning_steps or TUNING.fit.steps
        changes = {name: value for name, value in changes.items() if name in (*TUNED, "fit.seed")}
        return changed(TUNING, changes | {"fit.steps": steps, "fit.warmup": steps // 10})
    recipe = MULTI30K if job.domain == "multi30k" else RECIPE
    return changed(recipe, changes | {"target": job.target})
