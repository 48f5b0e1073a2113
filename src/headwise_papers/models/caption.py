"""Captions of images: an image encoder, and the decoder of the Transformer that looks at it.

    "patches"      each square of pixels, times one matrix (Dosovitskiy et al., 2021)
    "convolution"  a small CNN that halves the image until a square of pixels is one position
    "features"     vectors of regions computed elsewhere, times one matrix

The first two have learned positions. Encoder layers of the Transformer follow, and may be none.
"""

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise_papers.models.attention import Phases, check_vocab
from headwise_papers.models.transformer import (
    EncoderDecoder,
    Norm,
    TransformerConfig,
)

__all__ = ["CaptionConfig", "CaptionModel"]

Encoder = Literal["patches", "convolution", "features"]


@final
@dataclass(frozen=True)
class CaptionConfig:
    """The shape of a captioning model."""

    vocab: int = 0  # 0: not known yet, as in the settings of a training
    encoder: Encoder = "patches"
    image_size: int = 128  # pixels of each side
    channels: int = 3
    patch: int = 16  # pixels of the side of a square that becomes one position
    feature_width: int = 0  # of features handed in; images need none
    width: int = 256
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    feed_forward: int = 1024  # inner width of the feed-forward layers
    dropout: float = 0.1  # of embeddings and of what each layer adds
    feed_forward_dropout: float = 0.0  # inside the feed-forward layers
    attention_dropout: float = 0.0  # of attention weights
    norm: Norm = "pre"
    max_length: int = 64  # words of the longest caption, marks included
    share_embeddings: bool = True  # the output projection is the embedding
    encoder_attention: str = "softmax"  # ops by name, see `headwise_papers.ops.named`
    decoder_attention: str = "softmax"
    cross_attention: str = "softmax"
    sparse_in: Phases = "both"  # "training": softmax in eval mode

    def __post_init__(self) -> None:
        if self.encoder not in get_args(Encoder):
            choices = ", ".join(get_args(Encoder))
            raise ValueError(f"encoder must be one of {choices}, got {self.encoder!r}.")
        if self.encoder == "features":
            if self.feature_width < 1:
                raise ValueError(
                    "encoder='features' needs feature_width, the width of the features handed in, "
                    f"got {self.feature_width}."
                )
        else:
            self._check_images()
        self.transformer()

    @property
    def positions(self) -> int:
        """How many positions an image has."""
        return (self.image_size // self.patch) ** 2

    def transformer(self) -> TransformerConfig:
        """Return the settings of the Transformer layers; raise on bad shapes."""
        return TransformerConfig.like(
            self,
            source_vocab=1,
            target_vocab=self.vocab,
            share_embeddings="target" if self.share_embeddings else "none",
        )

    def _check_images(self) -> None:
        if self.channels < 1 or self.patch < 1 or self.image_size < 1:
            raise ValueError(
                "image_size, patch and channels must be at least 1, got "
                f"{self.image_size}, {self.patch} and {self.channels}."
            )
        if self.image_size % self.patch:
            raise ValueError(
                f"image_size must be a multiple of patch, got {self.image_size} and {self.patch}."
            )
        if self.encoder == "convolution" and (self.patch < 2 or self.patch & (self.patch - 1)):
            raise ValueError(
                f"encoder='convolution' needs a patch of 2, 4, 8, 16, ..., got {self.patch}."
            )


@final
class CaptionModel(EncoderDecoder):
    """Captioner: `forward` in training, then `greedy` and `beam` of `headwise_papers.models`.

    Sites are named `encoder.0.self`, `decoder.0.self`, `decoder.0.cross`. A source is a batch of
    images, floats from 0 to 1 or bytes, or of features, (B, N, F).

    >>> model = CaptionModel(CaptionConfig(vocab=9, image_size=32, patch=8, width=16))
    >>> images, words = torch.rand(2, 3, 32, 32), torch.tensor([[1, 5, 6], [1, 7, 8]])
    >>> model(images, model.source_lengths(images), words).shape
    torch.Size([2, 3, 9])
    """

    def __init__(self, config: CaptionConfig) -> None:
        check_vocab(config.vocab)
        features = config.encoder == "features"
        super().__init__(config.transformer(), (Features if features else Pixels)(config))
        self.config = config

    def source_lengths(self, source: Tensor) -> Int[Tensor, " B"]:
        """Return the number of positions of each image: all regions, where it comes as features."""
        features = self.config.encoder == "features"
        count = source.shape[1] if features else self.config.positions
        return torch.full((len(source),), count, device=source.device)


class Pixels(nn.Module):
    """Embedding of each square of pixels, with its position."""

    def __init__(self, config: CaptionConfig) -> None:
        super().__init__()
        self.config = config
        if config.encoder == "patches":
            self.squares: nn.Module = nn.Conv2d(
                config.channels, config.width, config.patch, stride=config.patch
            )
        else:
            self.squares = _convolutions(config)
        self.positions = nn.Parameter(torch.randn(config.positions, config.width) * 0.02)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, images: Tensor) -> Float[Tensor, "B K M"]:
        side, channels = self.config.image_size, self.config.channels
        if images.shape[1:] != (channels, side, side):
            raise ValueError(
                f"Images of shape (batch, {channels}, {side}, {side}) were wanted, got "
                f"{tuple(images.shape)}; resize them, or build the model for their size."
            )
        scale = 1 if images.is_floating_point() else 255
        centred_BCHW = images.to(self.positions.dtype) * (2 / scale) - 1
        state_BKM = self.squares(centred_BCHW).flatten(2).transpose(1, 2)
        return self.dropout(state_BKM + self.positions)


class Features(nn.Module):
    """Projection of features of regions to the model's width; regions have no order."""

    def __init__(self, config: CaptionConfig) -> None:
        super().__init__()
        self.project = nn.Linear(config.feature_width, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, features: Tensor) -> Float[Tensor, "B K M"]:
        width = self.project.in_features
        if features.dim() != 3 or features.shape[2] != width:
            raise ValueError(
                f"Features of shape (batch, regions, {width}) were wanted, got "
                f"{tuple(features.shape)}; compute them first, or choose an encoder of images."
            )
        return self.dropout(self.norm(self.project(features.to(self.project.weight.dtype))))


def _convolutions(config: CaptionConfig) -> nn.Sequential:
    """Halve the image log2(patch) times; twice the channels each time, up to the width."""
    stages = int(math.log2(config.patch))
    layers: list[nn.Module] = []
    before = config.channels
    for stage in range(stages):
        after = max(8, config.width >> (stages - 1 - stage))
        # Norms by image, not by batch: an image is described the same in any company.
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1),
            nn.GroupNorm(1, after),
            nn.ReLU(),
        ]
        before = after
    return nn.Sequential(*layers, nn.Conv2d(before, config.width, 1))
