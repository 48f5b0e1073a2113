"""A training that takes milliseconds a step and soon learns its noise by heart.

Words of random classes: what is learned says nothing of other words, so that evaluations get worse.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.training import FitConfig, Summed

CONFIG = FitConfig(
    steps=40,
    learning_rate=0.02,
    warmup=12,
    schedule="inverse_square_root",
    accumulate=2,
    precision="bfloat16",
    log_every=3,
    checkpoint_every=5,
    evaluate_every=2,
    average=3,
    patience=5,
)


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(50, 16), nn.Dropout(0.2), nn.Linear(16, 16), nn.Linear(16, 5))


def draw(words: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Words and classes."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(50, (words,), generator=rng), torch.randint(5, (words,), generator=rng)


def batch(number: int) -> tuple[Tensor, Tensor]:
    """One of four batches, which differ in how many words they have."""
    return draw(6 + 11 * (number % 4), seed=number % 4)


def summed_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Summed:
    words, classes = batch
    return Summed(cross_entropy(model(words), classes, reduction="sum"), len(words))


def mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    words, classes = batch
    return cross_entropy(model(words), classes)


def evaluate(model: nn.Module) -> dict[str, float]:
    words, classes = draw(200, seed=4)
    torch.rand(3)  # what an evaluation draws changes nothing
    scores = model(words)
    return {
        "valid_loss": cross_entropy(scores, classes).item(),
        "accuracy": (scores.argmax(-1) == classes).float().mean().item(),
    }
