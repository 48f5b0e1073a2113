import doctest
import math
import subprocess
import sys
from dataclasses import replace as with_settings

import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise.config import from_json, to_json
from headwise.ops import topk
from headwise.sites import find_sites, masked, observe
from headwise_papers.models import xl
from headwise_papers.models.xl import (
    TransformerXL,
    XLConfig,
    relative_shift,
    segment_loss,
    sinusoids_of_distances,
)

SMALL = XLConfig(13, width=16, heads=2, layers=3, feed_forward=32, memory=64)
OPS = ["softmax", "topk:3", "sparsemax", "entmax:1.5", "entmax:learned"]
NORMS = pytest.mark.parametrize("norm", ["pre", "post"])


def make(**settings):
    """A small model in eval mode, random in every parameter."""
    model = TransformerXL(with_settings(SMALL, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def text(length=24, batch=2):
    return torch.randint(13, (batch, length))


def in_segments(model, ids, *sizes):
    """Logits of a text read in pieces, and the memory afterwards."""
    memory, parts = model.initial_memory(len(ids)), []
    for piece in ids.split(list(sizes), dim=1):
        logits, memory = model(piece, memory)
        parts.append(logits)
    return torch.cat(parts, dim=1), memory


@NORMS
@pytest.mark.parametrize("attention", OPS)
def test_a_text_in_segments_is_read_as_in_one_piece(attention, norm):
    model, ids = make(attention=attention, norm=norm).double(), text()
    whole, memory = model(ids)
    parts, same_memory = in_segments(model, ids, 1, 5, 8, 10)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(same_memory, memory)
    assert memory.shape == (3, 2, 24, 16)


def test_memory_reaches_as_far_as_the_config_says_and_no_further():
    model, ids = make(memory=4, layers=1), text()
    wanted = in_segments(model, ids, 12, 12)[0][:, 12:]
    for changed, reached in ((7, False), (8, True)):  # the second segment sees 8 to 11
        other = ids.clone()
        other[:, changed] = (other[:, changed] + 1) % 13
        got = in_segments(model, other, 12, 12)[0][:, 12:]
        assert torch.equal(got, wanted) != reached


def test_more_may_be_remembered_in_evaluation_than_in_training():
    model, ids = make(memory=4), text()
    _, memory = model(ids[:, :16], remember=9)
    assert memory.shape[2] == 9
    assert model(ids[:, 16:], memory)[1].shape[2] == 4
    assert model(ids, remember=0)[1].shape[2] == 0


def test_no_position_sees_a_later_symbol():
    model, ids = make(), text()
    _, memory = model(ids)
    before = model(ids, memory)[0]
    changed = ids.clone()
    changed[:, 9] = (ids[:, 9] + 1) % 13
    after = model(changed, memory)[0]
    torch.testing.assert_close(after[:, :9], before[:, :9])
    assert not torch.allclose(after[:, 9:], before[:, 9:])


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 6), (4, 4), (3, 7)])
def test_the_relative_shift_is_what_it_is_defined_to_be(queries, keys):
    by_distance = torch.randn(2, 3, queries, keys + 1)
    shifted = relative_shift(by_distance)
    assert shifted.shape == (2, 3, queries, keys)
    for i in range(queries):
        place = keys - queries + i
        for j in range(place + 1):
            wanted = by_distance[..., i, keys - (place - j)]
            assert torch.equal(shifted[..., i, j], wanted)


def test_the_relative_shift_copies_nothing():
    by_distance = torch.randn(2, 3, 4, 9)
    shifted = relative_shift(by_distance)
    assert shifted.untyped_storage().data_ptr() == by_distance.untyped_storage().data_ptr()


def test_memory_carries_no_gradient():
    model, ids = make(), text(12)
    _, memory = model(ids)
    assert not memory.requires_grad
    logits, newer = model(ids, memory.requires_grad_())
    assert not newer.requires_grad
    logits.square().sum().backward()
    assert memory.grad is None


