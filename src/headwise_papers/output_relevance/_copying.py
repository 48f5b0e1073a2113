"""Copying (Section 4.2): settings, models, data, training and measures, for three experiments.

S models   B sequences   K positions, the end token included   N = B K rows   E evaluations
"""

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headwise.guidance import Guidance
from headwise.recording import Run
from headwise.training import progress_bar
from headwise_papers.data.synthetic import Copying, CopyTask, copying
from headwise_papers.measures.sen_curves import Records
from headwise_papers.models.rnn import Combine, Seq2Seq, Seq2SeqConfig
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.ops.relevance import Looked
from headwise_papers.output_relevance._runs import drawn
from headwise_papers.recipes.stacked import train_stack

SUCCESS = 0.9  # token accuracy at the cut
BLOCK = 20  # updates whose data are generated together
# Seeds of data: of a stream s and its blocks s * STREAM, ..., of evaluations FRESH and above. A CPU
# generator uses 32 bits of a seed only.
STREAM, FRESH = 1009, 3 * 10**9
MAX_NUMBERS = {"cuda": 2**30, "cpu": 2**25}  # held while output relevance is computed
CURVES = "trace/copying/curves.safetensors"

Batch = tuple[Tensor, ...]
Curves = dict[str, Tensor]  # by measure, (E, S)


@dataclass(frozen=True)
class Setup:
    """Task, model and training."""

    types: int = 40  # different tokens, and tokens of a sequence
    hidden: int = 256  # width of embeddings and of both LSTMs
    combine: Combine = "concat"  # before the output layer; the paper: context, see `Combine`
    batch: int = 128  # sequences of an update
    rate: float = 1e-3  # of Adam
    updates: int = 200  # the cut, where success is judged
    every: int = 10  # updates between evaluations
    sequences: int = 50  # of an evaluation

    def __post_init__(self) -> None:
        if self.every < 1 or self.updates % self.every:
            raise ValueError(
                f"updates must be a multiple of every, as success is judged at the evaluation "
                f"after the last one; got {self.updates} and {self.every}."
            )

    def model(self, heads: int = 1, sum_heads: Literal["sum", "mean"] = "sum") -> Seq2SeqConfig:
        """Return the settings of a model: one layer, one direction."""
        return Seq2SeqConfig(
            vocabulary=self.types + 2,
            embedding=self.hidden,
            hidden=self.hidden,
            layers=1,
            bidirectional=False,
            heads=heads,
            combine=self.combine,
            sum_heads=sum_heads,
            dropout=0.0,
        )

    def drawn(self, seeds: Sequence[int], device: torch.device) -> list[Seq2Seq]:
        """Make models with one head, each initialised by its own seed."""
        config = self.model()
        return [drawn(lambda: Seq2Seq(config), seed=seed, device=device) for seed in seeds]

    def data(self, task: CopyTask, count: int, seed: int, device: torch.device) -> Copying:
        """Generate sequences on a device."""
        generator = torch.Generator(device).manual_seed(seed)
        return copying(task, count, types=self.types, generator=generator)


