"""The demo with settings so small that a test can afford it."""

from pathlib import Path

import torch

from headwise.recording import HeadTable
from headwise_papers.recipes.demo import DemoConfig, demo
from tests.papers.recipes.configured import configured

SMALL = configured(
    DemoConfig,
    train_pairs=300,
    test_pairs=16,
    ablation_pairs=4,
    samples=2,
    width=32,
    heads=2,
    layers=1,
    batch_size=32,
    steps=120,
    warmup=10,
)


def quietly(config: DemoConfig, folder: Path) -> HeadTable:
    """The demo on one thread, which is faster at this size and always gives the same sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return demo(config, folder)
    finally:
        torch.set_num_threads(before)
