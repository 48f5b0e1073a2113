"""Pruning a Hugging Face model loads few modules of headwise, and none of the papers'."""

from tests.alone import run_alone

PRUNE = """
import sys
import transformers as hf
import headwise as hw
sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
model = hw.adopt(hf.BertModel(hf.BertConfig(**sizes, num_attention_heads=2)))
hw.prune(model, {"encoder.0.self": [1]})
names = [name.split(".")[0] for name in sys.modules]
print(names.count("headwise"), names.count("headwise_papers"))
"""


def test_pruning_a_hugging_face_model_loads_60_modules_at_most_and_no_paper():
    ours, papers = map(int, run_alone("-c", PRUNE).split())
    assert ours <= 60 and papers == 0
