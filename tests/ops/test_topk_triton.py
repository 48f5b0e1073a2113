"""Top-k attention by Triton kernels, held to the definition; interpreted where there is no GPU."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headwise.ops import topk_attention
from headwise.ops.scores import Scores
from headwise.ops.topk import topk_selected
from headwise.ops.topk.rows import kept
from tests.ops.attention_cases import assert_no_worse, inputs, out_and_grads

pytest.importorskip("triton", reason="Triton is not installed")
kernels = import_module("headwise.ops.topk.triton")
fused = import_module("headwise.ops.topk.fused")
selection = import_module("headwise.ops.topk.selection")
tiles = import_module("headwise.ops.tiles")
Call, Tile = tiles.Call, tiles.Tile

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"
)
TIES = ["all", "first"]
SMALL = Tile(32, 16, warps=4, stages=1)
by_kernel = partial(topk_attention, impl="triton")
by_definition = partial(topk_attention, impl="reference")


# of rows that fit a tile, of short rows by one kernel and by two, of long ones
PLANS = ["resident", "merge", "sweep", "gather"]


@pytest.fixture
def small_tiles(monkeypatch) -> None:
    """Use small tiles, and so few levels that some rows have no certificate."""
    for name in ("HALF", "WIDE", "ROOMY", "SINGLE"):
        monkeypatch.setattr(kernels, name, kernels.Sweeps(*[SMALL] * 5))
    monkeypatch.setattr(selection, "LEVELS", {64: 2})
    monkeypatch.setattr(fused, "TILE", SMALL._replace(keys=64))  # two lists a row


@pytest.fixture
def follow(monkeypatch) -> Callable[[str], None]:
    """Force one plan for rows of any length."""

    def set_plan(plan: str) -> None:
        monkeypatch.setattr(kernels, "GATHER_KEYS", 1 if plan == "gather" else 10**9)
        monkeypatch.setattr(kernels, "_merges", lambda call, v, keep: plan == "merge")
        monkeypatch.setattr(
            kernels, "MOST_KEYS", dict.fromkeys((2, 4), 10**9 * (plan == "resident"))
        )

    return set_plan


def assert_same(q, k, v, **options) -> None:
    """Check that out and gradients are nearly as close to float64 as the definition."""
    got = out_and_grads(by_kernel, q, k, v, **options)
    reference = out_and_grads(by_definition, q, k, v, **options)
    exact = out_and_grads(by_definition, q.double(), k.double(), v.double(), **options)
    assert_nearly_as_close(got, reference, exact)


def assert_nearly_as_close(
    got: list[Tensor], reference: list[Tensor], exact: list[Tensor], of: str = ""
) -> None:
    """Allow twice the error: the backward pass recomputes weights from rounded sums."""
    for name, *results in zip(("out", "dq", "dk", "dv"), got, reference, exact, strict=True):
        halved = results[2] + (results[0].double() - results[2]) / 2
        assert results[0].dtype == results[1].dtype
        assert_no_worse(name + of, halved.to(results[0].dtype), *results[1:])


def with_ties(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw small whole numbers: many scores are equal, and exact in any order of summation."""
    return q.round().clamp(-2, 2), k.round().clamp(-1, 1), v


@interpreted
@pytest.mark.parametrize("sizes", [(1, 1), (7, 63), (65, 7), (63, 129)], ids=str)
@pytest.mark.parametrize("plan", PLANS)
def test_kernels_equal_the_definition(small_tiles, poisoned_memory, follow, sizes, plan):
    follow(plan)
    assert_same(*inputs(*sizes, batch=1), keep=3)


