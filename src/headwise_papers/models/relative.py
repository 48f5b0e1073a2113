"""Attention by content and distance, as Transformer-XL has it (Dai et al., 2019)."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise_papers.models.attention import MultiHeadAttention, Phases

__all__ = ["Distances", "RelativeAttention", "relative_shift", "sinusoids_of_distances"]

Distances = Literal["bias", "folded"]


class RelativeAttention(nn.Module):
    """Causal multi-head attention whose scores depend on content and distance.

    score_ij = ((q_i + u) . k_j + (q_i + v) . W r_{i-j}) / sqrt(head width)

    With "bias" the op is given the scores by distance, a number for each query and key. "folded"
    makes use of sin(a - b) = sin a cos b - cos a sin b, likewise cos: the same scores are a
    product of wider queries and keys, and need no memory of their own. Kernels take those whose
    head width and `distance_width` are together no more than 128; none takes a bias.

    Args, beside those of `MultiHeadAttention`:
        distance_width: of the sinusoids r.
        distances: how they reach the op.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        name: str,
        dropout: float = 0.0,
        attention: str = "softmax",
        sparse_in: Phases = "both",
        distance_width: int,
        distances: Distances = "bias",
    ) -> None:
        super().__init__()
        self.folded = distances == "folded"
        self.heads = MultiHeadAttention(
            width,
            heads=heads,
            name=name,
            dropout=dropout,
            attention=attention,
            sparse_in=sparse_in,
        )
        self.distance = nn.Linear(distance_width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))  # u
        self.distance_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))  # v

    def head_parameters(self) -> dict[str, int]:
        """Return what each head has besides the projections, for `headwise.pruning.prune`."""
        return {"distance.weight": 0, "content_bias": 0, "distance_bias": 0}

    def forward(
        self,
        asking: Float[Tensor, "B Q M"],
        seen: Float[Tensor, "B K M"],
        distance: Float[Tensor, "C P"],
    ) -> Float[Tensor, "B Q M"]:
        """Let each position look at itself and at what is before it.

        Args:
            asking: the segment.
            seen: the memory, then the segment.
            distance: sinusoids of the distances K, K - 1, ..., 0.
        """
        if not self.heads.site.num_heads:  # all were pruned
            return self.heads.out(asking.new_zeros(*asking.shape[:2], 0))
        width = self.heads.head_width
        q_BHQD = self.heads.query(asking).unflatten(-1, (-1, width)).transpose(1, 2)
        k_BHKD, v_BHKD = self.heads.keys_values(seen)
        asks_BHQD = q_BHQD + self.distance_bias.to(q_BHQD)
        q_BHQD, bias_BHQK = q_BHQD + self.content_bias.to(q_BHQD), None
        if self.folded:
            q_BHQD = torch.cat([q_BHQD, self._turned(asks_BHQD, distance)], dim=-1)
            key_KP = distance[:-1].to(k_BHKD)
            k_BHKD = torch.cat([k_BHKD, key_KP.expand(*k_BHKD.shape[:2], -1, -1)], dim=-1)
        else:
            bias_BHQK = self._by_key(asks_BHQD / math.sqrt(width), distance)
        out_BHQD = self.heads.site(
            q_BHQD,
            k_BHKD,
            v_BHKD,
            bias=bias_BHQK,
            causal=True,
            scale=1 / math.sqrt(width),
            dropout=self.heads.dropout if self.training else 0.0,
        )
        return self.heads.out(out_BHQD.transpose(1, 2).flatten(2))

    def _by_key(self, asks_BHQD: Tensor, distance_CP: Tensor) -> Tensor:
        r_CHD = self.distance(distance_CP).unflatten(-1, (-1, asks_BHQD.shape[-1]))
        return relative_shift(torch.einsum("bhqd,chd->bhqc", asks_BHQD, r_CHD))

    def _turned(self, asks_BHQD: Tensor, distance_CP: Tensor) -> Tensor:
        """What queries ask of distances from themselves, as asked of distances from the end.

        Those are the same for all queries, so they can stand beside the keys.
        """
        weight_HDP = self.distance.weight.unflatten(0, (-1, asks_BHQD.shape[-1]))
        sine, cosine = torch.einsum("bhqd,hdp->bhqp", asks_BHQD, weight_HDP).chunk(2, dim=-1)
        own_QP = distance_CP[-1 - asks_BHQD.shape[2] : -1].to(sine)
        own_sine, own_cosine = own_QP.chunk(2, dim=-1)
        turned = sine * own_cosine + cosine * own_sine, cosine * own_cosine - sine * own_sine
        return torch.cat(turned, dim=-1)


def relative_shift(by_distance: Float[Tensor, "*B Q C"]) -> Float[Tensor, "*B Q K"]:
    """From scores by distance to scores by key, as a view: nothing is copied or gathered.

    out[i, j] = score of query i for the distance (K - Q + i) - j, as queries are the last Q of
    K = C - 1 positions. Where a key is later than its query, out holds something meaningless.

    Args:
        by_distance: column c is for the distance K - c, from K, which no query has, to 0.

    >>> relative_shift(torch.tensor([[3, 2, 1, 0], [3, 2, 1, 0]]).float())
    tensor([[1., 0., 3.],
            [2., 1., 0.]])
    """
    # Row i starts Q - i columns in: one less a row, and a row of C numbers is one more than K.
    n_queries, n_columns = by_distance.shape[-2:]
    return by_distance.flatten(-2)[..., n_queries:].unflatten(-1, (n_queries, n_columns - 1))


def sinusoids_of_distances(furthest: int, width: int, like: Tensor) -> Float[Tensor, "C P"]:
    """Sinusoids of the distances from `furthest` down to 0, with dtype and device of a tensor."""
    rate_P = torch.exp(torch.arange(0, width, 2, device=like.device) * (-math.log(10_000) / width))
    angle_CP = torch.arange(furthest, -1, -1, device=like.device)[:, None] * rate_P
    return torch.cat([angle_CP.sin(), angle_CP.cos()], dim=-1).to(like.dtype)
