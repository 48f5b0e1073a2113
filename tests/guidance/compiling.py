"""Guided models in one compiled graph: the same losses and gradients as without.

    python tests/guidance/compiling.py

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

import copy

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import RobertaConfig, RobertaForMaskedLM

import headwise as hw
from headwise.guidance import Plan
from headwise_papers.models import Encoder, EncoderConfig, MaskedLM

PLAN = Plan(next=1, prev=1, first=1, period=1, tokens={"period": [5, 6]})
IDS = torch.randint(4, 30, (2, 6), generator=torch.Generator().manual_seed(0))


def packed_encoder() -> tuple[nn.Module, dict[str, Tensor]]:
    shape = EncoderConfig.tiny(30, dropout=0.0, attention_dropout=0.0)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 2]])
    return MaskedLM(Encoder(shape)), {
        "ids": IDS,
        "places": torch.tensor([1, 9]),
        "documents": documents,
    }


def padded_roberta() -> tuple[nn.Module, dict[str, Tensor]]:
    config = RobertaConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=16,
        max_position_embeddings=20,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    return hw.adopt(RobertaForMaskedLM(config)), {"input_ids": IDS, "attention_mask": mask}


def steps(model: nn.Module, inputs: dict[str, Tensor], *, compiled: bool) -> list[Tensor]:
    """Losses and gradients of two updates, while alpha falls."""
    guidance = hw.guide(model, PLAN, steps=3)
    called = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    seen: list[Tensor] = []
    for step in range(2):
        guidance.at_step(step)
        output = called(**inputs)
        loss = getattr(output, "logits", output).square().mean() + guidance.loss()
        model.zero_grad()
        loss.backward()
        seen += [loss.detach(), guidance.unscaled]
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return seen


def main() -> None:
    for make in (packed_encoder, padded_roberta):
        torch.manual_seed(0)
        model, inputs = make()
        other = copy.deepcopy(model)
        plainly = steps(model.train(), inputs, compiled=False)
        together = steps(other.train(), inputs, compiled=True)
        torch.testing.assert_close(together, plainly, atol=1e-6, rtol=1e-5)
        assert counters["stats"]["unique_graphs"] == 1, counters["graph_break"]
        counters.clear()
        print(make.__name__, "has the same losses and gradients compiled")


if __name__ == "__main__":
    main()
