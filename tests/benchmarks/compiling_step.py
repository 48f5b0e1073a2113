"""A guided step of a whole model is one compiled graph, and is compiled once.

    python tests/benchmarks/compiling_step.py

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

from functools import partial

import torch
from torch._dynamo.utils import counters

from headwise_papers.attention_guidance import _masked_steps
from headwise_papers.models import EncoderConfig

CONFIG = EncoderConfig.tiny(30, width=64, layers=3, feed_forward=16, max_length=20)


def main() -> None:
    # the backend that needs no compiler
    _masked_steps.torch.compile = partial(torch.compile, backend="aot_eager")
    torch._dynamo.config.error_on_recompile = True
    settings = _masked_steps.Settings(CONFIG, batch=2, length=8)
    trainee = _masked_steps.guided(settings, torch.device("cpu"), compiled=True)
    for _ in range(3):
        trainee.step()
    assert counters["stats"]["unique_graphs"] == 1, counters["graph_break"]


if __name__ == "__main__":
    main()
