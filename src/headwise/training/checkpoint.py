"""Checkpoints: model, optimiser, random numbers and recent losses in one safetensors file.

Names inside: `model.<name>`, `optimizer.<parameter>.<quantity>`, `random.cpu`, `random.cuda` and
`window`, what the loop has measured since it last logged. Whole or absent, never a pickle.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headwise.recording.run import Run

CHECKPOINT = "checkpoint.safetensors"


def save_checkpoint(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int, window: Tensor
) -> None:
    """Write everything needed to go on after `step` as if nothing had happened."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for quantity, tensor in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{quantity}"] = tensor
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    run.save_tensors(CHECKPOINT, {**tensors, "window": window}, {"step": str(step)})


def load_checkpoint(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, Tensor]:
    """Put everything back as it was; the step it was written after, and the window."""
    tensors, note = run.load_tensors(CHECKPOINT), run.note(CHECKPOINT)
    if not note.get("step", "").isdigit() or "random.cpu" not in tensors:
        raise ValueError(
            f"{run.path(CHECKPOINT)} was not written by `fit`; delete it to start anew."
        )
    _load_model(run, model, _under("model.", tensors))
    _load_optimizer(model, optimizer, _under("optimizer.", tensors))
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return int(note["step"]), tensors["window"]


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
