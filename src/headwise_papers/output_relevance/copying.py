"""Is copying hard to learn where all inputs are the same bag of words?

A sequence-to-sequence model learns to copy its input. Section 4.2 of the paper says that attention
is nearly uniform at first, so that the model sees bags of words; if all inputs are permutations of
the same 40 tokens, words that occur together tell nothing, output relevance beta is not learned,
attention has nothing to follow, and training is stuck. The claims, and how each is judged:

- "Over 20 random initializations, 11 succeed and 9 fail": share of runs with a token accuracy of
  0.9 or more at the cut, update 200;
- with tokens drawn independently "all 20 runs succeed": the same share. *Permutations are harder*
  if the 95 % intervals of both shares do not meet, the rule for all claims of this kind here, in
  `output_relevance/multihead` and in `output_relevance/rescue`;
- beta is about 0: in the runs that fail, by how much beta is larger on the source position than on
  the mean position, early on (mean of the evaluations up to update 100);
- it is learned where tokens are independent: a run that fails counts if, early on, its beta is
  largest on the right token less often than in every run on independent tokens;
- attention stays uniform: evenness (entropy over that of uniform attention) in the runs that fail,
  where it is least up to the cut. It was to be judged at the cut until a first run showed that it
  falls and rises again.

The commands:

    headwise reproduce output_relevance/copying           # under a minute on a GPU; 11 hours on a CPU core
    headwise reproduce output_relevance/copying --smoke   # 5 seconds

Where ours goes beyond the paper or leaves a choice to be made:

1. 100 runs of each task instead of 20, all at once; a run has its own start and its own data.
2. An iteration is one update of Adam at 1e-3 on 128 fresh sequences; the paper does not say. Each
   evaluation is on 50 fresh sequences, the same for all runs, with the right tokens so far given;
   the end mark counts as a token. Before the output layer stands tanh(W [state; context]); the
   paper gives the output layer the context. What fails, and how, may differ with that.
3. All permutation runs go on to update 400, and the share of failing runs that pass 0.9 at an
   evaluation after the cut is given: they may be slow rather than stuck.
4. Attention is "on the source" if it is largest at the position of the token to be copied. The mean
   offset is positive if the peak lies later.
5. With independent tokens a token may occur several times, so beta is judged by the token at its
   peak (by chance once in 41 for permutations, twice for independent tokens); "on the source" is
   given too.
6. What was found: the split is as in the paper, and from independent tokens beta is learned at
   once. But runs that fail are neither stuck nor uniform. For 30 updates their attention sharpens
   as in those that succeed. Its evenness falls to a mean of 0.32 at update 60 (0.27 where each run
   has its least) and goes back up to 0.78 at the cut, where attention is largest six positions
   later than the source on average; the encoder reads forwards and may carry the token there. On
   the source beta becomes smaller than on the mean position. Accuracy rises all the while, only
   more slowly: 94 % of the failing runs pass 0.9 by update 400.
"""

from dataclasses import dataclass

from torch import Tensor

from headwise.recording.run import Run
from headwise.training.progress import progress_bar
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.synthetic import CopyTask
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.output_relevance._copying import (
    at_step,
    check_cut,
    drawn_models,
    kept,
    more_often,
    train,
)
from headwise_papers.output_relevance._plots import draw_curve, panels, save
from headwise_papers.output_relevance._stacks import device_of

TASKS: tuple[CopyTask, CopyTask] = ("permutation", "iid")
FAILS, SUCCEEDS, INDEPENDENT = "permutation, failing", "permutation, succeeding", "iid"
COLOURS = {FAILS: "tab:red", SUCCEEDS: "tab:blue", INDEPENDENT: "tab:green"}


@dataclass(frozen=True)
class Config:
    """Section 4.2."""

    types: int = 40  # different tokens, and tokens of a sequence
    hidden: int = 256
    batch: int = 128  # sequences of an update
    rate: float = 1e-3
    updates: int = 200  # the cut
    longer: int = 400  # permutation runs go on up to here; the cut if that is later
    early: int = 100  # the last update that counts as early on
    every: int = 10  # updates between evaluations
    sequences: int = 50  # of an evaluation
    enough: float = 0.9  # the accuracy that is success
    seeds: int = 100  # runs of each task
    device: str = "auto"  # a GPU where there is one

    def __post_init__(self) -> None:
        check_cut(self.updates, self.every)


EXPECTED = (
    Expected("permutation: runs that succeed", paper=0.55, where="Sec. 4.2", margin=0.1,
             partly=0.2),
    Expected("iid: runs that succeed", paper=1.0, where="Sec. 4.2", margin=0.0, partly=0.05),
    Expected("permutations are harder", paper=1.0, where="Sec. 4.2"),
    Expected(f"{FAILS}: advantage of the source in beta, early on", paper=0.0,
             where="Sec. 4.2", margin=0.1, partly=0.5),
    Expected(f"{FAILS}: beta learned later than in every iid run", paper=1.0,
             where="Sec. 4.2", margin=0.05, partly=0.5),
    Expected(f"{FAILS}: evenness of attention where it is least", paper=1.0,
             where="Sec. 4.2", margin=0.05, partly=0.1),
)  # fmt: skip

