"""The gathering implementation of top-k attention, held to the definition."""

import sys
from functools import partial

import pytest
import torch
from torch import Tensor

from headwise.ops import topk_attention
from headwise.ops.scores import Scores
from headwise.ops.topk import rows as topk_rows
from headwise.ops.topk.rows import sparse_values, sparse_values_obstacle

TIES = ["all", "first"]


def qkv(heads=4, groups=4, n_queries=9, n_keys=12, batch=2, dtype=torch.float64):
    torch.manual_seed(n_queries * 100 + n_keys)
    shapes = [(heads, n_queries, 6), (groups, n_keys, 6), (groups, n_keys, 5)]
    return [torch.randn(batch, *shape, dtype=dtype).requires_grad_() for shape in shapes]


def gathered(q, k, v, *, keep=3, ties="all", dropout=0.0, **visible) -> Tensor:
    return sparse_values(Scores(q, k, **visible), v, keep=keep, ties=ties, dropout=dropout)


def reference(q, k, v, **options) -> Tensor:
    return topk_attention(q, k, v, impl="reference", **options).out


def assert_same(inputs, *, keep=3, ties="all", **visible) -> None:
    """Check that outputs and all gradients agree to float64's rounding."""
    visible["scale"] = 0.5  # exact, so that equal keys have equal scores however they are summed
    got = gathered(*inputs, keep=keep, ties=ties, **visible)
    wanted = reference(*inputs, keep=keep, ties=ties, **visible)
    torch.testing.assert_close(got, wanted)
    upstream = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(wanted, inputs, upstream)
    )


