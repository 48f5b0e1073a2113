import doctest
from dataclasses import replace as with_settings

import pytest
import torch

from headwise.config import from_json, to_json
from headwise.sites import find_sites, masked, observe
from headwise.training import label_smoothed_loss
from headwise_papers.models import Cache, beam, caption, greedy
from headwise_papers.models.caption import CaptionConfig, CaptionModel

PAD, BOS, EOS = 0, 1, 2
SMALL = CaptionConfig(
    vocab=11,
    image_size=16,
    patch=4,
    feature_width=6,
    width=16,
    heads=2,
    encoder_layers=1,
    decoder_layers=2,
    feed_forward=32,
    dropout=0.0,
    max_length=12,
)
ENCODERS = pytest.mark.parametrize("encoder", ["patches", "convolution", "features"])
OPS = ["softmax", "topk:3", "sparsemax", "entmax:1.5", "entmax:learned"]


def make(**settings):
    """A small model in eval mode, random in every parameter."""
    model = CaptionModel(with_settings(SMALL, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sources(model, batch=3):
    """Images or features, as the model wants them, and how many positions each has."""
    features = model.config.encoder == "features"
    source = torch.randn(batch, 5, 6) if features else torch.rand(batch, 3, 16, 16)
    return source, model.source_lengths(source)


def captions(batch=3, length=6):
    return torch.randint(3, 11, (batch, length))


@ENCODERS
def test_each_encoder_gives_a_vector_for_each_position_and_scores_for_each_word(encoder):
    model, words = make(encoder=encoder), captions()
    source, lengths = sources(model)
    positions = 5 if encoder == "features" else 16
    assert lengths.tolist() == [positions] * 3
    assert model.encode(source, lengths).shape == (3, positions, 16)
    assert model(source, lengths, words).shape == (3, 6, 11)


@ENCODERS
def test_what_is_seen_and_said_before_decides_the_next_word(encoder):
    model, words = make(encoder=encoder), captions()
    source, lengths = sources(model)
    before = model(source, lengths, words)
    changed = words.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 11
    after = model(source, lengths, changed)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3:], before[:, 3:])
    assert not torch.allclose(model(source.flip(0), lengths, words)[0], before[0])


@pytest.mark.parametrize("encoder", ["patches", "convolution"])
def test_where_something_is_in_an_image_matters(encoder):
    model, words = make(encoder=encoder), captions(1)
    source, lengths = sources(model, 1)
    moved = source.roll(4, dims=-1)  # by a square: the same squares in other places
    assert not torch.allclose(model(moved, lengths, words), model(source, lengths, words))


def test_the_order_of_regions_does_not_matter():
    model, words = make(encoder="features"), captions()
    source, lengths = sources(model)
    torch.testing.assert_close(model(source.flip(1), lengths, words), model(source, lengths, words))


@ENCODERS
def test_an_image_is_described_alone_as_in_a_batch(encoder):
    model, words = make(encoder=encoder), captions()
    source, lengths = sources(model)
    alone = model(source[1:2], lengths[1:2], words[1:2])
    torch.testing.assert_close(alone[0], model(source, lengths, words)[1])


def test_padded_features_are_not_looked_at():
    model, words = make(encoder="features"), captions()
    source, _ = sources(model)
    lengths = torch.tensor([5, 2, 3])
    wanted = model(source, lengths, words)
    source[1, 2:] = 100.0
    torch.testing.assert_close(model(source, lengths, words), wanted, atol=0, rtol=0)


def test_bytes_are_images_too():
    model, words = make(), captions()
    pixels = torch.randint(256, (3, 3, 16, 16), dtype=torch.uint8)
    lengths = model.source_lengths(pixels)
    wanted = model(pixels / 255, lengths, words)
    torch.testing.assert_close(model(pixels, lengths, words), wanted)


@ENCODERS
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_forward_pass(encoder, norm):
    model, words = make(encoder=encoder, norm=norm), captions()
    source, lengths = sources(model)
    memory, cache = model.encode(source, lengths), Cache()
    parts = [
        model.decode(words[:, start:end], memory, lengths, cache=cache)
        for start, end in ((0, 1), (1, 3), (3, 6))
    ]
    wanted = model(source, lengths, words)
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", OPS)
def test_greedy_and_beam_find_what_the_model_says_without_a_cache(spec):
    model = make(encoder_attention=spec, decoder_attention=spec, cross_attention=spec)
    source, lengths = sources(model, 6)
    for search in (greedy, beam):
        for row, found in enumerate(search(model, source, lengths, bos=BOS, eos=EOS, max_length=8)):
            words = torch.tensor([[BOS, *found.ids, *([EOS] if found.ended else [])]])
            logits = model(source[row : row + 1], lengths[row : row + 1], words[:, :-1])
            said = logits[0].log_softmax(-1).gather(1, words[0, 1:, None]).sum().item()
            assert found.log_probability == pytest.approx(said, abs=1e-3)


