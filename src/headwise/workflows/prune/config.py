"""PruneConfig: the settings of `headwise prune`."""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from headwise.workflows.training_run import TrainingSettings

__all__ = ["PruneConfig"]

GATES, GREEDY, RANDOM = "gates", "greedy", "random"
NOT_NEGATIVE = (
    *("steps", "group", "at_once", "dev_lines", "look", "speed_seconds", "penalty", "keep"),
    "tokens",
)


@dataclass(frozen=True)
class PruneConfig(TrainingSettings):
    """What to prune, how heads are chosen, and how the model is trained while they go.

    With gates the training chooses; all other choices are made first, and the training is a
    fine-tuning of what is left. `keep` says how many heads, `penalty` how dear a head is.
    """

    steps: int = 1000  # updates; 0 cuts and does not train, but gates need some
    learning_rate: float = 5e-5  # of the weights
    warmup: int = 0
    schedule: Literal["constant", "inverse_square_root", "cosine", "linear"] = "linear"
    average: int = 1
    evaluate_every: int = 100
    checkpoint_every: int = 100
    model: str = ""  # folder of a run, of a Hugging Face model, or of a pruned one
    data: tuple[str, ...] = ()  # one file; for translation two of them, or one with a TAB
    dev: tuple[str, ...] = ()  # the same, to measure with
    task: Literal["auto", "classification", "masked", "causal", "translation"] = "auto"
    keep: int | None = None  # heads, of those that `where` chooses
    penalty: float | None = None  # of each open head, added to the loss; instead of keep
    normalise: Literal["paper", "reference_code"] = "paper"  # how the penalty counts
    choose: str = GATES  # gates, greedy, random, or a column of the inspection
    lowest: bool = False  # keep the heads with the smallest values of that column
    inspection: str = ""  # folder of `headwise inspect`, or its heads.json
    where: str = "*"  # pattern of the sites to prune, e.g. encoder.*
    freeze: Literal["decoder", "none"] = "none"  # what is not trained
    gate_learning_rate: float = 0.05
    initial: float = 2.0  # log_alpha of the gates at the start
    group: int = 0  # heads that go together; 0 takes as many as share keys and values
    at_once: int = 0  # of greedy: groups that go in a round; 0 takes a tenth of those there are
    batch_size: int = 32  # sentences, or blocks of a language model
    tokens: int = 0  # of runs that translate: most pieces of a batch; 0 takes batch_size sentences
    length: int = 128  # most tokens of a sentence; of language models, tokens of a block
    dev_lines: int = 0  # only so many, the first ones; 0 takes all
    dropped: float = 0.15  # share of the words that are hidden from a masked model
    beams: int = 1  # with which translations are made to be scored
    look: int = 200  # dev lines in which to see what heads do, without an inspection; 0: none
    speed_batches: tuple[int, ...] = (1, 8)
    speed_lengths: tuple[int, ...] = (32, 128)
    speed_backends: tuple[str, ...] = ("sdpa",)
    speed_seconds: float = 1.0  # how long each combination is timed; 0 leaves speed out

    def __post_init__(self) -> None:
        self._check_given()
        self._check_numbers()
        if self.steps:
            self.fit_config(cuda=False)
        if self.keep is None and self.penalty is None:
            raise ValueError("Say how far to prune: either keep=12 heads, or penalty=0.05.")
        if self.keep is not None and self.penalty is not None:
            raise ValueError(
                f"keep={self.keep} finds the price of a head by itself, and penalty={self.penalty} "
                "sets it; give one of the two."
            )
        if self.choose != GATES and self.keep is None:
            raise ValueError(f"choose={self.choose!r} needs keep; only gates take a penalty.")
        if self.choose == GATES and not self.steps:
            raise ValueError("Gates are learned, so they need steps; got 0.")
        if self.by_column and not self.inspection:
            raise ValueError(
                f"choose={self.choose!r} is a column, so give its inspection=FOLDER of `headwise "
                f"inspect`; or choose {GATES}, {GREEDY} or {RANDOM}."
            )
        if self.patience or self.average != 1:
            raise ValueError("Pruning ends with its last weights; leave patience and average.")

    def _check_given(self) -> None:
        for name in ("model", "data", "dev"):
            if not getattr(self, name):
                raise ValueError(f"{name} is missing; `prune` needs model, data and dev.")
        for name, kind in get_type_hints(type(self)).items():
            known = get_args(kind)
            if get_origin(kind) is Literal and getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}."
                )

    def _check_numbers(self) -> None:
        for name in ("penalty", "initial", "gate_learning_rate", "speed_seconds"):
            if not math.isfinite(getattr(self, name) or 0):
                raise ValueError(f"{name} must be a finite number, got {getattr(self, name)}.")
        for name in NOT_NEGATIVE:
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in ("batch_size", "length", "beams"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.gate_learning_rate <= 0:
            raise ValueError(f"gate_learning_rate must be above 0, got {self.gate_learning_rate}.")
        if not 0 < self.dropped < 1:
            raise ValueError(f"dropped must be between 0 and 1, got {self.dropped}.")

    @property
    def by_column(self) -> bool:
        """Whether heads are chosen by a measure."""
        return self.choose not in (GATES, GREEDY, RANDOM)
