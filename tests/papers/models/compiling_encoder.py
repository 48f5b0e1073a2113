"""A masked language model in one compiled graph, for any number of masked places.

    python tests/models/compiling_encoder.py

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

import torch

from headwise_papers.models import Encoder, EncoderConfig, MaskedLM

SHAPE = EncoderConfig.tiny(30, dropout=0.0, attention_dropout=0.0)


def compare(*, checkpointing: bool, padded: bool) -> None:
    model = MaskedLM(Encoder(SHAPE, checkpointing=checkpointing))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for places in (torch.tensor([1, 4, 9]), torch.tensor([0, 3, 5, 13])):
        ids = torch.randint(30, (2, 7))
        lengths = torch.tensor([7, 5]) if padded else None
        losses = [run(ids, places, lengths=lengths).square().sum() for run in (compiled, model)]
        parameters = list(model.parameters())
        gradients = [torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def main() -> None:
    torch.manual_seed(0)
    compare(checkpointing=False, padded=False)
    compare(checkpointing=True, padded=True)


if __name__ == "__main__":
    main()
