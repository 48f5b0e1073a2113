"""Arguments and checks that all attention ops share.

An op declares `**options: Unpack[AttentionOptions]` and is decorated with `shares_options`:

    @shares_options
    def my_attention(
        q: Float[Tensor, "B H Q D"],
        k: Float[Tensor, "B G K D"],
        v: Float[Tensor, "B G K E"],
        **options: Unpack[AttentionOptions],
    ) -> Attended:
        call = AttentionCall.of(q, k, v, options)
        chosen = call.choose(triton_obstacle="my_attention has no Triton kernel")
        return Attended(call.sum_values(my_rows, chosen), call.scores, my_rows, exponential=False)

`exponential=True`, the default, says that weights are exp(score - lse) on the keys that are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, cleandoc, signature
from typing import TypedDict, TypeVar, cast, get_args

from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Chosen, Impl, Number, choose
from headwise.ops.checks import check_dropout, check_values
from headwise.ops.rows import RowFunction, weighted_values, weighted_values_in_blocks
from headwise.ops.scores import Fixed, Scores

Op = TypeVar("Op", bound=Callable[..., object])


class ScoreOptions(TypedDict, total=False):
    """Keyword arguments that decide how queries and keys are scored."""

    mask: Bool[Tensor, "..."] | None
    bias: Float[Tensor, "..."] | None
    causal: bool
    lengths: Int[Tensor, " B"] | None
    scale: Number | None
    cap: Number | None
    sink: Float[Tensor, " H"] | None


class AttentionOptions(ScoreOptions, total=False):
    """Keyword arguments of every attention op."""

    dropout: Number
    impl: Impl


DEFAULTS = {"causal": False, "dropout": 0.0, "impl": "auto"}  # None for the others
MEANINGS = {
    "mask": "Boolean, True = may attend; broadcastable to (B, H, Q, K).",
    "bias": "Added to the scores before masking; broadcastable to (B, H, Q, K); has a gradient.",
    "causal": "Hide later positions. If Q < K, the queries are the last Q positions.",
    "lengths": "(B,) number of real keys; the rest are padding.",
    "scale": "Multiplies q.k; 1/sqrt(D) by default.",
    "cap": "Scores become cap * tanh(score / cap) before bias and mask, as in Gemma 2.",
    "sink": "(H,) one more score per head that takes part in the normalisation and has no value, "
    "as in\n        GPT-OSS; has a gradient.",
    "dropout": "Probability of dropping a weight after normalisation; statistics are before it.",
    "impl": '"reference" (the definition), "torch" (fused or blocked PyTorch), "triton" or "auto".',
}


def shares_options(op: Op) -> Op:
    """Show the shared keyword arguments in the signature and the docstring of an op."""
    *own, options = signature(op).parameters.values()
    (shared,) = get_args(options.annotation)
    named = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=kind)
        for name, kind in shared.__annotations__.items()
    ]
    returned = signature(op).return_annotation
    op.__signature__ = Signature([*own, *named], return_annotation=returned)  # pyright: ignore
    meanings = "\n".join(f"    {name}: {MEANINGS[name]}" for name in shared.__annotations__)
    op.__doc__ = f"{cleandoc(op.__doc__ or '')}\n\nShared arguments:\n{meanings}\n"
    return op


def scores_of(q: Tensor, k: Tensor, options: ScoreOptions, *, fixed: Fixed | None = None) -> Scores:
    """Check the arguments that decide the scores of a call; `fixed` scores replace q.k."""
    for name in options:
        if name not in ScoreOptions.__annotations__:
            raise TypeError(
                f"Attention takes {', '.join(MEANINGS)}, got the unknown argument {name}=; "
                "see help() of the op."
            )
    return Scores(q, k, fixed=fixed, **options)


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Checked arguments of one call of an attention op."""

    scores: Scores
    v: Tensor
    dropout: Number
    impl: Impl

    @staticmethod
    def of(
        q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions, *, fixed: Fixed | None = None
    ) -> "AttentionCall":
        """Check the arguments of an op; `fixed` scores replace q.k."""
        scoring = {
            name: given for name, given in options.items() if name not in ("dropout", "impl")
        }
        dropout, impl = options.get("dropout", 0.0), options.get("impl", "auto")
        scores = scores_of(q, k, cast(ScoreOptions, scoring), fixed=fixed)
        check_values(k, v)
        check_dropout(dropout)
        return AttentionCall(scores, v, dropout, impl)

    def choose(self, *, triton_obstacle: str | None) -> Chosen:
        """Choose an implementation; an obstacle says why Triton cannot run this call."""
        return choose(self.impl, triton_obstacle=triton_obstacle)

    def sum_values(self, row_function: RowFunction, chosen: Chosen, *parameters: Tensor) -> Tensor:
        """Sum the values under the weights of a row function, whole or in blocks of queries."""
        attend = weighted_values if chosen == "reference" else weighted_values_in_blocks
        return attend(self.scores, row_function, self.v, *parameters, dropout=self.dropout)
