"""Attended: statistics of a call, equal to those of its weights, in little memory."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from headwise.ops import Attended, entmax_attention, softmax_attention, sparsemax_attention
from tests.ops.attention_cases import (
    ALL,
    LEARNED,
    SIZES,
    inputs,
    make_blocks_tiny,
    masks,
    out_and_grads,
)

every_op = pytest.mark.parametrize("name", ALL)
learned_op = pytest.mark.parametrize("name", LEARNED)


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit blocks to one or two queries."""
    make_blocks_tiny(monkeypatch)


def from_weights(weights: Tensor) -> dict[str, Tensor]:
    """Compute the statistics by their definitions."""
    return {
        "peak": weights.amax(-1),
        "entropy": -(weights * weights.clamp(min=1e-300).log()).sum(-1),  # in float64
        "sum_squares": (weights**2).sum(-1),
    }


@every_op
@pytest.mark.parametrize("n", SIZES)
def test_statistics_are_those_of_the_weights(name, n):
    attended = ALL[name](*inputs(n, dtype=torch.float64), causal=True)
    for statistic, wanted in from_weights(attended.weights).items():
        torch.testing.assert_close(getattr(attended, statistic), wanted)
    at_peak = attended.weights.gather(-1, attended.peak_key[..., None])[..., 0]
    assert torch.equal(at_peak, attended.peak)


@pytest.mark.parametrize("name", ["softmax", "topk", "uniform", "gaussian"])
def test_lse_normalises_the_kept_scores(name):
    attended = ALL[name](*inputs(7, dtype=torch.float64), causal=True)
    kept = attended.scores.rows().masked_fill(attended.weights == 0, -math.inf)
    torch.testing.assert_close(attended.lse, kept.logsumexp(-1))


@pytest.mark.parametrize("attend", [sparsemax_attention, entmax_attention])
def test_lse_is_refused_where_nothing_is_exponential(attend):
    with pytest.raises(ValueError, match=r"no lse.*Read peak"):
        _ = attend(*inputs(3)).lse


@every_op
def test_statistics_build_no_weights_until_they_are_read(name):
    attended = ALL[name](*inputs(5))
    _ = attended.peak, attended.peak_key, attended.entropy, attended.sum_squares
    _ = attended.mass(offset=0), attended.mass(keys=torch.ones(2, 5, dtype=torch.bool))
    assert "weights" not in attended._read
    _ = attended.weights
    assert "weights" in attended._read


def everything(attended: Attended, keys: Tensor) -> dict[str, Tensor]:
    statistics = {
        name: getattr(attended, name) for name in ("peak", "peak_key", "entropy", "sum_squares")
    }
    if attended.exponential:
        statistics["lse"] = attended.lse
    return statistics | {"keys": attended.mass(keys=keys), "offset": attended.mass(offset=-1)}


@every_op
@pytest.mark.parametrize("which", ["keys", "queries-keys", "heads", "padding", "full"])
def test_many_blocks_equal_one(name, which, monkeypatch):
    tensors, mask = inputs(7, dtype=torch.float64), masks(7, 7)[which]
    bias = torch.randn(7, 7, dtype=torch.float64) if name in LEARNED else None
    attend = partial(ALL[name], *tensors, mask=mask, bias=bias)
    keys = torch.rand(2, 7, 7) > 0.5
    whole = attend()
    wanted = everything(whole, keys)
    make_blocks_tiny(monkeypatch)
    blocked = attend()
    assert len(list(blocked.scores.blocks())) == 4
    torch.testing.assert_close(blocked.out, whole.out)
    for statistic, got in everything(blocked, keys).items():
        torch.testing.assert_close(got, wanted[statistic], msg=statistic)


@every_op
def test_lengths_may_reach_beyond_the_keys_that_a_causal_block_sees(name, monkeypatch):
    attend = partial(ALL[name], *inputs(7), causal=True, lengths=torch.tensor([7, 5]))
    whole = attend()
    wanted = whole.out, whole.entropy
    make_blocks_tiny(monkeypatch)
    blocked = attend()
    torch.testing.assert_close((blocked.out, blocked.entropy), wanted)


@every_op
def test_gradients_through_many_blocks_equal_those_through_one(name, monkeypatch):
    tensors = inputs(7, dtype=torch.float64)
    whole = out_and_grads(ALL[name], *tensors, causal=True, impl="torch")
    make_blocks_tiny(monkeypatch)
    blocked = out_and_grads(ALL[name], *tensors, causal=True, impl="torch")
    for one, other in zip(whole, blocked, strict=True):
        torch.testing.assert_close(one, other)


@learned_op
@pytest.mark.parametrize("statistic", ["lse", "peak", "entropy", "sum_squares", "mass", "weights"])
def test_statistics_are_differentiable(name, statistic, tiny_blocks):
    q, k, v = inputs(4, 5, batch=1, dtype=torch.float64)
    if statistic == "lse" and not LEARNED[name](q, k, v).exponential:
        pytest.skip("this op has no lse")
    bias = torch.randn(4, 5, dtype=torch.float64)

    def read(q, k, bias):
        attended = LEARNED[name](q, k, v, bias=bias)
        return attended.mass(offset=1) if statistic == "mass" else getattr(attended, statistic)

    assert gradcheck(read, [x.requires_grad_() for x in (q, k, bias)], fast_mode=True)


