"""Section 4.2: is copying hard to learn where all inputs are the same bag of words?

**Recorded with a deviation**: tanh(W [state; context]) before the output layer (`concat`); the
paper gives it the context alone (`context`), in translation state plus context (`add`). 100 runs
instead of 20; Adam, 128 fresh sequences per update. Success: token accuracy 0.9 at update 200.
*Even*: entropy over that of uniform attention, at its least (at the cut until a first run was
seen). Failing runs are continued to update 400.

    headwise reproduce output_relevance/copying                              # 1 minute on an H200
    headwise reproduce output_relevance/copying --set setup.combine=context  # the paper's own layer
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    curve,
    draw_lines,
    find_or_train,
    minus,
    panels,
)
from headwise_papers.data.synthetic import CopyTask
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.output_relevance._copying import (
    CURVES,
    SUCCESS,
    Curves,
    Setup,
    at_step,
    save_curves,
    train,
)
from headwise_papers.output_relevance._runs import device_of, named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS: tuple[CopyTask, CopyTask] = ("permutation", "iid")
FAILS, SUCCEEDS, INDEPENDENT = "permutation, failing", "permutation, succeeding", "iid"
COLOURS = {FAILS: "tab:red", SUCCEEDS: "tab:blue", INDEPENDENT: "tab:green"}
HARDER = "iid - permutation: runs that succeed"
GAP, LEAST = "advantage of the source in beta, early on", "evenness of attention where it is least"
LATE, CONTINUED = "beta learned later than in every iid run", "succeed when continued"
AT_CUT = {
    "accuracy at the cut": "accuracy",
    "attention on the source at the cut": "on",
    "attention one before the source at the cut": "before",
    "attention one after the source at the cut": "after",
    "mean offset of attention at the cut": "offset",
    "evenness of attention at the cut": "evenness",
}
EARLY = {
    "beta on the right token, early on": "beta_token",
    "beta on the source, early on": "beta_on",
    GAP: "beta_gap",
    "attention on the source, early on": "on",
}
CLAIMS = (
    Claim.value("permutation: runs that succeed", 0.55, margin=0.1, number=35),
    Claim.direction(HARDER, number=35, text="harder than i.i.d."),
    Claim.share("iid: runs that succeed", threshold=0.9, paper=1.0, number=36),
    Claim.value(f"{FAILS}: {GAP}", 0.0, margin=0.1, number=37, text="beta about 0"),
    Claim.share(f"{FAILS}: {LATE}", threshold=0.9, number=37, text="beta later than i.i.d."),
    Claim.value(f"{FAILS}: {LEAST}", 1.0, margin=0.05, number=37, text="attention even"),
    Claim.value(f"{FAILS}: {CONTINUED}", 0.0, margin=0.1, number=37, text="stuck: pass by 400"),
)


@dataclass(frozen=True)
class Config:
    """Settings of Section 4.2."""

    setup: Setup = field(default_factory=Setup)
    longer: int = 400  # updates of permutation runs; those of the cut if that is later
    early: int = 100  # the last update that counts as early on
    seeds: int = 100  # runs of each task


SMOKE = Config(
    Setup(types=8, hidden=32, batch=32, rate=3e-3, updates=120, sequences=20, every=20),
    longer=160, early=60, seeds=4,
)  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """Settings of the runs of one task."""

    task: CopyTask
    setup: Setup
    updates: int
    seeds: int


def models(config: Config) -> list[Job]:
    """List the trainings of both tasks."""
    cut = config.setup.updates
    updates = {"permutation": max(cut, config.longer), "iid": cut}
    return [Job(train_runs, Runs(x, config.setup, updates[x], config.seeds)) for x in TASKS]


def train_runs(config: Runs, folder: Path) -> Run:
    """Train the runs of one task and record where they attend."""
    seeds = range(config.seeds)
    stack = Seq2SeqStack(config.setup.drawn(seeds, device_of()))
    curves = train(stack, config.task, seeds, config.setup, updates=config.updates, detail=True)
    return save_curves(curves, config, folder)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Compare permutations with i.i.d. tokens; results have one value per run."""
    curves, succeeds, groups = _groups(config)
    runs = {task: Result(x_S.double().tolist()) for task, x_S in succeeds.items()}
    results = {
        "permutation: runs that succeed": runs["permutation"],
        "iid: runs that succeed": Result(runs["iid"].values, "share"),
        HARDER: minus(runs["iid"], runs["permutation"]),
    }
    for name, group in groups.items():
        results |= named(_values(group, config), part=name)
    if FAILS in groups:
        fails = groups[FAILS]
        least = _early(curves["iid"], "beta_token", config).min()
        late = {LATE: _early(fails, "beta_token", config) < least}
        after_ES = fails["accuracy"][fails["step"] > config.setup.updates]
        continued_S = (after_ES >= SUCCESS).any(0).double()
        results |= named(late | ({CONTINUED: continued_S} if len(after_ES) else {}), part=FAILS)
    return results


