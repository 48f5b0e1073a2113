"""Any op at any of the three attentions of a Transformer, and its presets."""

import subprocess
import sys
from dataclasses import replace as with_settings
from pathlib import Path

import pytest
import torch

from headwise.config import from_json, override
from headwise.ops import softmax_attention
from headwise.sites import find_sites, masked, observe, replace
from headwise_papers.models import Cache, Transformer, TransformerConfig

SMALL = TransformerConfig(11, 13, width=16, heads=2, feed_forward=32, max_length=12)
SPECS = ["softmax", "topk:2", "sparsemax", "entmax:1.5", "entmax:learned"]
every_op = pytest.mark.parametrize("spec", SPECS)
sparse_op = pytest.mark.parametrize("spec", SPECS[1:])


def everywhere(spec):
    return dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), spec)


def make(**settings):
    """A small model in eval mode whose attention is sharp enough for sparse ops to find zeros."""
    model = Transformer(with_settings(SMALL, **settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(3 if "query.weight" in name else 1)
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sentences():
    source = torch.randint(4, 11, (3, 7))
    return source, torch.tensor([7, 3, 5]), torch.randint(4, 13, (3, 6))


@every_op
@pytest.mark.parametrize("sparse_in", ["both", "training"])
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_forward_pass(spec, sparse_in):
    model, (source, lengths, target) = make(**everywhere(spec), sparse_in=sparse_in), sentences()
    with torch.no_grad():
        wanted = model(source, lengths, target)
        memory, cache = model.encode(source, lengths), Cache()
        parts = [
            model.decode(target[:, start:end], memory, lengths, cache=cache)
            for start, end in ((0, 1), (1, 2), (2, 5), (5, 6))
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, atol=1e-4, rtol=1e-4)


@every_op
def test_beams_of_a_sentence_get_the_logits_they_would_get_alone(spec):
    model, (source, lengths, target) = make(**everywhere(spec)), sentences()
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    target = torch.randint(4, 13, (6, 5))
    with torch.no_grad():
        wanted = model(source[rows], lengths[rows], target)
        memory, cache = model.encode(source, lengths)[rows], Cache(beams=2)
        parts = [
            model.decode(target[:, i : i + 1], memory, lengths[rows], cache=cache) for i in range(5)
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted, atol=1e-4, rtol=1e-4)


@sparse_op
@pytest.mark.parametrize("which", ["encoder", "decoder", "cross"])
def test_an_op_is_used_at_its_own_attention_only(spec, which):
    model, sparse = make(**{f"{which}_attention": spec}), {}
    with (
        torch.no_grad(),
        observe(
            model, lambda site, attended: sparse.update({site.name: (attended.weights == 0).sum()})
        ),
    ):
        model(*sentences())
        wanted = dict(sparse)
        with replace(model, softmax_attention):
            model(*sentences())
    fewer = {name for name in wanted if wanted[name] > sparse[name]}
    pattern = {"encoder": "encoder.*", "decoder": "decoder.*.self", "cross": "*.cross"}[which]
    assert fewer == {site.name for site in find_sites(model, where=pattern)}


@sparse_op
def test_heads_can_be_switched_off_under_any_op(spec):
    model, batch = make(**everywhere(spec)), sentences()
    wanted = model(*batch)
    with masked(model, {"decoder.0.cross": [1]}):
        assert not torch.allclose(model(*batch), wanted, atol=1e-4)
    assert torch.equal(model(*batch), wanted)


@every_op
def test_attention_dropout_acts_while_training_whatever_the_op(spec):
    model, batch = make(**everywhere(spec), dropout=0.0, attention_dropout=0.5), sentences()
    assert torch.equal(model(*batch), model(*batch))
    model.train()
    assert not torch.equal(model(*batch), model(*batch))


def test_the_gradient_reaches_every_learned_alpha():
    model = make(**everywhere("entmax:learned"))
    model(*sentences()).square().sum().backward()
    alphas = {n: p.grad for n, p in model.named_parameters() if n.endswith("sharpness")}
    assert len(alphas) == 6
    assert all(gradient.shape == (2,) and gradient.all() for gradient in alphas.values())


def test_softmax_models_have_the_parameters_they_always_had():
    names = set(Transformer(SMALL).state_dict())
    assert set(Transformer(with_settings(SMALL, **everywhere("topk:4"))).state_dict()) == names
    assert not any("chosen" in name for name in names)


@pytest.mark.parametrize("share, tensors", [("all", 1), ("target", 2), ("none", 3)])
def test_embeddings_are_shared_as_told(share, tensors):
    shape = with_settings(SMALL, source_vocab=13, share_embeddings=share)
    model = Transformer(shape)
    shared = (
        model.embed_source.words.weight,
        model.embed_target.words.weight,
        model.read_out.weight,
    )
    assert len({id(weight) for weight in shared}) == tensors
    restored = Transformer(shape)
    restored.load_state_dict(model.state_dict())
    batch = sentences()
    assert torch.equal(restored.eval()(*batch), model.eval()(*batch))


def test_sharing_all_embeddings_needs_one_vocabulary():
    with pytest.raises(ValueError, match=r"one vocabulary .* source_vocab=11 and target_vocab=13"):
        with_settings(SMALL, share_embeddings="all")


@pytest.mark.parametrize("wrong", [True, False, "source"])
def test_settings_name_which_embeddings_are_shared(wrong):
    with pytest.raises(ValueError, match="share_embeddings"):
        from_json(TransformerConfig, {"source_vocab": 5, "share_embeddings": wrong})
    with pytest.raises(ValueError, match="share_embeddings"):
        override(SMALL, [f"share_embeddings={wrong}"])


@pytest.mark.parametrize(
    "preset, sizes",
    [
        ("small", (256, 4, 3, 3, 1024)),
        ("iwslt", (512, 4, 6, 6, 1024)),
        ("base", (512, 8, 6, 6, 2048)),
    ],
)
def test_presets_have_the_sizes_they_are_named_for_and_can_be_changed(preset, sizes):
    make_preset = getattr(TransformerConfig, preset)
    config = make_preset(70, 80, cross_attention="topk:8")
    names = ("width", "heads", "encoder_layers", "decoder_layers", "feed_forward")
    assert tuple(getattr(config, name) for name in names) == sizes
    assert (config.source_vocab, config.target_vocab) == (70, 80)
    assert (config.cross_attention, config.encoder_attention) == ("topk:8", "softmax")
    assert make_preset(70, 80, dropout=0.5, width=64).dropout == 0.5


@pytest.mark.parametrize("which", ["encoder", "decoder", "cross"])
def test_an_attention_nobody_knows_is_refused(which):
    with pytest.raises(ValueError, match=r"Attention must be softmax.*got 'top8'"):
        with_settings(SMALL, **{f"{which}_attention": "top8"})


@pytest.mark.slow
def test_a_transformer_is_compiled_in_one_graph():
    pytest.importorskip("triton", reason="Triton is not installed")
    script = Path(__file__).with_name("compiling.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
