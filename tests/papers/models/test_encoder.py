import doctest
import subprocess
import sys
from dataclasses import replace as with_settings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.utils.prune import custom_from_mask
from torch.utils.flop_counter import FlopCounterMode

from headwise.config import from_json, to_json
from headwise.ops import softmax_attention, topk_attention
from headwise.pruning import prune
from headwise.recording import Profile, Reading, Words
from headwise.sites import find_sites, masked, observe, replace
from headwise_papers.models import Encoder, EncoderConfig, MaskedLM, encoder
from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.encoder import training_flops
from headwise_papers.models.encoder_heads import ReplacedToken

TINY = EncoderConfig.tiny(30, token_types=2)


def make(config: EncoderConfig = TINY, **options) -> Encoder:
    torch.manual_seed(0)
    return Encoder(config, **options).double().eval()


def texts(rows: int = 3, length: int = 8) -> torch.Tensor:
    return torch.randint(4, 30, (rows, length), generator=torch.Generator().manual_seed(1))


def test_docstrings_are_true():
    done = doctest.testmod(encoder)
    assert done.attempted and not done.failed


def test_one_wide_product_is_the_same_attention():
    torch.manual_seed(0)
    attention = MultiHeadAttention(12, heads=3, name="encoder.0.self").double()
    x, lengths = torch.randn(2, 5, 12, dtype=torch.double), torch.tensor([5, 3])
    usual = attention(x, attention.keys_values(x), lengths=lengths)
    torch.testing.assert_close(attention.to_itself(x, lengths=lengths), usual)
    attention.query = torch.nn.Sequential(attention.query)  # as an adapter would be put there
    torch.testing.assert_close(attention.to_itself(x, lengths=lengths), usual)


def test_padding_changes_nothing():
    model, ids, lengths = make(), texts(), torch.tensor([8, 5, 1])
    whole = model(ids, lengths=lengths)
    other = ids.clone()
    for row, length in enumerate(lengths.tolist()):
        other[row, length:] = 1
        alone = model(ids[row : row + 1, :length])
        torch.testing.assert_close(whole[row, :length], alone[0])
    torch.testing.assert_close(model(other, lengths=lengths)[1, :5], whole[1, :5])


def test_all_lengths_full_is_no_lengths():
    model, ids = make(), texts()
    full = model(ids, lengths=torch.full((3,), 8))
    torch.testing.assert_close(full, model(ids))


def test_documents_packed_in_a_row_do_not_see_each_other():
    model, ids = make(), texts(rows=2)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [5, 5, 5, 5, 5, 5, 0, 0]])
    packed = model(ids, documents=documents)
    for row, start, end in [(0, 0, 3), (0, 3, 5), (0, 5, 8), (1, 0, 6), (1, 6, 8)]:
        alone = model(ids[row : row + 1, start:end])
        torch.testing.assert_close(packed[row, start:end], alone[0])


def test_token_types_of_zeros_are_none_and_others_matter():
    model, ids = make(), texts()
    zeros = torch.zeros_like(ids)
    torch.testing.assert_close(model(ids, token_types=zeros), model(ids))
    assert not torch.allclose(model(ids, token_types=1 - zeros), model(ids))


def test_checkpointing_changes_neither_output_nor_gradient_nor_what_is_observed():
    ids, found = texts(), []
    for checkpointing in (False, True):
        model, names = make(checkpointing=checkpointing), []
        with observe(model, lambda site, attended, names=names: names.append(site.name)):
            out = model(ids)
            out.square().sum().backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        found.append((out, names, gradients))
    assert found[0][1] == found[1][1] == ["encoder.0.self", "encoder.1.self"]
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][2], found[1][2])


def test_heads_that_are_cut_out_are_as_heads_that_are_masked():
    model, ids, lengths = make(), texts(), torch.tensor([8, 6, 3])
    off = {"encoder.0.self": [0, 2], "encoder.1.self": [0, 1, 2, 3]}
    with masked(model, off):
        wanted = model(ids, lengths=lengths)
    prune(model, {"encoder.0.self": [1, 3], "encoder.1.self": []})
    assert model.layers[0].attention.query.weight.shape == (16, 32)
    torch.testing.assert_close(model(ids, lengths=lengths), wanted)
    assert [site.name for site in find_sites(model)] == ["encoder.0.self"]


def test_every_head_can_be_watched_and_watching_changes_nothing():
    model, ids, lengths = make().float(), texts(), torch.tensor([8, 6, 3])
    real = torch.arange(8) < lengths[:, None]
    profile = Profile(reading=Reading(range(3), words={"encoder": Words.each(real)}))
    before = model(ids, lengths=lengths)
    with observe(model, profile):
        assert torch.equal(model(ids, lengths=lengths), before)
    confidence = profile.drain()["confidence"]
    assert {site: len(heads) for site, heads in confidence.items()} == {
        "encoder.0.self": 4,
        "encoder.1.self": 4,
    }


