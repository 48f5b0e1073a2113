"""The guidance loss against whole matrices, in float64."""

from functools import partial

import pytest
import torch

import headwise as hw
from headwise.guidance import Plan, pattern
from headwise.guidance.loss import first_keys
from headwise.ops import softmax_attention
from headwise.ops.scores import Scores
from headwise.sites import observe
from tests.guidance.toy import Toy, written_out

TOKENS = {"delim": (1, 2), "period": (3,)}
PLAN = Plan(
    {
        0: pattern("next"),
        1: pattern("first"),
        2: pattern("first"),
        3: pattern("delim", tokens=[1, 2]),
        4: pattern("prev"),
        6: pattern("offset", offset=-2),
        7: pattern("period", tokens=[3]),
    }
)
# where attention is causal there is no next key
BACK = Plan({**PLAN.aims, 0: pattern("offset", offset=0)})
LENGTH = 6
# which text each position belongs to, 0 is padding; the second row is packed
SEGMENTS = {
    "whole": [[1] * 6] * 3,
    "padded": [[1] * 6, [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]],
    "padded before": [[0, 0, 1, 1, 1, 1], [1] * 6, [0, 0, 0, 0, 0, 1]],
    "packed": [[1, 1, 1, 2, 2, 2], [1, 2, 2, 3, 0, 0], [1] * 6],
}


def batch(kind: str, *, causal: bool):
    """Ids, texts of positions, visibility, each query's first key, and which queries are real."""
    ids = torch.randint(1, 8, (3, LENGTH))
    segment_BT = torch.tensor(SEGMENTS[kind])
    visible_BQK = (segment_BT[:, :, None] == segment_BT[:, None]) & (segment_BT[:, None] > 0)
    if causal:
        visible_BQK = visible_BQK.tril()
    same_BQK = segment_BT[:, :, None] == segment_BT[:, None]
    return ids, visible_BQK, same_BQK.int().argmax(dim=-1), segment_BT > 0


def site_weights(model, *given, **named):
    weights = {}

    def watch(site, attended):
        weights[site.name] = attended.weights

    with observe(model, watch):
        model(*given, **named)
    return weights


def expected(model, ids, visible_BQK, first_BQ, real_BQ, convention, plan=PLAN, **call):
    weights = site_weights(model, ids, **call)
    losses = [
        written_out(
            site, visible_BQK, dict(plan.aims), ids=ids, first_BQ=first_BQ, real_BQ=real_BQ,
            convention=convention,
        )
        for site in weights.values()
    ]  # fmt: skip
    return torch.stack(losses).sum()


