"""Asking any classifier for logits and their gradients, leaving no trace in it."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Batch: TypeAlias = Tensor | Mapping[str, Any] | tuple[Any, ...] | list[Any]


@contextmanager
def undisturbed(model: nn.Module) -> Generator[None, None, None]:
    """Gradients on and dropout off inside; every module's mode as it was afterwards.

    Recurrent layers of cuDNN have no backward pass in evaluation mode; PyTorch's own have.
    """
    training = [module for module in model.modules() if module.training]
    cudnn = torch.backends.cudnn.enabled
    model.eval()
    torch.backends.cudnn.enabled = False
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.backends.cudnn.enabled = cudnn
        for module in training:
            module.training = True


def two_logits(logits: Tensor) -> Tensor:
    """Logits of no and yes, (0, z), for a model with one logit z, (B,) or (..., 1); others as is.

    >>> two_logits(torch.tensor([3.0, -1.0]))
    tensor([[ 0.,  3.],
            [ 0., -1.]])
    """
    apart = logits[:, None] if logits.dim() == 1 else logits
    return torch.cat([torch.zeros_like(apart), apart], -1) if apart.shape[-1] == 1 else apart


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """The logits of a batch: a mapping by name, a tuple or list in order, or the one input."""
    if isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(batch) if isinstance(batch, Tensor) else model(*batch)
    logits = getattr(output, "logits", output)  # Hugging Face models wrap them
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"{type(model).__name__} gave {type(output).__name__}; logits were wanted, as a "
            "tensor or under that name."
        )
    return logits
