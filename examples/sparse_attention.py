"""Train a translator with top-k attention and one with softmax, on the toy language.

python examples/sparse_attention.py [STEPS]
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import headwise as hw
from headwise.training import FitConfig, fit, label_smoothed_loss
from headwise_papers.data.batches import ParallelBatch, ParallelData
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.data.vocabulary import PAD, Vocabulary
from headwise_papers.models import Transformer, TransformerConfig

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60

pairs = ToyLanguage().pairs(2000, seed=0)
source = Vocabulary.from_sentences(pair.source for pair in pairs)
target = Vocabulary.from_sentences(pair.target for pair in pairs)
batches = ParallelData(
    [source.encode(pair.source) for pair in pairs],
    [target.encode(pair.target) for pair in pairs],
    batch_size=32,
    seed=0,
)


def loss(model: nn.Module, batch: ParallelBatch) -> Tensor:
    """Cross-entropy of the right next word."""
    scores = model(batch.source, batch.source_lengths, batch.target_in)
    return label_smoothed_loss(scores, batch.target_out, pad=PAD)


def train(attend: Callable[..., hw.Attended], folder: Path) -> list[float]:
    """The losses logged while training a model whose every site computes `attend`."""
    torch.manual_seed(0)
    shape = TransformerConfig(len(source), len(target), width=64, encoder_layers=1)
    model = Transformer(shape)
    config = FitConfig(steps=STEPS, warmup=10, learning_rate=3e-3, log_every=20)
    with hw.Run.create(folder, config) as run, hw.replace(model, attend):
        fit(model, loss, batches, run=run, config=config)
    return [metrics["loss"] for metrics in run.metrics()]


with tempfile.TemporaryDirectory() as runs:
    for keep in (2, 4):
        losses = train(partial(hw.topk_attention, keep=keep), Path(runs, f"top-{keep}"))
        print(f"top-{keep}  ", *(f"{value:.3f}" for value in losses))
    losses = train(hw.softmax_attention, Path(runs, "softmax"))
    print("softmax", *(f"{value:.3f}" for value in losses))
