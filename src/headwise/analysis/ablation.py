"""Ablation: what a model loses when one head is switched off."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.gradients import eval_with_gradients
from headwise.sites import Head, Site, Where, find_sites, gated, masked


def ablate(
    model: nn.Module,
    measure: Callable[[], Mapping[str, float]],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, list[float]]]:
    """Measure the model once for each head, with that head alone switched off.

    Use it for measures of a whole corpus, like BLEU. `ablate_items` is for measures of single items
    and switches many heads off in one forward pass.

    Args:
        model: anything with sites.
        measure: evaluates the model and returns metrics by name, e.g. {"bleu": 93.1}.
        progress: called with (heads done, heads in all).

    Returns:
        {name: {site: [value with that head off, for each head]}}.
    """
    heads = [head for site in find_sites(model) for head in site.heads]
    columns: dict[str, dict[str, list[float]]] = {}
    for done, head in enumerate(heads):
        progress(done, len(heads))
        with masked(model, {head.site: [head.index]}):
            for name, value in measure().items():
                columns.setdefault(name, {}).setdefault(head.site, []).append(value)
    progress(len(heads), len(heads))
    return columns


def ablate_items(
    model: nn.Module,
    measure: Callable[[Tensor], Tensor],
    *,
    items: int,
    together: int = 8,
    where: Where = "*",
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Float[Tensor, "B H"]]:
    """Measure how each item changes when each head is switched off: value off - value on.

    A forward pass reads `together` copies of the items, each with another head off, so it needs
    `together` times the memory. The number changes results only by rounding.

    Args:
        model: anything with sites; it is left as it was. Computed in eval mode, without gradients.
        measure: takes indices of items (N,), which may repeat; returns e.g. their losses (N,).
        items: number of items.
        together: number of heads off in one forward pass, each in a copy of the items.
        where: the sites wanted.
        device: of the indices; by default that of the model's parameters.
        progress: called with (heads done, heads in all).
    """
    if together < 1:
        raise ValueError(f"together must be at least 1, got {together}.")
    sites = find_sites(model, where=where)
    heads = [head for site in sites for head in site.heads]
    number_B = torch.arange(items, device=device or next(model.parameters()).device)
    with eval_with_gradients(model), torch.no_grad():
        whole_B = _measured(measure, number_B)
        changes: list[Tensor] = []
        for start in range(0, len(heads), together):
            progress(start, len(heads))
            chosen = heads[start : start + together]
            with gated(model, _gates(sites, chosen, items, whole_B)):
                off_X = _measured(measure, number_B.repeat(len(chosen)))
            changes += list(off_X.view(len(chosen), items) - whole_B)
    progress(len(heads), len(heads))
    by_head = dict(zip(heads, changes, strict=True))
    return {site.name: torch.stack([by_head[head] for head in site.heads], 1) for site in sites}


def _gates(sites: list[Site], chosen: list[Head], items: int, like: Tensor) -> dict[str, Tensor]:
    """Return gates (copies of the items, H); the n-th copy has the n-th chosen head off."""
    gates: dict[str, Tensor] = {}
    for site in sites:
        if any(head.site == site.name for head in chosen):
            off_NH = torch.tensor([[head == other for other in site.heads] for head in chosen])
            gates[site.name] = (~off_NH).to(like).repeat_interleave(items, dim=0)
    return gates


def _measured(measure: Callable[[Tensor], Tensor], numbers_N: Tensor) -> Tensor:
    values_N = measure(numbers_N)
    if values_N.shape != numbers_N.shape:
        raise ValueError(
            f"measure must give one number per item, shape {tuple(numbers_N.shape)}, got "
            f"{tuple(values_N.shape)}."
        )
    return values_N