def _groups(
    config: Config,
) -> tuple[dict[CopyTask, Curves], dict[CopyTask, Tensor], dict[str, Curves]]:
    """Return curves and success by task, and the curves of failing, succeeding and i.i.d. runs."""
    found = [find_or_train(*job).load_tensors(CURVES) for job in models(config)]
    curves = dict(zip(TASKS, found, strict=True))
    succeeds: dict[CopyTask, Tensor] = {
        task: at_step(own, "accuracy", config.setup.updates) >= SUCCESS
        for task, own in curves.items()
    }
    good_S = succeeds["permutation"]
    groups = {
        name: {x: y if x == "step" else y[:, chosen_S] for x, y in curves["permutation"].items()}
        for name, chosen_S in ((FAILS, ~good_S), (SUCCEEDS, good_S))
        if chosen_S.any()
    }
    return curves, succeeds, {**groups, INDEPENDENT: curves["iid"]}


def _early(group: Curves, measure: str, config: Config) -> Tensor:
    """Return the mean over early evaluations, (S,)."""
    return group[measure][group["step"] <= config.early].mean(0)


def _values(group: Curves, config: Config) -> dict[str, Tensor]:
    cut = config.setup.updates
    return {
        **{what: at_step(group, name, cut) for what, name in AT_CUT.items()},
        LEAST: group["evenness"][group["step"] <= cut].amin(0),
        **{what: _early(group, name, config) for what, name in EARLY.items()},
    }


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw every run, and means of groups up to the cut."""
    config = from_json(Config, out.config())
    curves, succeeds, groups = _groups(config)
    shown = {"accuracy": "token accuracy", "on": "attention on the source",
             "beta_token": "beta on the right token"}  # fmt: skip
    runs, rows = panels(2, len(shown), width=4.5, height=2.6)
    for axes, (measure, label) in zip(rows, shown.items(), strict=True):
        for axis, task in zip(axes, TASKS, strict=True):
            for good, colour in ((False, "tab:red"), (True, "tab:blue")):
                lines_ES = curves[task][measure][:, succeeds[task] == good]
                axis.plot(curves[task]["step"], lines_ES, color=colour, alpha=0.35, linewidth=0.7)
            axis.axvline(config.setup.updates, color="black", linewidth=0.7, linestyle=":")
            title = f"{task}: {int(succeeds[task].sum())} of {config.seeds} succeed (blue)"
            axis.set(xlabel="update", ylabel=label, ylim=(-0.03, 1.03), title=title)
    shown |= {"beta_gap": GAP, "evenness": "evenness of attention",
              "offset": "mean offset of attention"}  # fmt: skip
    mechanism, rows = panels(3, 2, width=3.6, height=2.8)
    for axis, (measure, label) in zip(rows[0] + rows[1], shown.items(), strict=True):
        means = {
            name: curve(group["step"][until], group[measure][until])
            for name, group in groups.items()
            for until in [group["step"] <= config.setup.updates]
        }
        draw_lines(axis, means, xlabel="update", ylabel=label, colours=COLOURS)
    return {"runs": runs, "mechanism": mechanism}


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
