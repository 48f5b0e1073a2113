"""Encoders pre-trained with guidance and without: settings by arm, and results by seed.

Experiments that need the same encoder share it through the cache of models. The tokenized text is
a model of that cache too, so that it is made once. A training that diverges is kept as such and is
not tried again: it is left out of losses and, with its partner, of differences.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.config import changed, flat, override, suggestion, to_json
from headwise.guidance import Plan
from headwise.recording import NotFinite, Run
from headwise_papers.core import (
    Job,
    Result,
    find_or_train,
    legend_beside,
    metric_curve,
    panels,
    trained_in_parallel,
)
from headwise_papers.data.masking import HIDDEN, RANDOM
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.recipes.guiding import GuideSettings
from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain
from headwise_papers.recipes.pretraining_data import PretrainingText, read_texts, text_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENGLISH = "debian-docs-en"
STANDS_FOR = "Debian docs"
MLM, GUIDED, ALL = "MLM", "guided", "guided 1"
ARMS = {MLM: 0.0, "guided 1/4": 1 / 4, GUIDED: 1 / 2, "guided 3/4": 3 / 4, ALL: 1.0}
CONVERGED = 1.0  # nats below the unigram loss; fixed before any result
UNIGRAM, DRAWN_RIGHT = "unigram_loss", "drawn_right"
LOSSES = {"train": "train_loss", "validation": "validation_loss", "average": "average_loss"}
COSTS = {
    "updates": ("updates", 1),
    "million tokens seen": ("tokens_seen", 1e6),
    "minutes": ("minutes", 1),
    "thousand tokens a second": ("tokens_per_second", 1e3),
    "share of an H200's arithmetic": ("model_flops_utilisation", 1),
    "million parameters": ("parameters", 1e6),
}
SPEEDS = ("minutes", "tokens_per_second", "model_flops_utilisation")
# a training's result does not depend on these
ASIDE = (
    "text_of",
    *(f"fit.{name}" for name in ("evaluate_every", "checkpoint_every", "compile", "graphs")),
    "fit.tensorboard",
)
# of smoke runs; the learning rate is so large that heads follow within 40 updates
TINY = (
    "guide.alpha=100",
    "fit.steps=40",
    "fit.warmup=4",
    "fit.learning_rate=0.01",
    "batch_size=4",
    "model.max_length=32",
    "vocab_size=400",
    "train_documents=12",
    "valid_documents=2",
    "model.width=32",
    "model.heads=4",
    "model.feed_forward=64",
    "model.dropout=0",
    "model.attention_dropout=0",
    "fit.evaluate_every=40",
    "fit.checkpoint_every=40",
    "fit.compile=false",
)


def _recipe(corpus: str, **changes: Any) -> PretrainingConfig:
    """Return settings of both arms, with updates of 8,192 tokens."""
    fit = {
        "fit.steps": 2000,
        "fit.warmup": 200,
        "fit.learning_rate": 2e-4,
        "fit.evaluate_every": 1000,
        "fit.checkpoint_every": 1000,
        "fit.compile": False,  # compiling would take as long as it saves
    }
    plain = PretrainingConfig(corpus=corpus, vocab_size=8000, batch_size=16)
    return replace(changed(plain, fit), **changes)


_ENGLISH_RECIPE = _recipe(ENGLISH, vocab_size=52_000)
RECIPES = {
    ENGLISH: changed(_ENGLISH_RECIPE, {"fit.steps": 5000, "fit.warmup": 500}),  # 2 passes
    "wikitext-2": _recipe("wikitext-2"),  # 6 passes
    "filipino": _recipe("filipino", next_sentence=True),  # 14 passes; a BERT, as in the paper
    "oromo": _recipe("oromo"),
}


def encoder_config(
    corpus: str,
    layers: int,
    arm: str,
    seed: int,
    changes: Sequence[str] = (),
    *,
    plan: str | None = None,
) -> PretrainingConfig:
    """Return the settings of one encoder.

    Args:
        corpus: of `RECIPES`.
        layers: of the encoder.
        arm: of `ARMS`, which says how many heads are guided, unless there is a plan.
        seed: of weights and batches.
        changes: other settings of the pre-training, each NAME=VALUE.
        plan: of guidance, instead of the arm's; "" guides no head.
    """
    if corpus not in RECIPES:
        raise ValueError(f"There is no recipe for {corpus!r}. {suggestion(corpus, RECIPES)}")
    if plan is None and arm not in ARMS:
        raise ValueError(f"There is no arm {arm!r}. {suggestion(arm, ARMS)}")
    guide = GuideSettings(alpha=100.0 if layers <= 8 else 30.0)  # the paper has 100 for 8 layers
    base = replace(RECIPES[corpus], model=EncoderConfig.roberta(layers=layers), guide=guide)
    config = override(changed(base, {"fit.seed": seed}), changes)
    plan = plan_text(ARMS[arm], heads=config.model.heads) if plan is None else plan
    guide = replace(config.guide, plan=plan) if plan else PretrainingConfig.guide
    return replace(config, guide=guide)


def plan_text(share: float, *, heads: int) -> str:
    """Write the plan that guides a share of the heads; "" for none.

    >>> plan_text(1 / 2, heads=12)
    'next=1,prev=1,first=4'
    """
    if not share:
        return ""
    counts = Counter(aim.name for aim in Plan.fraction(share, heads=heads).aims.values())
    return ",".join(f"{name}={count}" for name, count in counts.items())


def part_of(corpus: str, layers: int) -> str:
    """Return the name of a corpus and depth in results.

    >>> part_of("oromo", 12)
    'oromo, 12 layers'
    """
    return f"{corpus}, {layers} layers"


@dataclass(frozen=True)
class EncodersConfig:
    """Settings that all experiments on pre-trained encoders have."""

    seeds: int = 3
    changes: tuple[str, ...] = ()  # of every pre-training, for example fit.steps=500
    finished: str = ""  # folder of finished runs, which are read instead of the cache

    def __post_init__(self) -> None:
        for _ in self.encoders():  # wrong settings raise before there is a folder
            pass

    def encoders(self) -> "Encoders":
        """Yield part, arm and settings of every encoder, the arms of a seed together."""
        raise NotImplementedError


@dataclass(frozen=True)
class OneCorpusConfig(EncodersConfig):
    """Settings of experiments on encoders of one corpus and depth."""

    corpus: str = ENGLISH
    layers: int = 12

    @property
    def part(self) -> str:
        """Name of corpus and depth in results."""
        return part_of(self.corpus, self.layers)

    def encoder(
        self, arm: str, seed: int, *changes: str, plan: str | None = None
    ) -> PretrainingConfig:
        """Return the settings of one encoder, with changes of its own."""
        every = (*self.changes, *changes)
        return encoder_config(self.corpus, self.layers, arm, seed, every, plan=plan)


Encoders = Iterator[tuple[str, str, PretrainingConfig]]  # part, arm, settings


def models(config: EncodersConfig) -> Iterator[Job]:
    """List texts and encoders that an experiment needs, unless finished runs are read."""
    if not config.finished:
        yield from jobs(encoder for *_, encoder in config.encoders())


def jobs(configs: Iterable[PretrainingConfig]) -> Iterator[Job]:
    """Yield what must be in the cache for these encoders: their texts, then themselves."""
    listed = list(configs)
    yield from text_jobs(listed)
    yield from (Job(pretrain_encoder, config) for config in listed)


def text_jobs(configs: Iterable[PretrainingConfig]) -> Iterator[Job]:
    """Yield the texts of some encoders, each once."""
    for text in dict.fromkeys(map(_text_config, configs)):
        yield Job(tokenize_text, text)


def pretrain_encoder(config: PretrainingConfig, folder: Path) -> Run:
    """Pre-train an encoder on the cached text; a diverged training ends with `diverged`."""
    text = cached_text(config)
    if config.fit.compile is not False:
        torch.compiler.reset()  # models of one class share what is compiled, up to a limit
    try:
        run = pretrain(config, folder, text=text)
    except NotFinite as error:
        run = Run.open(folder)
        for name in run.names("*.safetensors"):
            run.path(name).unlink()
        run.save_figures({"diverged": str(error)})
    run.path("text.safetensors").unlink(missing_ok=True)  # the cache has it
    return run


def cached_text(config: PretrainingConfig) -> PretrainingText:
    """Return the tokenized text of a pre-training, found in the cache or made now."""
    return text_in(find_or_train(tokenize_text, _text_config(config)), config, None)


def tokenize_text(config: PretrainingConfig, folder: Path) -> Run:
    """Learn a vocabulary, tokenize a corpus, and score guesses that see no other tokens."""
    read = read_texts(config, folder)
    with Run.create(folder, config, "pretraining") as run:
        text = text_in(run, config, read)
        run.save_figures({UNIGRAM: unigram_loss(text), DRAWN_RIGHT: drawn_right(text)})
    return run


def _text_config(config: PretrainingConfig) -> PretrainingConfig:
    """Return the settings that decide what the text is; others have their defaults."""
    return PretrainingConfig(
        corpus=config.corpus,
        file=config.file,
        vocab_size=config.vocab_size,
        train_documents=config.train_documents,
        valid_documents=config.valid_documents,
        objective=config.objective,
        next_sentence=config.next_sentence,
    )


class Trained(NamedTuple):
    """A pre-trained encoder with the losses of guesses that know its text's frequencies alone."""

    run: Run
    unigram_loss: float
    drawn_right: float = 0.0  # how often a token drawn by frequency is the true one

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being a number."""
        return "diverged" in self.run.figures()

    @property
    def converged(self) -> bool:
        """Whether it ended a nat or more below the unigram loss."""
        if self.diverged:
            return False
        return self.run.figures()["validation_loss"] < self.unigram_loss - CONVERGED

    @property
    def plateau(self) -> float:
        """Share of updates until the training loss is a nat below the unigram loss; 1 if never."""
        figures = self.run.figures()
        if self.diverged:
            return 1.0
        limit = self.unigram_loss - CONVERGED
        rows = self.run.metrics()
        below = (int(row["step"]) for row in rows if row.get("task_loss", limit) < limit)
        return min(below, default=int(figures["updates"])) / figures["updates"]


Runs = Mapping[str, Sequence[Trained]]  # by arm, one per seed


def trained_parts(config: EncodersConfig) -> dict[str, dict[str, list[Trained]]]:
    """Return all encoders of an experiment by part and arm, found, pre-trained or read."""
    parts: dict[str, dict[str, list[Trained]]] = {}
    for part, arm, encoder in config.encoders():
        one = finished(Path(config.finished), arm, encoder) if config.finished else trained(encoder)
        parts.setdefault(part, {}).setdefault(arm, []).append(one)
    return parts


def trained(config: PretrainingConfig) -> Trained:
    """Return an encoder, found in the cache or pre-trained now."""
    run = find_or_train(pretrain_encoder, config)
    figures = find_or_train(tokenize_text, _text_config(config)).figures()
    return Trained(run, figures[UNIGRAM], figures[DRAWN_RIGHT])


def finished(folder: Path, arm: str, config: PretrainingConfig) -> Trained:
    """Read a finished run without weights, like those in `papers/*/results/encoders`.

    Args:
        folder: holds runs named like `guided-12-seed-0`, or `oromo/mlm-12-seed-1`.
        arm: of the run.
        config: settings that it must have.
    """
    stem = f"{arm.lower().replace(' ', '-')}-{config.model.layers}-seed-{config.fit.seed}"
    run = Run.open(folder / ("" if config.corpus == ENGLISH else config.corpus) / stem)
    there, wanted = flat(run.config()), flat(to_json(config))
    for name, value in wanted.items():
        of_no_use = name.startswith("guide.") and not config.guide.plan and name != "guide.plan"
        if name not in ASIDE and not of_no_use and there[name] != value:
            raise ValueError(
                f"{run.folder} was trained with {name}={there[name]!r}, but {name}={value!r} is "
                "asked for."
            )
    known = run.read_json("frequencies.json", {"loss": float, "drawn_right": float})
    return Trained(run, known["loss"], known["drawn_right"])


def values_of(runs: Iterable[Trained], name: str) -> list[float]:
    """Return a metric of each run that did not diverge; nothing where one of these lacks it."""
    found: list[Any] = [one.run.figures().get(name) for one in runs if not one.diverged]
    return [] if None in found else [float(value) for value in found]


def paired(first: Iterable[Trained], second: Iterable[Trained], name: str) -> list[float]:
    """Return differences of a metric, by seeds that both have and that did not diverge."""
    both = [(a, b) for a, b in zip(first, second, strict=False) if not (a.diverged or b.diverged)]
    own, other = (values_of([pair[at] for pair in both], name) for at in (0, 1))
    return [a - b for a, b in zip(own, other, strict=False)]


def difference(part: str, what: str, first: str, second: str) -> str:
    """Return the name of the difference of two losses."""
    return f"{part}: {what} loss of {first} - {second}"


def losses(part: str, runs: Runs, pairs: Iterable[tuple[str, str]]) -> dict[str, Result]:
    """Return the losses of each arm, the guidance loss among them, and differences of pairs."""
    found: dict[str, Result] = {
        f"{part}: trainings that diverged, {arm}": Result([float(number)])
        for arm, several in runs.items()
        if (number := sum(one.diverged for one in several))
    }
    for what, name in (LOSSES | {"guidance": "guidance_loss"}).items():
        for arm, several in runs.items():
            if values := values_of(several, name):
                found[f"{part}: {what} loss of {arm}"] = Result(values)
    for what, name in LOSSES.items():
        for first, second in pairs:
            if values := paired(runs.get(first, ()), runs.get(second, ()), name):
                found[difference(part, what, first, second)] = Result(values, "difference")
    return found


def plateau(part: str, runs: Runs) -> dict[str, Result]:
    """Return which arms converge, and their share of updates before they leave the plateau."""
    found: dict[str, Result] = {}
    for arm, several in runs.items():
        if several:
            found[f"{part}: unigram loss"] = Result([several[0].unigram_loss])
            trials = [float(one.converged) for one in several]
            found[f"{part}: {arm} converges"] = Result(trials, "share")
            shares = Result([one.plateau for one in several])
            found[f"{part}: share of updates on the plateau, {arm}"] = shares
    return found


def not_converged(part: str, runs: Runs, failing: str, other: str) -> dict[str, Result]:
    """Return whether an arm fails to converge, by the seeds in which the other arm converges.

    In other seeds the training may only have been too short.
    """
    both = zip(runs.get(failing, ()), runs.get(other, ()), strict=False)
    trials = [float(not one.converged) for one, beside in both if beside.converged]
    return {f"{part}: {failing} does not converge": Result(trials, "share")} if trials else {}


def costs(part: str, runs: Runs) -> dict[str, Result]:
    """Return updates, tokens, parameters, and minutes and speed of encoders trained alone."""
    found: dict[str, Result] = {}
    for what, (name, unit) in COSTS.items():
        for arm, several in runs.items():
            alone = [one for one in several if not trained_in_parallel([one.run])]
            if values := values_of(alone if name in SPEEDS else several, name):
                found[f"{part}: {what}, {arm}"] = Result([value / unit for value in values])
    return found


def draw_losses(
    config: EncodersConfig, results: Mapping[str, Result], *, floor: str = "unigram loss"
) -> "dict[str, Figure]":
    """Draw training losses of all encoders of an experiment; a result of each part is dashed."""
    parts = trained_parts(config)
    floors = {part: results[f"{part}: {floor}"].mean for part in parts}
    return {"losses": loss_curves(parts, floors=floors, floor=floor)}


def loss_curves(
    parts: Mapping[str, Runs], *, floors: Mapping[str, float], floor: str = "unigram loss"
) -> "Figure":
    """Draw the training loss of the task, one panel per part and one line per seed.

    Args:
        parts: runs by arm.
        floors: loss of a guess without context by part, drawn as a dashed line.
        floor: name of that guess.
    """
    columns = min(3, len(parts))
    width = 4.0 if columns == 1 else 3.4
    figure, axes = panels(columns, -(-len(parts) // columns), width=width, height=2.8)
    every = [panel for row in axes for panel in row]
    arms = dict.fromkeys(arm for runs in parts.values() for arm in runs)
    colours = {arm: f"C{number}" for number, arm in enumerate(arms)}
    for panel, (part, runs) in zip(every, parts.items(), strict=False):
        for arm, several in runs.items():
            for seed, one in enumerate(several):
                curve = metric_curve([one.run], "task_loss")
                means = [point.mean for point in curve.values()]
                label = arm if not seed else None
                panel.plot(list(curve), means, color=colours[arm], linewidth=1.0, label=label)
        panel.axhline(floors[part], color="grey", linestyle="--", linewidth=1.0, label=floor)
        panel.set_title(part, fontsize=9)
        panel.set_xlabel("updates", fontsize=8)
        panel.set_ylabel("training loss of the task", fontsize=8)
        panel.tick_params(labelsize=8)
    for panel in every[len(parts) :]:
        panel.set_visible(False)
    legend_beside(figure, every, title="one line per seed")
    return figure


def _counts(text: PretrainingText) -> list[Tensor]:
    """Return counts of tokens without special ones, in the training and the validation part."""
    specials, vocabulary = text.pieces.marks, len(text.pieces)
    return [part.counts(vocabulary)[specials:] for part in (text.train, text.valid)]


def unigram_loss(text: PretrainingText) -> float:
    """Return the held-out loss, per masked token, of a guess from training frequencies alone."""
    return best_without_context(*_counts(text))


def drawn_right(text: PretrainingText) -> float:
    """Return how often a token drawn by its training frequency is the true one, held out."""
    known_V, asked_V = _counts(text)
    shares_V = known_V.double() / known_V.sum()
    return float((asked_V.double() / asked_V.sum() * shares_V).sum())


def best_without_context(
    known: Int[Tensor, " V"] | Float[Tensor, " V"], asked: Int[Tensor, " V"] | Float[Tensor, " V"]
) -> float:
    """Return the cross-entropy of the best guess from the token shown at a masked position.

    With p_v the frequency of token v of V: at positions that show the mask, 80 %, the guess is p.
    Of positions that show v, half do because v is there and half because it was drawn uniformly, so
    the guess is v with p_v (1 + 1/V) / (p_v + 1/V), and any other t with (p_t / V) / (p_v + 1/V).

    Args:
        known: how often each token occurs where frequencies are learnt; one is added to each.
        asked: how often it is to be guessed.

    >>> round(best_without_context(torch.ones(1000), torch.ones(1000)), 2)  # 0.9 ln 1000 + 0.2 ln 2
    6.35
    """
    p_V = (known.double() + 1) / (known.double() + 1).sum()
    asked_V = asked.double() / asked.sum()
    number = torch.tensor(float(len(p_V)), dtype=torch.float64)
    shown_V = (p_V + 1 / number).log()
    masked = -(asked_V * p_V.log()).sum()
    kept = (asked_V * (shown_V - (p_V * (1 + 1 / number)).log())).sum()
    # a drawn token is the right one by chance once in V times
    drawn = masked + number.log() + shown_V.mean() - (number + 1).log() / number
    return float(HIDDEN * masked + (1 - HIDDEN - RANDOM) * kept + RANDOM * drawn)
