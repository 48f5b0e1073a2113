"""fit: the one training loop. What is trained, on what and for what is handed in."""

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from headwise.ops.graphs import on_a_stream
from headwise.recording.run import Run
from headwise.training.keeping import nothing_beside
from headwise.training.loop import Loop
from headwise.training.loss import Summed
from headwise.training.progress import Report
from headwise.training.scalars import tensorboard_scalars
from headwise.training.settings import FitConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

Batch = TypeVar("Batch")


def fit(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Tensor | Summed | tuple[Tensor, Tensor | int]],
    batches: Callable[[int], Batch],
    *,
    run: Run,
    config: FitConfig,
    tokens: Callable[[Batch], int] | None = None,
    progress: Report | None = None,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    rates: Mapping[str, float] = {},
    on_step: Callable[[int], None] | None = None,
    beside: Callable[[], Mapping[str, Tensor]] = nothing_beside,
) -> None:
    """Train a model in place, with AdamW; start where the run's checkpoint, if any, left off.

    A run that was killed and started again goes through the same numbers as one that was not.
    The model is left in training mode, on the device it was trained on. Logged every `log_every`
    steps: `loss` and `gradient_norm` (means since the last log), `learning_rate` and, if `tokens`
    is given, `tokens_per_second`, in which evaluations and checkpoints take no time.

    `evaluate` is called every `evaluate_every` steps and after the last; its figures are logged and
    the first of them decides: with `keep_best` the weights that were best stand in the run's
    `best.safetensors`, named as in the model, and after `patience` evaluations without a better one
    training stops.

    With `graphs` a step is recorded after `warm` others with batches of its shape, and replayed
    from then on: a small model then trains as fast as the GPU computes, and not as fast as Python
    asks.
    The loss must not read tensors in Python, numbers it takes from elsewhere stay those of the
    recording, and nobody should watch the model.

    Started by `accelerate launch` or `torchrun` in several processes, each takes batches of its
    own, `accumulate` of them a step; the first process alone writes to the run. Make the run there
    first: `with accelerate.Accelerator().main_process_first(): run = Run.create(...)`.

    Args:
        model: its parameters that require a gradient are trained.
        loss: from the model, which it may only call, and a batch to the scalar to make small; or to
            a sum and how many it is over (`Summed`), so that a step's loss is the mean over all
            that its batches hold, in all processes, instead of the mean of their losses.
        batches: the batch of a number 0, 1, 2, ...; the same number must give the same batch. A
            tensor, or tuples, lists or dictionaries of tensors; they are moved to the device. For a
            GPU it is called on a thread, one batch ahead.
        run: where metrics and checkpoints go.
        config: how to train.
        tokens: how many tokens of a batch count for the speed.
        progress: called after every log; see `progress_bar`.
        evaluate: from the model, in evaluation mode and without gradients, to figures by name. The
            random numbers it draws are not missed by the training.
        rates: learning rates of their own at the peak of the schedule, by pattern of parameter
            names, e.g. {"head_gates.*": 0.05}; what matches is neither decayed nor clipped.
        on_step: called before each update with the number of updates done, e.g. to set what changes
            in training: `guidance.at_step`.
        beside: gives tensors by name that the caller changes in training, e.g. means of its own;
            they stand in checkpoints, not among weights, and are filled in place on going on.
    """
    if config.patience and evaluate is None:
        raise ValueError(
            f"patience={config.patience} needs something to wait for; give fit an `evaluate`."
        )
    _check_weights(model)
    accelerator = _accelerator()
    _check_together(accelerator.num_processes)
    cuda = [accelerator.device] if accelerator.device.type == "cuda" else []
    graphs = bool(config.graphs)  # None leaves it to a recipe, which has decided by now
    config = replace(config.on_device(cuda=bool(cuda)), graphs=graphs)
    if config.graphs and (not cuda or accelerator.num_processes > 1):
        raise ValueError("graphs=True needs one process with a GPU; leave it out here.")
    aside = on_a_stream() if config.graphs else nullcontext()
    with torch.random.fork_rng(devices=cuda), aside:
        loop = Loop(model, config, run, accelerator, rates=rates, beside=beside)
        board = config.tensorboard and accelerator.is_main_process
        with tensorboard_scalars(run, after=loop.step) if board else nullcontext() as scalars:
            loop.reports = [report for report in (scalars, progress) if report is not None]
            loop.train(loss, batches, tokens, evaluate, on_step)


def _accelerator() -> "Accelerator":
    """One that leaves model.forward alone: `precision` alone decides, by an autocast of ours.

    Accelerate keeps one mixed precision a process. Somebody may have set it before us, such as a
    Trainer or, by `accelerate launch --mixed_precision`, whoever made the first Accelerator.
    """
    from accelerate import Accelerator  # lazy: takes seconds, and only training needs it
    from accelerate.state import is_initialized

    accelerator = Accelerator(mixed_precision=None if is_initialized() else "no")
    accelerator.native_amp = False  # of this one only: it would wrap model.forward in its autocast
    return accelerator


def _check_weights(model: nn.Module) -> None:
    """Refuse weights that small updates would be rounded away from, or overflow."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"{name} is in {str(weight.dtype).removeprefix('torch.')}, which loses small "
                "updates; call model.float() first. precision='bfloat16' still computes in half "
                "precision."
            )


def _check_together(processes: int) -> None:
    """Refuse to train as one of several processes that do not know of each other."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != processes:
        raise ValueError(
            f"{started} processes were started, but Accelerate found {processes}; without a GPU, "
            "set ACCELERATE_USE_CPU=true before its first use."
        )