def repeat_keys(inputs, times=4):
    """Repeat every key in its sequence; small integers make scores exact."""
    q, k, v = inputs
    few = k.detach()[:, :, : -(-k.shape[2] // times)].round()
    k = few.repeat(1, 1, times, 1)[:, :, : k.shape[2]]
    return q.detach().round().requires_grad_(), k.requires_grad_(), v


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(topk_rows, "BLOCK_SCORES", 100)
    monkeypatch.setattr(topk_rows, "BLOCK_VALUES", 100)


@pytest.mark.parametrize("n_keys", [1, 7, 63, 65])
@pytest.mark.parametrize("n_queries", [1, 7, 63, 65])
@pytest.mark.parametrize("keep", [1, 3])
def test_gathering_equals_the_definition_at_all_sizes(n_queries, n_keys, keep):
    assert_same(qkv(n_queries=n_queries, n_keys=n_keys), keep=min(keep, n_keys))


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("n_keys", [7, 12, 65])
def test_repeated_keys_follow_the_rule_for_ties(small_blocks, ties, n_keys):
    assert_same(repeat_keys(qkv(n_keys=n_keys)), ties=ties)


@pytest.mark.parametrize("ties", TIES)
def test_a_query_that_likes_all_keys_equally_follows_the_rule_for_ties(small_blocks, ties):
    q, k, v = qkv()
    with torch.no_grad():
        q[:, 1, 4:6] = 0
    assert_same([q, k, v], ties=ties)
    kept = topk_attention(q, k, v, keep=3, ties=ties, impl="reference").weights[0, 1, 4] > 0
    assert kept.sum() == (12 if ties == "all" else 3)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_heads_choose_for_each_query_head(ties, groups):
    assert_same(qkv(groups=groups), ties=ties)
    assert_same(repeat_keys(qkv(groups=groups)), ties=ties)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("n_queries", [5, 12, 15])
def test_causal_rows_with_few_keys_keep_what_they_see(small_blocks, ties, n_queries):
    assert_same(qkv(n_queries=n_queries), ties=ties, causal=True)


@pytest.mark.parametrize("ties", TIES)
def test_masks_lengths_and_bias_come_before_the_choice(small_blocks, ties):
    inputs = qkv()
    mask = torch.rand(2, 1, 9, 12) < 0.5
    bias = torch.randn(4, 1, 12, dtype=torch.float64)
    assert_same(inputs, ties=ties, mask=mask)
    assert_same(inputs, ties=ties, lengths=torch.tensor([2, 12]))
    assert_same(inputs, ties=ties, bias=bias)
    assert_same(repeat_keys(inputs), ties=ties, mask=mask, lengths=torch.tensor([7, 9]))


@pytest.mark.parametrize("ties", TIES)
def test_queries_that_see_nothing_give_zeros_and_no_gradient(ties):
    q, k, v = qkv()
    mask = torch.ones(9, 12, dtype=torch.bool)
    mask[3] = False
    out = gathered(q, k, v, ties=ties, mask=mask, lengths=torch.tensor([12, 0]))
    (grad_q,) = torch.autograd.grad(out.sum(), q)
    for tensor in (out[0, :, 3], grad_q[0, :, 3], out[1], grad_q[1]):
        assert not tensor.any()
    assert_same([q, k, v], ties=ties, mask=mask, lengths=torch.tensor([12, 0]))


@pytest.mark.parametrize("n_keys", [47, 48, 49, 100, 191, 192])
@pytest.mark.parametrize("ties", TIES)
def test_looking_at_groups_of_keys_first_chooses_the_same(n_keys, ties):
    assert_same(qkv(n_keys=n_keys), ties=ties)
    assert_same(repeat_keys(qkv(n_keys=n_keys), times=2), ties=ties)
    assert_same(qkv(n_keys=n_keys), ties=ties, lengths=torch.tensor([2, n_keys - 1]))


@pytest.mark.parametrize("causal", [False, True])
def test_gradient_is_right(causal):
    inputs = qkv(heads=2, groups=1, n_queries=4, n_keys=6, batch=1)
    assert torch.autograd.gradcheck(partial(gathered, causal=causal), inputs)


@pytest.mark.parametrize("needed", [[0], [1], [2], [0, 2], [1, 2]])
def test_only_the_gradients_asked_for_are_given(needed):
    inputs = [x.detach() for x in qkv()]
    chosen = [inputs[i].requires_grad_() for i in needed]
    got = torch.autograd.grad(gathered(*inputs).sum(), chosen)
    wanted = torch.autograd.grad(reference(*inputs, keep=3).sum(), chosen)
    torch.testing.assert_close(got, wanted)


def test_nothing_is_recorded_without_gradients():
    with torch.no_grad():
        out = gathered(*qkv())
    assert not out.requires_grad


def test_inputs_need_not_be_contiguous():
    inputs = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in qkv()]
    assert not inputs[0].is_contiguous()
    assert_same([x.requires_grad_() for x in inputs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_summed_in_float32(dtype):
    inputs = qkv(n_keys=65, dtype=dtype)
    got, wanted = gathered(*inputs), reference(*inputs, keep=3)
    assert got.dtype == dtype
    torch.testing.assert_close(got, wanted)
    got, wanted = (torch.autograd.grad(out.sum(), inputs) for out in (got, wanted))
    torch.testing.assert_close(got, wanted)


def test_autocast_changes_nothing():
    inputs = qkv(dtype=torch.float32)
    plain = torch.autograd.grad(gathered(*inputs).square().sum(), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = torch.autograd.grad(gathered(*inputs).square().sum(), inputs)
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)


@pytest.mark.parametrize("repeated", [False, True])
def test_dropped_weights_are_dropped_in_both_passes(repeated):
    inputs = qkv(heads=2, groups=1, n_queries=4, n_keys=6, batch=1)
    inputs = repeat_keys(inputs) if repeated else inputs

    def with_one_seed(*inputs: Tensor) -> Tensor:
        torch.manual_seed(0)
        return gathered(*inputs, dropout=0.5)

    assert not torch.allclose(with_one_seed(*inputs), gathered(*inputs))
    (_, _, v), up = inputs, torch.randn(1, 2, 4, 5, dtype=torch.float64)
    (grad_v,) = torch.autograd.grad(with_one_seed(*inputs), v, up)
    torch.testing.assert_close((grad_v * v).sum(), (with_one_seed(*inputs) * up).sum())
    if not repeated:  # ties leave no finite difference to compare with
        assert torch.autograd.gradcheck(with_one_seed, inputs)


def test_dropout_keeps_the_mean():
    q, k, v = (x.detach() for x in qkv(n_queries=4))
    many = [x.expand(2000, *x.shape[1:]) for x in (q[:1], k[:1], v[:1])]
    mean = gathered(*many, dropout=0.3).mean(0)
    torch.testing.assert_close(mean, gathered(q, k, v)[0], rtol=0, atol=0.15)


def test_nothing_of_size_queries_by_keys_is_kept_for_the_backward_pass():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        gathered(*qkv(n_queries=300, n_keys=400), keep=3)
    assert max(kept) < 300 * 400


def test_a_second_gradient_is_refused():
    q, k, v = qkv()
    (grad_q,) = torch.autograd.grad(gathered(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad_q.sum().backward()


def test_obstacles_say_why():
    def obstacle(n=256, keep=8, **options) -> str:
        q = torch.empty(2, 4, n, 8, device=options.pop("device", "cpu"))
        return sparse_values_obstacle(Scores(q, q, **options), q, keep) or ""

    assert obstacle() == ""
    assert "CPU" in obstacle(device="meta")
    assert "not sparse enough" in obstacle(keep=256)
    assert "so small" in obstacle(n=64, keep=2)
    assert "bias" in obstacle(bias=torch.zeros(256, requires_grad=True))
    assert obstacle(bias=torch.zeros(256)) == ""


@pytest.mark.parametrize("ties", TIES)
def test_the_op_gathers_by_itself_where_that_is_faster(ties, monkeypatch):
    calls = []
    monkeypatch.setattr(
        sys.modules["headwise.ops.topk"],  # the attribute of headwise.ops is the function
        "sparse_values",
        lambda *args, **options: calls.append(options) or sparse_values(*args, **options),
    )
    q = torch.randn(2, 4, 200, 8)
    out = topk_attention(q, q, q, keep=4, ties=ties).out
    torch.testing.assert_close(out, reference(q, q, q, keep=4, ties=ties))
    assert calls == [{"keep": 4, "ties": ties, "dropout": 0.0}]
