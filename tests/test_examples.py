"""Every example runs as a script, is short, and says what it shows."""

import ast
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SHOWN = {  # a line that the output must have
    "gate_heads": "3 of 8 heads kept",
    "guide_mlm": "loss guided  3.2",
    "output_relevance": "1.00            1.00",
    "output_relevance_of_bert": "random baseline",
    "own_model": "sites: decoder.0.self decoder.1.self decoder.2.self",
    "record_training": "60 ",
    "score_and_norm": "largest deviation of the 8 topic words: 0.0",
    "see_heads": "output change",
    "sparse_attention": "softmax ",
    "switch_heads_off": "Adopting changes nothing: True",
    "train_translator": "nrefs:1|case:mixed",
}
LONG = ("gate_heads", "record_training", "score_and_norm", "sparse_attention")
each = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONG)) for path in EXAMPLES],
    ids=lambda path: path.stem,
)


@each
def test_an_example_runs_and_shows_something(path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path)])
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are so small that a second thread only costs
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_num_threads(before)
    assert SHOWN[path.stem] in capsys.readouterr().out


@each
def test_an_example_is_short_and_says_what_it_shows(path):
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert ast.get_docstring(ast.parse(text))


def test_every_expected_line_has_its_example():
    assert {path.stem for path in EXAMPLES} == set(SHOWN)