@interpreted
@pytest.mark.parametrize(
    ("option", "ties", "plan"),
    [
        ("causal", "all", "sweep"),
        ("lengths", "all", "sweep"),
        ("mask", "all", "sweep"),
        ("padding", "all", "sweep"),
        ("causal", "all", "merge"),
        ("lengths", "first", "merge"),
        ("padding", "all", "merge"),
        ("all of them", "first", "merge"),
        ("all of them", "first", "gather"),
        ("padding", "first", "gather"),
        pytest.param("causal", "first", "sweep", marks=pytest.mark.slow),
        pytest.param("lengths", "first", "sweep", marks=pytest.mark.slow),
        pytest.param("mask", "first", "sweep", marks=pytest.mark.slow),
        pytest.param("mask", "all", "merge", marks=pytest.mark.slow),
        pytest.param("padding", "first", "merge", marks=pytest.mark.slow),
        pytest.param("all of them", "all", "merge", marks=pytest.mark.slow),
        pytest.param("all of them", "all", "gather", marks=pytest.mark.slow),
    ],
)
def test_only_visible_keys_arekept(small_tiles, poisoned_memory, follow, option, ties, plan):
    follow(plan)
    n_queries, n_keys = 35, 40
    options: dict[str, object] = {"keep": 5, "ties": ties, "scale": 0.5}
    if option in ("causal", "all of them"):
        options["causal"] = True
    if option in ("lengths", "all of them"):
        options["lengths"] = torch.tensor([n_keys, 99, n_keys - 3, 0])[::2]
    if option in ("mask", "all of them"):
        mask = torch.rand(n_keys, 1, 2, n_queries).permute(2, 1, 3, 0) > 0.3
        mask[:, :, 4] = False
        options["mask"] = mask
    if option == "padding":  # a mask that is the same for all queries
        options["mask"] = torch.rand(2, 1, 1, n_keys) > 0.3
        options["mask"][1, ..., 7:] = False
        options["causal"] = ties == "first"
    assert_same(*with_ties(*inputs(n_queries, n_keys, heads=1)), **options)


@interpreted
@pytest.mark.parametrize("n_queries", [3, 40])
def test_causal_queries_may_be_the_last_or_more_than_the_keys(small_tiles, n_queries):
    assert_same(*inputs(n_queries, 33, batch=1), keep=4, causal=True)


@interpreted
@pytest.mark.parametrize(
    ("ties", "plan"),
    [
        ("all", "resident"),
        ("all", "sweep"),
        ("first", "gather"),
        pytest.param("first", "resident", marks=pytest.mark.slow),
        pytest.param("first", "sweep", marks=pytest.mark.slow),
        pytest.param("all", "gather", marks=pytest.mark.slow),
    ],
)
def test_grouped_heads_choose_for_each_query_head(small_tiles, follow, ties, plan):
    follow(plan)
    q, k, v = inputs(20, 35, batch=1, heads=4, groups=2)
    q, k, v = with_ties(q, k, v) if ties == "first" else (q, k, v)
    assert_same(q, k, v, keep=3, ties=ties, scale=0.5)


@interpreted
@pytest.mark.parametrize(
    ("width", "plan"), [(32, "gather"), (48, "merge"), (48, "sweep"), (128, "gather")]
)
def test_half_precision_and_any_width(small_tiles, poisoned_memory, follow, width, plan):
    follow(plan)
    q, k, v = inputs(17, 33, batch=1, width=width, value_width=40, dtype=torch.float16)
    interleaved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v.mT)]
    assert_same(interleaved[0], interleaved[1], interleaved[2].mT, keep=4)


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("plan", PLANS)
def test_default_tiles_equal_the_definition(follow, plan):
    follow(plan)
    q, k, v = inputs(65, 129, batch=1, heads=1, width=32)
    assert_same(q, k, v, keep=8)
    assert_same(q.half(), k.half(), v.half(), keep=8, causal=True)


@interpreted
@pytest.mark.parametrize("keep", [2, pytest.param(20, marks=pytest.mark.slow), 64])
def test_rows_with_fewer_keys_than_keep_are_softmax(small_tiles, keep):
    assert_same(*inputs(33, 20, batch=1, heads=1), keep=keep, causal=True)


def bounds_keep(scores: Scores, keep: int, ties: str, **options) -> Tensor:
    """Mark the keys that the selection admits, (B, H, Q, K)."""
    chosen, _ = selection.select(Call.of(scores), keep, ties == "first", SMALL, **options)
    rows = scores.rows()
    kept = (rows >= chosen.low[..., None]) & (rows > -math.inf)
    if ties == "first":
        early = torch.arange(rows.shape[-1]) <= chosen.last[..., None]
        kept &= early | (rows >= chosen.high[..., None])
    return kept


def hard_scores(kind: str) -> Scores:
    """Make scores that buckets of 16-key tiles cannot hold: the largest share a bucket."""
    q, k = torch.ones(1, 1, 5, 1), torch.randn(1, 1, 70, 1)
    if kind == "period of the tile":
        k[:, :, 3::16] += 10
    elif kind == "equal":
        k[:] = 1
    elif kind == "one column":
        k[:, :, 33] = 1e30
    elif kind == "two values":
        k = (k > 0).float()
    elif kind == "ties in a bucket":  # three for the last two places
        k[:, :, [3, 19, 35]] = 10
        k[:, :, [1, 20, 40, 60]] += 20
    elif kind == "neighbouring floats":
        k = 1 + torch.arange(70).roll(20).view(1, 1, 70, 1) * 2.0**-23
    return Scores(q, k, scale=1.0)


