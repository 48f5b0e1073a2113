"""FlexAttention's backward pass is compiled only where its output gets a gradient.

    python -m tests.benchmarks.compiling_peers

Without a GPU it is traced, not compiled. In a process of its own, as what checks shapes in tests
cannot be traced.
"""

import torch
import torch.nn.attention.flex_attention as flex
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from benchmarks import peers
from benchmarks.gpu_cases import Shape, cases, guided_half

SHAPE = Shape(1, 4, 32, 16)
CPU = torch.device("cpu")
GRADIENT_OF_OUT = 5  # among the arguments of the backward pass


def main() -> None:
    flex._validate_device = lambda *given: None  # which knows of no backward pass on a CPU
    missing: list[bool] = []

    def look(graph: GraphModule, given: object) -> object:
        for node in graph.graph.nodes:
            if "flex_attention_backward" in str(node.target):
                missing.append(node.args[GRADIENT_OF_OUT] is None)
        return graph.forward

    compiler = torch.compile
    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    torch.compile = lambda call, dynamic: compiler(call, backend=backend)
    inputs = [torch.randn(SHAPE, requires_grad=True) for _ in range(3)]
    for case in cases(SHAPE, CPU, ("softmax", "statistics", "guidance")):
        for peer in peers.peers_of(case, guided_half(SHAPE.heads, CPU)):
            if peer.compiles:
                outputs = peer.attend(*inputs)[: case.question.through]
                torch.autograd.grad([out.sum() for out in outputs], inputs[: case.question.leaves])
    assert missing == [False] * 4, missing


if __name__ == "__main__":
    main()
