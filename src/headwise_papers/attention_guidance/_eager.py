"""Attention as it is usually written, which gives its matrix of weights away."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, float32
from torch.nn.functional import dropout as dropped

from headwise.ops.attended import Attended
from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Scores
from headwise.sites import in_backward


class MatricesKept:
    """An op for `replace`: two products and a softmax between, whose result is kept.

    Weights are those after dropout, as eager implementations return them. Where gradient
    checkpointing computes a layer again, nothing is kept a second time.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def __call__(
        self,
        q: Float[Tensor, "B H Q D"],
        k: Float[Tensor, "B H K D"],
        v: Float[Tensor, "B H K E"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        lengths: Int[Tensor, " B"] | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Attended:
        """Attend to all keys."""
        assert mask is None and bias is None and lengths is None and not causal
        scores_BHQK = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        weights_BHQK = dropped(scores_BHQK.softmax(dim=-1, dtype=float32).to(q.dtype), dropout)
        if not in_backward():
            self._kept.append(weights_BHQK)
        return Attended(weights_BHQK @ v, Scores(q, k, scale=scale), softmax_rows)

    def drain(self) -> list[Tensor]:
        """The weights since the last drain, in the order of the calls."""
        kept, self._kept = self._kept, []
        return kept