@interpreted
@pytest.mark.parametrize("kind", ["period of the tile", "equal", "one column", "two values",
                                  "ties in a bucket", "neighbouring floats", "random"])  # fmt: skip
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("levels", [2, 4])
def test_the_choice_is_exact_with_and_without_a_certificate(kind, ties, levels):
    scores = hard_scores(kind)
    wanted = kept(scores.rows(), 6, ties)
    assert torch.equal(bounds_keep(scores, 6, ties, levels=levels), wanted)


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
@pytest.mark.parametrize("plan", PLANS)
def test_a_query_that_is_not_a_number_shows_and_disturbs_no_other(
    small_tiles, poisoned_memory, follow, plan
):
    follow(plan)
    q, k, v = inputs(20, 40, batch=1, heads=1)
    wanted = by_definition(q, k, v, keep=3).out
    q[0, 0, 5, 2] = math.nan
    out = by_kernel(q, k, v, keep=3, mask=torch.ones(20, 40, dtype=torch.bool)).out
    assert out[0, 0, 5].isnan().all()
    others = [row for row in range(20) if row != 5]
    torch.testing.assert_close(out[0, 0, others], wanted[0, 0, others])


@interpreted
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
@pytest.mark.parametrize("copies", [2, 6])  # more ties than a list has places for: a rescue
def test_a_keep_th_score_near_zero_is_found_however_it_was_rounded(
    small_tiles, follow, seed, copies
):
    follow("gather")
    rng = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 4, 1, 32, generator=rng)
    k = torch.randn(1, 4, 12, 32, generator=rng).repeat(1, 1, copies, 1)  # all scores tie
    order = (q @ k.mT).sort(dim=-1, descending=True).indices[..., 0, :]
    seventh = k.gather(2, order[..., 6:8, None].expand(-1, -1, -1, 32)).mean(2, keepdim=True)
    k = k - seventh + 1e-4 * q  # now the seventh is near zero
    v = torch.randn(k.shape, generator=rng)
    assert flags_of(q, k, v, 7) <= ({1} if copies == 6 else {1, 3})
    assert_same(q, k, v, keep=7)


@interpreted
def test_lengths_beyond_the_keys_are_all_of_them():
    q, k, _ = inputs(3, 5)
    scores = replace(Scores(q, k), lengths=torch.tensor([5, 5]))
    object.__setattr__(scores, "lengths", torch.tensor([9, 4]))  # as a GPU's are not looked at
    assert Call.of(scores).lengths.tolist() == [5, 4]


@interpreted
def test_a_negative_scale_is_listed_by_others():
    q, k, _ = inputs(5, 40, batch=1)
    with pytest.raises(ValueError, match=r"the scale is -0\.25"):
        topk_selected(q, k, keep=4, scale=-0.25, impl="triton")
    listed = topk_selected(q, k, keep=4, scale=-0.25)
    least = (q @ k.mT).topk(4, dim=-1, largest=False).indices
    assert torch.equal(listed.keys.long(), least)


@interpreted
def test_a_key_is_kept_also_if_its_score_is_rounded_otherwise_next_time():
    scores = hard_scores("random")
    chosen, flags = selection.select(Call.of(scores), 6, False, SMALL, levels=4)
    assert not flags.any()
    ordered = scores.rows()[0, 0, 0].sort(descending=True).values
    torch.testing.assert_close(chosen.low[0, 0, 0], ordered[5:7].mean())


@interpreted
@pytest.mark.parametrize("plan", PLANS)
def test_queries_that_see_nothing_give_zeros_and_no_gradient(
    small_tiles, poisoned_memory, follow, plan
):
    follow(plan)
    q, k, v = inputs(9, 12)
    mask = torch.ones(9, 12, dtype=torch.bool)
    mask[3] = False
    lengths = torch.tensor([12, 0])
    out, dq, dk, dv = out_and_grads(by_kernel, q, k, v, keep=3, mask=mask, lengths=lengths)
    for nothing in (out[0, :, 3], dq[0, :, 3], out[1], dq[1], dk[1], dv[1]):
        assert not nothing.any()


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
@pytest.mark.parametrize("plan", PLANS)
def test_a_score_that_is_not_a_number_shows(small_tiles, follow, plan):
    follow(plan)
    q, k, v = inputs(3, 20, batch=1, heads=1)
    k[0, 0, 7] = math.nan
    assert by_kernel(q, k, v, keep=3).out.isnan().all()


