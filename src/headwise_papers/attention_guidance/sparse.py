"""Does guidance help an encoder with top-k attention, and as much as one with softmax?

Beyond the paper. Keys outside the k largest get no gradient of the task, but of guidance.

    headwise reproduce attention_guidance/sparse --jobs 4   # H200: 20 minutes, estimated

- "Gains more" is how much guidance lowers the validation loss with top-k, less with softmax.
- Recorded with 4 layers alone, where plain encoders stay on the plateau.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ENGLISH,
    GUIDED,
    MLM,
    TINY,
    Runs,
    Trained,
    costs,
    difference,
    encoder_config,
    jobs,
    loss_curves,
    losses,
    paired,
    part_of,
    plateau,
    trained,
)
from headwise_papers.core import Claim, Experiment, Job, Result
from headwise_papers.recipes.pretraining import PretrainingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOFTMAX, TOPK = "softmax", "topk:8"
ARMS = (MLM, GUIDED)


@dataclass(frozen=True)
class Config:
    """Which encoders are pre-trained."""

    corpus: str = ENGLISH
    layers: int = 12
    attentions: tuple[str, ...] = (SOFTMAX, TOPK)  # see headwise_papers.ops.named
    seeds: int = 3
    changes: tuple[str, ...] = ()  # of every pre-training, for example fit.steps=500

    def __post_init__(self) -> None:
        if not self.attentions:
            raise ValueError("attentions must name one kind of attention or more.")
        for _ in _settings(self):  # wrong settings raise before there is a folder
            pass


def gains_more(attention: str) -> str:
    """Return the name of how much more guidance lowers the loss than with softmax."""
    return f"gain of guidance with {attention} - with {SOFTMAX}"


def _part(config: Config, attention: str) -> str:
    return f"{part_of(config.corpus, config.layers)}, {attention}"


CLAIMS = (
    *(
        Claim.direction(
            difference(f"{part_of(ENGLISH, 4)}, {attention}", "validation", GUIDED, MLM),
            sign=-1,
            text="Guidance lowers the validation loss",
            stands_for="4 layers",
        )
        for attention in (TOPK, SOFTMAX)
    ),
    Claim.direction(gains_more(TOPK), text=f"Guidance gains more with {TOPK}"),
)


def _settings(config: Config) -> Iterator[tuple[str, str, PretrainingConfig]]:
    for seed in range(config.seeds):
        for attention in config.attentions:
            for arm in ARMS:
                changes = (*config.changes, f"model.attention={attention}")
                encoder = encoder_config(config.corpus, config.layers, arm, seed, changes)
                yield attention, arm, encoder


def models(config: Config) -> Iterator[Job]:
    """List the text and encoders."""
    yield from jobs(encoder for *_, encoder in _settings(config))


def _found(config: Config) -> dict[str, dict[str, list[Trained]]]:
    runs: dict[str, dict[str, list[Trained]]] = {
        attention: {arm: [] for arm in ARMS} for attention in config.attentions
    }
    for attention, arm, encoder in _settings(config):
        runs[attention][arm].append(trained(encoder))
    return runs


def run(config: Config, out: Run) -> dict[str, Result]:
    """Pre-train all arms and compare them."""
    results: dict[str, Result] = {}
    found = _found(config)
    for attention, runs in found.items():
        part = _part(config, attention)
        results |= losses(part, runs, [(GUIDED, MLM)])
        results |= plateau(part, runs) | costs(part, runs)
    for attention, runs in found.items():
        if attention != SOFTMAX and SOFTMAX in found:
            results |= _against_softmax(config, attention, runs, found[SOFTMAX])
    return results


def _against_softmax(
    config: Config, attention: str, runs: Runs, softmax: Runs
) -> dict[str, Result]:
    results: dict[str, Result] = {}
    part = part_of(config.corpus, config.layers)
    for arm in ARMS:
        if gaps := paired(runs[arm], softmax[arm], "validation_loss"):
            name = difference(part, "validation", f"{arm} with {attention}", SOFTMAX)
            results[name] = Result(gaps, "difference")
    seeds = zip(*(several[arm] for several in (runs, softmax) for arm in ARMS), strict=True)
    four = [one for one in seeds if not any(encoder.diverged for encoder in one)]
    more = [
        paired([a], [b], "validation_loss")[0] - paired([c], [d], "validation_loss")[0]
        for a, b, c, d in four
    ]
    if more:
        results[gains_more(attention)] = Result(more, "difference")
    return results


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw training losses, one panel per kind of attention."""
    config = from_json(Config, out.config())
    found = {_part(config, attention): runs for attention, runs in _found(config).items()}
    floors = {part: results[f"{part}: unigram loss"].mean for part in found}
    return {"losses": loss_curves(found, floors=floors)}


SMOKE = Config(corpus="oromo", layers=1, attentions=(SOFTMAX, "topk:2"), seeds=1, changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
