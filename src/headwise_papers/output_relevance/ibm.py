"""Section 3.3: does output relevance first learn what the first iteration of IBM Model 1 learns?

The paper argues this. "IBM 1" and "IBM 10": after so many iterations of EM, without NULL, 0.001
added to counts. *Controls* know no words: beta before the first update, the end token, the most
frequent places of IBM 1's peaks, chance. Where IBM 1 and IBM 10 differ, an early run has *found*
one of them half-way from chance to its best acc.

    headwise reproduce output_relevance/ibm         # seconds, with the models of `translation`
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Result, curve, draw_lines, find_or_train, panels
from headwise_papers.data.translation import TranslationData
from headwise_papers.data.vocabulary import EOS
from headwise_papers.measures.ibm import Aligned, IbmModel1, align, controls
from headwise_papers.measures.relevance import (
    agreement,
    at,
    best_step,
    crossing,
    expected_floor,
    from_others,
)
from headwise_papers.output_relevance._runs import (
    Traces,
    device_of,
    gold_attention,
    limit_shares,
    named,
)
from headwise_papers.output_relevance._translators import (
    CURVES,
    INSIDE,
    SMOKE,
    Config,
    LongRuns,
    models,
    read_data,
    traces_of,
    train_early,
    train_translators,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ITERATIONS = (1, 10)
FIRST, LATER = (f"IBM {number}" for number in ITERATIONS)
SMOOTHING = 1e-3  # added to the count of each pair of words
ABOVE = f"{FIRST} in beta_unif - best control"
CLAIMS = (
    Claim.direction(f"multi30k: {ABOVE}", number=40, text="multi30k: above controls"),
    Claim.direction(f"iwslt14: {ABOVE}", number=40, text="iwslt14: above controls"),
    Claim.share(f"early: first nearer to {FIRST}", threshold=0.9, number=40),
)


class Both(NamedTuple):
    """Two iterations on the same rows."""

    first: Aligned
    later: Aligned

    @property
    def differing(self) -> Tensor:
        """Known rows whose peaks differ."""
        return self.first.known & (self.first.peak != self.later.peak)

    @property
    def inside(self) -> Tensor:
        """Differing rows where neither peak is the source's end token."""
        last_N = torch.maximum(self.first.peak, self.later.peak)
        return self.differing & (last_N < self.first.lengths - 1)

    def known_rows(self, traces: Traces) -> Tensor:
        """Return rows to compare; raise if they are not those of the traces."""
        if not torch.equal(self.first.lengths, traces["lengths"].long()):
            raise ValueError("The rows of the traces are not those of the validation pairs.")
        return self.first.known


def run(config: Config, out: Run) -> dict[str, Result]:
    """Compare translators with IBM Model 1; results have one value per run."""
    results: dict[str, Result] = {}
    for name in config.corpora:
        ibm, both, normal, uniform = _compared(config, name)
        results |= _results(both, normal, uniform, name)
        for number, model in zip(ITERATIONS, ibm, strict=True):
            results[f"{name}: perplexity of IBM {number}"] = Result(model.perplexity[-1:].tolist())
    both, traces = _early(config)
    for part, rows_N in (("early", both.differing), (INSIDE, both.inside)):
        if rows_N.any():
            first_ER, later_ER = (
                agreement(aligned.peak[None], traces["beta_peak"], rows=rows_N)[:, 0]
                for aligned in both
            )
            chance = float((1 / both.first.lengths[rows_N].double()).mean())
            results |= named(nearer(traces["step"], first_ER, later_ER, chance=chance), part=part)
    return results


@lru_cache(maxsize=2)  # corpora
def _ibm(long_runs: LongRuns, folder: Path) -> tuple[TranslationData, list[IbmModel1]]:
    """Train IBM Model 1 for each number of iterations on the pairs of finished translators."""
    data = read_data(long_runs.recipe, Run.open(folder), valid=long_runs.valid, test=1)
    pairs = [([*source, EOS], [*target, EOS]) for source, target in data.train]
    train = partial(IbmModel1.train, pairs, null=False, smoothing=SMOOTHING, device=device_of())
    return data, [train(iterations=number) for number in ITERATIONS]


def _compared(config: Config, name: str) -> tuple[list[IbmModel1], Both, Traces, Traces]:
    long_runs = config.long_runs(name)
    translators = find_or_train(train_translators, long_runs)
    data, ibm = _ibm(long_runs, translators.folder)
    both = Both(*(align(model, data.valid, data.train) for model in ibm))
    return ibm, both, *traces_of(translators, long_runs.seeds)


def _early(config: Config) -> tuple[Both, Traces]:
    long_runs, early = config.long_runs(config.corpora[0]), config.early()
    data, ibm = _ibm(long_runs, find_or_train(train_translators, long_runs).folder)
    both = Both(*(align(model, data.valid[: early.valid], data.train) for model in ibm))
    traces = find_or_train(train_early, early).load_tensors(CURVES.format("relevance"))
    both.known_rows(traces)
    return both, traces


