"""Gated models in one compiled graph: the same draws, outputs and gradients as without.

    python -m tests.pruning.gates_compiling

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

import copy

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

import headwise as hw
from headwise.pruning.gates import Gates
from tests.support.small_transformer import SmallConfig, SmallTransformer


def translator() -> tuple[nn.Module, list[Tensor]]:
    lengths = torch.tensor([5, 3, 4])
    return SmallTransformer(SmallConfig(heads=2)), [
        torch.randint(9, (3, 5)),
        lengths,
        torch.randint(9, (3, 4)),
    ]


def bert() -> tuple[nn.Module, list[Tensor]]:
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return hw.adopt(BertForMaskedLM(config)), [torch.randint(50, (2, 6))]


def steps(model: nn.Module, called: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """Gates and gradients of three forward passes in training, and the output in eval mode."""
    seen: list[Tensor] = []
    for _ in range(3):
        output = called(*inputs)
        scores = getattr(output, "logits", output)
        model.zero_grad()
        scores.square().mean().backward()
        seen += [scores.detach()]
        seen += [
            part.log_alpha.grad.clone() for part in map(model.head_gates.of, model.head_gates.sites)
        ]
    model.eval()
    with torch.no_grad():
        output = called(*inputs)
    return [*seen, getattr(output, "logits", output)]


def main() -> None:
    for make in (translator, bert):
        torch.manual_seed(0)
        model, inputs = make()
        Gates(model.train(), initial=0.5, seed=3)
        other = copy.deepcopy(model)
        compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
        plainly, together = steps(model, model, inputs), steps(other, compiled, inputs)
        torch.testing.assert_close(together, plainly, atol=1e-5, rtol=1e-4)
        assert int(other.head_gates.draws) == 3
        print(make.__name__, "draws, outputs and gradients agree")


if __name__ == "__main__":
    main()