@every_op
def test_peak_key_is_the_first_of_equal_ones(name):
    q, k, v = inputs(6)
    attended = ALL[name](q, k[:, :, :1].expand(-1, -1, 6, -1), v)
    if name == "gaussian":
        attended = ALL[name](q, k, v, offset=0.5)  # two keys are equally near
        assert (attended.peak_key == torch.arange(6).clamp(max=5)).all()
    else:
        assert (attended.peak_key == 0).all()


@learned_op
def test_the_first_of_equal_peaks_is_found_in_long_rows(name):
    q = torch.ones(1, 1, 1, 1)
    for place in ([3, 900], [500, 501], [0, 1023]):
        k = torch.zeros(1, 1, 1024, 1)
        k[0, 0, place] = 5.0
        assert LEARNED[name](q, k, k).peak_key.item() == place[0]


@every_op
def test_statistics_of_empty_rows_are_as_documented(name):
    leaves = [x.requires_grad_() for x in inputs(4)]
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    attended = ALL[name](*leaves, mask=mask)
    for statistic in ("peak", "entropy", "sum_squares"):
        assert (getattr(attended, statistic)[:, :, 2] == 0).all(), statistic
    assert (attended.weights[:, :, 2] == 0).all()
    assert (attended.peak_key[:, :, 2] == -1).all()
    assert (attended.mass(offset=0)[:, :, 2] == 0).all()
    if attended.exponential:
        assert (attended.lse[:, :, 2] == -math.inf).all()


@learned_op
def test_empty_rows_send_no_gradient_through_statistics(name):
    q, k, v = (x.requires_grad_() for x in inputs(4))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    attended = LEARNED[name](q, k, v, mask=mask)
    total = attended.peak.sum() + attended.entropy.sum() + attended.mass(offset=0).sum()
    if attended.exponential:
        total = total + attended.lse[:, :, [0, 1, 3]].sum()
    grads = torch.autograd.grad(total, (q, k))
    assert (grads[0][:, :, 2] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    "shape",
    [(2, 7), (1, 7), (2, 1, 1, 7), (2, 7, 7), (2, 2, 7, 7), (7,), (2, 1, 7, 1), (1,), ()],
    ids=str,
)
def test_mass_on_keys_is_the_sum_of_their_weights(shape, tiny_blocks):
    keys = torch.rand(shape) > 0.5
    attended = softmax_attention(*inputs(7))
    full = keys[:, None, None] if keys.dim() == 2 else keys
    torch.testing.assert_close(attended.mass(keys=keys), (attended.weights * full).sum(-1))


