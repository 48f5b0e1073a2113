"""Under how many settings does an encoder learn at all, with guidance and without?

The paper says that plain models are very sensitive to learning rate and warm-up and that guided
ones need no tuning (§4.5), without figures. Here both are trained under every setting of a grid.

    headwise reproduce attention_guidance/robust            # 35 minutes on an H200, estimated
    headwise reproduce attention_guidance/robust --smoke    # half a minute on a CPU core

Estimated: 36 encoders of 12 layers, each 2,000 updates of 8,192 pieces, at 28 ms an update;
`--set at_once=4` trains four at a time, and leaves minutes out. `--set seeds=3` takes three times
as long; with fewer seeds every claim is undecided.

How it is measured:

1. The grid is like the paper's: three learning rates, three warm-ups, attention dropout of 0 and
   0.1. As runs are a hundred times shorter, learning rates are larger, 1e-4, 2e-4 and 5e-4, of
   which the last has been found to be too large for 12 layers, and warm-ups are 0, 5 and 25 % of
   the updates instead of 0, 1,000 and 10,000.
2. A setting *converges* if at the end the validation loss is a nat or more below that of the best
   guess without looking at other pieces (see `attention_guidance/pretrain`). A training whose loss stops
   being a number diverged. It does not converge, and counts with the worst loss of both arms, that
   guess's or a higher one; the best validation loss is of others. The nat was fixed before there
   was any result, and verdicts go by it. But one threshold takes a training that ends 0.9 nats
   below the guess, and has learned a lot, for one that has learned nothing; so figures also say how
   many settings end 0.25, 0.5 and 1 nats below it.
3. Arms are compared setting by setting, and the mean over the grid is taken seed by seed.
   "Converges under more settings" is about how many converge, and "lower loss" about the loss;
   one setting can decide the mean, so figures say under how many an arm is lower with every seed.
   "Less sensitive" is about which share of what the arm's best setting gains on that guess, with
   this seed, the others gain too; those that are no better than the guess have 0. An arm that
   converges nowhere has no best setting to lose, so that only seeds count with which both arms
   converge somewhere; without any nothing is said. Each holds if there are three seeds or more
   and the 95 % interval over seeds is above 0, does not if it is below, and else is undecided.
4. Settings are no sample of all settings there are: what is found is about this grid. Beside stands
   the p of an exact sign test of the settings under which only one arm converges; it takes settings
   for independent trials, which those of one seed are not, and decides nothing.
5. The text is the English one of `attention_guidance/pretrain` with 8,000 pieces.

Found so far, in small, with encoders of 4 layers, 2 rates, 2 warm-ups, 2 dropouts and 3 seeds (the
part `small`): guided encoders converge under more settings, as the paper says, and are lower under
seven of eight with every seed; but they are sensitive too. Of 24 guided trainings 9 end a nat below
the best guess of 5.55, and 21 half a nat; of 24 plain ones not one a quarter of a nat. With 0.001
guided ones end at 4.70 to 4.78, and plain ones at 5.67 to 5.70. With 0.004, which had been found by
trials, nine of twelve end at 4.01 to 4.35; the other three, without warm-up, stay at 6.00 to 6.07,
as their plain partners do. 30 of the 48 had been trained before, for a grid with a third rate; it
was given up for want of time, as with 0.016 all eight of the first seed stay at 6.07. So they did
in an earlier grid with two seeds, which is in `results/guidance/earlier/robust.json`.

With 12 layers, 2 rates, 2 warm-ups and 3 seeds, 1,500 updates of 4,096 pieces, no encoder of either
arm converges. That guided ones have the lower loss on the mean is due to one setting of four, 1e-4
without warm-up, which is the paper's for guided encoders: 6.23, 0.16 below the best guess, for
7.02. With 25 % of warm-up they are 0.04 higher with every seed, 6.48 for 6.44, as their heads never
begin to look at the next and the previous token; with 5e-4 both stay at 7.02. `runs/text-small` in
the command lends the text in pieces alone; the figures were computed anew, with their new names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from headwise.config import changed
from headwise.recording.run import Run
from headwise_papers.attention_guidance._losses import apart, converged, frequency_loss_of
from headwise_papers.attention_guidance._pretraining import (
    ENGLISH,
    GUIDED,
    MLM,
    TINY,
    Job,
    Pretraining,
    Wanted,
    diverged,
    in_company,
    pretrained,
    settings_of,
)
from headwise_papers.attention_guidance._sign_test import sign_test
from headwise_papers.attention_guidance.pretrain import SMALL, part_of
from headwise_papers.core.base import Expected, Experiment, Trials
from headwise_papers.core.claims import sure, sure_claim
from headwise_papers.recipes.pretraining import PretrainingConfig
from headwise_papers.sparse_transformer._drawing import panels, save

ARMS = (MLM, GUIDED)
MORE = f"{GUIDED} converges under more settings"
LESS_SENSITIVE = f"{GUIDED} less sensitive"
LOWER = f"{GUIDED} has the lower loss"
DEPTHS = (0.25, 0.5, 1.0)  # nats below the best guess without context; converged is the last
Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Config(Pretraining):
    """The grid, and what is pre-trained; see `Pretraining`."""

    corpus: str = ENGLISH
    layers: int = 12
    learning_rates: tuple[float, ...] = (1e-4, 2e-4, 5e-4)
    warmups: tuple[float, ...] = (0.0, 0.05, 0.25)  # shares of the updates
    dropouts: tuple[float, ...] = (0.0, 0.1)  # of attention weights
    seeds: int = 1
    steps: int | None = 2000
    warmup: int | None = 0  # of no use here: settings have their own
    vocab: int | None = 8000
    batch_size: int | None = 16
    compile: bool | None = False  # of short runs it would take as long as it saves

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.learning_rates or not self.warmups or not self.dropouts:
            raise ValueError("The grid needs one learning rate, warm-up and dropout or more.")
        for setting in _grid(self):  # refused before there is a folder
            _settings(self, GUIDED, setting)


class Setting(NamedTuple):
    """A place of the grid."""

    learning_rate: float
    warmup: float
    dropout: float
    seed: int

    @property
    def name(self) -> str:
        """As folders have it.

        >>> Setting(5e-4, 0.25, 0.1, 0).name
        'rate-0.0005-warmup-0.25-dropout-0.1-seed-0'
        """
        return (
            f"rate-{self.learning_rate:g}-warmup-{self.warmup:g}-dropout-{self.dropout:g}"
            f"-seed-{self.seed}"
        )


class Ended(NamedTuple):
    """How a training ended."""

    loss: float | None  # on the validation part; None where the training diverged
    converged: bool
    plateau: float  # the loss of the best guess without context
    minutes: float | None  # None where others were trained at the same time, or it diverged

    def is_below(self, depth: float) -> bool:
        """Whether it ended more than so many nats below that guess."""
        return self.loss is not None and self.loss < self.plateau - depth


def deep(arm: str, depth: float) -> str:
    """The name of how many settings end so many nats below the best guess.

    >>> deep("MLM", 0.25)
    'MLM: settings that end 0.25 nats below the best guess'
    """
    return f"{arm}: settings that end {depth:g} nats below the best guess"


def always_lower(arm: str) -> str:
    """The name of how many settings there are under which an arm is lower with every seed.

    >>> always_lower("guided")
    'settings under which guided has the lower loss with every seed'
    """
    return f"settings under which {arm} has the lower loss with every seed"


def _expected(part: str, note: str) -> list[Expected]:
    counts = [f"{arm}: settings that converge" for arm in ARMS]
    counts += [deep(arm, depth) for arm in ARMS for depth in DEPTHS]
    return [
        sure_claim(f"{part}: {MORE}", f"§4.5 and §6{note}"),
        sure_claim(f"{part}: {LESS_SENSITIVE}", f"§4.5{note}"),
        Expected(f"{part}: {LOWER}", None, f"§5.1{note}; a mean that one setting can decide"),
        *(Expected(f"{part}: {name}", None, f"§4.5{note}") for name in counts),
    ]


EXPECTED = (
    *_expected(part_of(ENGLISH, 12), ""),
    *_expected(part_of(ENGLISH, SMALL), ", in small"),
)


def reproduce(config: Config, run: Run) -> Figures:
    """Train everywhere on the grid; each figure has a value a setting."""
    grid = list(_grid(config))
    wanted = dict(_wanted(config, arm, setting) for setting in grid for arm in ARMS)
    runs = pretrained(config, run, wanted, keep_weights=False)
    found = {
        arm: [_ended(runs[_wanted(config, arm, setting)[0]]) for setting in grid] for arm in ARMS
    }
    draw_grid(grid, _losses(found), run, plateau=found[MLM][0].plateau)
    figures = {**_by_arm(grid, found, seeds=config.seeds), **compared(found, seeds=config.seeds)}
    part = part_of(config.corpus, config.layers)
    return {f"{part}: {name}": values for name, values in figures.items()}


def _grid(config: Config) -> Iterator[Setting]:
    for seed in range(config.seeds):
        for rate in config.learning_rates:
            for warmup in config.warmups:
                for dropout in config.dropouts:
                    yield Setting(rate, warmup, dropout, seed)


def _wanted(config: Config, arm: str, setting: Setting) -> Wanted:
    folder = f"robust/{arm.lower()}-{config.layers}-{setting.name}"
    return folder, _settings(config, arm, setting)


def _ended(done: Run) -> Ended:
    plateau = frequency_loss_of(done)
    if diverged(done):
        return Ended(None, False, plateau, None)
    figures = done.figures()
    minutes = None if in_company([done]) else figures["minutes"]
    return Ended(figures["validation_loss"], converged(done), plateau, minutes)


def _settings(config: Config, arm: str, setting: Setting) -> PretrainingConfig:
    plain = settings_of(config, Job(config.corpus, arm, config.layers, setting.seed))
    changes = {
        "fit.learning_rate": setting.learning_rate,
        "fit.warmup": round(setting.warmup * plain.fit.steps),
        "model.attention_dropout": setting.dropout,
    }
    return changed(plain, changes)


def _by_arm(
    grid: Sequence[Setting], found: Mapping[str, Sequence[Ended]], *, seeds: int
) -> Figures:
    """What is said of each arm, and of parts of the grid."""
    figures: Figures = {f"{arm}: validation loss": losses for arm, losses in _losses(found).items()}
    for arm, ends in found.items():
        figures |= _that_converge(arm, list(zip(grid, ends, strict=True)))
        for depth in DEPTHS:
            figures[deep(arm, depth)] = Trials(float(end.is_below(depth)) for end in ends)
        figures[f"{arm}: settings that diverge"] = Trials(float(end.loss is None) for end in ends)
        if ended := [end.loss for end in ends if end.loss is not None]:
            figures[f"{arm}: best validation loss"] = [min(ended)]
        each = [_kept(ends[place]) for place in _by_seed(len(ends), seeds)]
        if kept := [share for one in each for share in one]:
            figures[f"{arm}: share of what the best setting gains"] = kept
        if minutes := [end.minutes for end in ends if end.minutes is not None]:
            figures[f"{arm}: minutes"] = minutes
    figures["loss from frequencies alone"] = [found[MLM][0].plateau]
    return figures


def _that_converge(arm: str, ended: Sequence[tuple[Setting, Ended]]) -> Figures:
    """Whether each setting converges: of all, and by learning rate and warm-up."""
    name = f"{arm}: settings that converge"
    figures: Figures = {name: Trials(float(end.converged) for _, end in ended)}
    for at, end in ended:
        rate = f"{name}, learning rate {at.learning_rate:g}"
        figures.setdefault(rate, Trials()).append(float(end.converged))
    for at, end in ended:
        warmup = f"{name}, warm-up {at.warmup:.0%}"
        figures.setdefault(warmup, Trials()).append(float(end.converged))
    return figures


def compared(found: Mapping[str, Sequence[Ended]], *, seeds: int) -> Figures:
    """What both arms show, setting by setting, and what of it is no chance, seed by seed.

    Args:
        found: of each arm how it ended under every setting, one seed after the other.
        seeds: how many there are.
    """
    plain, guided = found[MLM], found[GUIDED]
    losses = _losses(found)
    places = _by_seed(len(plain), seeds)
    rates = [
        [[float(end.converged) for end in arm[at]] for arm in (guided, plain)] for at in places
    ]
    kept = [[_kept(arm[at]) for arm in (guided, plain)] for at in places]
    steadier = [_mean_gain(both) for both in kept if all(both)]
    higher = [_mean_gain(losses[arm][at] for arm in (MLM, GUIDED)) for at in places]
    only = [
        sum(a.converged and not b.converged for a, b in zip(*pair, strict=True))
        for pair in ((guided, plain), (plain, guided))
    ]
    return {
        f"settings under which only {GUIDED} converges": [float(only[0])],
        f"settings under which only {MLM} converges": [float(only[1])],
        "sign test over settings, p": [sign_test(*only)],
        always_lower(GUIDED): [_always_lower(losses[GUIDED], losses[MLM], places)],
        always_lower(MLM): [_always_lower(losses[MLM], losses[GUIDED], places)],
        f"validation loss of {GUIDED} less {MLM}": apart(losses[GUIDED], losses[MLM]),
        MORE: [sure([_mean_gain(both) for both in rates])],
        LOWER: [sure(higher)],
        **({LESS_SENSITIVE: [sure(steadier)]} if steadier else {}),
    }


def _always_lower(first: Sequence[float], second: Sequence[float], places: list[slice]) -> float:
    """Under how many settings the first of two arms has the lower loss with every seed."""
    lower = [[a < b for a, b in zip(first[at], second[at], strict=True)] for at in places]
    return float(sum(map(all, zip(*lower, strict=True))))


def _by_seed(number: int, seeds: int) -> list[slice]:
    """Where the settings of each seed stand."""
    each = number // seeds
    return [slice(seed * each, (seed + 1) * each) for seed in range(seeds)]


def _mean_gain(both: Iterable[Sequence[float]]) -> float:
    """By how much the first of two arms is higher, mean over settings."""
    first, second = both
    return fmean(apart(first, second))


def _losses(found: Mapping[str, Sequence[Ended]]) -> dict[str, list[float]]:
    """Of each arm; what diverged has the worst of both, or the best guess's if worse."""
    every = [end for ends in found.values() for end in ends]
    worst = max(end.plateau if end.loss is None else end.loss for end in every)
    return {
        arm: [worst if end.loss is None else end.loss for end in ends]
        for arm, ends in found.items()
    }


