"""Headwise's own models, pruned, saved and exported.

    python tests/papers/pruning/exporting.py FOLDER

Runs in a process of its own, as what checks shapes in tests cannot be traced.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from headwise.pruning import export, prune, save
from headwise_papers.models import Transformer, TransformerConfig

KEEP = {"encoder.0.self": [], "encoder.1.self": [1, 3], "decoder.0.self": [0], "decoder.1.self": []}


def pruned(attention: str) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(20, 20, width=16, heads=4, encoder_attention=attention)
    return prune(Transformer(config).eval(), KEEP)


def main(folder: Path) -> None:
    model = pruned("softmax")
    save(model, folder / "softmax")
    forms = ["torch", "onnx"] if find_spec("onnxruntime") else ["torch"]
    for form in forms:
        made = export(folder / "softmax", form)
        assert made.inputs == ("source", "source_lengths", "target")
        assert made.largest_difference < 1e-4
        print(f"{form.upper()} differs by {made.largest_difference:.0e}")
    graph = torch.export.load(folder / "softmax" / "model.pt2").module()
    tokens, lengths = torch.randint(20, (4, 6)), torch.tensor([6, 5, 1, 6])
    for length in (3, 6):  # another than that of the source, and the same
        inputs = tokens, lengths, torch.randint(20, (4, length))
        torch.testing.assert_close(graph(*inputs), model(*inputs))

    save(pruned("entmax:learned"), folder / "learned")
    try:
        export(folder / "learned", "torch")
    except ValueError as problem:
        print(problem)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
