"""Gradients of a result by gates of ones: d(result)/d(gate) is the effect of a head's output."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwise.ops.attended import Attended
from headwise.sites import Site, Where, eval_mode, find_sites, observe


@contextmanager
def eval_with_gradients(model: nn.Module) -> Generator[None, None, None]:
    """Enable gradients and disable dropout; restore every module's mode afterwards.

    Recurrent layers of cuDNN have no backward pass in evaluation mode; PyTorch's own have.
    """
    cudnn = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        with eval_mode(model), torch.enable_grad():
            yield
    finally:
        torch.backends.cudnn.enabled = cudnn


@contextmanager
def item_gates(model: nn.Module, *, where: Where = "*") -> Generator[dict[str, Tensor], None, None]:
    """Put gates of ones on the chosen sites, {site name: (B, H)}, at their first call.

    The gradient of any number by a gate is sum(out * d number/d out) over the queries and features
    of that head and item. A site that is called several times has one gate for all calls.
    """
    gates: dict[str, Tensor] = {}

    def put(site: Site, attended: Attended) -> None:
        # watchers are called before gates are applied
        if site.name not in gates:
            gates[site.name] = attended.out.new_ones(attended.out.shape[:2], requires_grad=True)
            site.gates.append(gates[site.name])

    try:
        with observe(model, put, where=where):
            yield gates
    finally:
        for site in find_sites(model, where=where):
            site.gates[:] = [gate for gate in site.gates if gate is not gates.get(site.name)]


def slopes(total: Tensor, gates: dict[str, Tensor], *, again: bool = False) -> dict[str, Tensor]:
    """Return the gradient of a number by each gate; zeros if it does not depend on one."""
    found = torch.autograd.grad(
        total, list(gates.values()), retain_graph=again, allow_unused=True, materialize_grads=True
    )
    return dict(zip(gates, found, strict=True))


def check_dependence(result: Tensor, source: Callable[..., object], wanted: str) -> None:
    """Raise if the result has no gradient, so that it cannot depend on heads."""
    if not result.requires_grad:
        name = getattr(source, "__name__", type(source).__name__)
        raise ValueError(
            f"{name} must give {wanted} that depend on the model's heads, with gradients; it gave "
            "a tensor without. Call the model inside it, not under no_grad() and not before."
        )
