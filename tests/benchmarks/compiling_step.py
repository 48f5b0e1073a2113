"""A guided step of a whole model is one compiled graph, and is compiled once.

    python tests/benchmarks/compiling_step.py

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

from functools import partial

import torch
from torch._dynamo.utils import counters
from transformers import RobertaConfig

from benchmarks import guided_models

CONFIG = RobertaConfig(
    vocab_size=30,
    max_position_embeddings=20,
    type_vocab_size=1,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=16,
)


def main() -> None:
    # the backend that needs no compiler
    guided_models.torch.compile = partial(torch.compile, backend="aot_eager")
    torch._dynamo.config.error_on_recompile = True
    settings = guided_models.Settings(CONFIG, batch=2, length=8)
    trainee = guided_models.guided(settings, torch.device("cpu"), compiled=True)
    for _ in range(3):
        trainee.step()
    assert counters["stats"]["unique_graphs"] == 1, counters["graph_break"]


if __name__ == "__main__":
    main()
