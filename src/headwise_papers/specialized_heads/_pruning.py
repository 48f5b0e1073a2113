"""Pruned translators, each found by its settings in the cache or pruned now."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from headwise.pruning import HardConcrete, PruningRecord
from headwise.recording import Run
from headwise.workflows.prune import PruneConfig, prune_folder, run_folder
from headwise_papers.core import Job, Result, find_or_train, minus, named_panels
from headwise_papers.models import Transformer
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads._models import (
    RECIPE,
    TINY,
    Model,
    by_name,
    first_pairs,
    job,
    read_texts,
    recipe_of,
    trained,
    translator,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("encoder.self", "decoder.self", "decoder.cross")
DECIDED = 0.9  # probability of exactly 0, or of exactly 1, from which a gate is decided
OFTEN = 250  # updates of a pruning between checkpoints
EVALUATIONS = 8  # of a pruning


@dataclass(frozen=True)
class Amount:
    """Target of a pruning: a number of heads, or a weight of the penalty (lambda)."""

    keep: int | None = None
    penalty: float | None = None

    def __str__(self) -> str:
        return f"{self.keep} heads" if self.penalty is None else f"lambda-{self.penalty:g}"


@dataclass(frozen=True)
class Pruning:
    """Settings of a pruned translator."""

    model: Model
    amount: Amount
    part: Literal["all", "encoder"] = "all"  # what is pruned; with the encoder all else is frozen
    start: Literal["trained", "untrained"] = "trained"  # untrained: gates from the first update
    steps: int = 2000
    learning_rate: float = 3e-4  # of the weights
    gate_learning_rate: float = 0.05


@dataclass(frozen=True)
class PruningStudy:
    """Settings: translators and how many heads they keep."""

    translators: tuple[str, ...] = ("en-ru",)
    seeds: int = 3
    least_bleu: float = 15.0  # of a translator that is pruned, on the test set
    keep: tuple[int, ...] = ()  # numbers of heads
    penalties: tuple[float, ...] = ()  # weights of the sum over all heads
    steps: int = 2000  # of a pruning
    gate_learning_rate: float = 0.05
    recipe: TranslationConfig = RECIPE

    def models(self, name: str) -> list[Model]:
        """Return the settings of a translator, one per seed."""
        return [translator(self.recipe, name, seed) for seed in range(self.seeds)]

    def amounts(self) -> list[Amount]:
        """Return all amounts: numbers of heads, then weights of the penalty."""
        asked = [Amount(keep=count) for count in self.keep]
        return asked + [Amount(penalty=penalty) for penalty in self.penalties]

    def pruning(self, model: Model, amount: Amount, **changes: Any) -> Pruning:
        """Return the settings of a pruned translator."""
        rate = self.gate_learning_rate
        plain = Pruning(model, amount, steps=self.steps, gate_learning_rate=rate)
        return replace(plain, **changes)

    def jobs(self, **changes: Any) -> Iterator[Job]:
        """Yield translators, then prunings of them."""
        every = [model for name in self.translators for model in self.models(name)]
        yield from map(job, every)
        for amount in self.amounts():
            for model in every:
                yield Job(prune_translator, self.pruning(model, amount, **changes))


SMALL: dict[str, Any] = {  # of smoke runs
    "seeds": 1,
    "least_bleu": 0.0,
    "steps": 10,
    "gate_learning_rate": 1.5,
    "recipe": TINY,
}


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruned translator."""

    amount: Amount
    folder: Path  # the model
    run: Run  # of its pruning

    @property
    def bleu(self) -> float:
        """BLEU on the test set."""
        return float(self.run.figures()["bleu_after"])

    @property
    def lost(self) -> float:
        """BLEU of the translator before pruning, less its own."""
        return float(self.run.figures()["bleu_before"]) - self.bleu

    @cached_property
    def record(self) -> PruningRecord:
        """Record of the heads that are left."""
        return PruningRecord.from_json(self.run.read_json("trace/pruning.json")["record"])

    @property
    def is_whole(self) -> bool:
        """Whether all heads are left."""
        return sum(self.record.heads.values()) == sum(self.counts().values())

    def counts(self) -> dict[str, int]:
        """Return the heads left by kind of attention."""
        return {kind: sum(self.by_layer(kind).values()) for kind in KINDS}

    def by_layer(self, kind: str) -> dict[int, int]:
        """Return the heads left of a kind of attention by layer, counted from 0."""
        stack, end = kind.split(".")
        sites = self.record.kept.items()
        return {
            int(site.split(".")[1]): len(heads)
            for site, heads in sites
            if site.startswith(stack) and site.endswith(end)
        }

    def prob_open(self) -> list[float]:
        """Return P(g > 0) of every gate at the last evaluation."""
        last: Mapping[str, Any] = self.run.read_json(self.run.names("trace/gates/*.json")[-1])
        return [float(value) for heads in last["prob_open"].values() for value in heads]

    def decided(self) -> float:
        """Return the share of gates that are exactly 0, or exactly 1, with probability 0.9."""
        return share_decided(self.prob_open())


