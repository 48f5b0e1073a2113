"""Does guidance help an encoder with top-k attention, and as much as one with softmax?

Beyond the paper. Keys outside the k largest get no gradient of the task, but of guidance.

    headwise reproduce attention_guidance/sparse --jobs 4   # H200: 20 minutes, estimated

- "Gains more" is how much guidance lowers the validation loss with top-k, less with softmax.
- Recorded with 4 layers alone, where plain encoders stay on the plateau.
"""

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ENGLISH,
    GUIDED,
    MLM,
    TINY,
    Encoders,
    OneCorpusConfig,
    Runs,
    costs,
    difference,
    draw_losses,
    losses,
    models,
    paired,
    part_of,
    plateau,
    trained_parts,
)
from headwise_papers.core import Claim, Experiment, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOFTMAX, TOPK = "softmax", "topk:8"
ARMS = (MLM, GUIDED)


@dataclass(frozen=True)
class Config(OneCorpusConfig):
    """Encoders by attention and arm."""

    attentions: tuple[str, ...] = (SOFTMAX, TOPK)  # see headwise_papers.ops.named

    def __post_init__(self) -> None:
        if not self.attentions:
            raise ValueError("attentions must name one kind of attention or more.")
        super().__post_init__()

    def encoders(self) -> Encoders:
        """Yield both arms of each seed, attention by attention."""
        for seed in range(self.seeds):
            for attention, arm in product(self.attentions, ARMS):
                encoder = self.encoder(arm, seed, f"model.attention={attention}")
                yield f"{self.part}, {attention}", arm, encoder


def gains_more(attention: str) -> str:
    """Return the name of how much more guidance lowers the loss than with softmax."""
    return f"gain of guidance with {attention} - with {SOFTMAX}"


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


def run(config: Config, out: Run) -> dict[str, Result]:
    """Pre-train all arms and compare them."""
    results: dict[str, Result] = {}
    parts = trained_parts(config)
    for part, runs in parts.items():
        results |= losses(part, runs, [(GUIDED, MLM)])
        results |= plateau(part, runs) | costs(part, runs)
    found = dict(zip(config.attentions, parts.values(), strict=True))
    for attention, runs in found.items():
        if attention != SOFTMAX and SOFTMAX in found:
            results |= _against_softmax(config.part, attention, runs, found[SOFTMAX])
    return results


def _against_softmax(part: str, attention: str, runs: Runs, softmax: Runs) -> dict[str, Result]:
    results: dict[str, Result] = {}
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
    return draw_losses(from_json(Config, out.config()), results)


SMOKE = Config(corpus="oromo", layers=1, attentions=(SOFTMAX, "topk:2"), seeds=1, changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