Curves = dict[str, Tensor]  # by measure, (E, S)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train runs of both tasks; each figure with one value a run."""
    curves: dict[CopyTask, Curves] = {
        task: kept(run, task, lambda task=task: _train(task, config)) for task in TASKS
    }
    succeeds: dict[CopyTask, Tensor] = {
        task: at_step(curves[task], "accuracy", config.updates) >= config.enough for task in TASKS
    }
    groups = {
        FAILS: _of_runs(curves["permutation"], ~succeeds["permutation"]),
        SUCCEEDS: _of_runs(curves["permutation"], succeeds["permutation"]),
        INDEPENDENT: curves["iid"],
    }
    groups = {name: group for name, group in groups.items() if group["accuracy"].shape[1]}
    figures = {
        f"{task}: runs that succeed": x_S.double().tolist() for task, x_S in succeeds.items()
    }
    hard, easy = (figures[f"{task}: runs that succeed"] for task in TASKS)
    figures["permutations are harder"] = [more_often(easy, hard)]
    for name, group in groups.items():
        figures |= {
            f"{name}: {what}": x_S.tolist() for what, x_S in _figures(group, config).items()
        }
    if FAILS in groups:
        figures |= _mechanism(groups, config)
    _draw_runs(curves, succeeds, config, run)
    _draw_groups(groups, config, run)
    return figures


def _train(task: CopyTask, config: Config) -> Curves:
    seeds = range(config.seeds)
    stack = Seq2SeqStack(drawn_models(config, seeds, device_of(config.device)))
    updates = max(config.updates, config.longer) if task == "permutation" else config.updates
    with progress_bar(updates, label=task) as show:
        return train(stack, task, seeds, config, updates=updates, detail=True, progress=show)


def _of_runs(curves: Curves, chosen_S: Tensor) -> Curves:
    return {name: x if name == "step" else x[:, chosen_S] for name, x in curves.items()}


def _early(group: Curves, measure: str, config: Config) -> Tensor:
    """(S,): mean over evaluations early on."""
    return group[measure][group["step"] <= config.early].mean(0)


def _figures(group: Curves, config: Config) -> dict[str, Tensor]:
    """Of some runs, (S,) each."""
    at_cut = {
        "accuracy at the cut": "accuracy",
        "attention on the source at the cut": "on",
        "attention one before the source at the cut": "before",
        "attention one after the source at the cut": "after",
        "mean offset of attention at the cut": "offset",
        "evenness of attention at the cut": "evenness",
    }
    early = {
        "beta on the right token, early on": "beta_token",
        "beta on the source, early on": "beta_on",
        "advantage of the source in beta, early on": "beta_gap",
        "attention on the source, early on": "on",
    }
    until = group["step"] <= config.updates
    return {
        **{what: at_step(group, name, config.updates) for what, name in at_cut.items()},
        "evenness of attention where it is least": group["evenness"][until].amin(0),
        **{what: _early(group, name, config) for what, name in early.items()},
    }


def _mechanism(groups: dict[str, Curves], config: Config) -> dict[str, list[float]]:
    """Of the runs that fail: was beta learned late, and do they succeed later?"""
    fails, independent = groups[FAILS], groups[INDEPENDENT]
    least = _early(independent, "beta_token", config).min()
    later_S = _early(fails, "beta_token", config) < least
    figures = {f"{FAILS}: beta learned later than in every iid run": later_S.double().tolist()}
    if config.longer > config.updates:
        after_ES = fails["accuracy"][fails["step"] > config.updates]
        passes_S = (after_ES >= config.enough).any(0)
        figures[f"{FAILS}: succeed when continued"] = passes_S.double().tolist()
    return figures


def _draw_runs(
    curves: dict[CopyTask, Curves], succeeds: dict[CopyTask, Tensor], config: Config, run: Run
) -> None:
    """Every run: accuracy, attention and beta, permutation beside independent tokens."""
    measures = {
        "accuracy": "token accuracy",
        "on": "attention on the source",
        "beta_token": "beta on the right token",
    }
    figure, rows = panels(2, len(measures), width=4.5, height=2.6)
    for axes, (measure, label) in zip(rows, measures.items(), strict=True):
        for axis, task in zip(axes, TASKS, strict=True):
            for good, colour in ((False, "tab:red"), (True, "tab:blue")):
                lines_ES = curves[task][measure][:, succeeds[task] == good]
                axis.plot(curves[task]["step"], lines_ES, color=colour, alpha=0.35, linewidth=0.7)
            axis.axvline(config.updates, color="black", linewidth=0.7, linestyle=":")
            end = int(curves["permutation"]["step"][-1])
            axis.set(xlim=(0, end), ylim=(-0.03, 1.03), xlabel="updates", ylabel=label)
    for axis, task in zip(rows[0], TASKS, strict=True):
        good = int(succeeds[task].sum())
        axis.axhline(config.enough, color="black", linewidth=0.7, linestyle=":")
        axis.set_title(
            f"{task}: {good} of {config.seeds} succeed (blue), {config.seeds - good} fail (red)",
            fontsize=9,
        )
    save(figure, run, "runs")


def _draw_groups(groups: dict[str, Curves], config: Config, run: Run) -> None:
    """Means up to the cut, with 99 % intervals over runs."""
    measures = {
        "accuracy": "token accuracy",
        "beta_token": "beta on the right token",
        "beta_gap": "advantage of the source in beta",
        "on": "attention on the source",
        "evenness": "evenness of attention",
        "offset": "mean offset of attention",
    }
    figure, rows = panels(3, 2, width=3.6, height=2.8)
    for axis, (measure, label) in zip(rows[0] + rows[1], measures.items(), strict=True):
        for name, group in groups.items():
            until = group["step"] <= config.updates
            draw_curve(
                axis,
                group["step"][until],
                group[measure][until],
                colour=COLOURS[name],
                label=f"{name} ({group['accuracy'].shape[1]})",
            )
        axis.set(xlabel="updates", ylabel=label)
    rows[0][0].legend(frameon=False, fontsize=8)
    save(figure, run, "mechanism")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(types=8, hidden=32, batch=32, rate=3e-3, updates=120, longer=160, early=60,
                 sequences=20, every=20, seeds=4),
    reproduce=reproduce,
    expected=EXPECTED,
)  # fmt: skip
