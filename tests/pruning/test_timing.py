"""Speed before and after: counts that can be checked by hand, and verdicts that are plain."""

import copy
import json

import pytest
import torch
import transformers as hf
from rich.console import Console
from torch import nn

import headwise
from headwise import pruning
from headwise.hf.adoption import is_adopted
from headwise.pruning.timing import Ratio, count_flops, max_length_of, peak_memory, random_text
from tests.hf.families import SIZES, TWO_STACKS
from tests.support.small_transformer import SmallConfig, SmallTransformer

CPU = torch.device("cpu")
QUICK = {"batches": (1,), "lengths": (8,), "seconds": 0.01}


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return hf.BertModel(hf.BertConfig(**SIZES)).eval()


@pytest.fixture
def halved(bert):
    model = headwise.adopt(copy.deepcopy(bert))
    return pruning.prune(model, {f"encoder.{layer}.self": [0, 1] for layer in range(2)})


def test_flops_are_those_of_the_matrices_that_are_left(bert, halved):
    inputs = random_text(bert, 1, 8)
    with torch.no_grad():
        before, after = count_flops(bert, inputs), count_flops(halved, inputs)
    # per layer: four matrices of 32 x 32 lose half, and scores and values of two heads of width 8
    gone = 2 * (8 * 4 * 32 * 16 * 2 + 2 * 2 * 8 * 8 * 8 * 2)
    assert before - after == gone


def test_memory_is_that_of_weights_and_what_lives_at_once():
    layer = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(5)))

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, input_ids):
            return self.layer(input_ids)

    with torch.no_grad():
        held = peak_memory(Named(), {"input_ids": torch.randn(1, 4)})
    assert 5 * 64 + 2 * 16 <= held <= 5 * 64 + 3 * 16  # input and output of a layer, not of all


def test_heads_that_are_gone_are_found_and_models_left_as_they_came(bert, halved):
    bert.train()
    found = pruning.speed(bert, halved, backends=("sdpa", "eager"), **QUICK)
    assert [work.backend for work in found.workloads] == ["sdpa", "eager"]
    assert found.parameters[0] - found.parameters[1] == 2 * 2 * 8 * (4 * 32 + 3)
    assert all(0 < work.saved < 1 and work.memory[1] < work.memory[0] for work in found.workloads)
    assert bert.training and not halved.training and is_adopted(halved) and not is_adopted(bert)
    assert bert.config._attn_implementation == "sdpa"
    assert all(parameter.requires_grad for parameter in halved.parameters())
    assert json.loads(json.dumps(found.to_json()))["verdicts"] == found.verdicts()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_passes_are_replayed_on_a_gpu_and_models_left_as_they_came(bert, halved):
    bert, halved = bert.cuda(), halved.cuda()
    found = pruning.speed(bert, halved, backends=("sdpa", "sdpa, replayed"), **QUICK)
    assert [work.backend for work in found.workloads] == ["sdpa", "sdpa, replayed"]
    assert all(min(work.time.before, work.time.after) > 0 for work in found.workloads)
    assert is_adopted(halved) and not is_adopted(bert)


def test_quality_is_measured_in_eval_mode(bert, halved):
    told = []

    def measure(model):
        told.append((model.training, torch.is_grad_enabled()))
        return 1.0

    pruning.speed(bert.train(), halved.train(), measure=measure, **QUICK)
    assert told == [(False, False)] * 2
    assert bert.training and halved.training


def test_a_model_against_itself_is_not_faster_and_says_so(bert):
    found = pruning.speed(bert, copy.deepcopy(bert), measure=lambda model: 0.5, **QUICK)
    assert found.quality == (0.5, 0.5)
    assert found.verdicts() == ["Nothing was removed, so nothing can be gained."]
    shown = printed(found)
    assert "Quality: 0.5 > 0.5." in shown
    assert f"One forward pass on {found.device}, before > after" in shown


def printed(found):
    console = Console(width=200, record=True)
    console.print(found)
    return console.export_text()


def test_inputs_hold_words_alone_and_end_as_a_classifier_with_a_decoder_needs():
    config = hf.BartConfig(**TWO_STACKS, num_labels=2)
    model = hf.BartForSequenceClassification(config).eval()
    inputs = random_text(model, 3, 16)
    marks = torch.tensor([config.pad_token_id, config.bos_token_id, config.eos_token_id])
    assert not torch.isin(inputs["input_ids"][:, :-1], marks).any()
    assert (inputs["input_ids"][:, -1] == config.eos_token_id).all()
    with torch.no_grad():
        assert model(**inputs).logits.shape == (3, 2)
    inputs = random_text(SmallTransformer(SmallConfig()), 4, 30)
    assert {name: tuple(tensor.shape) for name, tensor in inputs.items()} == {
        "source": (4, 30),
        "source_lengths": (4,),
        "target": (4, 30),
    }


def test_a_model_that_counts_positions_after_padding_has_that_much_less_room():
    roberta = hf.RobertaModel(hf.RobertaConfig(**{**SIZES, "max_position_embeddings": 18}))
    assert max_length_of(roberta) == 18 - 2
    found = pruning.speed(roberta, roberta, batches=(1,), lengths=(16, 18), seconds=0.01)
    assert [work.length for work in found.workloads] == [16]


def test_little_attention_is_said_to_gain_little():
    model = SmallTransformer(SmallConfig(5000, 5000, width=32, feed_forward=512)).eval()
    small = pruning.prune(copy.deepcopy(model), {"encoder.0.self": [0]})
    found = pruning.speed(model, small, **{**QUICK, "lengths": (8, 1000)})
    said = " ".join(found.verdicts())
    assert "cannot be much faster" in said and "Length 1000 was not measured" in said
    assert "Decoding word by word was not timed" in said
    shown = printed(found)
    assert "own" in shown and "times faster" in shown and "cannot be much faster" in shown


@pytest.mark.parametrize(("count", "place"), [(6, 0), (11, 1), (31, 9)])
def test_the_interval_of_a_median_covers_95_percent(count, place):
    ratio = Ratio.of([1.0 + number for number in range(count)])
    assert (ratio.low, ratio.high) == (1.0 + place, float(count - place))


def test_what_cannot_be_measured_gets_one_sentence(bert):
    with pytest.raises(ValueError, match="at least 1"):
        pruning.speed(bert, bert, batches=())
    with pytest.raises(ValueError, match="cannot attend with 'no_such'"):
        pruning.speed(bert, bert, **{**QUICK, "backends": ("no_such",)})
    with pytest.raises(ValueError, match="on a GPU only"):
        pruning.speed(bert, bert, **{**QUICK, "backends": ("sdpa, replayed",)})
    with pytest.raises(ValueError, match="give inputs="):
        random_text(nn.Linear(2, 2), 1, 1)
