"""Importance of heads: by gradient, by the norm of their output, and by switching them off.

Functions for single items return {site name: (B, H)}, so that items can be averaged with an
interval. Gradients are those by gates of ones: d(result)/d(gate) is the effect of a head's output.
Relevance is in `headwise.analysis.propagation`.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.ops.attended import Attended
from headwise.sites import (
    Head,
    Site,
    Where,
    constant_parameters,
    eval_mode,
    find_sites,
    gated,
    masked,
    observe,
)


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


def gradient_importance(
    model: nn.Module, losses: Callable[[], Tensor], *, where: Where = "*"
) -> dict[str, Float[Tensor, "B H"]]:
    """Compute |sum out_h * dLoss/dout_h| of each item (Michel et al., 2019, equation 2).

    It tells to first order how the loss of an item changes when a head is switched off. The paper
    takes the mean over items. One forward and one backward pass, without dropout.

    Args:
        model: anything with sites; it is left as it was.
        losses: calls the model and returns the loss of each item, (B,), independent of the others.
        where: the sites wanted.
    """
    with eval_with_gradients(model), constant_parameters(model):
        with item_gates(model, where=where) as gates:
            loss_B = losses()
        check_dependence(loss_B, losses, "losses")
        items = next(iter(gates.values())).shape[0]
        if loss_B.shape != (items,):
            raise ValueError(
                f"losses must give one number per item, shape ({items},), got "
                f"{tuple(loss_B.shape)}."
            )
        return {name: slope.abs() for name, slope in slopes(loss_B.sum(), gates).items()}


class OutputNorms:
    """Watcher of the norm of each head's output, relative to that of its layer.

        sum_q ||W_h out_hq|| / sum_q ||sum_h W_h out_hq + b||

    W_h is the part of the output projection that reads head h. Give it to `observe` and read
    `values` after a forward pass.

    Args:
        model: anything with sites that have an output projection.
        where: the sites wanted.
    """

    def __init__(self, model: nn.Module, *, where: Where = "*"):
        # lazy: headwise.hf loads transformers
        from headwise.hf.projections import output_projection

        self.where = where
        self.counted: Mapping[str, Tensor] = {}  # stack -> (B, T), True at queries that count
        self._projections = {
            site.name: output_projection(model, site) for site in find_sites(model, where=where)
        }
        self._written: dict[str, Tensor] = {}
        self._updates: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        """Add the queries of one attention call."""
        if site.name not in self._projections:
            return
        projection = self._projections[site.name]
        dtype = torch.promote_types(attended.out.dtype, torch.float32)
        out_BHQE = site.gated(attended.out).to(dtype)
        weight_HME = projection.by_head.to(dtype)
        # ||W x||^2 = x' (W'W) x needs no tensor of heads times the model's width
        gram_HEE = weight_HME.mT @ weight_HME
        written_BHQ = ((out_BHQE @ gram_HEE) * out_BHQE).sum(-1).clamp(min=0).sqrt()
        update_BQM = torch.einsum("bhqe,hme->bqm", out_BHQE, weight_HME)
        if projection.bias is not None:
            update_BQM = update_BQM + projection.bias.to(dtype)
        self._add(site, written_BHQ, update_BQM.norm(dim=-1))

    @property
    def values(self) -> dict[str, Float[Tensor, "B H"]]:
        """Norms by item, over all calls since the last `clear`.

        A head that wrote nothing has 0; NaN marks NaN in the model.
        """
        return {
            name: torch.where(written_BH == 0, 0, written_BH / self._updates[name][:, None])
            for name, written_BH in self._written.items()
        }

    def clear(self) -> None:
        """Reset the sums, before the next batch."""
        self._written, self._updates = {}, {}

    def _add(self, site: Site, written_BHQ: Tensor, update_BQ: Tensor) -> None:
        counted_BQ = self.counted.get(site.queries)
        if counted_BQ is not None:
            if counted_BQ.shape != update_BQ.shape:
                raise ValueError(
                    f"{site.name} has queries of shape {tuple(update_BQ.shape)}, but "
                    f"counted has {tuple(counted_BQ.shape)} for the {site.queries}."
                )
            # not a product: padding may be NaN
            left_out_BQ = ~counted_BQ.to(update_BQ.device, torch.bool)
            written_BHQ = written_BHQ.masked_fill(left_out_BQ[:, None], 0)
            update_BQ = update_BQ.masked_fill(left_out_BQ, 0)
        for sums, new in ((self._written, written_BHQ), (self._updates, update_BQ)):
            total = new.sum(-1)
            sums[site.name] = sums[site.name] + total if site.name in sums else total


def output_norms(
    model: nn.Module,
    forward: Callable[[], object],
    *,
    counted: Mapping[str, Bool[Tensor, "B T"]] | None = None,
    where: Where = "*",
) -> dict[str, Float[Tensor, "B H"]]:
    """Compute how much each head writes into the residual stream, see `OutputNorms`.

    Args:
        model: anything with sites that have an output projection.
        forward: calls the model on a batch.
        counted: {"encoder" or "decoder": True at the queries that count}; by default all count,
            padding too.
        where: the sites wanted.
    """
    norms = OutputNorms(model, where=where)
    norms.counted = counted or {}
    with eval_with_gradients(model), torch.no_grad(), observe(model, norms, where=where):
        forward()
    return norms.values


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
