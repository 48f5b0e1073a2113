"""What the experiments on copying share: the model, the data, training, and what is measured.

S models   B sequences   K positions, the end mark included   N = B K rows   E evaluations
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from headwise.guidance import Guidance
from headwise.recording.run import Run
from headwise.training.progress import Report
from headwise_papers.core.base import Estimate
from headwise_papers.data.synthetic import Copying, CopyTask, copying
from headwise_papers.measures.sen_curves import Records
from headwise_papers.models.rnn import Seq2Seq, Seq2SeqConfig
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.output_relevance._copy_looking import looked
from headwise_papers.output_relevance._guided_copying import GuidedStack, telling
from headwise_papers.output_relevance._stacks import drawn
from headwise_papers.recipes.stacked import train_stack

BLOCK = 20  # updates whose data are drawn together
# Seeds of data: of a stream s and its blocks s * STREAM, ..., of evaluations FRESH and above. A CPU
# looks at 32 bits of a seed only.
STREAM, FRESH = 1009, 3 * 10**9


@runtime_checkable
class Settings(Protocol):
    """What the config of every experiment on copying says."""

    @property
    def types(self) -> int:
        """Different tokens, and tokens of a sequence."""
        ...

    @property
    def hidden(self) -> int:
        """Width of embeddings and of both LSTMs."""
        ...

    @property
    def batch(self) -> int:
        """Sequences of an update."""
        ...

    @property
    def rate(self) -> float | int:
        """Of Adam."""
        ...

    @property
    def every(self) -> int:
        """Updates between evaluations."""
        ...

    @property
    def sequences(self) -> int:
        """Fresh sequences of an evaluation."""
        ...


def check_cut(updates: int, every: int) -> None:
    """Success is judged at an evaluation, so the last update must have one."""
    if every < 1 or updates % every:
        raise ValueError(
            f"updates must be a multiple of every, as success is judged at the evaluation after "
            f"the last one; got {updates} and {every}."
        )


def more_often(these: Sequence[float], those: Sequence[float]) -> float:
    """The rule for all claims that a share is larger: 1 if the 95 % intervals do not meet, else 0.

    The intervals are Wilson's; a share of a single trial shows nothing.

    Args:
        these: 0 or 1 a trial, of the share that is claimed to be larger.
        those: of the other.

    >>> more_often([1.0] * 6, [0.0] * 6), more_often([1.0] * 2, [0.0] * 2)
    (1.0, 0.0)
    """
    if min(len(these), len(those)) < 2:
        return 0.0
    return float(Estimate.of(these).low > Estimate.of(those).high)


def model_config(
    settings: Settings, *, heads: int = 1, sum_heads: Literal["sum", "mean"] = "sum"
) -> Seq2SeqConfig:
    """The model of Section 4.2: one layer, one direction, [d; context] before the output."""
    return Seq2SeqConfig(
        vocabulary=settings.types + 2,
        embedding=settings.hidden,
        hidden=settings.hidden,
        layers=1,
        bidirectional=False,
        heads=heads,
        combine="concat",
        sum_heads=sum_heads,
        dropout=0.0,
    )


def drawn_models(settings: Settings, seeds: Sequence[int], device: torch.device) -> list[Seq2Seq]:
    """Models with one head, each drawn by its own seed."""
    config = model_config(settings)
    return [drawn(lambda: Seq2Seq(config), seed=seed, device=device) for seed in seeds]


def stream(
    task: CopyTask, seeds: Sequence[int], settings: Settings, device: torch.device
) -> Callable[[int], tuple[Tensor, Tensor, Tensor]]:
    """Fresh data for every update, drawn on the device; equal seeds get equal data.

    Args:
        task: what to copy.
        seeds: one of each model.
        settings: how long and how many.
        device: where to draw; a GPU draws other numbers than a CPU.

    Returns:
        A function from the update to source, target_in and target_out, each (S, B, K).
    """
    different = sorted(set(seeds))
    place_S = torch.tensor([different.index(seed) for seed in seeds], device=device)
    block: dict[int, tuple[Tensor, Tensor]] = {}  # the latest only

    def one_block(number: int) -> tuple[Tensor, Tensor]:
        if number not in block:
            block.clear()
            parts = [
                _drawn(task, BLOCK * settings.batch, seed * STREAM + number, settings, device)
                for seed in different
            ]
            # short integers: a block of a hundred models is 20 MB then
            block[number] = tuple(  # pyright: ignore[reportArgumentType]
                torch.stack([x[which].short() for x in parts]) for which in (0, 1)
            )
        return block[number]

    def batch(update: int) -> tuple[Tensor, Tensor, Tensor]:
        first = update % BLOCK * settings.batch
        rows = slice(first, first + settings.batch)
        source, target_in = (x[place_S, rows].long() for x in one_block(update // BLOCK))
        return source, target_in, source

    return batch


@dataclass
class CopyCurves:
    """A recorder: how well S models copy fresh sequences, and with `detail` where they look.

    All (E, S): `accuracy` of target tokens, the end mark included; with detail also the share of
    target positions whose attention is largest `on` the source position, one `before` and one
    `after` it; the mean `offset` from it; how even attention is (`evenness`, entropy over that of
    uniform attention); and of output relevance the share of target positions where it is largest
    on the source position (`beta_on`), or on any position with the right token (`beta_token`), and
    by how much it is larger on the source position than on the mean position (`beta_gap`).
    """

    task: CopyTask
    settings: Settings
    device: torch.device
    detail: bool = True
    name: str = "copying"
    _steps: list[int] = field(default_factory=list[int], init=False, repr=False)
    _kept: dict[str, Records] = field(default_factory=dict[str, Records], init=False, repr=False)

    @torch.no_grad()
    def __call__(self, step: int, model: Seq2SeqStack | GuidedStack) -> None:
        if step % self.settings.every:
            return
        stack = model.stack if isinstance(model, GuidedStack) else model
        fresh = _drawn(self.task, self.settings.sequences, FRESH + step, self.settings, self.device)
        found = looked(stack, fresh) if self.detail else {"accuracy": accuracy(stack, fresh)}
        self._steps.append(step)
        for name, value_S in found.items():
            self._kept.setdefault(name, Records()).append(value_S)

    def tensors(self) -> dict[str, Tensor]:
        """What was recorded, and at which steps."""
        curves = {name: records.stacked().cpu() for name, records in self._kept.items()}
        return {"step": torch.tensor(self._steps), **curves}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on after what `tensors` gave earlier."""
        self._steps = tensors["step"].tolist()
        self._kept = {name: Records(x) for name, x in tensors.items() if name != "step"}


