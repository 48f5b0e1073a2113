"""How relevance is propagated: the choices, in one place."""

from dataclasses import dataclass
from typing import Literal, get_args

Rule = Literal["ratio", "alpha_beta"]
Bias = Literal["neuron", "spread"]
Product = Literal["half", "paper"]


@dataclass(frozen=True)
class Propagation:
    """The rules of layer-wise relevance propagation.

    Args:
        rule: "ratio" is the weight ratio of Voita et al. (2019, appendix A): contributions divided
            by their sum. "alpha_beta" divides positive and negative contributions by their own
            sums and takes half of each, so that all relevance is positive; relevances are rescaled
            after every layer, item by item.
        bias: "neuron" makes it a constant input that keeps its share of the relevance; "spread"
            leaves it out of the denominators, so that the other inputs get that share.
        product: of two activations: "half" gives each half, "paper" gives u / (u + u'), which
            depends on the units that u and u' are measured in.
        eps: added to denominators with their sign, and absorbs a little relevance. The weight ratio
            with bias="neuron" and product="half" is a plain gradient and has none; f(x) / x, by
            which non-linearities are ignored, has x, whatever the rule.
    """

    rule: Rule = "ratio"
    bias: Bias = "neuron"
    product: Product = "half"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for name, choices in (("rule", Rule), ("bias", Bias), ("product", Product)):
            if getattr(self, name) not in get_args(choices):
                wanted = " or ".join(map(repr, get_args(choices)))
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)!r}.")
        if not self.eps >= 0:
            raise ValueError(f"eps must be 0 or more, got {self.eps}.")
