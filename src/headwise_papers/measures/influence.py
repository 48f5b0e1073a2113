"""Gradient influence: how much each input token speaks for the right answer, to first order."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from headwise.analysis import eval_with_gradients

__all__ = ["token_influence"]

IGNORED = -100  # the label of rows that do not count

Batch = Tensor | Mapping[str, Any] | tuple[Any, ...] | list[Any]
Loss = Callable[[Tensor, Tensor], Tensor]  # (logits, labels) -> the sum of -log p over the batch


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a batch: a mapping by name, a tuple or list in order, or one input."""
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


def total_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum -log p(label) over classes on the last axis, or over one logit for yes or no.

    Labels of -100 do not count, as in Hugging Face's models.

    Args:
        logits: (..., O) with two outputs or more; or (B,) or (..., 1), the logit of yes.
        labels: (...), numbers of outputs; 1 for yes and 0 for no of any type, with the shape of
            the logits or without their last axis of one.
    """
    one = logits.dim() == 1 or logits.shape[-1] == 1
    rows = logits.shape if logits.dim() == 1 else logits.shape[:-1]
    if labels.shape != rows and not (one and labels.shape == logits.shape):
        raise ValueError(
            f"For logits of shape {tuple(logits.shape)} labels must have shape {tuple(rows)}, "
            f"got {tuple(labels.shape)}."
        )
    _check_labels(labels, outputs=2 if one else logits.shape[-1], integers=not one)
    labels = labels.to(logits.device).flatten()
    if not one:
        return functional.cross_entropy(logits.flatten(0, -2), labels, reduction="sum")
    counts = labels != IGNORED
    return functional.binary_cross_entropy_with_logits(
        logits.flatten()[counts], labels[counts].to(logits), reduction="sum"
    )


def _check_labels(labels: Tensor, *, outputs: int, integers: bool) -> None:
    if integers and (labels.is_floating_point() or labels.dtype == torch.bool):
        raise ValueError(f"A label must be the number of an output, got {labels.dtype}.")
    known = torch.isin(labels.double(), torch.arange(outputs, device=labels.device).double())
    wrong = labels[~known & (labels != IGNORED)]
    if len(wrong):
        wanted = "0 or 1" if outputs == 2 else f"0 to {outputs - 1}"
        raise ValueError(
            f"Labels must be {wanted}, or {IGNORED} where there is none, got {wrong[0].item()}."
        )


def token_influence(
    model: nn.Module,
    batch: Batch,
    labels: Shaped[Tensor, "..."],
    *,
    loss: Loss = total_loss,
    embedding: nn.Module | None = None,
) -> Float[Tensor, "B T"]:
    """Measure how fast the loss falls as the embedding of each token is made longer.

    xi_l = -<gradient of -log p(label) by e_l, e_l>, with e_l the embedding of token l (Section
    4.1; after HotFlip, Ebrahimi et al., 2017). It takes one forward and one backward pass, without
    dropout; the model is left as it was.

    Args:
        model: any with an embedding of its input; where that is called several times, for a source
            and then for a target, the first call counts.
        batch: the model's inputs: a mapping by name, a tuple in order, or a single tensor.
        labels: the right answers, see `total_loss`.
        loss: (logits, labels) -> their summed loss, so that rows do not disturb one another.
        embedding: the module whose output is e; else Hugging Face's input embedding, or the
            model's `embed`. Padding has an influence of its own; leave it out by length.

    >>> model = nn.Sequential()
    >>> model.embed, model.output = nn.Embedding(5, 3), nn.Linear(3, 2)
    >>> model.forward = lambda ids: model.output(model.embed(ids).mean(1))
    >>> token_influence(model, torch.tensor([[1, 2, 4]]), torch.tensor([0])).shape
    torch.Size([1, 3])
    """
    source = _embedding_of(model) if embedding is None else embedding
    with eval_with_gradients(model), _scaled(source) as scales:
        total = loss(logits_of(model, batch), labels)
        if total.dim():
            raise ValueError(f"loss must give one number, got shape {tuple(total.shape)}; sum it.")
        if not scales:
            raise ValueError(
                f"{type(source).__name__} was not called by {type(model).__name__}; name the "
                "module that embeds its input with embedding=."
            )
        (slope_BT,) = torch.autograd.grad(total, scales)
    return -slope_BT


@contextmanager
def _scaled(source: nn.Module) -> Generator[list[Tensor], None, None]:
    """Multiply the first output of a module by ones, which have a gradient and are given here."""
    scales: list[Tensor] = []

    def scale(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        if scales:
            return output
        scales.append(output.new_ones(output.shape[:-1], requires_grad=True))
        return output * scales[0][..., None]

    handle = source.register_forward_hook(scale)
    try:
        yield scales
    finally:
        handle.remove()


def _embedding_of(model: nn.Module) -> nn.Module:
    """Find the input embedding: Hugging Face's (the encoder's, if any), or the model's `embed`."""
    two_stacks = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    reader = cast(Any, model).get_encoder() if two_stacks else model
    ask = getattr(reader, "get_input_embeddings", None)
    found = ask() if callable(ask) else getattr(model, "embed", None)
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"{type(model).__name__} has neither get_input_embeddings() nor an `embed` module; "
            "name the module that embeds its input with embedding=."
        )
    return found
