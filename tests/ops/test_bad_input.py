"""Bad input gets a sentence: what was wanted, what came, what to do. The fixture `unchecked` lets
our own messages through; jaxtyping, which users do not run, would speak first."""

import math

import pytest
import torch

from headwise.ops import (
    entmax,
    entmax_attention,
    gaussian_attention,
    softmax_attention,
    sparsemax,
    topk,
    topk_attention,
)
from tests.ops.attention_cases import ALL, LEARNED, inputs

pytestmark = pytest.mark.usefixtures("unchecked")
ONES = torch.ones(2, 2, 5, 4)
SHAPES = {
    "three axes": (ONES[0], ONES, ONES, r"axes \(batch, heads, positions, width\), got q \(2, 5"),
    "widths": (ONES, ONES[..., :3], ONES, r"agree in batch and width.*got q \(2, 2, 5, 4\)"),
    "batches": (ONES, ONES[:1], ONES[:1], "agree in batch and width"),
    "heads": (torch.ones(2, 3, 5, 4), ONES, ONES, "heads of q be a multiple of those of k"),
    "no width": (ONES[..., :0], ONES[..., :0], ONES, r"width of at least 1, got q \(2, 2, 5, 0\)"),
    "no value width": (ONES, ONES, ONES[..., :0], r"v must have a width.*v \(2, 2, 5, 0\)"),
    "no heads": (ONES[:, :0], ONES[:, :0], ONES[:, :0], "at least one head"),
    "no groups": (ONES, ONES[:, :0], ONES[:, :0], r"at least one head.*k \(2, 0, 5, 4\)"),
    "no keys": (ONES, ONES[:, :, :0], ONES[:, :, :0], "no keys to attend to"),
    "values": (ONES, ONES, ONES[:, :, :4], r"k and v must agree.*v \(2, 2, 4, 4\)"),
    "value heads": (ONES, ONES, ONES[:, :1], r"k and v must agree.*v \(2, 1, 5, 4\)"),
    "dtypes": (ONES, ONES.double(), ONES.double(), "one floating-point dtype, got torch.float32"),
    "integers": (ONES.int(), ONES.int(), ONES.int(), "floating-point dtype, got torch.int32"),
    "value dtype": (ONES, ONES, ONES.double(), "v .* torch.float64"),
}
OPTIONS = {
    "float mask": ({"mask": torch.zeros(5, 5)}, r"mask must be boolean.*got torch.float32.*bias="),
    "mask shape": ({"mask": torch.ones(4, 5) > 0}, r"mask must broadcast to .*\(2, 2, 5, 5\), got"),
    "mask axes": ({"mask": torch.ones(1, 2, 2, 5, 5) > 0}, "mask must broadcast"),
    "length shape": ({"lengths": torch.tensor([5])}, r"shape \(2,\), got \(1,\)"),
    "length dtype": ({"lengths": torch.tensor([5.0, 5.0])}, "integer.*torch.float32"),
    "boolean lengths": ({"lengths": torch.tensor([True, True])}, "integer.*torch.bool"),
    "negative length": (
        {"lengths": torch.tensor([-1, 5])},
        r"lengths must be at least 0.*\[-1, 5\]",
    ),
    "large length": ({"lengths": torch.tensor([5, 6])}, r"at most the 5 keys there are.*\[5, 6\]"),
    "dropout": ({"dropout": 1.0}, "at least 0 and below 1, got 1.0"),
    "negative dropout": ({"dropout": -0.1}, "at least 0 and below 1, got -0.1"),
    "impl": ({"impl": "cuda"}, "one of auto, reference, torch, triton, got 'cuda'"),
}
BIASES = {
    "cap": ({"cap": 0.0}, "cap must be a finite number above 0, or None, got 0.0"),
    "infinite cap": ({"cap": math.inf}, "cap must be a finite number above 0, or None, got inf"),
    "boolean cap": ({"cap": True}, "cap must be a finite number above 0, or None, got True"),
    "sink shape": ({"sink": torch.ones(3)}, r"each of the 2 heads, shape \(2,\), got \(3,\)"),
    "sink axes": ({"sink": torch.ones(2, 1)}, r"shape \(2,\), got \(2, 1\)"),
    "sink dtype": ({"sink": torch.ones(2, dtype=torch.int64)}, "got .2,. of torch.int64"),
    "bias shape": ({"bias": torch.ones(3, 5, 5)}, r"bias must broadcast to .*got \(3, 5, 5\)"),
    "boolean bias": ({"bias": torch.ones(5, 5) > 0}, "bias must be floating-point.*mask="),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", SHAPES)
def test_wrong_tensors_are_refused_with_a_reason(name, case):
    *tensors, message = SHAPES[case]
    with pytest.raises(ValueError, match=message):
        ALL[name](*tensors)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options_are_refused_with_a_reason(name, case):
    options, message = OPTIONS[case]
    with pytest.raises(ValueError, match=message):
        ALL[name](*inputs(5), **options)


@pytest.mark.parametrize("name", ALL)
def test_a_kernel_that_cannot_run_says_why_and_does_not_fall_back(name):
    exact = [x.double() for x in inputs(5)]
    with pytest.raises(ValueError, match=r"impl='triton' cannot run this call: .*Use 'auto'"):
        ALL[name](*exact, impl="triton")


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("case", BIASES)
def test_wrong_biases_are_refused_with_a_reason(name, case):
    options, message = BIASES[case]
    with pytest.raises(ValueError, match=message):
        LEARNED[name](*inputs(5), **options)


@pytest.mark.parametrize("keep", [0, -1])
def test_keep_must_keep_something(keep):
    message = f"keep must be at least 1 key per query, got {keep}"
    with pytest.raises(ValueError, match=message):
        topk(torch.zeros(5), keep=keep)
    with pytest.raises(ValueError, match=message):
        topk_attention(*inputs(5), keep=keep)


@pytest.mark.parametrize("keep", [2.5, True, "2"])
def test_keep_must_be_a_whole_number(keep):
    message = f"keep must be a whole number, an int, got {keep!r}"
    with pytest.raises(ValueError, match=message):
        topk(torch.zeros(5), keep=keep)
    with pytest.raises(ValueError, match=message):
        topk_attention(*inputs(5), keep=keep)


def test_unknown_ties_are_refused():
    message = "ties must be 'all' or 'first', got 'last'"
    with pytest.raises(ValueError, match=message):
        topk(torch.zeros(5), ties="last")
    with pytest.raises(ValueError, match=message):
        topk_attention(*inputs(5), ties="last")


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 1 + 1e-7, -math.inf, math.inf, math.nan])
def test_alpha_must_be_finite_and_above_one(alpha, tensor):
    alpha = torch.tensor([1.5, alpha]) if tensor else alpha
    message = r"alpha must be finite and at least 1 \+ 1e-6, got.*use softmax_attention"
    with pytest.raises(ValueError, match=message):
        entmax_attention(*inputs(5), alpha=alpha)
    with pytest.raises(ValueError, match=message):
        entmax(torch.zeros(2, 2), alpha=alpha)