def stream(
    task: CopyTask, seeds: Sequence[int], setup: Setup, device: torch.device
) -> Callable[[int], Batch]:
    """Return fresh data for every update, generated on the device; equal seeds get equal data.

    Args:
        task: what to copy.
        seeds: one of each model.
        setup: how long and how many.
        device: where to generate; a GPU generates other numbers than a CPU.

    Returns:
        A function from the update to source, target_in and target_out, each (S, B, K).
    """
    different = sorted(set(seeds))
    place_S = torch.tensor([different.index(seed) for seed in seeds], device=device)
    block: dict[int, list[Tensor]] = {}  # the latest only

    def one_block(number: int) -> list[Tensor]:
        if number not in block:
            block.clear()
            parts = [
                setup.data(task, BLOCK * setup.batch, seed * STREAM + number, device)
                for seed in different
            ]
            # short integers: a block of a hundred models is 20 MB then
            block[number] = [torch.stack([x[which].short() for x in parts]) for which in (0, 1)]
        return block[number]

    def batch(update: int) -> Batch:
        first = update % BLOCK * setup.batch
        rows = slice(first, first + setup.batch)
        source, target_in = (x[place_S, rows].long() for x in one_block(update // BLOCK))
        return source, target_in, source

    return batch


@dataclass
class CopyCurves:
    """Recorder of how well S models copy fresh sequences, and with `detail` where they attend.

    All (E, S): `accuracy` of target tokens, the end token included; with detail also the share of
    target positions whose attention is largest `on` the source position, one `before` and one
    `after` it; the mean `offset` from it; how even attention is (`evenness`, entropy over that of
    uniform attention); and of output relevance the share of target positions where it is largest
    on the source position (`beta_on`), or on any position with the right token (`beta_token`), and
    by how much it is larger on the source position than on the mean position (`beta_gap`).
    """

    task: CopyTask
    setup: Setup
    device: torch.device
    detail: bool = True
    name: str = "copying"
    _steps: list[int] = field(default_factory=list[int], init=False, repr=False)
    _kept: dict[str, Records] = field(default_factory=dict[str, Records], init=False, repr=False)

    @torch.no_grad()
    def __call__(self, step: int, model: "Seq2SeqStack | GuidedStack") -> None:
        if step % self.setup.every:
            return
        stack = model.stack if isinstance(model, GuidedStack) else model
        fresh = self.setup.data(self.task, self.setup.sequences, FRESH + step, self.device)
        found = measures(stack, fresh) if self.detail else {"accuracy": accuracy(stack, fresh)}
        self._steps.append(step)
        for name, value_S in found.items():
            self._kept.setdefault(name, Records()).append(value_S)

    def tensors(self) -> dict[str, Tensor]:
        """Return what was recorded, and at which steps."""
        curves = {name: records.stacked().cpu() for name, records in self._kept.items()}
        return {"step": torch.tensor(self._steps), **curves}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what `tensors` returned earlier."""
        self._steps = tensors["step"].tolist()
        self._kept = {name: Records(x) for name, x in tensors.items() if name != "step"}


def accuracy(stack: Seq2SeqStack, data: Copying) -> Tensor:
    """Return the share of right tokens, given the right ones before them, (S,)."""
    source_SBK, target_SBK, out_SBK = (x.expand(stack.seeds, *x.shape) for x in data)
    right_STB = stack(source_SBK, target_SBK).argmax(-1) == out_SBK.transpose(1, 2)
    return right_STB.double().mean((1, 2))


def measures(stack: Seq2SeqStack, data: Copying) -> dict[str, Tensor]:
    """Return the measures of `CopyCurves`, means over target positions.

    Sequences are read in chunks, as output relevance takes (S, N, K, D) numbers.
    """
    source_BK = data.source
    n_positions = source_BK.shape[1]
    each = stack.seeds * n_positions**2 * 3 * stack.config.hidden
    size = max(1, MAX_NUMBERS[source_BK.device.type] // each)
    chunks: list[dict[str, Tensor]] = []
    for first in range(0, len(source_BK), size):
        some = Copying(*(x[first : first + size] for x in data))
        lengths_B = torch.full_like(some.source[:, 0], n_positions)
        looked = stack.look(some.source, lengths_B, some.target_in, some.target_out, lengths_B)
        chunks.append(_measures(looked, some.source))
    return {name: torch.cat([chunk[name] for chunk in chunks], dim=1).mean(1) for name in chunks[0]}


def _measures(looked: Looked, source_BK: Tensor) -> dict[str, Tensor]:
    """Return (S, N) each; the right output of target position t is source token t."""
    n_positions = source_BK.shape[1]
    place_N = torch.arange(n_positions, device=source_BK.device).repeat(len(source_BK))
    offset_SN = looked.alpha.argmax(-1) - place_N
    beta_peak_SN = looked.beta.argmax(-1)
    source_NK = source_BK.repeat_interleave(n_positions, dim=0)
    token_SN = source_NK.expand(len(beta_peak_SN), -1, -1).gather(-1, beta_peak_SN[..., None])
    own_SN1 = place_N.expand_as(beta_peak_SN)[..., None]
    log_weight_SNK = looked.alpha.log_softmax(-1)
    entropy_SN = -(log_weight_SNK.exp() * log_weight_SNK).sum(-1)
    measures = {
        "accuracy": looked.right,
        "on": offset_SN == 0,
        "before": offset_SN == -1,
        "after": offset_SN == 1,
        "offset": offset_SN,
        "evenness": entropy_SN / math.log(n_positions),
        "beta_on": beta_peak_SN == place_N,
        "beta_token": token_SN[..., 0] == source_BK.flatten(),
        "beta_gap": looked.beta.gather(-1, own_SN1)[..., 0] - looked.beta.mean(-1),
    }
    return {name: value_SN.double() for name, value_SN in measures.items()}


def train(
    stack: Seq2SeqStack,
    task: CopyTask,
    data_seeds: Sequence[int],
    setup: Setup,
    *,
    updates: int | None = None,
    detail: bool = False,
    replay: bool = True,
    guidance: Guidance | None = None,
    label: str = "",
) -> Curves:
    """Train a stack, each model on the stream of its seed; return `CopyCurves`, and `loss`.

    There are no checkpoints: a hundred models are trained within seconds where they can be trained
    at all, and take gigabytes.

    Args:
        stack: the models.
        task: what to copy.
        data_seeds: of each model's stream.
        setup: of the training.
        updates: unless given, those of the setup.
        detail: whether to record where models attend.
        replay: whether updates can be recorded as CUDA graphs.
        guidance: of the stack's heads.
        label: of a progress bar.
    """
    device = stack.weights["embed.weight"].device
    release(device)
    updates = setup.updates if updates is None else updates
    curves = CopyCurves(task, setup, device, detail)
    batches = stream(task, data_seeds, setup, device)
    with progress_bar(updates, label=label or task) as show:
        loss_ES = train_stack(
            stack if guidance is None else GuidedStack(stack, guidance),
            batches if guidance is None else _at_updates(guidance, batches),
            steps=updates,
            rate=setup.rate,
            recorders=[curves],
            replay=replay,
            progress=show,
        )
    return {**curves.tensors(), "loss": loss_ES.cpu()}


def save_curves(curves: Curves, config: object, folder: Path) -> Run:
    """Write the curves of a finished training as a run."""
    with Run.create(folder, config) as run:  # pyright: ignore[reportArgumentType]
        run.save_tensors(CURVES, curves)
        run.save_figures({"accuracy": float(curves["accuracy"][-1].mean())})
    return run


def at_step(curves: Mapping[str, Tensor], name: str, step: int) -> Tensor:
    """Return a curve at an evaluation, (S,)."""
    return curves[name][curves["step"].tolist().index(step)]


def release(device: torch.device) -> None:
    """Free the memory of earlier trainings, whose recorded updates refer to themselves."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class GuidedStack:
    """A stack with the guidance of its heads in its loss, as `train_stack` takes it.

    Args:
        stack: the models.
        guidance: of this stack.
    """

    def __init__(self, stack: Seq2SeqStack, guidance: Guidance) -> None:
        self.stack, self.guidance = stack, guidance
        self.weights = stack.weights

    @property
    def seeds(self) -> int:
        """Number of models."""
        return self.stack.seeds

    def loss(self, *batch: Tensor) -> Tensor:
        """Return each model's cross-entropy, (S,), with the gradient of its guidance loss too.

        The models are one batch to the guidance, whose loss is the mean over them. It is added to
        the loss of each, so that their sum has every model's own guidance loss in it once.
        """
        own_S = self.stack.loss(*batch)
        guiding = self.guidance.loss()
        return own_S + (guiding - guiding.detach())  # losses stay comparable with unguided ones


def _at_updates(guidance: Guidance, batches: Callable[[int], Batch]) -> Callable[[int], Batch]:
    """Return the same batches; each sets the guidance to its update, as alpha falls."""

    def batch(update: int) -> Batch:
        guidance.at_step(update)
        return batches(update)

    return batch
