"""The bag-of-words attention classifier of "On the Dynamics of Training Attention Models".

Every word has an embedding and a key, the sentence one global query (Lu et al., ICLR 2021, Section
3). A word's score is key . query; the sentence's context is the sum of its embeddings weighted by
the softmax of their scores, and a small classifier reads the context:

    Attn-FC   softmax(U^T context), U with orthonormal columns, never trained
    Attn-TC   the same, U trained
    Attn-TL   softmax(U2^T ReLU(U1^T context + b1) + b2)

`BagClassifier` is the plain form; `bag_stack` trains many of them together, fast.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.ops import softmax_attention
from headwise.sites import Site

__all__ = ["BagClassifier", "BagConfig"]


@dataclass(frozen=True)
class BagConfig:
    """The shape of a bag-of-words attention classifier, and how it starts."""

    vocabulary: int = 5008  # words
    classes: int = 4
    width: int = 15  # of embeddings, the paper's d
    key_width: int = 1  # with a fixed query of one entry, 1, keys are the scores themselves
    classifier: Literal["FC", "TC", "TL"] = "TC"
    fixed: Literal["orthonormal", "normal"] = "orthonormal"  # columns of FC's U; see BagClassifier
    hidden: int = 10  # of the TL classifier
    query: Literal["fixed", "trainable"] = "fixed"
    query_std: float = 0.0  # 0: equal entries and norm 1
    embedding_std: float = 1e-3  # a variance of 1e-6
    freeze: Literal["nothing", "scores", "embeddings"] = "nothing"  # the KF and EF variants
    convolution: bool = False  # Appendix A: attend to pairs of neighbours

    def __post_init__(self) -> None:
        for name in ("vocabulary", "classes", "width", "key_width", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.classifier == "FC" and self.classes > self.width:
            raise ValueError(
                f"Orthonormal columns need width >= classes, got width={self.width} and "
                f"classes={self.classes}; widen the embeddings or use classifier='TC'."
            )

    @property
    def trainable(self) -> frozenset[str]:
        """Names of the parameters that gradient descent changes."""
        names = {"embeddings", "keys", "query", "output.weight"}
        if self.classifier == "TL":
            names |= {"hidden.weight", "hidden.bias", "output.bias"}
        if self.convolution:
            names |= {f"mix_{x}.{y}" for x in ("embeddings", "keys") for y in ("weight", "bias")}
        if self.query == "fixed" or self.freeze == "scores":
            names -= {"query"}
        if self.freeze != "nothing":
            part = "keys" if self.freeze == "scores" else "embeddings"
            names -= {part, f"mix_{part}.weight", f"mix_{part}.bias"}
        return frozenset(names - {"output.weight"} if self.classifier == "FC" else names)


class BagClassifier(nn.Module):
    """Attention over a bag of words, then a classifier. Its one site is `encoder.0.pool`.

    Keys start at zero, so that every word starts with score 0 and the model as an average of
    words. Parameters that `config.trainable` leaves out require no gradient. The paper says that
    the columns of FC's U are orthonormal; its code draws them from a standard normal and writes
    ones on the diagonal, which is `fixed="normal"` and trains much faster at the same rate.

    Args:
        config: the shape.
        generator: where random numbers come from; the default one unless given.
        dtype: of the parameters; the same numbers are drawn for every dtype.

    >>> model = BagClassifier(BagConfig(vocabulary=9), generator=torch.Generator().manual_seed(0))
    >>> model(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        config: BagConfig,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config = config
        draw = _Draw(generator, dtype)
        self.embeddings = nn.Parameter(
            config.embedding_std * draw.normal(config.vocabulary, config.width)
        )
        self.keys = nn.Parameter(torch.zeros(config.vocabulary, config.key_width, dtype=dtype))
        self.query = nn.Parameter(_query(config, draw))
        self.hidden = (
            draw.linear(config.width, config.hidden) if config.classifier == "TL" else None
        )
        self.output = _output(config, draw)
        self.mix_embeddings = draw.pairs(config.width) if config.convolution else None
        self.mix_keys = draw.pairs(config.key_width) if config.convolution else None
        self.site = Site("encoder.0.pool", num_heads=1, attend=softmax_attention)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in config.trainable)

    def forward(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B C"]:
        """Return the logits of each class.

        Args:
            tokens: word numbers.
            lengths: how many words of a row are real; the rest is padding and gets no weight.
        """
        return self.classify(self.context(tokens, lengths))

    def context(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B D"]:
        """Return the context of each sentence: its embeddings, weighted by attention."""
        value_BTD, key_BTE = self.embeddings[tokens], self.keys[tokens]
        if self.mix_embeddings is not None and self.mix_keys is not None:
            value_BTD, key_BTE = (
                _mixed(self.mix_embeddings, value_BTD),
                _mixed(self.mix_keys, key_BTE),
            )
            lengths = None if lengths is None else lengths - 1
        query_B11E = self.query.expand(len(tokens), 1, 1, -1)
        out_B11D = self.site(
            query_B11E, key_BTE[:, None], value_BTD[:, None], lengths=lengths, scale=1.0
        )
        return out_B11D[:, 0, 0]

    def classify(self, context: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """Return the logits of contexts."""
        if self.hidden is not None:
            context = self.hidden(context).relu()
        return self.output(context)

    def word_scores(self) -> Float[Tensor, " V"]:
        """Return the score of every word, key . query; with a convolution pairs have others."""
        return self.keys @ self.query

    def word_vectors(self) -> Float[Tensor, "V D"]:
        """Return every word's embedding times the norm of the query: the paper's v."""
        return self.embeddings * self.query.norm()


class _Draw:
    """Random parameters, drawn in float64 so that every dtype starts from the same numbers."""

    def __init__(self, generator: torch.Generator | None, dtype: torch.dtype) -> None:
        self.generator, self.dtype = generator, dtype

    def normal(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.dtype)

    def uniform(self, *shape: int, fan_in: int) -> Tensor:
        """Draw as PyTorch initialises its layers: between -1/sqrt(fan_in) and 1/sqrt(fan_in)."""
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return ((2 * drawn - 1) / math.sqrt(fan_in)).to(self.dtype)

    def linear(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
        layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
        layer.weight = nn.Parameter(self.uniform(outputs, inputs, fan_in=inputs))
        if bias:
            layer.bias = nn.Parameter(self.uniform(outputs, fan_in=inputs))
        return layer

    def pairs(self, width: int) -> nn.Conv1d:
        """Build a convolution over two neighbours that keeps the width."""
        layer = nn.Conv1d(width, width, 2, device="meta")
        layer.weight = nn.Parameter(self.uniform(width, width, 2, fan_in=2 * width))
        layer.bias = nn.Parameter(self.uniform(width, fan_in=2 * width))
        return layer


def _query(config: BagConfig, draw: _Draw) -> Tensor:
    if config.query_std:
        return config.query_std * draw.normal(config.key_width)
    return torch.full((config.key_width,), config.key_width**-0.5, dtype=draw.dtype)


def _output(config: BagConfig, draw: _Draw) -> nn.Linear:
    if config.classifier == "TL":
        return draw.linear(config.hidden, config.classes)
    layer = draw.linear(config.width, config.classes, bias=False)
    if config.classifier == "FC":
        columns_DC = draw.normal(config.width, config.classes).double()
        if config.fixed == "orthonormal":
            columns_DC = torch.linalg.qr(columns_DC).Q
        else:
            columns_DC.fill_diagonal_(1)
        layer.weight = nn.Parameter(columns_DC.T.to(draw.dtype).contiguous())
    return layer


def _mixed(convolution: nn.Conv1d, x_BTD: Tensor) -> Tensor:
    return convolution(x_BTD.transpose(1, 2)).transpose(1, 2)
