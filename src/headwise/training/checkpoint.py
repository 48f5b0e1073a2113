"""Checkpoints: model, optimiser, random numbers and what was measured, in one safetensors file.

Names inside: `model.<name>`, `optimizer.<parameter>.<quantity>`, `random.cpu` and `random.cuda`
(a row a process), `window`, what the loop has measured since it last logged, `evaluations`, and
`beside.<name>`, what the caller keeps of the training. Whole or absent, never a pickle.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headwise.recording.run import Run

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"  # the weights that were evaluated best, named as in the model


class Progress(NamedTuple):
    """How far a training is."""

    step: int
    window: Tensor  # (steps, 2): loss and gradient norm of each step since the last log
    evaluations: Tensor  # (evaluations, 2): step and the figure that decides, in float64


def random_states() -> dict[str, Tensor]:
    """Where this process's random numbers stand, by device."""
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def checkpoint_tensors(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    random: Mapping[str, Tensor],
    beside: Mapping[str, Tensor] = {},
) -> dict[str, Tensor]:
    """Everything needed to go on after a step as if nothing had happened, but the step itself.

    Args:
        model: its parameters and buffers.
        optimizer: its state of each parameter.
        progress: what was measured.
        random: `random_states` of the processes, a row each.
        beside: what the caller keeps of the training.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for quantity, tensor in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{quantity}"] = tensor
    tensors |= {f"beside.{name}": tensor for name, tensor in beside.items()}
    return tensors | {**random, "window": progress.window, "evaluations": progress.evaluations}


def load_checkpoint(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    process: int,
    processes: int,
    beside: Mapping[str, Tensor] = {},
) -> Progress:
    """Put everything back as it was, and say how far it was.

    Args:
        run: where from.
        model: gets its parameters and buffers.
        optimizer: gets its state.
        process: which row of the random numbers is this process's.
        processes: how many there are; as many must have written the checkpoint.
        beside: filled in place with what the caller kept.
    """
    tensors, note = _read(run), run.note(CHECKPOINT)
    if len(tensors["random.cpu"]) != processes:
        raise ValueError(
            f"{run.path(CHECKPOINT)} was written by {len(tensors['random.cpu'])} processes, but "
            f"{processes} go on from it; start as many as before."
        )
    _load_model(run, model, weights_of(tensors))
    _load_optimizer(model, optimizer, _under("optimizer.", tensors))
    _fill(run, beside, _under("beside.", tensors))
    # clones, because torch reads from the start of a view's storage instead of its own
    torch.set_rng_state(tensors["random.cpu"][process].clone())
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"][process].clone())
    return Progress(int(note["step"]), tensors["window"], tensors["evaluations"])


def checkpoint_weights(run: Run) -> dict[str, Tensor]:
    """The weights in a run's checkpoint, named as in the model."""
    return weights_of(_read(run))


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights among the tensors of a checkpoint, named as in the model."""
    return _under("model.", tensors)


def _read(run: Run) -> dict[str, Tensor]:
    tensors, note = run.load_tensors(CHECKPOINT), run.note(CHECKPOINT)
    parts = {"random.cpu", "window", "evaluations"}
    if not note.get("step", "").isdigit() or not parts <= tensors.keys():
        raise ValueError(
            f"{run.path(CHECKPOINT)} was not written by `fit`; delete it to start anew."
        )
    return tensors


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _load_model(run: Run, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in [*wanted, *there]:
        if wanted.get(name) != there.get(name):
            raise ValueError(
                f"{run.path(CHECKPOINT)} is of another model: {name} has shape "
                f"{there.get(name, 'none')} there and {wanted.get(name, 'none')} here; "
                "choose another folder."
            )
    model.load_state_dict(dict(tensors))


def _fill(run: Run, beside: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    if beside.keys() != tensors.keys():
        there, here = (", ".join(names) or "nothing" for names in (tensors, beside))
        raise ValueError(
            f"{run.path(CHECKPOINT)} is of another training: beside the model it keeps {there}, "
            f"and this one {here}; choose another folder."
        )
    for name, tensor in beside.items():
        tensor.copy_(tensors[name])


def _load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for index, parameter in enumerate(parameters):
        quantities = _under(f"{names[parameter]}.", tensors)
        if quantities:
            state[index] = quantities
    # load_state_dict, not assignment: it knows which quantity belongs on which device
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
