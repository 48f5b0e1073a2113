"""Contract of all attention ops."""

import inspect
import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from headwise.ops.attention import MEANINGS
from tests.ops.attention_cases import (
    ALL,
    LEARNED,
    SIZES,
    assert_no_worse,
    inputs,
    make_blocks_tiny,
    masks,
    out_and_grads,
)

every_op = pytest.mark.parametrize("name", ALL)
learned_op = pytest.mark.parametrize("name", LEARNED)
both_impls = pytest.mark.parametrize("impl", ["reference", "torch"])


@every_op
def test_signature_and_docstring_name_the_shared_arguments(name):
    op = getattr(ALL[name], "func", ALL[name])
    parameters = inspect.signature(op).parameters
    assert list(parameters)[:3] == ["q", "k", "v"]
    assert list(parameters)[-len(MEANINGS) :] == list(MEANINGS)
    for shared in MEANINGS:
        assert parameters[shared].annotation is not inspect.Parameter.empty
        assert f"    {shared}: " in op.__doc__
    assert parameters["causal"].default is False
    assert parameters["mask"].default is None


@every_op
@pytest.mark.parametrize("unknown", ["msak", "first", "fixed"])
def test_an_unknown_argument_is_refused(name, unknown):
    with pytest.raises(TypeError, match=f"takes mask, bias.*got the unknown argument {unknown}="):
        ALL[name](*inputs(3), **{unknown: None})


@every_op
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_torch_is_as_accurate_as_the_reference(name, n, dtype):
    tensors = inputs(n, dtype=dtype, width=16)
    exact = out_and_grads(ALL[name], *(x.double() for x in tensors), impl="reference")
    wanted = out_and_grads(ALL[name], *tensors, impl="reference")
    got = out_and_grads(ALL[name], *tensors, impl="torch")
    for part, *three in zip(("out", "q", "k", "v"), got, wanted, exact, strict=True):
        assert_no_worse(part, *three)


@every_op
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_reference_rounds_little(name, n, dtype):
    """Sums are in float32, so what a narrow dtype loses is the rounding of input and output."""
    q, k, v = inputs(n, dtype=dtype, width=16)
    exact = ALL[name](q.double(), k.double(), v.double(), impl="reference").out
    got = ALL[name](q, k, v, impl="reference").out
    assert got.dtype == dtype
    allowed = (torch.finfo(dtype).eps + 2e-5) * exact.abs().max().item()
    assert (got.double() - exact).abs().max() <= allowed


@learned_op
@both_impls
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 1, 5), (2, 1, 1, 5), (2, 2, 4, 5)], ids=str)
def test_gradients_of_inputs_and_bias_are_right(name, impl, shape):
    q, k, v = inputs(4, 5, dtype=torch.float64)
    bias = torch.randn(shape, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v, bias)]

    def out(q, k, v, bias):
        return LEARNED[name](q, k, v, bias=bias, impl=impl).out

    assert gradcheck(out, leaves, fast_mode=True)


@learned_op
@both_impls
def test_gradients_are_right_with_mask_and_grouped_heads(name, impl):
    q, k, v = inputs(4, 6, groups=1, value_width=3, dtype=torch.float64)
    mask = torch.rand(2, 1, 4, 6) > 0.3
    mask[0, 0, 1] = False
    attend = partial(LEARNED[name], mask=mask, causal=True, impl=impl)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert gradcheck(lambda *leaves: attend(*leaves).out, leaves, fast_mode=True)


@pytest.mark.parametrize("name", ["uniform", "gaussian"])
@both_impls
def test_gradients_of_values_are_right_without_content(name, impl):
    q, k, v = inputs(5, dtype=torch.float64)
    assert gradcheck(
        lambda v: ALL[name](q, k, v, causal=True, impl=impl).out, v.requires_grad_(), fast_mode=True
    )


@every_op
@both_impls
@pytest.mark.parametrize("which", ["keys", "queries-keys", "heads", "padding", "full"])
def test_masked_keys_weigh_exactly_zero(name, impl, which):
    q, k, v = inputs(7)
    mask = masks(7, 7)[which]
    attended = ALL[name](q, k, v, mask=mask, impl=impl)
    hidden = ~mask.expand(2, 2, 7, 7)
    assert (attended.weights[hidden] == 0).all()
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(2, 2, 7))
    torch.testing.assert_close(attended.out, attended.weights @ v)


