"""A small attention model that takes any mask, and the guidance loss written out as matrices."""

import torch
from torch import Tensor, nn

from headwise.guidance import Aim
from headwise.ops import softmax_attention
from headwise.sites import Site


class Toy(nn.Module):
    """Layers of self-attention over embedded ids, with any mask; k may have fewer heads."""

    def __init__(
        self, *, layers: int = 2, heads: int = 4, groups: int = 4, width: int = 3, words: int = 20
    ):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(words, heads * width)
        self.layers = nn.ModuleList()
        for index in range(layers):
            layer = nn.Module()
            layer.q = nn.Linear(heads * width, heads * width)
            layer.kv = nn.Linear(heads * width, 2 * groups * width)
            layer.site = Site(f"encoder.{index}.self", heads, softmax_attention)
            self.layers.append(layer)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        x_BTM = self.embed(ids)
        for layer in self.layers:
            q, k, v = (
                y.unflatten(-1, (-1, self.width)).transpose(1, 2)
                for y in (layer.q(x_BTM), *layer.kv(x_BTM).chunk(2, dim=-1))
            )
            out_BHTD = layer.site(q, k, v, mask=mask, lengths=lengths, causal=causal)
            x_BTM = x_BTM + out_BHTD.transpose(1, 2).flatten(2)
        return x_BTM


def written_out(
    weights_BHQK: Tensor,
    visible_BQK: Tensor,
    aims: dict[int, Aim],
    *,
    ids: Tensor,
    first_BQ: Tensor,
    real_BQ: Tensor,
    convention: str = "mean",
) -> Tensor:
    """The loss of one site from whole matrices, as the paper or its code has it."""
    by_head: dict[int, Tensor] = {}
    pairs = (visible_BQK & real_BQ[..., None]).sum()
    for head, aim in aims.items():
        target_BQK = torch.zeros_like(weights_BHQK[:, 0])
        for item, query in real_BQ.nonzero().tolist():
            target_BQK[item, query] = _row(
                aim,
                query,
                visible_BQK[item, query],
                ids[item],
                int(first_BQ[item, query]),
                convention,
            )
        squares_BQK = (weights_BHQK[:, head] - target_BQK).square() * visible_BQK
        total = (squares_BQK * real_BQ[..., None]).sum()
        by_head[head] = total / (len(ids) if convention == "paper" else pairs)
    if convention == "paper":
        return torch.stack(list(by_head.values())).sum()
    means = [
        torch.stack([by_head[head] for head in aims if aims[head] == aim]).mean()
        for aim in set(aims.values())
    ]
    return torch.stack(means).sum()


def _row(
    aim: Aim, query: int, visible_K: Tensor, ids_K: Tensor, first: int, convention: str
) -> Tensor:
    keys = [
        key
        for key in visible_K.nonzero().flatten().tolist()
        if (aim.tokens and int(ids_K[key]) in aim.tokens)
        or (aim.offset is not None and key == query + aim.offset)
        or (aim.offset is None and not aim.tokens and key == first)
    ]
    row_K = torch.zeros(len(visible_K), dtype=torch.float64)
    if keys:
        row_K[keys] = 1.0 if convention == "reference_code" else 1 / len(keys)
    elif convention != "reference_code":
        row_K[visible_K] = 1 / int(visible_K.sum())
    return row_K