def _kept(ends: Sequence[Ended]) -> list[float]:
    """Of what an arm's best setting gains on the best guess, the share that each setting has.

    Nothing if no setting converges.
    """
    if not any(end.converged for end in ends):
        return []
    gains = [0.0 if end.loss is None else max(0.0, end.plateau - end.loss) for end in ends]
    return [gain / max(gains) for gain in gains]


def draw_grid(
    grid: Sequence[Setting], losses: Mapping[str, Sequence[float]], run: Run, *, plateau: float
) -> None:
    """The loss under every setting: a column a setting, arms beside each other, a dot a seed.

    Args:
        grid: settings with their seeds.
        losses: of each arm, one a place of the grid; "ARM: validation loss" of a part has them.
        run: where the picture goes.
        plateau: the loss of the best guess without context.
    """
    places = {at: column for column, at in enumerate(dict.fromkeys(one[:3] for one in grid))}
    seeds = 1 + max(one.seed for one in grid)
    figure, ((panel,),) = panels(1, width=max(5.0, 0.8 + 0.5 * len(places)), height=3.8)
    for column in range(1, len(places), 2):
        panel.axvspan(column - 0.5, column + 0.5, color="black", alpha=0.05, linewidth=0)
    for (arm, found), side in zip(losses.items(), (-0.2, 0.2), strict=True):
        at = [places[one[:3]] + side + 0.2 * (one.seed + 0.5) / seeds - 0.1 for one in grid]
        panel.plot(at, found, "o", markersize=5, alpha=0.7, markeredgewidth=0, label=arm)
    panel.axhline(
        plateau, color="grey", linestyle="--", linewidth=1.0, label="best guess without context"
    )
    labels = [f"{rate:g}\n{warmup:.0%}\n{dropout:g}" for rate, warmup, dropout in places]
    panel.set_xticks(range(len(places)), labels, fontsize=8)
    panel.tick_params(axis="y", labelsize=8)
    panel.set_xlim(-0.5, len(places) - 0.5)
    panel.set_xlabel("from above: learning rate, warm-up, attention dropout", fontsize=8)
    panel.set_ylabel("validation loss, a dot a seed", fontsize=8)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    save(figure, run, "grid")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    # so large a learning rate that a training goes wrong is part of the grid
    smoke=Config(
        corpus="oromo", layers=1, learning_rates=(1e-2, 1e38), warmups=(0.1,), dropouts=(0.0,),
        **TINY,
    ),
    reproduce=reproduce,
    expected=EXPECTED,
    marks_trials=True,
)  # fmt: skip
