"""Gates of ones with a gradient, a row an item: d(result)/d(gate) is what a head's output does."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwise.ops.attended import Attended
from headwise.sites import Site, Where, find_sites, observe


@contextmanager
def item_gates(model: nn.Module, *, where: Where = "*") -> Generator[dict[str, Tensor], None, None]:
    """Gates {site name: (B, H) ones} at the chosen sites, made as they are first called.

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


@contextmanager
def constant_parameters(model: nn.Module) -> Generator[None, None, None]:
    """No gradients of parameters inside, which saves their share of a backward pass."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def slopes(total: Tensor, gates: dict[str, Tensor], *, again: bool = False) -> dict[str, Tensor]:
    """The gradient of a number by each gate; zeros where it does not depend on one."""
    found = torch.autograd.grad(
        total, list(gates.values()), retain_graph=again, allow_unused=True, materialize_grads=True
    )
    return dict(zip(gates, found, strict=True))


def check_dependence(result: Tensor, source: Callable[..., object], wanted: str) -> None:
    """Raise if nothing that a head says can reach the result."""
    if not result.requires_grad:
        name = getattr(source, "__name__", type(source).__name__)
        raise ValueError(
            f"{name} must give {wanted} that depend on the model's heads, with gradients; it gave "
            "a tensor without. Call the model inside it, not under no_grad() and not before."
        )