def share_decided(prob_open: Sequence[float]) -> float:
    """Return the share of gates with P(g = 0) or P(g = 1) of at least 0.9, given P(g > 0).

    A gate with log alpha 2, as they start, is open with probability 0.94 and exactly 1 with 0.77:

    >>> share_decided([0.9423, 0.01, 0.999])
    0.6666666666666666
    """
    gate = HardConcrete()
    open_N = torch.tensor(prob_open, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    log_alpha_N = torch.logit(open_N) - torch.logit(gate.prob_open(zero))
    decided_N = (1 - open_N >= DECIDED) | (gate.prob_one(log_alpha_N) >= DECIDED)
    return float(decided_N.double().mean())


def pruned(config: Pruning) -> Pruned:
    """Return a pruned translator, found or pruned now."""
    folder = find_or_train(prune_translator, config).folder / "model"
    return Pruned(config.amount, folder, Run.open(run_folder(folder)))


def losses(name: str, by_amount: Sequence[Sequence[Pruned]]) -> dict[str, Result]:
    """Return the BLEU of pruned translators, and how much less it is than without pruning.

    "BLEU lost" compares with the translator before; "BLEU lost to as much training" with one that
    keeps all heads and is trained as long, where there is one.

    Args:
        name: of the translator.
        by_amount: pruned translators of all seeds, one list per amount.
    """
    results: dict[str, Result] = {}
    whole = next((some for some in by_amount if some[0].amount.keep and some[0].is_whole), None)
    for some in by_amount:
        metric = f"{name}: {some[0].amount}: BLEU"
        results[metric] = Result([one.bleu for one in some])
        results[f"{metric} lost"] = Result([one.lost for one in some], "difference")
        if whole is not None and not some[0].is_whole:
            control = Result([one.bleu for one in whole])
            results[f"{metric} lost to as much training"] = minus(control, results[metric])
    return results


def counted(name: str, some: Sequence[Pruned]) -> dict[str, Result]:
    """Return how many heads of each kind of attention are left, over seeds."""
    left = [{f"{kind} left": float(n) for kind, n in one.counts().items()} for one in some]
    return by_name(f"{name}: {some[0].amount}: ", left)


def draw_gates(values: Mapping[str, Sequence[float]]) -> "dict[str, Figure]":
    """Draw P(g > 0) of all gates, one panel per model; no figure where there are none."""
    if not values:
        return {}
    figure, axes = named_panels(list(values), width=3.2, height=2.6)
    for title, several in values.items():
        axes[title].hist(several, bins=20, range=(0, 1))
        axes[title].set_title(title, fontsize=8)
        axes[title].set(xlabel="P(open), at the last evaluation", ylabel="gates")
    return {"gates": figure}


def prune_translator(config: Pruning, folder: Path) -> Run:
    """Prune a translator with gates; return the finished run, which holds the model."""
    with Run.create(folder, config) as run:
        recipe = recipe_of(config.model)
        base = trained(config.model)
        learning: dict[str, Any] = {"steps": config.steps, "learning_rate": config.learning_rate}
        if config.start == "untrained":
            learning = {
                "steps": recipe.fit.steps,
                "learning_rate": recipe.fit.learning_rate,
                "warmup": recipe.fit.warmup,
            }
            base = _untrained(base, recipe, run)
        train, test = write_pairs(run, config.model)
        encoder = config.part == "encoder"
        settings = PruneConfig(
            model=str(base.folder),
            data=(str(train),),
            dev=(str(test),),
            keep=config.amount.keep,
            penalty=config.amount.penalty,
            where="encoder.*" if encoder else "*",
            freeze="decoder" if encoder else "none",
            gate_learning_rate=config.gate_learning_rate,
            tokens=recipe.batch_tokens,
            beams=recipe.beams,
            evaluate_every=max(1, learning["steps"] // EVALUATIONS),
            checkpoint_every=OFTEN,
            speed_seconds=0.0,
            inspect_lines=0,
            seed=recipe.fit.seed,
            **learning,
        )
        done = prune_folder(settings, run.path("model"))
        done.path("checkpoint.safetensors").unlink(missing_ok=True)
        run.save_figures(done.figures())
    return run


def _untrained(base: Run, recipe: TranslationConfig, run: Run) -> Run:
    """Return a run with a translator like the trained one, with the weights it began with."""
    known = Translator.load(base)
    torch.manual_seed(recipe.fit.seed)
    model = Transformer(known.model.config)
    with Run.create(run.path("untrained"), recipe, "translation") as made:
        Translator(model, known.source, known.target).save(made)
    return made


def write_pairs(run: Run, model: Model) -> tuple[Path, Path]:
    """Write files of a translator's training and test pairs, with a TAB between the sides."""
    recipe, texts = recipe_of(model), read_texts(model)
    parts = {
        "data/train.tsv": first_pairs(texts.train, recipe.train_pairs),
        "data/test.tsv": first_pairs(texts.test, recipe.test_pairs),
    }
    for name, lines in parts.items():
        pairs = zip(lines.source, lines.target, strict=True)
        plain = ([" ".join(side.split()) for side in pair] for pair in pairs)
        run.write_text(name, "".join(f"{source}\t{target}\n" for source, target in plain
                                     if source and target))  # fmt: skip
    first, second = map(run.path, parts)
    return first, second
