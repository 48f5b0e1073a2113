"""PruneConfig: the settings of `headwise prune`."""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

from headwise.training import FitConfig

GATES, GREEDY, RANDOM = "gates", "greedy", "random"
NOT_NEGATIVE = (
    *("steps", "group", "at_once", "dev_lines", "inspect_lines", "speed_seconds", "penalty"),
    *("keep", "tokens"),
)


@dataclass(frozen=True)
class PruneConfig:
    """Settings of a pruning: the model, the choice of heads, and the training.

    Gates choose while the model is trained. All other choices are made first, and training then
    fine-tunes what is left. Give either `keep`, the number of heads, or `penalty`, the cost of one.
    """

    steps: int = 1000  # updates; 0 cuts without training, but gates need training
    learning_rate: float = 5e-5  # of the weights
    warmup: int = 0
    schedule: Literal["constant", "inverse_square_root", "cosine", "linear"] = "linear"
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    accumulate: int = 1  # batches per update
    weight_decay: float = 0.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # "auto": bfloat16 on a GPU
    compile: bool | None = False  # train through torch.compile; None: on a GPU
    graphs: bool = True  # replay updates as CUDA graphs, where there is one GPU
    evaluate_every: int = 100  # updates
    checkpoint_every: int = 100  # updates
    tensorboard: bool = False  # write what is logged as TensorBoard scalars too
    seed: int = 0
    model: str = ""  # folder of a run, of a Hugging Face model, or of a pruned one
    data: tuple[str, ...] = ()  # training file; for translation two, or one with a TAB
    dev: tuple[str, ...] = ()  # dev file or files, to measure on
    task: Literal["auto", "classification", "masked", "causal", "translation"] = "auto"
    keep: int | None = None  # number of heads to keep at the sites of `where`
    penalty: float | None = None  # cost of an open head, added to the loss; instead of keep
    normalise: Literal["paper", "reference_code"] = "paper"  # normalisation of the penalty
    choose: str = GATES  # gates, greedy, random, or a column of the inspection
    lowest: bool = False  # keep the heads with the smallest values of that column
    inspection: str = ""  # folder of `headwise inspect`, or its heads.json
    where: str = "*"  # pattern of the sites to prune, e.g. encoder.*
    freeze: Literal["decoder", "none"] = "none"  # the part that is not trained
    gate_learning_rate: float = 0.05
    initial: float = 2.0  # log_alpha of the gates at the start
    group: int = 0  # heads that stay or go together; 0: as many as share keys and values
    at_once: int = 0  # groups that greedy removes per round; 0: a tenth of all
    batch_size: int = 32  # sentences, or blocks of a language model
    tokens: int = 0  # maximum tokens of a batch, of runs that translate; 0: batch_size sentences
    length: int = 128  # maximum tokens of a sentence; of language models, tokens of a block
    dev_lines: int = 0  # number of dev lines; 0: all
    dropped: float = 0.15  # share of the tokens that are masked for a masked language model
    beams: int = 1  # beam size of the translations that are scored
    inspect_lines: int = 200  # dev lines to inspect heads on, without an inspection; 0: none
    speed_batches: tuple[int, ...] = (1, 8)
    speed_lengths: tuple[int, ...] = (32, 128)
    speed_backends: tuple[str, ...] = ("sdpa",)
    speed_seconds: float = 1.0  # time for each combination; 0: speed is not measured

    def __post_init__(self) -> None:
        self._check_given()
        self._check_numbers()
        if self.steps:
            self.fit_config(cuda=False)
        if self.keep is None and self.penalty is None:
            raise ValueError("Say how far to prune: either keep=12 heads, or penalty=0.05.")
        if self.keep is not None and self.penalty is not None:
            raise ValueError(
                f"keep={self.keep} finds the penalty by itself, and penalty={self.penalty} sets "
                "it; give one of the two."
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

    def fit_config(self, *, cuda: bool, replayable: bool = False) -> FitConfig:
        """Return the settings of `fit`, for a device; the last weights are the pruned ones.

        Args:
            cuda: whether training runs on a GPU.
            replayable: whether CUDA graphs can be made of the loss.
        """
        own = {field.name for field in fields(self)}
        shared = {f.name: getattr(self, f.name) for f in fields(FitConfig) if f.name in own}
        settings = FitConfig(**shared, average=1, keep_best=False)
        return settings.on_device(cuda=cuda, replayable=replayable)

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
        """Whether heads are chosen by a column of an inspection."""
        return self.choose not in (GATES, GREEDY, RANDOM)
