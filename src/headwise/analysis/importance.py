"""Importance of heads for each item: by gradient, and by the norm of their output.

Each function returns {site name: (B, H)}, so that items can be averaged with an interval. Relevance
is in `headwise.analysis.propagation`, switching heads off in `headwise.analysis.ablation`.
"""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.analysis.gradients import (
    check_dependence,
    eval_with_gradients,
    item_gates,
    slopes,
)
from headwise.ops.attended import Attended
from headwise.sites import Site, Where, constant_parameters, find_sites, observe


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