@pytest.mark.parametrize("alpha", [[1.5, 1.5], "1.5", True, None])
def test_alpha_must_be_a_number_or_a_tensor(alpha):
    message = "alpha must be a number or a tensor, got"
    with pytest.raises(ValueError, match=message):
        entmax_attention(*inputs(5), alpha=alpha)
    with pytest.raises(ValueError, match=message):
        entmax(torch.zeros(2, 2), alpha=alpha)


def test_alpha_must_fit_the_rows():
    with pytest.raises(ValueError, match=r"alpha must broadcast to the rows.*\(3, 1\), got \(3,\)"):
        entmax(torch.zeros(3, 5), alpha=torch.full((3,), 1.5))


def test_alpha_must_be_one_for_each_head():
    with pytest.raises(ValueError, match=r"each of the 2 heads, got shape \(3,\)"):
        entmax_attention(*inputs(5), alpha=torch.full((3,), 1.5))


@pytest.mark.parametrize("weigh", [topk, sparsemax, entmax])
def test_row_functions_want_a_boolean_mask(weigh):
    with pytest.raises(ValueError, match=r"mask must be boolean.*got torch.float32"):
        weigh(torch.zeros(2, 5), mask=torch.ones(5))


@pytest.mark.parametrize("weigh", [topk, sparsemax, entmax])
@pytest.mark.parametrize("shape", [(4,), (3, 5), (3, 2, 5), (2, 2), (2, 0)], ids=str)
def test_row_functions_want_a_mask_that_fits(weigh, shape):
    with pytest.raises(ValueError, match=r"mask must broadcast to the shape of scores = \(2, 5\)"):
        weigh(torch.zeros(2, 5), mask=torch.ones(shape) > 0)


