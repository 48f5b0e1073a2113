"""Are a few heads of each layer far more important than the others, and are they confident?

    headwise reproduce specialized_heads/importance --jobs 3    # 16 minutes on an H200
    headwise reproduce specialized_heads/importance --smoke     # 10 seconds on a CPU

Figures 1 and 2: relevance (LRP), confidence and role of the encoder heads of translators into
Russian, German and French.

Deviations:

- 2,500 updates with a cosine schedule; feed-forward layers of 1,024; dropout 0.3, none of attention
  weights.
- A positional share is over words that *have* such a neighbour; over all words, as in the paper, it
  is less: .868 for .986 in 8 words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, share
from headwise_papers.specialized_heads._inspection import (
    SHORT,
    Inspected,
    Study,
    inspected,
    joined_roles,
)
from headwise_papers.specialized_heads._measures import (
    draw_grids,
    grid,
    grids_of,
    importance_figures,
    role_grid,
    shares_by_layer,
)
from headwise_papers.specialized_heads._models import by_name, scored, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("en-ru", "en-de", "en-fr")
DATA = "Tatoeba"
FEW, HALF = 2, 0.5  # so many heads have so much of a layer's relevance
MUCH = 2  # times as relevant as the second head
GRIDS = "trace/grids.json"
OVER_SECOND = "layer 1: relevance of the most relevant head over the second"

YES_OR_NO = (
    "layer 1: the most relevant head is the one for rare words",
    "layer 1: its confidence is below the layer's median",
)


@dataclass(frozen=True)
class Config(Study):
    """Settings: translators and the amount of text they are inspected on."""

    translators: tuple[str, ...] = NAMES


def _claims(name: str) -> Iterator[Claim]:
    yield Claim.share(f"{name}: two heads of a layer have half of its relevance", threshold=0.8,
                      number=132, where="Fig. 1a, 2a, 2c", stands_for=DATA,
                      text="In each layer two heads are as relevant as the other six")  # fmt: skip
    if name == "en-ru":
        yield Claim.value(f"{name}: rank correlation of relevance and confidence, other layers",
                          1.0, margin=0.7, number=133, where="Fig. 1b", stands_for=DATA,
                          text="Relevance and confidence have a rank correlation of 0.3 or more"
                          )  # fmt: skip
        yield Claim.share(f"{name}: layer 1: its confidence is below the layer's median",
                          threshold=0.9, number=134, where="Fig. 1b", stands_for=DATA,
                          text="The most relevant head of layer 1 is not confident")  # fmt: skip
    yield Claim.share(f"{name}: some head is positional", threshold=0.9, number=135,
                      where="Fig. 1c, 2b, 2d", stands_for=DATA,
                      text="Every translator has positional heads")  # fmt: skip
    for what, margin in (
        ("among the three most relevant", 0.25), ("with confidence above 0.8", 0.0)
    ):  # fmt: skip
        yield Claim.value(f"{name}: positional heads {what}", 1.0, margin=margin, number=136,
                          where="section 5.1", stands_for=DATA,
                          text=f"All positional heads are {what}")  # fmt: skip
    yield Claim.share(f"{name}: layer 1: the most relevant head is twice as relevant as the second",
                      threshold=0.9, number=143, where="section 5.3", stands_for=DATA,
                      text="One head of layer 1 is much more relevant than any other")  # fmt: skip


CLAIMS = tuple(claim for name in NAMES for claim in _claims(name))


def models(config: Config) -> Iterator[Job]:
    return config.jobs(lines=True, trees=True)


def run(config: Config, run: Run) -> dict[str, Result]:
    """Inspect translators on lines and on trees."""
    results: dict[str, Result] = {}
    drawn: dict[str, object] = {}
    for name in config.translators:
        scores, entering = scored(name, config.models(name), config.least_bleu)
        results |= scores
        lines = [inspected(config.on_lines(model)) for model in entering]
        tables = [
            joined_roles(one, inspected(config.on_trees(model)))
            for one, model in zip(lines, entering, strict=True)
        ]
        if not lines:
            continue
        roles = [float(sum(bool(x) for row in role_grid(table) for x in row)) for table in tables]
        results |= _measured(name, lines)
        results[f"{name}: heads with a role"] = Result(roles)
        bleu = float(trained(entering[0]).figures()["bleu"])
        drawn[f"{name}, BLEU {bleu:.1f}"] = grids_of(lines[0].table, tables[0])
    run.write_json(GRIDS, drawn)
    return results


def _measured(name: str, seen: Sequence[Inspected]) -> dict[str, Result]:
    """Return means over seeds, and shares of layers and translators."""
    found = [importance_figures(one.table) for one in seen]
    layers = [shares_by_layer(grid(one.table, "relevance")) for one in seen]
    few = [float(x) for one_LH in layers for x in one_LH.topk(FEW, dim=1).values.sum(dim=1)]
    return {
        **by_name(f"{name}: ", found),
        **{f"{name}: {what}": share(one[what] == 1 for one in found) for what in YES_OR_NO},
        f"{name}: two heads of a layer have half of its relevance": share(x >= HALF for x in few),
        f"{name}: some head is positional": share(one["positional heads"] > 0 for one in found),
        f"{name}: layer 1: the most relevant head is twice as relevant as the second": share(
            one[OVER_SECOND] >= MUCH for one in found
        ),
    }


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw Figures 1 and 2 of all translators."""
    grids = run.read_json(GRIDS)
    return {"importance": draw_grids(grids)} if grids else {}


experiment = Experiment(Config(), Config(**SHORT), models, run, draw, CLAIMS)
