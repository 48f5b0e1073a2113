"""Heads to keep of small models, as unevenly as a model allows."""

import torch
from torch import nn

from headwise.pruning.parts import anatomy
from headwise.sites import find_sites


def uneven_keep(model: nn.Module) -> dict[str, list[int]]:
    """Other numbers of heads in each layer; of grouped ones one a group, then one whole group."""
    keep = {}
    for place, site in enumerate(find_sites(model)):
        if anatomy(model, site).heads.each > 1:
            keep[site.name] = ([1, 2], [2, 3])[place % 2]
        else:
            keep[site.name] = ([0, 2, 3], [1], [1, 3])[place % 3]
    return keep


def bare_keep(model: nn.Module) -> dict[str, list[int]]:
    """No heads in the first layer of all, and two in the last."""
    sites = find_sites(model)
    keep = {sites[-1].name: [2, 3]}
    return {**keep, sites[0].name: []}


def removed(model: nn.Module, keep: dict[str, list[int]]) -> dict[str, list[int]]:
    """The other heads."""
    return {
        site.name: [head.index for head in site.heads if head.index not in keep[site.name]]
        for site in find_sites(model)
        if site.name in keep
    }


def randomised_biases(model: nn.Module) -> nn.Module:
    """Biases are zero at first, and would hide what is wrong with them."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and parameter.dim() == 1:
                parameter.normal_(std=0.5, generator=rng)
    return model
