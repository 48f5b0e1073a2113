"""Encoders pre-trained with guidance and without: recipes, and runs that are found or made.

An encoder lies in a folder of its own below the run of its experiment, such as `mlm-12-seed-0` or,
on another text than the English documentation, `oromo/guided-12-seed-0`. What it is depends on its
text, arm, layers and seed alone, so experiments lend each other their encoders: `trained=` names
the runs to look into. The text in pieces lies beside, in `texts/oromo`, and is made once and lent
as well. A training whose loss stops being a number is noted in its folder, `diverged.json`, and
not tried again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from headwise.config import changed, suggestion
from headwise.guidance import Plan
from headwise.guidance.schedule import CONSTANT_FOR, CONVENTIONS, ConventionName, Schedule
from headwise.recording.run import Run
from headwise.training import Diverged, progress_bar
from headwise_papers.attention_guidance._frequencies import drawn_right, frequency_loss
from headwise_papers.core import lending
from headwise_papers.core.at_once import in_company, make_at_once, note_company
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.recipes.guiding import GuideSettings
from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain
from headwise_papers.recipes.pretraining_data import read_texts, same_text, text_in

__all__ = [
    "ARMS",
    "ASIDE",
    "ENGLISH",
    "FREQUENCIES",
    "GUIDED",
    "MLM",
    "RECIPES",
    "TINY",
    "Job",
    "Pretraining",
    "Wanted",
    "check_decay",
    "diverged",
    "encoder_run",
    "found_or_pretrained",
    "in_company",
    "note_company",
    "places",
    "plan_text",
    "pretrain_at_once",
    "pretrained",
    "recipe_of",
    "settings_of",
]

ENGLISH = "debian-docs-en"
MLM, GUIDED = "MLM", "guided"
ARMS = {MLM: 0.0, "guided 1/4": 1 / 4, GUIDED: 1 / 2, "guided 3/4": 3 / 4, "guided 1": 1.0}
FREQUENCIES = "frequencies.json"
DIVERGED = "diverged.json"
KIN = "attention_guidance/pretrain and its kin"  # runs that lend
ENDS = ("figures.json", DIVERGED, FREQUENCIES)  # one of the first two, and the last is written last
Wanted = tuple[str, PretrainingConfig]  # the folder of an encoder below a run, and its settings
# what a training comes to does not depend on these
ASIDE = (
    "text_of",
    *(f"fit.{name}" for name in ("evaluate_every", "checkpoint_every", "compile", "graphs")),
    "fit.tensorboard",
)


def _recipe(corpus: str, changes: Mapping[str, Any] = {}) -> PretrainingConfig:
    """Updates of 8,192 pieces; the learning rate and warm-up are those of both arms."""
    fit = {
        "fit.steps": 2000,
        "fit.warmup": 200,
        "fit.learning_rate": 2e-4,
        "fit.evaluate_every": 1000,
        "fit.checkpoint_every": 1000,
        "fit.compile": False,  # of so short a training it would take as long as it saves
    }
    plain = PretrainingConfig(corpus=corpus, vocab_size=8000, batch_size=16)
    return changed(plain, {**fit, **changes})


RECIPES = {
    ENGLISH: _recipe(
        ENGLISH, {"vocab_size": 52_000, "fit.steps": 5000, "fit.warmup": 500}
    ),  # 41 million pieces, 2 passes
    "wikitext-2": _recipe("wikitext-2"),  # 16 million, 6 passes
    "filipino": _recipe("filipino", {"next_sentence": True}),  # 14 passes; a BERT, as in the paper
    "oromo": _recipe("oromo"),
}


@dataclass(frozen=True)
class Pretraining:
    """How to pre-train. What is None stays as the recipe of each text has it, see `RECIPES`."""

    seeds: int = 3
    trained: tuple[str, ...] = ()  # folders of runs of guidance/*, whose encoders are taken
    at_once: int = 1  # trainings at a time, each in its process; then no speeds are said
    alpha: float | None = None  # None: 100 for up to 8 layers, as in the paper, and 30 for more
    guide_schedule: Schedule | None = None  # None: as the convention has it
    convention: ConventionName = "mean"
    steps: int | None = None
    warmup: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None  # blocks
    block: int | None = None  # pieces
    vocab: int | None = None
    train_documents: int | None = None
    valid_documents: int | None = None
    width: int | None = None
    heads: int | None = None
    feed_forward: int | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    attention: str | None = None  # e.g. topk:8, in both arms
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}.")
        lending.check_folders(self.trained, kin=KIN, below=("texts", *RECIPES))


# where a recipe has what an experiment changes
PLACES = {
    "steps": "fit.steps",
    "warmup": "fit.warmup",
    "learning_rate": "fit.learning_rate",
    "batch_size": "batch_size",
    "block": "model.max_length",
    "vocab": "vocab_size",
    "train_documents": "train_documents",
    "valid_documents": "valid_documents",
    "width": "model.width",
    "heads": "model.heads",
    "feed_forward": "model.feed_forward",
    "dropout": "model.dropout",
    "attention_dropout": "model.attention_dropout",
    "attention": "model.attention",
    "evaluate_every": "fit.evaluate_every",
    "checkpoint_every": "fit.checkpoint_every",
    "compile": "fit.compile",
}
# so small that a test can afford them
TINY: dict[str, Any] = {
    "alpha": 100.0,
    "steps": 40,
    "warmup": 4,
    "learning_rate": 1e-2,
    "batch_size": 4,
    "block": 32,
    "vocab": 400,
    "train_documents": 12,
    "valid_documents": 2,
    "width": 32,
    "heads": 4,
    "feed_forward": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "evaluate_every": 40,
    "checkpoint_every": 40,
    "compile": False,
}


class Job(NamedTuple):
    """One encoder to pre-train."""

    corpus: str  # of RECIPES
    arm: str  # of ARMS, or one of the experiment's own
    layers: int
    seed: int

    @property
    def folder(self) -> str:
        """Where it lies in a run.

        >>> Job("debian-docs-en", "guided", 12, 0).folder
        'guided-12-seed-0'
        >>> Job("oromo", "guided 1/4", 8, 2).folder
        'oromo/guided-1-4-8-seed-2'
        """
        arm = self.arm.lower().replace(" ", "-").replace("/", "-")
        name = f"{arm}-{self.layers}-seed-{self.seed}"
        return name if self.corpus == ENGLISH else f"{self.corpus}/{name}"


def recipe_of(corpus: str) -> PretrainingConfig:
    """A recipe of `RECIPES`; other names are refused with a suggestion."""
    if corpus not in RECIPES:
        raise ValueError(f"There is no recipe for {corpus!r}. {suggestion(corpus, RECIPES)}")
    return RECIPES[corpus]


def plan_text(share: float, *, heads: int) -> str:
    """How a plan is written that guides a share of the heads; "" for none.

    >>> plan_text(1 / 2, heads=12)
    'next=1,prev=1,first=4'
    """
    if not share:
        return ""
    counts = Counter(aim.name for aim in Plan.fraction(share, heads=heads).aims.values())
    return ",".join(f"{name}={count}" for name, count in counts.items())


def settings_of(config: Pretraining, job: Job, *, guide: str | None = None) -> PretrainingConfig:
    """With which an encoder is pre-trained: its recipe, and what the experiment changes.

    Args:
        config: of the experiment.
        job: which encoder.
        guide: the plan, unless it is that of an arm of `ARMS`.
    """
    given = {place: getattr(config, name) for name, place in PLACES.items()}
    changes = {name: value for name, value in given.items() if value is not None}
    model = EncoderConfig.roberta(layers=job.layers)
    plain = changed(recipe_of(job.corpus), {"model": model, "fit.seed": job.seed, **changes})
    plan = plan_text(ARMS[job.arm], heads=plain.model.heads) if guide is None else guide
    if not plan:
        return plain
    check_decay(config.convention, config.guide_schedule, plain.fit.steps)
    alpha = config.alpha if config.alpha is not None else 100.0 if job.layers <= 8 else 30.0
    guided = GuideSettings(
        plan, alpha=alpha, schedule=config.guide_schedule, convention=config.convention
    )
    return replace(plain, guide=guided)


def check_decay(convention: ConventionName, schedule: Schedule | None, steps: int) -> None:
    """Refuse a weight of guidance that would never fall, as the training is too short for that."""
    named = schedule or CONVENTIONS[convention].schedule
    if named == "constant_then_linear" and steps <= CONSTANT_FOR:
        raise ValueError(
            f"The weight of guidance begins to fall after {CONSTANT_FOR:,} updates, and there are "
            f"{steps:,}; add guide_schedule=linear, or train for longer."
        )


def places(config: Pretraining, run: Run) -> Iterator[Path]:
    """Where to look for what is done already: here first, then in the runs `trained` names."""
    return lending.places(run, config.trained, kin=KIN)


def encoder_run(config: Pretraining, run: Run, job: Job) -> Run:
    """The finished run of an encoder, found or pre-trained now; what only resuming needs is gone.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        job: which encoder.
    """
    return found_or_pretrained(config, run, (job.folder, settings_of(config, job)))


def found_or_pretrained(
    config: Pretraining, run: Run, wanted: Wanted, *, keep_weights: bool = True
) -> Run:
    """The same of an encoder with any settings, in a folder of this run or of one that lends.

    Its `frequencies.json` says what a model loses that only knows how common pieces are. Where the
    training went wrong, now or earlier, the run has no figures; see `diverged`.
    """
    if found := _found(config, run, wanted):
        return found
    folder, settings = wanted
    text = _text_run(config, run, settings)
    if settings.fit.compile is not False:
        torch.compiler.reset()  # models of one class share what is compiled, and few are remembered
    why = ""
    try:
        done = pretrain(replace(settings, text_of=str(text.folder)), run.folder / folder)
    except Diverged as error:
        done, why = Run.open(run.folder / folder), str(error)
    for name in done.names("*.safetensors"):
        if why or name != "model.safetensors" or not keep_weights:
            done.path(name).unlink()
    note_company(config, done)
    if why:
        done.write_json(DIVERGED, {"why": why})
    done.write_json(FREQUENCIES, text.read_json(FREQUENCIES))
    return done


def diverged(run: Run) -> bool:
    """Whether a training ended because its loss was no number any more."""
    return run.has(DIVERGED)


def _shown(run: Run) -> dict[str, float]:
    """What a progress bar says of a training."""
    return {} if diverged(run) else {"validation_loss": run.figures()["validation_loss"]}


def pretrain_at_once(
    config: Pretraining,
    run: Run,
    wanted: Mapping[str, PretrainingConfig],
    make: Callable[[Run, Wanted], object] | None = None,
    *,
    keep_weights: bool = True,
) -> None:
    """Pre-train encoders that are not found, several at a time if the setting `at_once` says so.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        wanted: settings of encoders by their folders.
        make: what is done instead with each of them, for `make_at_once`.
        keep_weights: whether they stay; not asked with `make`.
    """
    left: list[Wanted] = []
    for one in wanted.items() if config.at_once > 1 else ():
        if _found(config, run, one) is None:
            _text_run(config, run, one[1])  # which encoders share, so that one process writes it
            left.append(one)
    train = make or partial(found_or_pretrained, config, keep_weights=keep_weights)
    make_at_once(train, left, run=run, processes=config.at_once)


def pretrained(
    config: Pretraining,
    run: Run,
    wanted: Mapping[str, PretrainingConfig],
    *,
    keep_weights: bool = True,
) -> dict[str, Run]:
    """The finished runs of encoders by their folders, found or pre-trained now, in this order.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        wanted: settings by folders.
        keep_weights: whether they stay.
    """
    pretrain_at_once(config, run, wanted, keep_weights=keep_weights)
    found: dict[str, Run] = {}
    with progress_bar(len(wanted), label="pre-trainings") as show:
        for folder, settings in wanted.items():
            one = folder, settings
            found[folder] = found_or_pretrained(config, run, one, keep_weights=keep_weights)
            show(len(found), _shown(found[folder]))
    return found


def _found(config: Pretraining, run: Run, wanted: Wanted) -> Run | None:
    folder, settings = wanted
    for place in places(config, run):
        there = {name for name in ENDS if (place / folder / name).is_file()}
        if FREQUENCIES in there and len(there) > 1:
            return lending.checked(Run.open(place / folder), settings, aside=ASIDE)
    return None


def _text_run(config: Pretraining, run: Run, settings: PretrainingConfig) -> Run:
    """A run that holds a text in pieces and how common they are, and no model; found or made.

    Those of other runs are taken if text and tokenizer are as wanted, and else left where they are.
    """
    marks = "" if settings.marks == "roberta" else f"-{settings.marks}"  # tokenizers have others
    name = f"texts/{settings.corpus}{marks}"
    for place in places(config, run):
        if (place / name / FREQUENCIES).is_file():  # written last; several processes may read it
            found = Run.open(place / name)
            if place == run.folder or same_text(settings, found):
                return found
    # what has nothing to do with the text is as in the recipe, so that all encoders find this one
    plain = replace(
        recipe_of(settings.corpus),
        vocab_size=settings.vocab_size,
        train_documents=settings.train_documents,
        valid_documents=settings.valid_documents,
        objective=settings.objective,
        next_sentence=settings.next_sentence,
    )
    folder = run.folder / name
    texts = read_texts(plain, folder)
    with Run.create(folder, plain, "pretraining") as there:
        text = text_in(there, plain, texts)
        common = {"loss": frequency_loss(text), "drawn_right": drawn_right(text)}
        there.write_json(FREQUENCIES, common)
    return there
