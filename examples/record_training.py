"""Record every head while a model trains, with a small recorder of your own."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import headwise as hw
from headwise.training import FitConfig, fit, label_smoothed_loss
from headwise_papers.data.batches import ParallelBatch, ParallelData
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.data.vocabulary import PAD, Vocabulary
from headwise_papers.models import Transformer, TransformerConfig


@dataclass
class Confidence:
    """Mean largest weight of each head since the last drain."""

    peaks: dict[str, list[Tensor]] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, site: hw.Site, attended: hw.Attended) -> None:
        self.peaks.setdefault(site.name, []).append(attended.peak.mean(dim=(0, 2)))

    def drain(self) -> hw.HeadTable:
        peaks, self.peaks = self.peaks, {}
        means = {site: torch.stack(seen).mean(dim=0) for site, seen in peaks.items()}
        return hw.HeadTable.of({"confidence": means})


def loss(model: nn.Module, batch: ParallelBatch) -> Tensor:
    """Cross-entropy of the right next word."""
    scores = model(batch.source, batch.source_lengths, batch.target_in)
    return label_smoothed_loss(scores, batch.target_out, pad=PAD)


pairs = ToyLanguage().pairs(2000, seed=0)
source = Vocabulary.from_sentences(pair.source for pair in pairs)
target = Vocabulary.from_sentences(pair.target for pair in pairs)
ids = [source.encode(p.source) for p in pairs], [target.encode(p.target) for p in pairs]
model = Transformer(TransformerConfig(len(source), len(target), width=64, encoder_layers=1))
config, confidence = FitConfig(steps=60, warmup=10, log_every=20), Confidence()

with tempfile.TemporaryDirectory() as folder, hw.Run.create(Path(folder), config) as run:

    def report(step: int, metrics: Mapping[str, float]) -> None:
        run.write_json(f"trace/confidence/{step}.json", confidence.drain().to_json())

    with hw.observe(model, confidence):
        batches = ParallelData(*ids, batch_size=32, seed=0)
        fit(model, loss, batches, run=run, config=config, progress=report)
    for step in (20, 40, 60):
        table = hw.HeadTable.from_json(run.read_json(f"trace/confidence/{step}.json"))
        print(step, *(f"{value:.3f}" for value in table["confidence"]))