def by_definition(attention, x, seen, weigh):
    """Output of one attention layer, written with a loop over distances and nothing clever."""
    heads, width = attention.heads, attention.heads.head_width
    q, k, v = (
        part(y).unflatten(-1, (-1, width))
        for part, y in ((heads.query, x), (heads.key, seen), (heads.value, seen))
    )
    n_queries, n_keys = x.shape[1], seen.shape[1]
    scores = torch.full((len(x), q.shape[2], n_queries, n_keys), -math.inf).to(x)
    rate = torch.exp(torch.arange(0, 16, 2) * (-math.log(10_000) / 16))
    u, w = attention.content_bias[:, 0], attention.distance_bias[:, 0]
    for i in range(n_queries):
        for j in range(n_keys - n_queries + i + 1):
            angle = (n_keys - n_queries + i - j) * rate
            r = attention.distance(torch.cat([angle.sin(), angle.cos()]).to(x)).view(-1, width)
            content = ((q[:, i] + u) * k[:, j]).sum(-1)
            scores[:, :, i, j] = (content + ((q[:, i] + w) * r).sum(-1)) / math.sqrt(width)
    out = weigh(scores) @ v.transpose(1, 2)
    return heads.out(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("attention", ["softmax", "topk:3"])
def test_attention_is_that_of_the_definition(attention):
    def weigh(scores):
        return scores.softmax(-1) if attention == "softmax" else topk(scores, keep=3)

    layer = make(attention=attention).double().layers[1].attention
    x, before = torch.randn(2, 5, 16).double(), torch.randn(2, 6, 16).double()
    seen = torch.cat([before, x], dim=1)
    got = layer(x, seen, sinusoids_of_distances(11, 16, x))
    torch.testing.assert_close(got, by_definition(layer, x, seen, weigh))


@pytest.mark.parametrize("attention", ["softmax", "topk:3", "entmax:1.5"])
def test_folded_distances_give_the_same_scores_without_a_bias(attention):
    settings = {"attention": attention, "distance_width": 6}
    plain, folded = make(**settings), make(**settings, distances="folded")
    folded.load_state_dict(plain.state_dict())
    ids, biases = text(60), []
    _, memory = plain(ids[:, :40])
    wanted = plain(ids[:, 40:], memory)[0]
    with observe(folded, lambda site, attended: biases.append(attended.scores.bias)):
        torch.testing.assert_close(folded(ids[:, 40:], memory)[0], wanted, atol=1e-4, rtol=1e-4)
    assert biases == [None] * 3


@pytest.mark.parametrize("distances", ["bias", "folded"])
def test_bfloat16_is_near_float32_and_the_memory_stays_float32(distances):
    model, ids = make(distances=distances, distance_width=8), text()
    _, memory = model(ids)
    wanted = model(ids, memory)[0]
    with torch.autocast("cpu", torch.bfloat16):
        got, memory = model(ids, memory)
    assert (got - wanted).abs().mean() < 0.05 * wanted.std()
    assert memory.dtype == torch.float32


def test_topk_keeps_so_many_keys_of_memory_and_segment_together():
    model, ids, kept = make(attention="topk:3"), text(), []
    _, memory = model(ids)
    with observe(model, lambda site, attended: kept.append((attended.weights > 0).sum(-1))):
        model(ids, memory)
    assert all((count == 3).all() for count in kept)


def test_sparse_in_training_is_softmax_afterwards():
    dense, sparse = make(), make(attention="topk:2", sparse_in="training")
    sparse.load_state_dict(dense.state_dict())
    ids = text()
    torch.testing.assert_close(sparse(ids)[0], dense(ids)[0])
    settings = {"dropout": 0.0}
    dense, sparse = make(**settings), make(attention="topk:2", sparse_in="training", **settings)
    sparse.load_state_dict(dense.state_dict())
    assert not torch.allclose(sparse.train()(ids)[0], dense.train()(ids)[0], atol=1e-3)


@NORMS
@pytest.mark.parametrize("distances", ["bias", "folded"])
@pytest.mark.parametrize("attention", ["softmax", "entmax:learned"])
def test_the_gradient_reaches_every_parameter(attention, distances, norm):
    settings = {"attention": attention, "distances": distances, "norm": norm}
    model, ids = make(share_embeddings=False, **settings), text()
    _, memory = model(ids)
    model(ids, memory)[0].square().sum().backward()
    # A bias of the keys adds the same to all scores of a query: the weights cannot see it.
    missed = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in missed if not name.endswith("key.bias")] == []


def test_sites_are_named_by_layer_and_heads_can_be_switched_off():
    model, ids, seen = make(), text(), []
    with observe(model, lambda site, attended: seen.append(site.name)):
        wanted = model(ids)[0]
    assert seen == ["decoder.0.self", "decoder.1.self", "decoder.2.self"]
    assert [site.name for site in find_sites(model)] == seen
    with masked(model, {"decoder.1.self": [0]}):
        assert not torch.allclose(model(ids)[0], wanted)


