"""Which heads go first when every kind of attention is pruned, and what does it cost?

    headwise reproduce specialized_heads/prune-all --jobs 6    # 15 minutes on an H200
    headwise reproduce specialized_heads/prune-all --smoke     # 5 seconds on a CPU

Table 2 (from trained), Figures 9 and 10: all 144 heads get gates. The control keeps all heads and
is trained as long, which alone gains 2 BLEU.

Orders of heads and layers are differences, means over amounts. They were defined when the results
were known, and claim 163 depends on which amounts count; so each is given for the rows of Table 2
and with two lambdas too, and both must agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, draw_lines, lines, minus, panels
from headwise_papers.specialized_heads._models import SUBTITLES, by_name, scored
from headwise_papers.specialized_heads._pruning import (
    KINDS,
    SMALL,
    Pruned,
    PruningStudy,
    counted,
    draw_gates,
    losses,
    pruned,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# heads in all, and BLEU lost, of the rows of Table 2
WMT = {75: -0.02, 58: 0.24, 36: 0.54, 26: 0.70}
OPEN_SUBTITLES = {104: 0.16, 61: 0.17, 28: 0.13}
ENCODER, DECODER, CROSS = KINDS
ORDERS = {  # claims on differences between kinds of attention
    f"heads left, {DECODER} less {ENCODER}": (159, "Fig. 9", "Encoder heads are pruned first"),
    f"heads left, {CROSS} less {DECODER}": (160, "Fig. 9", "Decoder-encoder heads are pruned last"),
    f"middle layer less mean layer of {DECODER}": (
        162,
        "Fig. 10",
        "Decoder self-attention is left in lower layers",
    ),
    f"mean layer of {CROSS} less middle layer": (
        163,
        "Fig. 10",
        "Attention to the source is left in higher layers",
    ),
}
TRACE = "trace/pruned.json"
WITH_LAMBDAS = ", with lambdas"


@dataclass(frozen=True)
class Config(PruningStudy):
    """Settings: translators and how many heads they keep."""

    keep: tuple[int, ...] = (144, *WMT)  # 144 are all of them
    penalties: tuple[float, ...] = (0.01, 0.05)


def _claims() -> Iterator[Claim]:
    domains = (("en-ru", WMT, 157, "Tatoeba"), (SUBTITLES, OPEN_SUBTITLES, 158, "few subtitles"))
    for name, rows, number, data in domains:
        for heads, paper in rows.items():
            yield Claim.value(f"{name}: {heads} heads: BLEU lost to as much training", paper,
                              margin=0.5, number=number, where="Table 2", stands_for=data,
                              text="Pruned translators lose as little BLEU")  # fmt: skip
    for result, (number, where, text) in ORDERS.items():
        for which in ("", WITH_LAMBDAS):
            yield Claim.direction(f"en-ru: {result}{which}", number=number, where=where, text=text,
                                  stands_for="Tatoeba")  # fmt: skip


def models(config: Config) -> Iterator[Job]:
    return config.jobs()


def run(config: Config, run: Run) -> dict[str, Result]:
    """Prune translators by every amount, and count what is left."""
    results: dict[str, Result] = {}
    traced: dict[str, object] = {}
    for name in config.translators:
        scores, entering = scored(name, config.models(name), config.least_bleu)
        results |= scores
        if not entering:
            continue
        left = [
            [pruned(config.pruning(model, amount)) for model in entering]
            for amount in config.amounts()
        ]
        results |= losses(name, left)
        for some in left:
            results |= counted(name, some) | _layers(name, some)
        results |= _orders(name, [some for some in left if some[0].amount.keep])
        if config.penalties:
            results |= _orders(name, left, WITH_LAMBDAS)
        traced[name] = {
            "layers": [[one.by_layer(kind) for kind in KINDS[1:]] for one in left[len(left) // 2]],
            "gates": [one.prob_open() for one in left[-1]],
        }
    run.write_json(TRACE, traced)
    return results


def _layers(name: str, some: Sequence[Pruned]) -> dict[str, Result]:
    """Return mean layers of the decoder's heads, and how many gates are decided."""
    prefix = f"{name}: {some[0].amount}: "
    results: dict[str, Result] = {}
    if not some[0].is_whole:
        own = [{f"mean layer of {k}": _layer(one, k) for k in KINDS[1:]} for one in _both(some)]
        results |= by_name(prefix, own)
    if some[0].amount.penalty is not None:
        results |= by_name(prefix, [{"gates decided by value": one.decided()} for one in some])
    return results


def _orders(name: str, rows: Sequence[Sequence[Pruned]], which: str = "") -> dict[str, Result]:
    """Return differences between kinds of attention, one mean over amounts per seed."""
    seeds = [[one for one in _both(some) if not one.is_whole] for some in zip(*rows, strict=True)]
    if not all(seeds):
        return {}
    middle = (1 + len(seeds[0][0].by_layer(DECODER))) / 2

    def left(kind: str) -> Result:
        return Result([fmean(one.counts()[kind] for one in some) for some in seeds])

    def layer(kind: str) -> Result:
        return Result([fmean(_layer(one, kind) for one in some) for some in seeds])

    centre = Result([middle] * len(seeds))
    found = (
        minus(left(DECODER), left(ENCODER)),
        minus(left(CROSS), left(DECODER)),
        minus(centre, layer(DECODER)),
        minus(layer(CROSS), centre),
    )
    return {f"{name}: {what}{which}": result for what, result in zip(ORDERS, found, strict=True)}


def _both(some: Sequence[Pruned]) -> list[Pruned]:
    """Return those that have heads of both kinds left in the decoder."""
    return [one for one in some if all(one.counts()[kind] for kind in KINDS[1:])]


def _layer(one: Pruned, kind: str) -> float:
    """Return the mean layer of the heads left, counted from 1."""
    counts = one.by_layer(kind)
    return sum((1 + layer) * count for layer, count in counts.items()) / sum(counts.values())


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw BLEU by heads, Figure 9 (kinds of attention), Figure 10 (layers), and gates."""
    traced, keep = run.read_json(TRACE), run.config()["keep"]
    if not traced:
        return {}
    bleu = {n: {heads: results[f"{n}: {heads} heads: BLEU"] for heads in keep} for n in traced}
    kinds, kind_panels = panels(len(traced))
    layers, layer_panels = panels(len(traced))
    gates: dict[str, list[float]] = {}
    for column, (name, own) in enumerate(traced.items()):
        curves = {
            kind: {heads: results[f"{name}: {heads} heads: {kind} left"] for heads in keep}
            for kind in KINDS
        }
        draw_lines(kind_panels[0][column], curves, xlabel="heads left", title=name, marker="o")
        by_layer = {
            kind: {
                1 + int(layer): Result([float(seed[place][layer]) for seed in own["layers"]])
                for layer in own["layers"][0][place]
            }
            for place, kind in enumerate(KINDS[1:])
        }
        draw_lines(layer_panels[0][column], by_layer, xlabel="layer", title=name, marker="o")
        gates |= {f"{name}, seed {seed}": some for seed, some in enumerate(own["gates"])}
    return {
        "all": lines(bleu, xlabel="heads left", ylabel="BLEU"),
        "kinds": kinds,
        "layers": layers,
        **draw_gates(gates),
    }


SMOKE = Config(keep=(24, 9, 4), penalties=(), **SMALL)
experiment = Experiment(Config(), SMOKE, models, run, draw, tuple(_claims()))
