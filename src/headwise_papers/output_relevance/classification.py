"""Table 1, Fig. 4: does output relevance under uniform attention foretell a classifier's attention?

A value is of a pair: a normal run, whose alpha* is gold, and a uniform run. hr must beat the best
of as many shuffles as there are evaluations. "All sets" are five pairs of each; 0.8 must agree.

    headwise reproduce output_relevance/classification --set embeddings=random --save --part random
    headwise reproduce output_relevance/classification      # GloVe; 11 minutes each on an H200

- The text starts from GloVe, the released code from random vectors: these decide. Our GloVe has
  width 50 and 40,000 words.
- Yelp's sentences stand for its reviews and are not compared with Table 1. Texts are cut after
  1,000 words. *Rises, then falls*: by 0.03 (0.01 until results were seen).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Result, draw_bars, named_panels, panels, share
from headwise_papers.measures.relevance import at, best_step, expected_floor
from headwise_papers.output_relevance._classifiers import EVERY_SET, SMOKE, Config, Trained, models
from headwise_papers.output_relevance._runs import (
    HR,
    Row,
    limit_shares,
    named,
    paired,
    pooled,
    table_row,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Paper(NamedTuple):
    """A row of Table 1, and the number of its first claim."""

    number: int
    hr: float
    s: float
    at_s: float
    best: float

    def of(self, name: str) -> float:
        """Return the column of a result."""
        return {HR: self.hr, "s": self.s, "accuracy at s": self.at_s}.get(name, self.best)


PAPER = {
    "imdb": Paper(12, 0.18, 150.0, 0.84, 0.93),
    "ag_news": Paper(15, 0.42, 450.0, 0.93, 0.96),
    "newsgroups": Paper(13, 0.36, 10.0, 0.61, 0.93),
    "sst": Paper(14, 0.24, 1950.0, 0.82, 0.82),
    "amazon": Paper(16, 0.49, 450.0, 0.85, 0.89),
    "yelp_reviews": Paper(17, 0.58, 150.0, 0.90, 0.96),
}
PART_OF = {"ag_news": "9,432 of 60,000 texts", "amazon": "8,000 of 40,000 reviews"}
LEAST = 0.03  # a rise or fall of less is none: about the sampling error of 400 texts
NEAR = 0.05  # of the random baseline
MARGIN = 0.05  # of hr and of accuracy at s
WITHIN = {HR: MARGIN, "s": 0.25, "accuracy at s": MARGIN, "best accuracy": 0.03}  # s: relative
ABOVE, STARTS, TURNS, LOW, CEILING = (
    "hr above the random baseline",
    "attention starts at the random baseline",
    "rises, then falls",
    "random baseline at most 0.1",
    "ceiling, another normal run",
)
LEARNED = "accuracy at s - half-way to the best"
LEARNING = ("imdb", "ag_news", "yelp")  # where the paper calls accuracy at s non-trivial


def _claims() -> Iterator[Claim]:
    for name, paper in PAPER.items():
        yield Claim.value(
            f"{name}, random: {HR}", paper.hr, margin=MARGIN, number=paper.number,
            text=f"hr, {name}", stands_for=PART_OF.get(name, ""),
        )  # fmt: skip
    every, glove = "all sets, random: ", "all sets: "
    for number, name in zip((18, 19, 20), list(WITHIN)[1:], strict=True):
        yield Claim.share(
            f"{every}{name} near the paper's", threshold=EVERY_SET, number=number,
            text=f"{name}, pairs within {WITHIN[name]:.0%}",
        )  # fmt: skip
    for number, name in ((21, LOW), (22, ABOVE), (24, STARTS), (26, TURNS)):
        text = name.replace("the random baseline", "chance")
        yield Claim.share(every + name, threshold=EVERY_SET, number=number, text=text)
    yield Claim.value(every + CEILING, 1.0, margin=MARGIN, number=23, text="ceiling of hr")
    yield Claim.direction(
        f"three sets, random: {LEARNED}", number=25, text="accuracy at s non-trivial"
    )
    for name in ("best accuracy near the paper's", ABOVE, STARTS):
        text = f"GloVe: {name.replace('the random baseline', 'chance')}"
        yield Claim.share(glove + name, threshold=EVERY_SET, text=text)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Train on every data set; results have one value per pair of runs."""
    results: dict[str, Result] = {}
    for name in config.sets:
        results |= _results(Trained.on(name, config), config.part(name))
    return results | _pooled(results, config)