@every_op
@both_impls
def test_what_is_masked_cannot_be_noticed(name, impl):
    q, k, v = inputs(6)
    mask = torch.tensor([True, True, False, True, False, True])
    k_other, v_other = k.clone(), v.clone()
    k_other[:, :, ~mask] = 50.0
    v_other[:, :, ~mask] = -50.0
    before = out_and_grads(ALL[name], q, k, v, mask=mask, impl=impl)
    after = out_and_grads(ALL[name], q, k_other, v_other, mask=mask, impl=impl)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other)
    assert (before[3][:, :, ~mask] == 0).all()


@every_op
@both_impls
@pytest.mark.parametrize("how", ["mask", "lengths", "causal"])
def test_rows_that_see_nothing_are_zero_and_give_no_gradient(name, impl, how, poisoned_memory):
    if how == "causal":  # the first two of seven queries stand before all five keys
        tensors, options = inputs(7, 5), {"causal": True}
        empty = torch.zeros(2, 2, 7, dtype=torch.bool)
        empty[:, :, :2] = True
    elif how == "mask":
        tensors = inputs(5)
        mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
        mask[0, 0, 3] = mask[1] = False
        options, empty = {"mask": mask}, ~mask.any(-1).expand(2, 2, 5)
    else:
        tensors, options = inputs(5), {"lengths": torch.tensor([0, 3])}
        empty = torch.tensor([True, False])[:, None, None].expand(2, 2, 5)
    out, grad_q, grad_k, grad_v = out_and_grads(ALL[name], *tensors, **options, impl=impl)
    assert (out[empty] == 0).all()
    assert (grad_q[empty] == 0).all()
    for x in (out, grad_q, grad_k, grad_v):
        assert x.isfinite().all()


@learned_op
@both_impls
def test_a_bias_of_minus_infinity_hides_like_a_mask(name, impl):
    tensors = inputs(5)
    mask = torch.rand(5, 5) > 0.5
    mask[0], mask[1] = True, False
    bias = torch.zeros(5, 5).masked_fill(~mask, -math.inf)
    by_mask = out_and_grads(LEARNED[name], *tensors, mask=mask, impl=impl)
    by_bias = out_and_grads(LEARNED[name], *tensors, bias=bias, impl=impl)
    for one, other in zip(by_mask, by_bias, strict=True):
        torch.testing.assert_close(one, other)


@learned_op
def test_a_large_bias_in_float32_keeps_its_precision_beside_bfloat16(name):
    """Half precision cannot tell 100.0 from 100.2; relative position biases are like that."""
    q, k, v = inputs(7, dtype=torch.bfloat16, width=16)
    bias = 100 + torch.randn(7, 7)
    wide = (x.double() for x in (q, k, v))
    exact = LEARNED[name](*wide, bias=bias.double(), impl="reference").out
    wanted = LEARNED[name](q, k, v, bias=bias, impl="reference").out
    got = LEARNED[name](q, k, v, bias=bias).out
    assert_no_worse("out", got, wanted, exact)