@pytest.mark.parametrize("weigh", [topk, sparsemax, entmax])
def test_row_functions_want_floating_point_rows_with_keys(weigh):
    with pytest.raises(ValueError, match=r"scores must be floating-point, got torch\.int64"):
        weigh(torch.arange(5))
    for scores in (torch.zeros(2, 0), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"last axis of at least one key, got .*shape \("):
            weigh(scores)


@pytest.mark.parametrize("keys", [torch.tensor([0, 1]), [True] * 5, 3], ids=str)
def test_mass_wants_boolean_keys(keys):
    with pytest.raises(ValueError, match=r"keys must be boolean.*got (torch.int64|list|int)"):
        softmax_attention(*inputs(5)).mass(keys=keys)


@pytest.mark.parametrize("shape", [(7, 5), (2, 4), (2, 1), (3, 5), (4,), (3, 7, 5), (1,) * 5])
def test_mass_wants_keys_of_a_shape_that_fits(shape):
    attended = softmax_attention(*inputs(7, 5))
    with pytest.raises(ValueError, match=r"keys (with two axes must be|must broadcast to) \(batch"):
        attended.mass(keys=torch.ones(shape) > 0)


@pytest.mark.parametrize("offset", [1.0, 0.5, True, "1"])
def test_mass_wants_a_whole_offset(offset):
    with pytest.raises(ValueError, match="offset must be a whole number, an int, got"):
        softmax_attention(*inputs(5)).mass(offset=offset)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_std_must_be_positive_and_finite(std):
    with pytest.raises(ValueError, match=f"std must be above 0 and finite, got {std}"):
        gaussian_attention(*inputs(5), std=std)


@pytest.mark.parametrize("offset", [math.nan, (0.0, math.inf)])
def test_offsets_of_the_bell_must_be_finite(offset):
    with pytest.raises(ValueError, match="offset must be finite, got"):
        gaussian_attention(*inputs(5), offset=offset)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("empty", ["queries", "batch"])
def test_no_queries_or_no_batch_give_empty_results(name, impl, empty):
    q, k, v = inputs(5, batch=0 if empty == "batch" else 2)
    q = q[:, :, :0] if empty == "queries" else q
    lengths = torch.full((len(q),), 3)
    attended = ALL[name](q, k, v, lengths=lengths, causal=True, impl=impl)
    assert attended.out.shape == q.shape
    assert attended.peak.shape == attended.mass(offset=0).shape == q.shape[:3]
    assert attended.mass(keys=torch.ones(len(q), 5) > 0).shape == q.shape[:3]


def test_checking_is_off_here_and_only_here():
    """The fixture works at all: this call has no fault but the annotation's."""
    assert softmax_attention(*inputs(5), scale=1).out.shape == (2, 2, 5, 4)