@pytest.mark.parametrize("offset", [-9, -1, 0, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_mass_at_an_offset_is_a_diagonal(offset, causal, tiny_blocks):
    attended = softmax_attention(*inputs(7), causal=causal)
    mass = attended.mass(offset=offset)
    for query in range(7):
        there = 0 <= query + offset < 7
        wanted = attended.weights[:, :, query, query + offset] if there else torch.zeros(2, 2)
        torch.testing.assert_close(mass[:, :, query], wanted)


def test_offsets_count_from_the_query_s_own_position_in_decoding():
    q, k, v = inputs(7)
    last = softmax_attention(q[:, :, -2:], k, v, causal=True)
    square = softmax_attention(q, k, v, causal=True)
    torch.testing.assert_close(last.mass(offset=-1), square.mass(offset=-1)[:, :, -2:])


@pytest.mark.parametrize("both", [False, True])
def test_mass_wants_keys_or_an_offset(both):
    attended = softmax_attention(*inputs(3))
    options = {"keys": torch.ones(2, 3, dtype=torch.bool), "offset": 0} if both else {}
    with pytest.raises(ValueError, match=r"exactly one of keys= and offset=, got (none|both)"):
        attended.mass(**options)


def test_statistics_are_float32_for_narrow_inputs():
    attended = softmax_attention(*inputs(7, dtype=torch.bfloat16))
    assert attended.entropy.dtype == attended.weights.dtype == torch.float32
    assert attended.out.dtype == torch.bfloat16


def gradient_of(read, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(read.sum(), leaves, retain_graph=True))


@learned_op
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_statistics_reach_grouped_keys(name, groups, tiny_blocks):
    q, k, v = inputs(6, heads=4, groups=groups, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k)]
    attended = LEARNED[name](*leaves, v, causal=True)
    for statistic, wanted in from_weights(attended.weights).items():
        got = gradient_of(getattr(attended, statistic), *leaves)
        torch.testing.assert_close(got, gradient_of(wanted, *leaves))


@pytest.mark.parametrize("statistic", ["peak", "entropy", "sum_squares"])
def test_gradients_of_statistics_reach_a_learned_alpha(statistic, tiny_blocks):
    alpha = torch.tensor([1.3, 1.7], dtype=torch.float64, requires_grad=True)
    attended = entmax_attention(*inputs(6, dtype=torch.float64), alpha=alpha)
    got = gradient_of(getattr(attended, statistic), alpha)
    torch.testing.assert_close(got, gradient_of(from_weights(attended.weights)[statistic], alpha))
    assert got[0].all()


def test_an_input_computed_from_another_is_not_counted_twice(tiny_blocks):
    x = inputs(6, dtype=torch.float64)[0].requires_grad_()
    bias = x @ x.transpose(-1, -2)
    attended = softmax_attention(x, x, x, bias=bias)
    wanted = gradient_of(from_weights(attended.weights)["entropy"], x)
    torch.testing.assert_close(gradient_of(attended.entropy, x), wanted)


def test_a_gradient_of_a_statistic_can_be_differentiated_again(tiny_blocks):
    q, k, v = inputs(5, dtype=torch.float64)

    def slope(entropy: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(entropy.sum(), leaf, create_graph=True)
        return grad.square().sum()

    leaf = q.requires_grad_()
    attended = softmax_attention(leaf, k, v)
    wanted = gradient_of(slope(from_weights(attended.weights)["entropy"]), leaf)
    torch.testing.assert_close(gradient_of(slope(attended.entropy), leaf), wanted)


def test_what_was_read_without_gradients_has_them_when_read_with():
    q, k, v = inputs(5)
    attended = softmax_attention(q.requires_grad_(), k, v)
    with torch.no_grad():
        assert not attended.peak.requires_grad and not attended.weights.requires_grad
    assert attended.peak.requires_grad and attended.weights.requires_grad
    peak, weights = attended.peak, attended.weights
    with torch.no_grad():
        assert attended.peak is peak and attended.weights is weights


def test_keys_have_no_gradient():
    q, k, v = inputs(5)
    assert not softmax_attention(q.requires_grad_(), k, v).peak_key.requires_grad


def test_nothing_of_size_queries_by_keys_is_kept_for_the_gradient_of_a_statistic():
    q, k, v = (x.requires_grad_() for x in inputs(300))
    kept: list[int] = []
    attended = softmax_attention(q, k, v)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        _ = attended.entropy, attended.mass(offset=0)
    assert kept and max(kept) < 300 * 300


def test_a_sweep_is_differentiable(tiny_blocks):
    q, k, v = inputs(6, dtype=torch.float64)
    value = torch.randn(6, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k)]
    attended = softmax_attention(*leaves, v)

    def expect(weights: Tensor, rows: slice) -> tuple[Tensor, ...]:
        return (weights * value).sum(-1), weights.argmax(-1)

    mean, key = attended.sweep(expect)
    wanted = (attended.weights * value).sum(-1)
    torch.testing.assert_close(mean, wanted)
    assert torch.equal(key, attended.peak_key)
    torch.testing.assert_close(gradient_of(mean, *leaves), gradient_of(wanted, *leaves))


def test_a_sweep_that_would_lose_a_gradient_is_refused():
    value = torch.randn(6, requires_grad=True)
    attended = softmax_attention(*inputs(6))
    with pytest.raises(ValueError, match=r"weights only.*shape \(6,\).*detach it"):
        attended.sweep(lambda weights, rows: ((weights * value).sum(-1),))
    with torch.no_grad():
        attended.sweep(lambda weights, rows: ((weights * value).sum(-1),))


@pytest.mark.parametrize("n", [511, 512, 700, 1024])
def test_the_first_peak_of_a_long_row_is_found(n):
    q, k, v = inputs(20, n, dtype=torch.float64)
    k[:, :, 3 * n // 4 :] = k[:, :, : n - 3 * n // 4]  # some peaks stand twice
    attended = softmax_attention(q, k, v)
    assert torch.equal(attended.peak_key, attended.weights.argmax(-1))


@pytest.mark.parametrize("name", ["softmax", "topk", "uniform"])
def test_a_score_that_is_not_a_number_is_not_hidden_by_empty_rows(name):
    q, k, v = inputs(4)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    q[:, :, 0] = torch.nan
    weights = ALL[name](q, k, v, mask=mask).weights
    assert (weights[:, :, 2] == 0).all()
    assert weights[:, :, 0].isnan().all() == (name != "uniform")
    assert weights[:, :, 1].isfinite().all()


@every_op
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_autocast_changes_no_statistic(name, impl, tiny_blocks):
    tensors = inputs(7, width=16)
    keys = torch.rand(2, 7) > 0.5
    wanted = everything(ALL[name](*tensors, impl=impl), keys)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attended = ALL[name](*tensors, impl=impl)
        got = everything(attended, keys)
        assert torch.equal(attended.weights, ALL[name](*tensors, impl=impl).weights)
    for statistic, value in wanted.items():
        assert torch.equal(got[statistic], value), statistic