@interpreted
@pytest.mark.parametrize("empty", ["batch", "queries"])
@pytest.mark.parametrize("plan", PLANS)
def test_nothing_to_compute_is_fine(follow, empty, plan):
    follow(plan)
    q, k, v = inputs(0 if empty == "queries" else 3, 5, batch=0 if empty == "batch" else 1)
    out, *grads = out_and_grads(by_kernel, q, k, v, keep=3)
    assert out.shape == q.shape and not any(grad.any() for grad in grads)


@interpreted
@pytest.mark.parametrize(
    ("ties", "plan"),
    [
        ("all", "sweep"),
        ("first", "merge"),
        pytest.param("first", "gather", marks=pytest.mark.slow),
    ],
)
def test_weights_are_dropped_after_the_softmax_and_alike_in_both_passes(
    small_tiles, follow, ties, plan
):
    follow(plan)
    q, k, _ = with_ties(*inputs(16, 40, groups=1))
    options = {"keep": 6, "ties": ties, "scale": 0.5}

    def dropped(*inputs: Tensor) -> Tensor:
        torch.manual_seed(3)
        return by_kernel(*inputs, dropout=0.4, **options).out

    weights = by_definition(q, k, k, **options).weights
    share = dropped(q, k, torch.eye(40).expand(2, 1, 40, 40)) / weights.clamp(min=1e-9)
    stays = share > 0.5
    torch.testing.assert_close(share, stays / 0.6)
    assert abs(stays.sum() / (weights > 0).sum() - 0.6) < 0.06
    assert not torch.equal(stays[0], stays[1]) and not torch.equal(stays[:, 0], stays[:, 1])

    leaves = [x.clone().requires_grad_() for x in (q, k, torch.randn(2, 1, 40, 5))]
    wanted = by_definition(*leaves, **options).weights * stays / 0.6 @ leaves[2]
    got = dropped(*leaves)
    torch.testing.assert_close(got, wanted)
    up = torch.randn_like(wanted)
    gradients = (torch.autograd.grad(out, leaves, up) for out in (got, wanted))
    torch.testing.assert_close(*gradients)


@interpreted
def test_dropout_draws_anew_at_every_call(small_tiles):
    q, k, v = inputs(9, batch=1)
    first, second = (by_kernel(q, k, v, dropout=0.5).out for _ in range(2))
    assert not torch.equal(first, second)


@interpreted
@pytest.mark.parametrize(
    "plan", [pytest.param("resident", marks=pytest.mark.slow), "merge", "sweep", "gather"]
)
def test_the_operation_is_registered_as_torch_wants_it(small_tiles, follow, plan):
    follow(plan)
    q, k, v = (x.requires_grad_() for x in inputs(5, 7, batch=1, heads=2, groups=1))
    mask, lengths, seed = torch.rand(5, 7) > 0.2, torch.tensor([6]), torch.tensor([1])
    given = (q, k, v, mask, lengths, seed, 0.5, 2, True, 3, plan == "sweep", 0.1)
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_static",
    )
    torch.library.opcheck(kernels._forward, given, test_utils=tests)


@interpreted
def test_the_operation_compiles_as_one_graph(small_tiles):
    def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        seed = torch.randint(2**62, (1,))
        given = (None, lengths, seed, 0.5, 0, True, 3, True, 0.3)
        return kernels._forward(q, k, v, *given)[0].square().sum()

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    leaves = [x.requires_grad_() for x in inputs(9)]
    gradients = []
    for run in (compiled, attend):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(run(*leaves, torch.tensor([9, 5])), leaves))
    torch.testing.assert_close(*gradients)


@interpreted
def test_nothing_of_size_queries_by_keys_is_kept_for_the_backward_pass():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        by_kernel(*(x.requires_grad_() for x in inputs(65, batch=1, heads=1)))
    assert max(kept) < 65 * 65


@interpreted
@pytest.mark.parametrize(
    ("kind", "ties"), [("period of the tile", "all"), ("equal", "first"), ("two values", "all")]
)
def test_gathering_is_exact_where_buckets_are_not(small_tiles, follow, kind, ties):
    follow("gather")
    scores = hard_scores(kind)
    q, k, v = scores.q, scores.k, torch.randn(1, 1, 70, 3)
    assert_same(q, k, v, keep=6, ties=ties, scale=1.0)