@pytest.mark.parametrize("convention", ["mean", "paper", "reference_code"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("kind", SEGMENTS)
def test_loss_and_gradients_are_those_of_the_matrices(kind, causal, convention):
    model = Toy(heads=8, groups=8).double()
    ids, visible_BQK, first_BQ, real_BQ = batch(kind, causal=causal)
    call = {"mask": visible_BQK[:, None]}
    plan = BACK if causal else PLAN
    guidance = hw.guide(model, plan, alpha=2.0, schedule="constant", convention=convention)
    model(ids, **call)
    got = torch.autograd.grad(guidance.loss(), list(model.parameters()), allow_unused=True)
    wanted = expected(model, ids, visible_BQK, first_BQ, real_BQ, convention, plan, **call)
    torch.testing.assert_close(guidance.unscaled, wanted.detach())
    by_hand = torch.autograd.grad(2 * wanted, list(model.parameters()), allow_unused=True)
    for mine, theirs in zip(got, by_hand, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("groups", [8, 4, 1])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_lengths_say_what_a_mask_would(groups, causal):
    model = Toy(heads=8, groups=groups).double()
    ids, visible_BQK, first_BQ, real_BQ = batch("padded", causal=causal)
    call = {"lengths": real_BQ.sum(dim=1), "causal": causal}
    plan = BACK if causal else PLAN
    guidance = hw.guide(model, plan, schedule="constant")
    model(ids, **call)
    wanted = expected(model, ids, visible_BQK, first_BQ, real_BQ, "mean", plan, **call)
    torch.testing.assert_close(guidance.unscaled, wanted.detach())


def test_a_mask_of_its_own_for_each_head_is_obeyed():
    model = Toy(heads=8, groups=8).double()
    ids, visible_BQK, first_BQ, real_BQ = batch("whole", causal=False)
    by_head = visible_BQK[:, None].repeat(1, 8, 1, 1)
    by_head[:, 5, :, 0] = False  # head 5 is not guided
    guidance = hw.guide(model, PLAN, schedule="constant")
    model(ids, by_head)
    wanted = expected(model, ids, visible_BQK, first_BQ, real_BQ, "mean", mask=by_head)
    torch.testing.assert_close(guidance.unscaled, wanted.detach())


def test_the_gradient_of_every_parameter_is_right():
    model = Toy(layers=1, heads=2, groups=1, width=2, words=4).double()
    ids, visible_BQK, *_ = batch("packed", causal=False)
    plan = Plan(next=1, period=1, tokens=TOKENS)
    guidance = hw.guide(model, plan, alpha=3.0, schedule="constant")
    names = [name for name, _ in model.named_parameters()]
    values = [parameter.detach().requires_grad_() for parameter in model.parameters()]

    def loss(*given):
        state = dict(zip(names, given, strict=True))
        torch.func.functional_call(model, state, (ids % 4, visible_BQK[:, None]))
        return guidance.loss()

    assert torch.autograd.gradcheck(loss, values)


def test_layers_are_counted_alike_however_they_are_put_together(monkeypatch):
    model = Toy(layers=5, heads=8, groups=8).double()
    ids, visible_BQK, *_ = batch("packed", causal=False)
    guidance = hw.guide(model, PLAN, schedule="constant")
    losses = []
    for together in (2**27, 2 * (3 * 8 * LENGTH * 3), 1):  # all, two and one at a time
        monkeypatch.setattr("headwise.guidance.loss.MAX_ELEMENTS", together)
        model(ids, visible_BQK[:, None])
        losses.append(guidance.unscaled)
    torch.testing.assert_close(losses, [losses[0]] * 3)


def test_every_layer_is_guided_with_its_own_cap_and_sink():
    model = Toy(layers=3, heads=8, groups=4).double()
    for number, layer in enumerate(model.layers):
        sink = torch.randn(8, dtype=torch.float64)
        cap = 1.0 + number // 2
        layer.site.attend = partial(softmax_attention, cap=cap, sink=sink)
    ids, visible_BQK, first_BQ, real_BQ = batch("packed", causal=False)
    guidance = hw.guide(model, PLAN, schedule="constant")
    model(ids, visible_BQK[:, None])
    mask = visible_BQK[:, None]
    wanted = expected(model, ids, visible_BQK, first_BQ, real_BQ, "mean", mask=mask)
    torch.testing.assert_close(guidance.unscaled, wanted.detach())


def test_a_hole_in_the_mask_does_not_begin_another_text():
    real_T = torch.tensor([1, 1, 0, 1, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
    text_T = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    same_TT = text_T[:, None] == text_T
    q = torch.zeros(1, 1, 10, 4)
    for mask, places in ((real_T[None], [0]), (real_T & same_TT, [0, 4])):
        first_BK = first_keys(Scores(q, q, mask=mask[None, None]))
        assert first_BK[0].nonzero()[:, 0].tolist() == places
    padded_left = first_keys(Scores(q, q, mask=torch.arange(10) >= 3))
    assert padded_left[0].nonzero()[:, 0].tolist() == [3]


def test_a_sliding_window_does_not_make_every_key_the_first():
    model = Toy(heads=8, groups=8).double()
    ids, visible_BQK, first_BQ, real_BQ = batch("whole", causal=True)
    visible_BQK = visible_BQK & ~visible_BQK.tril(-2)
    guidance = hw.guide(model, BACK, schedule="constant")
    model(ids, visible_BQK[:, None])
    call = {"mask": visible_BQK[:, None]}
    wanted = expected(model, ids, visible_BQK, first_BQ, real_BQ, "mean", BACK, **call)
    torch.testing.assert_close(guidance.unscaled, wanted.detach())


def test_no_matrix_is_built():
    """At 4,096 positions one (Q, K) matrix of floats would take 64 MB."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for one in result if isinstance(result, tuple | list) else [result]:
                # bytes are memory taken for the allocator to learn from, and never touched
                if isinstance(one, torch.Tensor) and one.dtype != torch.uint8:
                    self.numel = max(self.numel, one.numel())
            return result

    model = Toy(layers=1, heads=1, groups=1)
    guidance = hw.guide(model, Plan(period=1, tokens=TOKENS), schedule="constant")
    ids = torch.randint(1, 8, (1, 4096))
    model(ids)
    with Largest() as largest:
        guidance.loss().backward()
    assert largest.numel < 4096**2 / 8
