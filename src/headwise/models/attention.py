"""Multi-head attention with a site, and the cache that makes decoding one word at a time cheap."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.ops.softmax import softmax_attention
from headwise.sites import Site


class KeysValues(NamedTuple):
    """What can be looked at: keys and values, split into heads."""

    k: Float[Tensor, "B H K D"]
    v: Float[Tensor, "B H K D"]


@dataclass(eq=False)
class Cache:
    """What decoding has computed so far: the target's length, and keys and values by site name.

    Start with an empty one and hand the same one to every call of `decode`.
    """

    length: int = 0
    known: dict[str, KeysValues] = field(default_factory=dict[str, KeysValues])

    def extend(self, name: str, new: KeysValues) -> KeysValues:
        """Add the newest positions of a site; all of its positions."""
        if name in self.known:
            new = KeysValues(
                *(torch.cat(pair, dim=2) for pair in zip(self.known[name], new, strict=True))
            )
        self.known[name] = new
        return new

    def reorder(self, index: Int[Tensor, " N"]) -> None:
        """Let row n continue what row index[n] was: beams change places, finished rows go."""
        self.known = {
            name: KeysValues(k.index_select(0, index), v.index_select(0, index))
            for name, (k, v) in self.known.items()
        }


class MultiHeadAttention(nn.Module):
    """Attention of several heads; what happens inside a head is its site's business.

    out = concat_h(site(x Wq_h, y Wk_h, y Wv_h)) Wo

    Args:
        width: of the input and output; a multiple of `heads`.
        heads: how many.
        name: of the site, like "encoder.0.self".
        dropout: of the attention weights, while training.
    """

    def __init__(self, width: int, *, heads: int, name: str, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}.")
        self.head_width = width // heads
        self.dropout = dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.site = Site(name, heads, softmax_attention)

    def keys_values(self, seen: Float[Tensor, "B K M"]) -> KeysValues:
        """Keys and values of what is looked at."""
        return KeysValues(self._split(self.key(seen)), self._split(self.value(seen)))

    def forward(
        self,
        asking: Float[Tensor, "B Q M"],
        seen: KeysValues,
        *,
        causal: bool = False,
        lengths: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B Q M"]:
        """Let each position of `asking` look at `seen`. Options as in `headwise.ops`."""
        out_BHQD = self.site(
            self._split(self.query(asking)),
            seen.k,
            seen.v,
            causal=causal,
            lengths=lengths,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.out(out_BHQD.transpose(1, 2).flatten(2))

    def _split(self, flat_BTM: Tensor) -> Tensor:
        return flat_BTM.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