def train(
    stack: Seq2SeqStack,
    task: CopyTask,
    data_seeds: Sequence[int],
    settings: Settings,
    *,
    updates: int,
    detail: bool = False,
    replay: bool = True,
    guidance: Guidance | None = None,
    progress: Report | None = None,
) -> dict[str, Tensor]:
    """Train a stack, each model on the stream of its seed; the curves of `CopyCurves`, and `loss`.

    With guidance of the stack its heads are guided. No checkpoints: a hundred models are trained
    within seconds where they can be trained at all, and weigh gigabytes.
    """
    device = stack.weights["embed.weight"].device
    release(device)
    curves = CopyCurves(task, settings, device, detail)
    batches = stream(task, data_seeds, settings, device)
    loss_ES = train_stack(
        stack if guidance is None else GuidedStack(stack, guidance),
        batches if guidance is None else telling(guidance, batches),
        steps=updates,
        rate=settings.rate,
        recorders=[curves],
        replay=replay,
        progress=progress,
    )
    return {**curves.tensors(), "loss": loss_ES.cpu()}


def kept(run: Run, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What was made, from the run if it was made before."""
    file = f"trace/copying/{name}.safetensors"
    if not run.has(file):
        run.save_tensors(file, make())
    return run.load_tensors(file)


def at_step(curves: Mapping[str, Tensor], name: str, step: int) -> Tensor:
    """(S,): a curve at an evaluation."""
    return curves[name][curves["step"].tolist().index(step)]


def release(device: torch.device) -> None:
    """Give back the memory of earlier trainings, whose recorded updates refer to themselves."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def accuracy(stack: Seq2SeqStack, data: Copying) -> Tensor:
    """(S,): share of right tokens, given the right ones before them."""
    source_SBK, target_SBK, out_SBK = (x.expand(stack.seeds, *x.shape) for x in data)
    right_STB = stack(source_SBK, target_SBK).argmax(-1) == out_SBK.transpose(1, 2)
    return right_STB.double().mean((1, 2))


def _drawn(
    task: CopyTask, count: int, seed: int, settings: Settings, device: torch.device
) -> Copying:
    generator = torch.Generator(device).manual_seed(seed)
    return copying(task, count, types=settings.types, generator=generator)
