"""The judge knows what rounding leaves of what cancels in a gradient, and still finds mistakes."""

import math
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from benchmarks import gpu_ops
from benchmarks.gpu_cases import Case, Shape, cases
from benchmarks.judging import Contestant, Question, answer, complaint

CPU = torch.device("cpu")
SHAPE = Shape(1, 2, 256, 64)
interpreted = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(),
    reason="Triton is not installed, or compiles kernels where there is a GPU",
)


class Rounded(torch.autograd.Function):
    """Softmax attention as fused kernels compute it: the gradient of scores is rounded.

    `mistake` changes dq.
    """

    @staticmethod
    def forward(ctx, q, k, v, mistake):
        scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
        weights = scores.softmax(-1)
        out = (weights.to(v.dtype) @ v).to(q.dtype)
        ctx.save_for_backward(q, k, v, weights, out)
        ctx.mistake = mistake
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, weights, out = ctx.saved_tensors
        mean = (dout.float() * out.float()).sum(-1, keepdim=True)
        dscores = (weights * (dout.float() @ v.float().mT - mean)).to(k.dtype)
        scale = 1 / math.sqrt(q.shape[-1])
        dq, dk = scale * (dscores.float() @ k.float()), scale * (dscores.mT.float() @ q.float())
        dv = weights.to(dout.dtype).mT @ dout
        return ctx.mistake(dq).to(q.dtype), dk.to(k.dtype), dv, None


def case_named(name: str, shape: Shape = SHAPE) -> Case:
    return next(case for case in cases(shape, CPU) if case.name == name)


def with_common_parts(
    shape: Shape, *, keys: float, values: float, dtype: torch.dtype = torch.bfloat16
) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)

    def draw(size: float, common: float) -> Tensor:
        own = size * torch.randn(shape, generator=rng)
        shared = torch.randn(shape.batch, shape.heads, 1, shape.width, generator=rng)
        return (own + common * shared).to(dtype)

    return [draw(1.0, 0.0), draw(0.5, keys), draw(1.0, values)]


def said_of(attend, question: Question, given: list[Tensor], *, cancels: bool = True) -> str | None:
    right = answer(question, given, [0, 1], coarse=False)
    if not cancels:
        right = replace(right, rounded={})
    return complaint(Contestant("somebody", attend), question, given, right)


def rounded(mistake=lambda dq: dq):
    return lambda q, k, v: (Rounded.apply(q, k, v, mistake),)


@pytest.mark.parametrize(("keys", "values"), [(3.0, 0.0), (1.0, 1.0), (0.0, 0.0)])
def test_rounded_gradients_of_scores_are_right_whatever_keys_and_values_have_in_common(
    keys, values
):
    given = with_common_parts(SHAPE, keys=keys, values=values)
    assert said_of(rounded(), case_named("softmax").question, given) is None


def test_without_what_cancels_rounded_gradients_would_be_called_wrong():
    given = with_common_parts(SHAPE, keys=3.0, values=0.0)
    said = said_of(rounded(), case_named("softmax").question, given, cancels=False)
    assert said.startswith("dq off by")


@pytest.mark.parametrize("values", [0.0, 1.0])
def test_fused_attention_of_pytorch_passes(values):
    case = case_named("softmax")
    given = with_common_parts(SHAPE, keys=1.0, values=values)
    assert said_of(case.yardstick, case.question, given) is None


def five_percent_more(dq: Tensor) -> Tensor:
    return 1.05 * dq


def one_row_from_its_neighbour(dq: Tensor) -> Tensor:
    wrong = dq.clone()
    wrong[:, :, 10] = dq[:, :, 11]
    return wrong


def a_constant_more(dq: Tensor) -> Tensor:
    return dq + 0.1 * dq.square().mean().sqrt()


@pytest.mark.parametrize(
    "mistake", [five_percent_more, one_row_from_its_neighbour, a_constant_more]
)
def test_a_wrong_gradient_is_noticed_where_keys_have_a_common_part(mistake):
    given = with_common_parts(SHAPE, keys=1.0, values=0.0)
    said = said_of(rounded(mistake), case_named("softmax").question, given)
    assert said.startswith("dq off by")


