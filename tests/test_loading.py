"""What importing and using the library loads: few of its modules, and none of the papers'."""

import json
import textwrap

from tests.alone import run_alone

COUNT = """
import json, sys
loaded = [name for name in sys.modules if name.split(".")[0].startswith("headwise")]
print(json.dumps(loaded))
"""
MODEL = """
import torch, transformers
sizes = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
config = transformers.BertConfig(**sizes, intermediate_size=8)
model = transformers.BertForMaskedLM(config).eval()
"""


def _loaded(program: str) -> list[str]:
    """Which modules of headwise and headwise_papers a fresh process has loaded after a program."""
    return json.loads(run_alone("-c", textwrap.dedent(program) + COUNT).splitlines()[-1])


def test_importing_headwise_loads_neither_torch_nor_transformers():
    program = "import sys, headwise; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert _loaded(program) == ["headwise"]


def test_adopting_and_sparse_attention_load_few_modules():
    program = f"{MODEL}\nimport headwise as hw\nhw.adopt(model)\nhw.topk_attention"
    loaded = _loaded(program)
    assert len(loaded) <= 35
    assert not [name for name in loaded if name.startswith("headwise_papers")]


def test_pruning_loads_few_modules_and_none_of_the_papers():
    prune = 'hw.prune(hw.adopt(model), {"encoder.0.self": [1]})'
    loaded = _loaded(f"{MODEL}\nimport headwise as hw\n{prune}")
    assert not [name for name in loaded if name.startswith("headwise_papers")]
    assert len(loaded) <= 60


def test_inspecting_loads_few_modules_and_none_of_the_papers():
    program = """
    import headwise as hw
    from tests.workflows.small_hosts import LINES, host, tokenizer_for
    hw.inspect(host("BERT"), tokenizer_for("BERT"), LINES, sample=2, ablation_lines=1)
    """
    loaded = _loaded(program)
    assert not [name for name in loaded if name.startswith("headwise_papers")]
    assert len(loaded) <= 90
