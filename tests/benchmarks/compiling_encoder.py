"""Contestants with other attention have compiled graphs of their own, with that attention in them.

    python -m tests.benchmarks.compiling_encoder

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import encoder
from benchmarks.encoder import COMPILED, CUDNN, OURS, SIZES
from headwise_papers.models import EncoderConfig

CPU = torch.device("cpu")
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
CONFIG = EncoderConfig.tiny(30, dropout=0.0, attention_dropout=0.0)


def main() -> None:
    graphs: list[set[str]] = []

    def look(graph: GraphModule, inputs: object) -> GraphModule:
        graphs.append({str(node.target).split(".")[1] for node in graph.graph.nodes
                       if node.op == "call_function" and "aten" in str(node.target)})  # fmt: skip
        return graph

    # no compiler is needed to see what would be compiled
    torch.compile = partial(torch.compile, backend=aot_autograd(fw_compiler=look), fullgraph=True)
    torch._dynamo.config.error_on_recompile = True
    encoder._by_cudnn = _other
    sizes = replace(SIZES["cpu"], config=CONFIG)
    batches = encoder.drawn_batches(sizes, CPU)
    names = f"{OURS}{COMPILED}", f"{OURS}{COMPILED}{CUDNN}"
    one, other = (encoder._contestant(name, sizes, batches, CPU) for name in names)
    for _ in range(2):  # in turns
        one()
        other()
    forward = graphs[::2]  # each before its backward pass
    assert len(graphs) == 4, len(graphs)
    assert FLASH in forward[0] and FLASH not in forward[1], forward


def _other() -> AbstractContextManager[object]:
    return sdpa_kernel(SDPBackend.MATH)


if __name__ == "__main__":
    main()