def _results(both: Both, normal: Traces, uniform: Traces, part: str) -> dict[str, Result]:
    """Compare converged and uniform models with IBM Model 1; one value per run."""
    rows_N, differing_N = both.known_rows(normal), both.differing
    gold_SN = gold_attention(normal)
    prime_R = best_step(agreement(gold_SN, uniform["beta_top"], rows=rows_N).mean(1))
    peak_RN, top_RNP = (at(uniform[f"beta_{x}"], prime_R.evaluation) for x in ("peak", "top"))
    chance = expected_floor(both.first.lengths[rows_N])
    differences: dict[str, Tensor] = {}
    values = {
        "hr(alpha*, beta_unif) at s'": prime_R.value,
        "acc(alpha*, beta_unif) at s'": agreement(gold_SN, peak_RN[None], rows=rows_N)[0].mean(0),
        "acc(alpha*, another run's alpha*)": from_others(
            agreement(gold_SN, gold_SN[None], rows=rows_N)
        )[0],
        "random baseline of hr": torch.tensor([chance]),
        "random baseline of acc": (1 / both.first.lengths[rows_N].double()).mean()[None],
        "rows with a known target token": rows_N.double().mean()[None],
        "rows where the iterations differ": differing_N.double().mean()[None],
    }
    for aligned, ibm in zip(both, (FIRST, LATER), strict=True):
        peak_1N = aligned.peak[None]
        in_beta_R = agreement(peak_1N, top_RNP[None], rows=rows_N)[0, 0]
        blind = controls(aligned, uniform["beta_top"][0])
        most_R = torch.stack(list(blind.values())).amax(0).clamp(min=chance)
        differences[f"{ibm} in beta_unif - best control"] = in_beta_R - most_R
        values |= {
            f"acc(alpha*, {ibm})": agreement(gold_SN, peak_1N[None], rows=rows_N)[0, :, 0],
            f"hr(alpha*, {ibm})": agreement(gold_SN, aligned.top[None, None], rows=rows_N)[0, :, 0],
            f"acc({ibm}, beta_unif at s')": agreement(peak_1N, peak_RN[None], rows=rows_N)[0, 0],
            f"hr({ibm}, beta_unif at s')": in_beta_R,
            **{f"hr({ibm}, {control})": value_R for control, value_R in blind.items()},
        }
        if differing_N.any():
            for model, peak_XN in {"alpha*": gold_SN, "beta_unif at s'": peak_RN}.items():
                values[f"differing rows: acc({ibm}, {model})"] = agreement(
                    peak_1N, peak_XN[None], rows=differing_N
                )[0, 0]
    return named(values, part=part) | named(differences, part=part, kind="difference")


def nearer(
    steps: Tensor, first_ER: Tensor, later_ER: Tensor, *, chance: float
) -> dict[str, Tensor]:
    """Return which iteration each run is nearer to when it has found one of them, and at the end.

    Args:
        steps: of the evaluations.
        first_ER: acc with the first iteration, of each run.
        later_ER: acc with the later one.
        chance: acc of random positions.
    """
    better_ER = torch.maximum(first_ER, later_ER)
    found_R = crossing(better_ER, (better_ER.max(0).values + chance) / 2)
    does_R = found_R >= 0
    first_R, later_R = (at(curve, found_R.clamp(min=0)) for curve in (first_ER, later_ER))
    return {
        f"first nearer to {FIRST}": (first_R > later_R)[does_R],
        f"later nearer to {LATER}": later_ER[-1] > first_ER[-1],
        "update at which one is found": steps[found_R[does_R]],
        f"differing rows: acc({FIRST}, beta_hat) there": first_R[does_R],
        f"differing rows: acc({LATER}, beta_hat) there": later_R[does_R],
        f"differing rows: acc({FIRST}, beta_hat) at the end": first_ER[-1],
        f"differing rows: acc({LATER}, beta_hat) at the end": later_ER[-1],
    }


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw acc with both iterations through training: long runs, and early runs."""
    config = from_json(Config, out.config())
    converged, rows = panels(3, len(config.corpora))
    for row, name in zip(rows, config.corpora, strict=True):
        _, both, normal, uniform = _compared(config, name)
        _draw(row, both, {**normal, "beta_peak": uniform["beta_peak"]}, name)
    early, (row,) = panels(3)
    _draw(row, *_early(config), "early runs")
    for panel in row:
        panel.set_xscale("symlog", linthresh=10)
    return {"ibm-converged": converged, "ibm-early": early}


def _draw(axes: "Sequence[Axes]", both: Both, peaks: Mapping[str, Tensor], title: str) -> None:
    """Draw all rows, those where the iterations differ, and those without the end token."""
    shown = {"all": both.first.known, "iterations differ": both.differing, "inside": both.inside}
    for panel, (which, rows_N) in zip(axes, shown.items(), strict=True):
        curves = {
            f"{name}, {ibm}": curve(
                peaks["step"],
                agreement(aligned.peak[None], peaks[f"{name}_peak"], rows=rows_N)[:, 0],
            )
            for aligned, ibm in zip(both, (FIRST, LATER), strict=True)
            for name in ("beta", "alpha")
            if rows_N.any()
        }
        draw_lines(panel, curves, xlabel="update", ylabel="acc", title=f"{title}: {which}")
        limit_shares(panel)


SHORT = replace(SMOKE, multi30k=replace(SMOKE.multi30k, epochs=3), early_updates=12)
experiment = Experiment(Config(), SHORT, models, run, draw, CLAIMS)