def test_sites_are_named_by_stack_layer_and_kind_in_forward_order():
    model, seen = make(), []
    source, lengths = sources(model)
    with observe(model, lambda site, attended: seen.append(site.name)):
        wanted = model(source, lengths, captions())
    names = [
        "encoder.0.self",
        "decoder.0.self",
        "decoder.0.cross",
        "decoder.1.self",
        "decoder.1.cross",
    ]
    assert seen == names
    assert [site.name for site in find_sites(model)] == names
    assert wanted.shape == (3, 6, 11)


def test_each_attention_has_the_op_it_was_given():
    model, kept = make(cross_attention="topk:2", decoder_layers=1), {}
    source, lengths = sources(model)

    def watch(site, attended):
        kept[site.name] = int((attended.weights > 0).sum(-1).max())

    with observe(model, watch):
        model(source, lengths, captions())
    assert kept == {"encoder.0.self": 16, "decoder.0.self": 6, "decoder.0.cross": 2}


def test_a_masked_head_changes_the_output():
    model, words = make(), captions()
    source, lengths = sources(model)
    wanted = model(source, lengths, words)
    with masked(model, {"decoder.1.cross": [0]}):
        assert not torch.allclose(model(source, lengths, words), wanted, atol=1e-4)


@ENCODERS
@pytest.mark.parametrize("share", [True, False])
def test_the_gradient_reaches_every_parameter(encoder, share):
    model = make(encoder=encoder, share_embeddings=share)
    source, lengths = sources(model)
    model(source, lengths, captions()).square().sum().backward()
    # A bias of the keys adds the same to all scores of a query: softmax cannot see it.
    missed = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in missed if not name.endswith("key.bias")] == []


@ENCODERS
def test_four_images_with_captions_are_learned_by_heart(encoder):
    model = CaptionModel(with_settings(SMALL, encoder=encoder, width=32, decoder_layers=1)).train()
    source, lengths = sources(model, 4)
    wanted = [[5, 6, 7], [5, 6, 8, 9], [10], [9, 5, 5, 3, 4]]
    target_in, target_out = torch.full((2, 4, 6), PAD)
    for row, ids in enumerate(wanted):
        target_in[row, : len(ids) + 1] = torch.tensor([BOS, *ids])
        target_out[row, : len(ids) + 1] = torch.tensor([*ids, EOS])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = label_smoothed_loss(model(source, lengths, target_in), target_out, pad=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = greedy(model.eval(), source, lengths, bos=BOS, eos=EOS, max_length=8)
    assert [hypothesis.ids for hypothesis in found] == wanted


def test_a_wrong_source_is_refused_in_one_sentence():
    lengths = torch.ones(2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"\(batch, 3, 16, 16\) were wanted, got \(2, 3, 8, 16\)"):
        make().encode(torch.rand(2, 3, 8, 16), lengths)
    with pytest.raises(ValueError, match=r"Images of shape .* got \(2, 5, 6\); resize"):
        make().encode(torch.rand(2, 5, 6), lengths)
    model = make(encoder="features")
    with pytest.raises(ValueError, match=r"Features of shape .* 6\) were wanted, .* compute them"):
        model.encode(torch.rand(2, 3, 16, 16), lengths)
    with pytest.raises(ValueError, match=r"\(batch, regions, 6\) were wanted, got \(2, 5, 7\)"):
        model.encode(torch.rand(2, 5, 7), lengths)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "pixels"}, "encoder must be one of patches, convolution, features"),
        ({"encoder": "features", "feature_width": 0}, "needs feature_width"),
        ({"patch": 5}, "image_size must be a multiple of patch, got 16 and 5"),
        ({"patch": 0}, "must be at least 1"),
        ({"encoder": "convolution", "image_size": 12, "patch": 6}, "a patch of 2, 4, 8"),
        ({"heads": 3}, "multiple of heads"),
        ({"sparse_in": "eval"}, "sparse_in must be 'both' or 'training'"),
        ({"cross_attention": "topk"}, "Attention must be softmax"),
    ],
)
def test_shapes_that_cannot_be_are_refused(settings, message, unchecked):
    with pytest.raises(ValueError, match=message):
        with_settings(SMALL, **settings)


def test_the_config_survives_json():
    assert from_json(CaptionConfig, to_json(SMALL)) == SMALL


def test_examples_in_docstrings_hold():
    result = doctest.testmod(caption)
    assert result.attempted > 0
    assert result.failed == 0
