"""A Transformer whose own attention is hard-coded, as You et al. (2020) have it."""

from dataclasses import replace

import pytest
import torch

from headwise.pruning import prune
from headwise.sites import observe
from headwise_papers.models import Cache, Transformer, TransformerConfig
from headwise_papers.models.xl import XLConfig

SHAPE = TransformerConfig(11, 13, width=16, heads=4, feed_forward=32, max_length=12, dropout=0.0)
HARD_CODED = {"encoder_attention": "gaussian:-1,1", "decoder_attention": "gaussian:-1,0"}


def make():
    return Transformer(replace(SHAPE, **HARD_CODED)).eval()


def sentences():
    source = torch.randint(4, 11, (3, 7))
    return source, torch.tensor([7, 3, 5]), torch.randint(4, 13, (3, 6))


def test_heads_look_where_they_are_told():
    peaks, model, (source, lengths, target) = {}, make(), sentences()
    with torch.no_grad(), observe(model, lambda s, a: peaks.update({s.name: a.peak_key})):
        model(source, lengths, target)
    place = torch.arange(6)
    for layer in range(2):
        left, right = peaks[f"encoder.{layer}.self"][0, :2, :6]
        assert (left == (place - 1).clamp(min=0)).all() and (right == place + 1).all()
        before, itself = peaks[f"decoder.{layer}.self"][0, :2]
        assert (before == (place - 1).clamp(min=0)).all() and (itself == place).all()
    assert torch.equal(peaks["encoder.0.self"][:, :2], peaks["encoder.0.self"][:, 2:])


def test_decoding_with_a_cache_gives_the_logits_of_the_whole_forward_pass():
    model, (source, lengths, target) = make(), sentences()
    with torch.no_grad():
        wanted = model(source, lengths, target)
        memory, cache = model.encode(source, lengths), Cache()
        parts = [
            model.decode(target[:, start:end], memory, lengths, cache=cache)
            for start, end in ((0, 1), (1, 2), (2, 5), (5, 6))
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, atol=1e-5, rtol=1e-5)


def test_there_is_nothing_to_learn_where_nothing_is_chosen():
    model = make().train()
    names = {name for name, _ in model.named_parameters()}
    assert not [n for n in names if "attention.query" in n or "attention.key" in n]
    assert "decoder.0.cross.query.weight" in names
    model(*sentences()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_mixed_precision_computes_the_same_coarsely():
    model, batch = make(), sentences()
    with torch.autocast("cpu", torch.bfloat16):
        coarse = model(*batch)
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), model(*batch), atol=0.05, rtol=0.05)


def test_padding_is_not_seen():
    model, (source, lengths, target) = make(), sentences()
    wanted = model(source, lengths, target)
    source[1, 3:], source[2, 5:] = 4, 5
    torch.testing.assert_close(model(source, lengths, target), wanted)


def test_heads_that_are_no_choice_are_not_cut():
    with pytest.raises(ValueError, match=r"encoder.0.self.*Leave this site out"):
        prune(make(), keep={"encoder.0.self": [0]})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"cross_attention": "gaussian:0"},
            r"attends to distances within one text.*encoder_attenti",
        ),
        ({**HARD_CODED, "sparse_in": "training"}, "learns no scores; give it with sparse_in='both"),
    ],
)
def test_what_a_gaussian_cannot_do_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(SHAPE, **settings)
    with pytest.raises(ValueError, match="attends to distances within one text"):
        XLConfig(9, attention="gaussian:0")
