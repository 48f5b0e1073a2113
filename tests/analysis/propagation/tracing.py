"""Relevance at any place of a model: tensors of a linearised pass, and their coefficients."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.propagation import Propagation, head_relevance, linearised


def without_biases(model: nn.Module) -> nn.Module:
    """The model with all its biases zero, so that no relevance stays with them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


def relevances(
    model: nn.Module,
    forward: Callable[[], Tensor],
    place: tuple[int, ...],
    modules: Iterable[nn.Module],
    settings: Propagation | None = None,
) -> list[Tensor]:
    """Relevance of what each call of the modules gave, as shares of the logit at a place."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        outputs.append(tensor if tensor.requires_grad else tensor.requires_grad_())

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        with torch.enable_grad(), linearised(model, settings) as mode:
            logits = forward()
    finally:
        for handle in handles:
            handle.remove()
    mode.items = len(logits)
    logit = logits[place]
    found = torch.autograd.grad(logit, outputs, allow_unused=True, materialize_grads=True)
    return [(u * c / logit).detach() for u, c in zip(outputs, found, strict=True)]


def shares(
    model: nn.Module, forward: Callable[[], Tensor], place: tuple[int, ...], *, eps: float = 0.0
) -> dict[str, Tensor]:
    """What heads add, as `relevances` has it: as shares of the logit and not of its size."""
    found = head_relevance(model, forward, torch.tensor([place]), normalise=False, eps=eps)
    with torch.no_grad():
        sign = forward()[place].sign()
    return {name: relevance * sign for name, relevance in found.items()}