def test_the_output_projection_is_the_embedding_unless_told_otherwise():
    tied, untied = make(), make(share_embeddings=False)
    assert tied.read_out.weight is tied.embed.weight
    assert untied.read_out.weight is not untied.embed.weight


COMPILE = """
import torch
from headwise_papers.models.xl import TransformerXL, XLConfig

for options in ({"attention": "softmax"}, {"attention": "topk:3", "distances": "folded"}):
    model = TransformerXL(XLConfig(13, width=16, heads=2, layers=1, memory=8, **options))
    compiled = torch.compile(model.eval(), fullgraph=True, backend="eager")
    memory = same = model.initial_memory(2)
    for piece in torch.randint(13, (2, 16)).split(8, dim=1):
        wanted, memory = model(piece, memory)
        got, same = compiled(piece, same)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(same, memory)
    got.sum().backward()
"""


@pytest.mark.slow
def test_it_compiles_in_one_graph():
    # In a process of its own, as what checks shapes in tests cannot be compiled.
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("segment", [1, 7, 50])
def test_the_loss_of_a_streamed_text_is_that_of_the_whole(segment):
    model, ids = make(), text(30)
    logits = model(ids[:, :-1])[0]
    wanted = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
    loss = segment_loss(model, ids, segment=segment)
    assert loss.nats == pytest.approx(wanted, rel=1e-5)
    assert loss.symbols == 58
    assert loss.bits == pytest.approx(wanted / 58 / math.log(2), rel=1e-5)


def test_a_uniform_model_needs_log2_of_the_vocabulary_in_bits():
    model = make(share_embeddings=False)
    torch.nn.init.zeros_(model.read_out.weight)
    assert segment_loss(model, text(), segment=5).bits == pytest.approx(math.log2(13))


def test_a_longer_memory_changes_what_is_predicted():
    model, ids = make(memory=2), text(40)
    losses = {segment_loss(model, ids, segment=8, remember=n).nats for n in (None, 0, 30)}
    assert len(losses) == 3


def test_memory_is_used_where_a_segment_does_not_show_enough():
    """Marks and symbols in turn, one of each in a segment: which symbol, only memory can tell."""
    ids = torch.tensor([[0, 1, 0, 2, 0, 3, 0, 4] * 2])
    model = TransformerXL(with_settings(SMALL, vocab=5, layers=1, memory=8, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        memory, losses = model.initial_memory(1), []
        for start in range(0, 14, 2):
            piece = ids[:, start : start + 3]
            logits, memory = model(piece[:, :-1], memory)
            losses.append(cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten()))
        optimizer.zero_grad()
        torch.stack(losses[1:]).mean().backward()
        optimizer.step()
    with_memory, without = (segment_loss(model.eval(), ids, segment=2, remember=n) for n in (8, 0))
    assert with_memory.bits < 0.7 * without.bits


def test_wrong_input_is_refused_in_one_sentence(unchecked):
    model = make()
    with pytest.raises(ValueError, match="3 layers, 2 texts and width 16 was wanted, got shape"):
        model(text(), torch.zeros(2, 2, 5, 16))
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        segment_loss(model.train(), text(), segment=4)
    with pytest.raises(ValueError, match="got 1 and 4"):
        segment_loss(model.eval(), text(1), segment=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab": 0}, "vocab must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"memory": -1}, "memory must not be negative"),
        ({"width": 15}, "multiple of heads"),
        ({"distance_width": 5}, "distance_width must be even, got 5"),
        ({"distances": "table"}, "distances must be 'bias' or 'folded'"),
        ({"sparse_in": "eval"}, "sparse_in must be 'both' or 'training'"),
        ({"attention": "top8"}, "Attention must be softmax"),
    ],
)
def test_shapes_that_cannot_be_are_refused(settings, message, unchecked):
    with pytest.raises(ValueError, match=message):
        with_settings(SMALL, **settings)


def test_the_enwik8_size_has_41_million_parameters():
    with torch.device("meta"):
        model = TransformerXL(XLConfig.enwik8())
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 41


def test_the_config_survives_json():
    assert from_json(XLConfig, to_json(SMALL)) == SMALL


def test_examples_in_docstrings_hold():
    result = doctest.testmod(xl)
    assert result.attempted > 0
    assert result.failed == 0