def flags_of(q, k, v, keep) -> set[int]:
    """Return the flags of a call: 0 certain, 1 in doubt, 2 and 3 certain after a second search."""
    given = (None, None, None, 1.0, 0, False, keep, False, 0.0)
    return set(kernels._forward(q, k, v, *given)[-1].tolist())


@interpreted
def test_a_second_look_makes_gathered_rows_sure(small_tiles, follow):
    follow("gather")
    q, k, v = inputs(20, 90, batch=1, heads=1)
    assert flags_of(q, k, v, 6) == {2}  # with two levels a bucket, some of the rows lack more
    assert_same(q, k, v, keep=6, scale=1.0)


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numbers overflow aloud
def test_scores_beyond_all_numbers_are_never_sure(small_tiles, follow):
    follow("gather")
    q, k, v = inputs(20, 70, batch=1, heads=1)
    q, k = torch.full_like(q, 1e17), k.abs() * 1e17
    for keep in (1, 3):
        out = by_kernel(q, k, v, keep=keep, scale=1e6).out
        assert out.isnan().equal(by_definition(q, k, v, keep=keep, scale=1e6).out.isnan())


@interpreted
def test_parts_of_a_row_are_looked_at_by_other_programs(small_tiles, follow, monkeypatch):
    follow("gather")
    ranking = import_module("headwise.ops.topk.ranking")
    monkeypatch.setattr(ranking, "PART", 64)
    monkeypatch.setattr(ranking, "MOST_PROGRAMS", 2)
    q, k, v = inputs(20, 150, batch=1, heads=1)
    assert flags_of(q, k, v, 6) == {2}
    assert_same(q, k, v, keep=6, scale=1.0, causal=True)


@interpreted
def test_deterministic_gradients_of_gathered_rows_are_the_same_numbers(
    small_tiles, follow, monkeypatch
):
    follow("gather")
    q, k, v = inputs(17, 40, batch=1)
    monkeypatch.setattr(selection, "LEVELS", {64: 4})  # all blocks certain
    torch.manual_seed(1)
    plain = out_and_grads(by_kernel, q, k, v, keep=4, dropout=0.3)
    torch.use_deterministic_algorithms(True)
    try:
        torch.manual_seed(1)
        swept = out_and_grads(by_kernel, q, k, v, keep=4, dropout=0.3)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(swept, plain)


@pytest.mark.parametrize("impl", ["reference", "torch", pytest.param("triton", marks=interpreted)])
@pytest.mark.parametrize("tied", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_selected_keys_and_weights_are_those_of_the_map(small_tiles, impl, tied):
    keep, (q, k, v) = 3, inputs(19, 24, heads=2, groups=1)
    if tied:
        keep, (q, k, v) = 10, with_ties(q, k, v)
    options = {"keep": keep, "causal": True, "lengths": torch.tensor([24, 9]), "scale": 0.5}
    weights = by_definition(q, k, v, ties="first", **options).weights
    selected = topk_selected(q, k, impl=impl, **options)
    assert selected.keys.shape == (2, 2, 19, keep) and selected.keys.dtype == torch.int32
    vacant = selected.keys < 0
    assert torch.equal(vacant.sum(-1), keep - (weights > 0).sum(-1))
    assert not selected.weights[vacant].any()
    at = selected.keys.clamp(min=0).long()
    torch.testing.assert_close(
        torch.zeros_like(weights).scatter_add(-1, at, selected.weights), weights
    )
    assert (selected.weights.diff(dim=-1) <= 0).all()


def test_obstacles_say_why(unchecked):
    q, k, v = inputs(5)
    with pytest.raises(ValueError, match="without a bias"):
        by_kernel(q, k, v, bias=torch.zeros(5))
    with pytest.raises(ValueError, match="at most 64"):
        by_kernel(q, k, v, keep=65)
    with pytest.raises(ValueError, match="float64"):
        by_kernel(q.double(), k.double(), v.double())


def test_the_kernels_are_not_chosen_on_a_cpu(monkeypatch):
    monkeypatch.setattr(kernels, "topk_values", None)
    assert topk_attention(*inputs(5)).out.isfinite().all()


def test_shapes_are_known_without_computing():
    with FakeTensorMode():
        q, k, v = torch.empty(2, 4, 7, 8), torch.empty(2, 1, 9, 8), torch.empty(2, 1, 9, 5)
        out, lse, low, high, last, *_ = kernels._forward(
            q, k, v, None, None, None, 1.0, 0, False, 3, True, 0.0
        )
    assert out.shape == (2, 4, 7, 5) and {lse.shape, low.shape, high.shape, last.shape} == {
        (2, 4, 7)
    }