def _pooled(results: Mapping[str, Result], config: Config) -> dict[str, Result]:
    """Return the values of all data sets together, and how many are near the paper's."""
    every, parts = config.part("all sets"), [config.part(name) for name in config.sets]
    found = {f"{every}: {x}": pooled(results, x, parts) for x in (ABOVE, CEILING, STARTS, TURNS)}
    floors = pooled(results, "random baseline", parts).values
    found[f"{every}: {LOW}"] = share(x <= 0.1 for x in floors)
    for name, margin in WITHIN.items():
        near = [
            abs(value - paper) <= (margin * paper if name == "s" else margin)
            for data in config.sets
            if data in PAPER
            for paper in [PAPER[data].of(name)]
            for value in _values(results, f"{config.part(data)}: {name}")
        ]
        found |= {f"{every}: {name} near the paper's": share(near)} if near else {}
    learning = [config.part(name) for name in config.sets if name in LEARNING]
    if learning:
        found[f"{config.part('three sets')}: {LEARNED}"] = pooled(results, LEARNED, learning)
    return found


def _values(results: Mapping[str, Result], name: str) -> Sequence[float]:
    return results[name].values if name in results else ()


def _results(trained: Trained, part: str) -> dict[str, Result]:
    row = table_row(trained.of("normal"), trained.of("uniform"))
    chance = expected_floor(trained.of("normal")["lengths"])
    start_S = row.attention[0]
    rise_S, fall_S = _turns(trained, row)
    half_way_S = 0.5 + (row.best - 0.5) / 2
    values = {
        "hr(alpha*, alpha_hat) at the start": start_S,
        ABOVE: row.hr > row.lucky_floor,
        STARTS: (start_S - chance).abs() <= NEAR,
        TURNS: (rise_S >= LEAST) & (fall_S >= LEAST),
    }
    differences = {"rise": rise_S, "fall": fall_S, LEARNED: row.accuracy_at_s - half_way_S}
    own = named(values, part=part) | named(differences, part=part, kind="difference")
    return row.results(part) | own


def _turns(trained: Trained, row: Row) -> tuple[Tensor, Tensor]:
    """Return how far the curve of Fig. 4 rises to its peak, and falls after it."""
    best_S = best_step(trained.of("normal")["accuracy"]).evaluation
    gold_SN = at(trained.of("normal", "validation")["alpha_peak"], best_S)
    held_out_ES = paired(gold_SN, trained.of("uniform", "validation")["beta_top"])
    peak_S = at(row.relevance, best_step(held_out_ES).evaluation)
    return peak_S - row.relevance[0], peak_S - row.relevance[-3:].mean(0)


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 4, and Table 1 as bars with the paper's."""
    config = from_json(Config, out.config())
    through, cells = named_panels(config.sets)
    for name, axes in cells.items():
        trained = Trained.on(name, config)
        row = table_row(trained.of("normal"), trained.of("uniform"))
        row.draw(axes, trained.of("normal")["step"], title=name)

    def found(result: str) -> dict[str, Result]:
        keys = {name: f"{config.part(name)}: {result}" for name in config.sets}
        return {name: results[key] for name, key in keys.items() if key in results}

    def papers(column: str) -> dict[str, Result]:
        return {x: Result([PAPER[x].of(column)]) for x in config.sets if x in PAPER}

    table, ((left, right),) = panels(2, width=5.5)
    ranked = {"ours": found(HR), "paper": papers(HR), "another normal run": found(CEILING)}
    draw_bars(left, {**ranked, "random baseline": found("random baseline")}, ylabel=HR)
    accurate = {"at s": found("accuracy at s"), "at s, paper": papers("accuracy at s"),
                "best": found("best accuracy"), "best, paper": papers("best accuracy")}  # fmt: skip
    draw_bars(right, {x: bars for x, bars in accurate.items() if bars}, ylabel="accuracy")
    for axes in (left, right):
        limit_shares(axes)
    return {"fig4-relevance-under-uniform-attention": through, "table1": table}


experiment = Experiment(Config(), SMOKE, models, run, draw, tuple(_claims()))