def test_another_attention_by_setting_is_that_attention():
    sparse = make(with_settings(TINY, attention="topk:8"))
    model, ids = make(), texts(length=12)
    with replace(model, topk_attention):
        torch.testing.assert_close(sparse(ids), model(ids))


@pytest.mark.parametrize("attention", ["entmax:learned", "gaussian:-1,1"])
def test_attentions_with_other_parameters_can_be_trained(attention):
    model = make(with_settings(TINY, attention=attention)).train()
    model(texts()).square().sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )


def test_bfloat16_by_autocast_is_near_and_stays_bfloat16():
    model, ids = make().float(), texts()
    exact = model(ids)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(ids)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.06, rtol=0.06)


def test_dropout_is_for_training_alone():
    model, ids = make(), texts()
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


def test_weights_start_as_in_bert():
    model = make(EncoderConfig(5000, width=64, heads=4, layers=1, feed_forward=128))
    assert model.embed.words.weight.std().item() == pytest.approx(0.02, rel=0.02)
    layer = model.layers[0]
    assert layer.feed_forward[0].weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not layer.attention.query.bias.any()
    assert torch.equal(layer.add_attention.norm.weight, torch.ones(64).double())


@pytest.mark.parametrize("layers, heads", [(8, 12), (12, 12), (16, 16)])
def test_robertas_of_the_paper(layers, heads):
    config = EncoderConfig.roberta(52_000, layers=layers)
    assert (config.layers, config.heads, config.width, config.feed_forward) == (
        *(layers, heads),
        *(768, 3072),
    )
    assert (config.norm_eps, config.token_types, config.padding_id) == (1e-5, 1, 1)


def test_berts_and_electras_can_be_changed_and_written():
    bert = EncoderConfig.bert(300, layers=2)
    assert (bert.norm_eps, bert.token_types, bert.padding_id, bert.layers) == (1e-12, 2, 0, 2)
    small = EncoderConfig.electra(300, width=256, heads=4, embedding_width=128)
    assert (small.family, small.embedded, small.rows) == ("electra", 128, 320)
    assert from_json(EncoderConfig, to_json(small)) == small


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"heads": 5}, "width must be a multiple of heads, got 32 and 5"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"padding_id": 30}, "padding_id must be below vocab=30, got 30"),
        ({"token_types": 0}, "token_types must be at least 1"),
        ({"attention": "top8"}, "got 'top8'"),
        ({"attention": "gaussian:-1,1", "sparse_in": "training"}, "learns no scores"),
        ({"sparse_in": "x"}, "sparse_in must be 'both' or 'training', got 'x'"),
        ({"attention_dropout": 2.0}, "attention_dropout must be at least 0 and below 1, got 2.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong, said, unchecked):
    with pytest.raises(ValueError, match=said):
        with_settings(TINY, **wrong)


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="65 positions does not fit max_length=64"):
        make()(torch.zeros(1, 65, dtype=torch.long))


@pytest.mark.parametrize("embedding_width", [0, 16])
def test_operations_are_those_that_pytorch_counts(embedding_width):
    config = EncoderConfig.tiny(64, family="electra", embedding_width=embedding_width)
    model = MaskedLM(Encoder(config))
    # the definition has no fused kernel, whose backward pass computes scores once more
    by_definition = partial(softmax_attention, impl="reference")
    with replace(model, by_definition), FlopCounterMode(display=False) as counter:
        model(torch.randint(64, (2, 8)), torch.tensor([1, 5, 9])).sum().backward()
    assert counter.get_total_flops() == training_flops(config, texts=2, length=8, scored=3)
    judge = ReplacedToken(Encoder(config))
    with replace(judge, by_definition), FlopCounterMode(display=False) as counter:
        judge(torch.randint(64, (2, 8))).sum().backward()
    counted = training_flops(config, texts=2, length=8, scored=0, judged=16)
    assert counter.get_total_flops() == counted


@pytest.mark.slow
def test_a_masked_language_model_is_compiled_in_one_graph():
    script = Path(__file__).with_name("compiling_encoder.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("which", ["query", "key", "value"])
def test_a_layer_that_is_hooked_is_called(which):
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(12, heads=3, name="encoder.0.self"), torch.randn(2, 5, 12)
    called, layer = [], getattr(attention, which)
    usual = attention.to_itself(x)
    with layer.register_forward_hook(lambda *_: called.append(which)):
        torch.testing.assert_close(attention.to_itself(x), usual)
    assert called == [which]
    custom_from_mask(layer, "weight", torch.zeros_like(layer.weight))  # by a hook before it
    pruned = attention.to_itself(x)
    with torch.no_grad():
        layer.weight_orig.fill_(100.0)  # read anew by the next call, and hidden by the mask
    torch.testing.assert_close(attention.to_itself(x), pruned)
    assert not torch.allclose(pruned, usual)