@every_op
@both_impls
@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_heads_equal_repeated_heads(name, impl, groups):
    q, k, v = inputs(7, heads=4, groups=groups)
    repeated = (x.repeat_interleave(4 // groups, dim=1) for x in (k, v))
    grouped_out = ALL[name](q, k, v, causal=True, impl=impl).out
    torch.testing.assert_close(grouped_out, ALL[name](q, *repeated, causal=True, impl=impl).out)


@every_op
@both_impls
@pytest.mark.parametrize("n_queries", [1, 3, 8])
def test_causal_queries_are_the_last_positions(name, impl, n_queries):
    q, k, v = inputs(9)
    square = ALL[name](q, k, v, causal=True, impl=impl)
    last = ALL[name](q[:, :, -n_queries:], k, v, causal=True, impl=impl)
    torch.testing.assert_close(last.out, square.out[:, :, -n_queries:])
    assert (square.weights.triu(1) == 0).all()


@every_op
@both_impls
def test_lengths_equal_the_mask_they_stand_for(name, impl):
    q, k, v = inputs(7)
    lengths = torch.tensor([4, 7])
    mask = (torch.arange(7) < lengths[:, None])[:, None, None]
    by_lengths = ALL[name](q, k, v, lengths=lengths, causal=True, impl=impl).out
    torch.testing.assert_close(
        by_lengths, ALL[name](q, k, v, mask=mask, causal=True, impl=impl).out
    )


@learned_op
@both_impls
def test_scale_multiplies_the_scores(name, impl):
    q, k, v = inputs(7)
    default = LEARNED[name](q, k, v, impl=impl).out
    torch.testing.assert_close(LEARNED[name](q, k, v, scale=0.5, impl=impl).out, default)
    torch.testing.assert_close(LEARNED[name](3 * q, k, v, scale=0.5 / 3, impl=impl).out, default)


@every_op
@both_impls
def test_dropout_keeps_the_mean_and_leaves_statistics_alone(name, impl):
    q, k, v = (x.expand(400, -1, -1, -1) for x in inputs(5, batch=1))
    plain = ALL[name](q, k, v, impl=impl)
    dropped = ALL[name](q, k, v, dropout=0.3, impl=impl)
    spread = dropped.out.std(dim=0) / math.sqrt(400)
    assert not torch.equal(dropped.out, plain.out)
    assert ((dropped.out.mean(dim=0) - plain.out[0]).abs() <= 5 * spread + 1e-5).all()
    assert torch.equal(dropped.entropy, plain.entropy)
    assert torch.equal(dropped.peak, plain.peak)


@learned_op
def test_dropout_draws_the_same_in_the_backward_pass(name, monkeypatch):
    """Blocks are recomputed for the gradient; the recomputation must drop the same weights."""
    make_blocks_tiny(monkeypatch)
    q, k, v = (x.requires_grad_() for x in inputs(6, dtype=torch.float64))
    out = LEARNED[name](q, k, v, dropout=0.5).out
    # The output is linear in the values: sum(v * dout/dv) = out, if the same weights are dropped.
    (grad_v,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((grad_v * v).sum(), out.sum())


@every_op
def test_one_key_gets_all_the_weight(name):
    q, k, v = inputs(1)
    attended = ALL[name](q, k, v)
    assert torch.equal(attended.weights, torch.ones(2, 2, 1, 1))
    torch.testing.assert_close(attended.out, v)


@both_impls
def test_softmax_is_what_pytorch_calls_attention(impl):
    q, k, v = inputs(7, 9, dtype=torch.float64)
    wanted = scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(ALL["softmax"](q, k, v, impl=impl).out, wanted)


@every_op
@both_impls
@pytest.mark.parametrize("blocks", ["one", "many"])
def test_autocast_changes_no_output(name, impl, blocks, monkeypatch):
    if (name, impl) == ("softmax", "torch"):
        pytest.skip("this is PyTorch's fused attention, which autocast may narrow")
    if blocks == "many":
        make_blocks_tiny(monkeypatch)
    tensors = inputs(7, width=16)
    plain = ALL[name](*tensors, impl=impl).out
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = ALL[name](*tensors, impl=impl).out
    assert torch.equal(cast, plain)


def test_whole_numbers_are_numbers():
    q, k, v = inputs(5)
    for name in LEARNED:
        torch.testing.assert_close(
            LEARNED[name](q, k, v, scale=1, dropout=0).out, LEARNED[name](q, k, v, scale=1.0).out
        )
    for offset in (-1, [-1, 1]):
        ALL["gaussian"](q, k, v, offset=offset, std=2)
    torch.testing.assert_close(
        ALL["entmax"](q, k, v, alpha=2).out, ALL["sparsemax"](q, k, v).out, atol=1e-5, rtol=0
    )


@every_op
def test_weights_are_exponentials_where_the_op_says_so(name):
    attended = ALL[name](*inputs(7))
    if attended.exponential:
        expected = (attended.scores.rows() - attended.lse[..., None]).exp()
        kept = attended.weights > 0
        torch.testing.assert_close(attended.weights[kept], expected[kept])
