"""Capped scores (Gemma 2) and a sink per head (GPT-OSS), against dense sums written out here."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from headwise.ops import softmax_attention, topk_selected
from headwise.ops.guidance import FIRST, NEXT, PREVIOUS, guidance_loss, guidance_rows, guided_heads
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores
from tests.ops.attention_cases import LEARNED, ROWS, WITH_KERNELS, inputs, make_blocks_tiny

learned_op = pytest.mark.parametrize("name", LEARNED)
both_impls = pytest.mark.parametrize("impl", ["reference", "torch"])
CAP = 1.5
given = pytest.mark.parametrize(
    "options", [("cap",), ("sink",), ("cap", "sink")], ids=lambda names: "-".join(names)
)


def sinks(*names: str, heads: int = 2) -> dict[str, object]:
    """Return the named ones of cap= and sink=."""
    sink = torch.tensor([0.7, -0.4, 1.1, 0.0][:heads], dtype=torch.float64)
    return {name: value for name, value in (("cap", CAP), ("sink", sink)) if name in names}


def by_hand(
    name: str,
    q: Tensor,
    k: Tensor,
    *,
    visible: Tensor,
    bias: Tensor | None = None,
    cap: float | None = None,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute weights over keys and of the sink from the whole matrix of scores."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~visible, -math.inf)
    if name.startswith("topk"):
        last = scores.topk(min(3, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < last, -math.inf)
    if sink is not None:
        column = sink.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = ROWS.get(name, partial(torch.softmax, dim=-1))(scores).nan_to_num(0.0)
    if sink is None:
        return weights, torch.zeros(weights.shape[:3], dtype=weights.dtype)
    return weights[..., :-1], weights[..., -1]


def visible_keys(how: str, n_queries: int, n_keys: int) -> tuple[dict[str, object], Tensor]:
    """Return options, and the keys that they make visible, (2, 2, Q, K)."""
    shape = 2, 2, n_queries, n_keys
    if how == "causal":
        place = torch.arange(n_queries)[:, None] + n_keys - n_queries
        return {"causal": True}, (torch.arange(n_keys) <= place).expand(shape)
    if how == "masked":
        mask = torch.rand(2, 1, n_queries, n_keys) > 0.4
        mask[0, 0, 1] = False
        return {"mask": mask}, mask.expand(shape)
    if how == "lengths":
        lengths = torch.tensor([0, n_keys - 1])
        seen = torch.arange(n_keys) < lengths[:, None]
        return {"lengths": lengths}, seen[:, None, None].expand(shape)
    return {}, torch.ones(shape, dtype=torch.bool)


@learned_op
@both_impls
@given
@pytest.mark.parametrize("how", ["plain", "causal", "masked", "lengths"])
@pytest.mark.parametrize("blocks", ["one", "many"])
def test_every_op_equals_the_sum_by_hand(name, impl, options, how, blocks, monkeypatch):
    if blocks == "many":
        make_blocks_tiny(monkeypatch)
    q, k, v = inputs(5, 6, groups=1, value_width=3, dtype=torch.float64)
    shown, visible = visible_keys(how, 5, 6)
    bias = torch.randn(5, 6, dtype=torch.float64)
    more = sinks(*options)
    weights, sink_weight = by_hand(name, q, k, visible=visible, bias=bias, **more)
    attended = LEARNED[name](q, k, v, bias=bias, impl=impl, **shown, **more)
    torch.testing.assert_close(attended.out, weights @ v)
    torch.testing.assert_close(attended.weights, weights)
    torch.testing.assert_close(attended.sink_weight, sink_weight)
    torch.testing.assert_close(attended.peak, weights.amax(dim=-1))
    torch.testing.assert_close(attended.entropy, torch.special.entr(weights).sum(-1))
    torch.testing.assert_close(attended.sum_squares, weights.square().sum(-1))
    own = weights.diagonal(int(how == "causal"), dim1=2, dim2=3)  # causal queries are the last
    torch.testing.assert_close(attended.mass(offset=0), own)
    torch.testing.assert_close(attended.mass(keys=torch.ones(2, 6) > 0), weights.sum(-1))
    (swept,) = attended.sweep(lambda weights, rows: (weights.sum(dim=-1),))
    torch.testing.assert_close(swept, weights.sum(-1))
    assert ((attended.peak_key == -1) == (weights.amax(dim=-1) == 0)).all()


@learned_op
@both_impls
@pytest.mark.parametrize("blocks", ["one", pytest.param("many", marks=pytest.mark.slow)])
def test_gradients_reach_q_k_v_bias_and_sink(name, impl, blocks, monkeypatch):
    if blocks == "many":
        make_blocks_tiny(monkeypatch)
    q, k, v = inputs(4, 5, groups=1, dtype=torch.float64)
    mask = torch.rand(2, 1, 4, 5) > 0.3
    mask[0, 0, 1] = False
    bias = torch.randn(2, 4, 5, dtype=torch.float64)
    sink = torch.tensor([0.4, 0.6], dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v, bias, sink)]

    def results(q, k, v, bias, sink):
        attended = LEARNED[name](q, k, v, mask=mask, bias=bias, cap=CAP, sink=sink, impl=impl)
        return attended.out, attended.sink_weight, attended.entropy, attended.sum_squares

    assert gradcheck(results, leaves, fast_mode=True)


@pytest.mark.parametrize("name", ["softmax", "topk"])
@pytest.mark.parametrize("level", [-3.0, 0.5, 8.0, 40.0])
def test_weights_are_exp_of_score_minus_lse(name, level):
    q, k, v = inputs(5, dtype=torch.float64)
    sink = torch.full((2,), level, dtype=torch.float64, requires_grad=True)
    attended = LEARNED[name](q, k, v, causal=True, cap=CAP, sink=sink)
    kept = attended.weights > 0
    weights = (attended.scores.rows() - attended.lse[..., None]).exp()
    torch.testing.assert_close(attended.weights[kept], weights[kept])
    torch.testing.assert_close(attended.sink_weight, (level - attended.lse).exp())
    attended.lse.sum().backward()
    torch.testing.assert_close(sink.grad, attended.sink_weight.detach().sum((0, 2)))


@learned_op
@both_impls
def test_a_row_that_sees_nothing_gives_all_weight_to_the_sink(name, impl):
    q, k, v = (x.requires_grad_() for x in inputs(4))
    sink = torch.tensor([0.5, -2.0], requires_grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    attended = LEARNED[name](q, k, v, mask=mask, sink=sink, impl=impl)
    assert (attended.out[:, :, 2] == 0).all()
    assert (attended.sink_weight[:, :, 2] == 1).all()
    assert (attended.peak_key[:, :, 2] == -1).all()
    if attended.exponential:
        torch.testing.assert_close(attended.lse[:, :, 2], sink.expand(2, 2))
    (attended.out[:, :, 2].sum() + attended.sink_weight[:, :, 2].sum()).backward()
    for x in (q, k, v, sink):
        assert (x.grad == 0).all()


@learned_op
@both_impls
def test_a_sink_that_takes_everything_leaves_finite_statistics(name, impl):
    q, k, v = (x.requires_grad_() for x in inputs(4))
    attended = LEARNED[name](q, k, v, sink=torch.full((2,), 1e30), impl=impl)
    assert (attended.sink_weight == 1).all() and (attended.out == 0).all()
    assert (attended.peak_key == -1).all()
    statistics = [attended.peak, attended.entropy, attended.sum_squares]
    statistics += [attended.lse] if attended.exponential else []
    sum(x.sum() for x in statistics).backward()
    assert all((x.grad == 0).all() for x in (q, k))


def test_the_sink_is_not_counted_among_the_kept():
    q, k, v = inputs(5, 9)
    for level in (-9.0, 9.0):
        attended = LEARNED["topk"](q, k, v, sink=torch.full((2,), level))
        assert ((attended.weights > 0).sum(-1) == 3).all()


def test_selected_keys_weigh_as_with_a_sink():
    q, k, v = inputs(5, 9)
    options = {"cap": CAP, "sink": torch.tensor([0.3, 1.0])}
    weights = LEARNED["topk-first"](q, k, v, **options).weights
    keys, kept = topk_selected(q, k, keep=3, **options)
    torch.testing.assert_close(weights.gather(-1, keys.long()), kept)
    torch.testing.assert_close(weights.sum(-1), kept.sum(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_inputs_are_capped_in_float32(dtype):
    q, k, v = inputs(7, dtype=dtype, width=16)
    options = {"cap": 30.0, "sink": torch.tensor([0.3, 1.0], dtype=dtype)}
    got = softmax_attention(10 * q, k, v, **options).out
    wanted = softmax_attention(
        (10 * q).double(), k.double(), v.double(), cap=30.0, sink=options["sink"].double()
    ).out
    assert got.dtype == dtype
    torch.testing.assert_close(got, wanted.to(dtype))


@given
@pytest.mark.parametrize("how", ["plain", "causal", "masked", "lengths"])
@pytest.mark.parametrize("blocks", ["one", "many"])
def test_row_sweeps_agree(options, how, blocks, monkeypatch):
    if blocks == "many":
        make_blocks_tiny(monkeypatch)
    q, k, _ = inputs(5, 6, dtype=torch.float64)
    shown, _ = visible_keys(how, 5, 6)
    scores = Scores(q, k, **shown, **sinks(*options))
    keys = torch.rand(2, 6) > 0.5
    reference = row_sweep(scores, offset=-1, keys=keys, impl="reference")
    for got, wanted in zip(row_sweep(scores, offset=-1, keys=keys), reference, strict=True):
        torch.testing.assert_close(got, wanted)


@both_impls
@given
@pytest.mark.parametrize("how", ["plain", "causal", "masked", "lengths"])
def test_guidance_is_of_the_weights_with_cap_and_sink(impl, options, how):
    """Also of rows whose target is uniform, as no query has a key after the last."""
    q, k, _ = inputs(6, heads=4, groups=2, dtype=torch.float64)
    shown, visible = visible_keys(how, 6, 6)
    visible, more = visible[:, :1].expand(2, 4, 6, 6), sinks(*options, heads=4)
    weights, _ = by_hand("softmax", q, k, visible=visible, **more)
    guided = guided_heads({0: NEXT, 1: FIRST, 3: PREVIOUS}, num_heads=4)
    losses = []
    for head, shift in ((0, 1), (1, None), (3, -1)):
        aimed = (
            torch.zeros(6, 6) if shift is None else torch.diag(torch.ones(6 - abs(shift)), shift)
        )
        aimed[:, 0] += shift is None
        aimed = aimed.double() * visible[:, head]
        evenly = visible[:, head] / visible[:, head].sum(-1, keepdim=True).clamp(min=1)
        target = torch.where(aimed.sum(-1, keepdim=True) > 0, aimed, evenly)
        losses.append((weights[:, head] - target).square().sum())
    got = guidance_loss(q, k, guided, impl=impl, **shown, **more)
    torch.testing.assert_close(got, torch.stack(losses))


@both_impls
def test_guidance_sends_gradients_to_q_k_and_sink(impl):
    q, k, _ = inputs(4, dtype=torch.float64)
    sink = torch.tensor([0.4, 0.6], dtype=torch.float64)
    guided = guided_heads({0: NEXT, 1: FIRST}, num_heads=2)

    def loss(q, k, sink):
        return guidance_loss(q, k, guided, cap=CAP, sink=sink, impl=impl)

    assert gradcheck(loss, [x.requires_grad_() for x in (q, k, sink)], fast_mode=True)


@given
def test_kernels_refuse_them_by_name(options, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    q, k, v = inputs(4, width=16)
    more = sinks(*options)
    for name in WITH_KERNELS:
        with pytest.raises(ValueError, match="take no cap and no sink"):
            LEARNED[name](q, k, v, impl="triton", **more)
    with pytest.raises(ValueError, match="take no cap and no sink"):
        row_sweep(Scores(q, k, **more), impl="triton")
    with pytest.raises(ValueError, match="take no cap and no sink"):
        guidance_loss(q, k, guided_heads({0: NEXT}, num_heads=2), impl="triton", **more)
    with pytest.raises(ValueError, match="take no cap and no sink"):
        topk_selected(q, k, impl="triton", **more)


def test_calls_with_sinks_of_their_own_are_guided_one_by_one():
    q, k, _ = inputs(4)
    calls = [Scores(q, k, sink=torch.zeros(2)) for _ in range(2)]
    with pytest.raises(ValueError, match="scale, cap, sink or position"):
        guidance_rows(calls, guided_heads({0: NEXT, 3: FIRST}, num_heads=4))
    same = [Scores(q, k, cap=CAP, sink=calls[0].sink) for _ in range(2)]
    loss = guidance_rows(same, guided_heads({0: NEXT, 3: FIRST}, num_heads=4)).loss
    alone = guidance_rows(same[0], guided_heads({0: NEXT, 1: FIRST}, num_heads=2)).loss
    torch.testing.assert_close(loss, alone)