@interpreted
@pytest.mark.parametrize(
    "name",
    [
        "top-k keep 8",
        "entmax-1.5 causal",
        "sparsemax",
        "statistics, entropy's gradient",
        "guidance on half the heads",
    ],
)
def test_our_kernels_are_right_where_keys_and_values_have_a_common_part(name):
    shape = Shape(1, 4, 48, 32)
    case = case_named(name, shape)
    given = with_common_parts(shape, keys=3.0, values=2.0, dtype=torch.float16)
    assert said_of(case.ours, case.question, given) is None


def test_a_definition_that_scales_otherwise_is_refused():
    def unscaled(head: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        return ((q @ k.mT).softmax(-1) @ v,)

    given = with_common_parts(Shape(1, 2, 8, 4), keys=0.0, values=0.0)
    with pytest.raises(AssertionError, match="not scaled by the width"):
        answer(Question(unscaled), given, [0], coarse=False)


def test_fused_attention_of_pytorch_is_judged_where_it_is_asked_for():
    case = case_named("softmax")
    given = with_common_parts(SHAPE, keys=1.0, values=1.0)
    course = gpu_ops.Course(1, CPU, gpu_ops.Settings())
    wrong = replace(case, yardstick=lambda q, k, v: (1.1 * case.yardstick(q, k, v)[0],))
    for asked, said in ((case, False), (wrong, True)):
        (row,) = gpu_ops._measure(asked, given, [], course)
        assert ("wrong" in row) == said and row["forward_ms"] > 0


def test_more_heads_are_compared_where_rows_are_short():
    heads = {
        (part, length): gpu_ops.judged_heads(part, 16, length)
        for part in ("softmax", "guidance")
        for length in (2048, 4096)
    }
    assert list(heads.values()) == [[0, 5, 10, 15], [0], [0, 2, 4, 7], [0]]
    assert gpu_ops.judged_heads("softmax", 1, 8) == [0]


@interpreted
@pytest.mark.parametrize("name", ["top-k keep 8 lengths=", "top-k keep 8 mask="])
def test_padding_is_hidden_alike_by_lengths_and_by_a_mask(name):
    shape = Shape(2, 1, 48, 16)
    given = with_common_parts(shape, keys=0.0, values=0.0, dtype=torch.float16)
    case, plain = case_named(name, shape), case_named("top-k keep 8", shape)
    right = answer(case.question, given, [0], coarse=False)
    contestant = Contestant("somebody", case.ours)
    assert complaint(contestant, case.question, given, right) is None
    unmasked = Contestant("somebody", plain.ours)
    assert complaint(unmasked, case.question, given, right).startswith("output 0 off by")
    assert gpu_ops.failures(case, given).keys() == {"flagged_blocks", "flagged_rows"}
    (sdpa,) = case.yardstick(*given)
    (short,) = plain.yardstick(given[0][:1], given[1][:1, :, :24], given[2][:1, :, :24])
    # half of the first item's keys are real
    torch.testing.assert_close(sdpa[:1], short, atol=1e-3, rtol=1e-2)


def selected_by_hand(q: Tensor, k: Tensor, v: Tensor, *, first: int = 0) -> tuple[Tensor, ...]:
    """The best keys from `first` on."""
    scores, keys = (q.float() @ k.float().mT / math.sqrt(q.shape[-1])).topk(8 + first, dim=-1)
    return keys[..., first:], scores[..., first:].softmax(-1)


def judged_lists(attend) -> str | None:
    shape = Shape(1, 2, 64, 16)
    given = with_common_parts(shape, keys=0.0, values=0.0, dtype=torch.float16)
    case = case_named("topk_selected keep 8", shape)
    return said_of(case.ours if attend is None else attend, case.question, given)


@interpreted
def test_our_lists_of_keys_are_right():
    assert judged_lists(None) is None


def test_lists_of_keys_are_judged_by_what_attention_to_them_gives():
    assert judged_lists(selected_by_hand) is None
    second_best = partial(selected_by_hand, first=1)
    assert "output 0 off by" in judged_lists(second_best)

    def other_keys(q, k, v):
        keys, weights = selected_by_hand(q, k, v)
        return keys.roll(1, dims=2), weights

    def other_weights(q, k, v):
        keys, weights = selected_by_hand(q, k, v)
        return keys, 1.05 * weights

    assert judged_lists(other_keys).startswith("output 0 off by")
    assert "output 1 off by" in judged_lists(other_weights)
