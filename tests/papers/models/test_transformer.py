import copy
import doctest
import io
import pickle
from dataclasses import replace as with_settings

import pytest
import torch

from headwise.config import from_json, to_json
from headwise.ops import topk_attention
from headwise.sites import find_sites, masked, observe, replace
from headwise_papers.models import Cache, Transformer, TransformerConfig, transformer

SMALL = TransformerConfig(11, 13, width=16, heads=2, feed_forward=32, max_length=12)
NORMS = pytest.mark.parametrize("norm", ["pre", "post"])


def make(norm="pre", **settings):
    """A small model in eval mode, random in every parameter."""
    model = Transformer(with_settings(SMALL, norm=norm, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sentences():
    source = torch.randint(4, 11, (3, 7))
    return source, torch.tensor([7, 3, 5]), torch.randint(4, 13, (3, 6))


@NORMS
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_forward_pass(norm):
    model, (source, lengths, target) = make(norm), sentences()
    wanted = model(source, lengths, target)
    memory, cache = model.encode(source, lengths), Cache()
    parts = [  # chunks of 1, 2 and 3 words
        model.decode(target[:, start:end], memory, lengths, cache=cache)
        for start, end in ((0, 1), (1, 3), (3, 6))
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, atol=1e-5, rtol=1e-5)
    assert cache.length == 6


def test_keys_of_the_source_are_computed_once():
    model, (source, lengths, target) = make(), sentences()
    memory, cache = model.encode(source, lengths), Cache()
    model.decode(target[:, :1], memory, lengths, cache=cache)
    first = cache.known["decoder.0.cross"].k
    model.decode(target[:, 1:2], memory, lengths, cache=cache)
    assert cache.known["decoder.0.cross"].k is first


def test_a_reordered_cache_continues_the_rows_it_was_told_to():
    model, (source, lengths, target) = make(), sentences()
    wanted = model(source, lengths, target)[:, 5]
    memory, cache, index = model.encode(source, lengths), Cache(), torch.tensor([2, 2, 0])
    model.decode(target[:, :5], memory, lengths, cache=cache)
    cache.reorder(index)
    got = model.decode(target[index, 5:], memory[index], lengths[index], cache=cache)[:, 0]
    torch.testing.assert_close(got, wanted[index], atol=1e-5, rtol=1e-5)


@NORMS
def test_a_sentence_does_not_depend_on_its_padding(norm):
    model, (source, lengths, target) = make(norm), sentences()
    together = model(source, lengths, target)
    for row, length in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)
    source[1, 3:] = 9
    torch.testing.assert_close(model(source, lengths, target)[1], together[1], atol=0, rtol=0)


@NORMS
def test_no_position_sees_a_later_word(norm):
    model, (source, lengths, target) = make(norm), sentences()
    before = model(source, lengths, target)
    target[:, 4] = (target[:, 4] + 1) % 13
    after = model(source, lengths, target)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_word_order_of_the_source_matters():
    model, (source, lengths, target) = make(), sentences()
    source[0, :2] = torch.tensor([4, 5])
    swapped = source[:1, [1, 0, 2, 3, 4, 5, 6]]
    one = model(source[:1], lengths[:1], target[:1])
    assert not torch.allclose(one, model(swapped, lengths[:1], target[:1]))


def test_pre_norm_has_a_last_norm_on_each_stack_and_post_norm_has_not():
    names = {norm: set(make(norm).state_dict()) for norm in ("pre", "post")}
    extra = {
        f"{stack}_norm.{part}" for stack in ("encoder", "decoder") for part in ("weight", "bias")
    }
    assert names["pre"] - names["post"] == extra
    assert names["post"] <= names["pre"]


def test_sites_are_named_by_stack_layer_and_kind_in_forward_order():
    model, seen = make(), []
    names = [site.name for site in find_sites(model)]
    with observe(model, lambda site, attended: seen.append(site.name)):
        model(*sentences())
    assert names == seen
    assert names == [
        "encoder.0.self",
        "encoder.1.self",
        "decoder.0.self",
        "decoder.0.cross",
        "decoder.1.self",
        "decoder.1.cross",
    ]


def test_keeping_every_key_is_softmax_and_keeping_one_is_not():
    model, batch = make(), sentences()
    wanted = model(*batch)
    with replace(model, topk_attention):  # keeps 8, more than there are
        torch.testing.assert_close(model(*batch), wanted, atol=1e-5, rtol=1e-5)
    with replace(model, lambda *qkv, **options: topk_attention(*qkv, keep=1, **options)):
        assert not torch.allclose(model(*batch), wanted, atol=1e-3)
    assert torch.equal(model(*batch), wanted)


@pytest.mark.parametrize("site", ["encoder.1.self", "decoder.0.self", "decoder.1.cross"])
def test_a_masked_head_changes_the_output_and_is_restored(site):
    model, batch = make(), sentences()
    wanted = model(*batch)
    with masked(model, {site: [1]}):
        assert not torch.allclose(model(*batch), wanted, atol=1e-4)
    assert torch.equal(model(*batch), wanted)


@NORMS
@pytest.mark.parametrize("share", ["target", "none"])
def test_the_gradient_reaches_every_parameter(norm, share):
    model = make(norm, share_embeddings=share)
    model(*sentences()).square().sum().backward()
    # A bias of the keys adds the same to all scores of a query: softmax cannot see it.
    reached = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert {n for n, _ in model.named_parameters()} - reached <= {
        n for n, _ in model.named_parameters() if n.endswith("key.bias")
    }


def test_the_output_projection_is_the_target_embedding_unless_told_otherwise():
    tied, untied = make(), make(share_embeddings="none")
    assert tied.read_out.weight is tied.embed_target.words.weight
    assert untied.read_out.weight is not untied.embed_target.words.weight
    restored = Transformer(SMALL)
    restored.load_state_dict(tied.state_dict())
    assert restored.read_out.weight is restored.embed_target.words.weight


def test_dropout_acts_only_while_training():
    model, batch = make(dropout=0.0, attention_dropout=0.5), sentences()
    assert torch.equal(model(*batch), model(*batch))
    model.train()
    assert not torch.equal(model(*batch), model(*batch))


def test_a_copied_model_has_sites_of_its_own():
    model, batch = make(), sentences()
    other, wanted = copy.deepcopy(model), model(*batch)
    with masked(other, {"encoder.0.self": [0, 1]}):
        assert torch.equal(model(*batch), wanted)
        assert not torch.equal(other(*batch), wanted)


def test_a_sentence_that_is_too_long_is_refused():
    model, (source, lengths, _) = make(), sentences()
    with pytest.raises(ValueError, match="13 positions does not fit max_length=12"):
        model(source, lengths, torch.zeros(3, 13, dtype=torch.long))


@pytest.mark.parametrize("settings", [{"width": 15}, {"width": 18, "heads": 4}, {"heads": 0}])
def test_shapes_that_cannot_be_are_refused(settings):
    with pytest.raises(ValueError, match="heads"):
        TransformerConfig(5, 5, **{"heads": 1, **settings})


def test_the_config_survives_json():
    assert from_json(TransformerConfig, to_json(SMALL)) == SMALL


def test_examples_in_docstrings_hold():
    result = doctest.testmod(transformer)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_transformer_can_be_copied_pickled_and_saved_whole():
    model = Transformer(TransformerConfig(20, 20, width=8, heads=2))
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    torch.save(model, buffer := io.BytesIO())
    buffer.seek(0)
    copies.append(torch.load(buffer, weights_only=False))
    for other in copies:
        mine, its = find_sites(model), find_sites(other)
        assert [site.name for site in its] == [site.name for site in mine]
        assert not set(its) & set(mine)
