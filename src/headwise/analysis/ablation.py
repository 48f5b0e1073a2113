"""What a model loses when one head is switched off."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis._probing import undisturbed
from headwise.sites import Head, Site, Where, find_sites, gated, masked

__all__ = ["ablate", "ablate_items"]


def ablate(
    model: nn.Module,
    measure: Callable[[], Mapping[str, float]],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, list[float]]]:
    """Measure the model once for each head, with that head alone switched off.

    For measures of a whole corpus, like BLEU. `ablate_items` is for those of single items, and
    switches many heads off in one forward pass.

    Args:
        model: anything with sites.
        measure: evaluates the model as it is and names what it found, e.g. {"bleu": 93.1}.
        progress: called with (heads done, heads in all).

    Returns:
        {name: {site: value with that head off, one a head}}.
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
    """How much each item's measure changes as each head is switched off: off - whole.

    A forward pass reads the items `together` times over, each time with another head off, so that
    it needs `together` times the memory of one. Any number gives the same, up to the rounding of
    sums whose order depends on the batch size.

    Args:
        model: anything with sites; it is left as it was. Computed in eval mode, without gradients.
        measure: of some items, given their numbers (N,), which may repeat: (N,), e.g. their losses.
        items: how many there are.
        together: heads off in one forward pass, each for a copy of the items.
        where: the sites wanted.
        device: of the item numbers; by default that of the model's parameters.
        progress: called with (heads done, heads in all).
    """
    if together < 1:
        raise ValueError(f"together must be at least 1, got {together}.")
    sites = find_sites(model, where=where)
    heads = [head for site in sites for head in site.heads]
    number_B = torch.arange(items, device=device or next(model.parameters()).device)
    with undisturbed(model), torch.no_grad():
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
    """Gates (copies of the items, H): the n-th copy has the n-th chosen head off."""
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
            f"measure must give one number an item, shape {tuple(numbers_N.shape)}, got "
            f"{tuple(values_N.shape)}."
        )
    return values_N
