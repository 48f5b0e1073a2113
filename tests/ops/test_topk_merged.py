"""Top-k attention of short rows by one kernel: when it is certain, and that it is always right."""

from functools import partial
from importlib import import_module

import pytest
import torch
from torch import Tensor

from headwise.ops import topk_attention
from tests.ops.test_topk_triton import assert_same, inputs, with_ties

pytest.importorskip("triton", reason="Triton is not installed")
kernels = import_module("headwise.ops.topk.triton")
BUCKETS = import_module("headwise.ops.topk.fused").TILE.keys // 2
SCALE = 0.5
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled on a GPU"),
    pytest.mark.usefixtures("poisoned_memory"),
]


half = partial(inputs, batch=1, heads=1, width=16, dtype=torch.float16)


def flags_of(q: Tensor, k: Tensor, v: Tensor, keep: int, *, first_ties: bool = False) -> set[int]:
    """Return the flags that a call leaves: 0 certain, 1 in doubt."""
    given = (None, None, None, SCALE, 0, False, keep, first_ties, 0.0)
    return set(kernels._forward(q, k, v, *given)[-1].tolist())


@pytest.mark.parametrize("sizes", [(1, 129), (65, 300), (130, 257)], ids=str)
@pytest.mark.parametrize("keep", [1, 8])
def test_rows_equal_the_definition_and_are_sure(sizes, keep):
    q, k, v = half(*sizes)
    assert_same(q, k, v, keep=keep, scale=SCALE)
    assert flags_of(q, k, v, keep) == {0}


def row_of(scores: dict[int, float]) -> tuple[Tensor, Tensor, Tensor]:
    """Make queries with these unscaled scores at these keys, and small ones at all others."""
    q, k, v = half(3, 4 * BUCKETS)
    q[:], k[:] = 0, torch.randn_like(k) / 16
    q[..., 0] = 1
    for key, score in scores.items():
        k[0, 0, key, 0] = score
    return q, k, v


# larger scores of keys, and whether one kernel can be sure of what is kept
HARD = {
    "three in a bucket": ({2: 8.0} | {5 + turn * BUCKETS: 9.0 + turn for turn in range(3)}, True),
    "four in a bucket": ({5 + turn * BUCKETS: 9.0 + turn for turn in range(4)}, False),
    # buckets of equal remainder by 8 share a list, in pairs of neighbours
    "seven in a list": ({2: 8.0} | {8 * place: 9.0 + place for place in range(7)}, True),
    "eight in a list": ({8 * place: 9.0 + place for place in range(8)}, False),
    "nine in a list": ({8 * place: 9.0 + place for place in range(9)}, False),
    "two lists share one": ({2 * place: 9.0 + place // 2 for place in range(4)}, False),
    "two lists share the last": ({0: 9.0, 1: 8.0, 2: 7.0, 4: 7.0}, True),
}


@pytest.mark.parametrize("ties", ["all", "first"])
@pytest.mark.parametrize("kind", HARD)
def test_what_cannot_be_sure_is_in_doubt_and_exact(kind, ties):
    scores, sure = HARD[kind]
    keep = 3 if "last" in kind else 4 if "share" in kind else 8 if "list" in kind else 4
    q, k, v = row_of(scores)
    assert_same(q, k, v, keep=keep, ties=ties, scale=SCALE)
    assert (flags_of(q, k, v, keep) == {0}) == sure
    if "last" in kind:  # there is room for one of the two
        assert flags_of(q, k, v, keep, first_ties=True) == {1}


# four lists share each of four scores, and run out of them
SHARED = {
    2 * place % 8 + place // 4 % 2 + 8 * (place // 8): 2.0 - place // 4 / 4 for place in range(16)
}
# what rows see of their keys: sixteen that share scores, or four of one bucket
FEW = {"scores of four lists": list(range(16)), "one bucket": [BUCKETS * turn for turn in range(4)]}


@pytest.mark.parametrize("ties", ["all", "first"])
@pytest.mark.parametrize("scores", [SHARED, dict.fromkeys(SHARED, 1.0)], ids=["some", "all equal"])
@pytest.mark.parametrize("seen", FEW)
def test_rows_that_see_few_keys_equal_the_definition(seen, scores, ties):
    q, k, v = row_of(scores)
    mask = torch.zeros(k.shape[2], dtype=torch.bool)
    mask[FEW[seen]] = True
    for keep in (5, 8):
        assert_same(q, k, v, keep=keep, ties=ties, scale=SCALE, mask=mask)
    if seen != "one bucket":
        assert_same(q, k, v, keep=8, ties=ties, scale=SCALE, lengths=torch.tensor([16]))


def test_scores_that_only_the_scale_makes_equal_are_in_doubt():
    q, k, v = row_of({})
    k[:], q[..., 1] = 0, 1
    k[0, 0, 3, :2], k[0, 0, 4, 0] = torch.tensor([1.5, 2.0**-23]), 1.5
    pair = torch.tensor([1.5 + 2.0**-23, 1.5])
    scales = (0.67 + step / 1000 for step in range(100))
    scale = next(scale for scale in scales if len((pair * scale).unique()) == 1)
    given = (None, None, None, scale, 0, False, 1, False, 0.0)
    assert set(kernels._forward(q, k, v, *given)[-1].tolist()) == {1}


@pytest.mark.parametrize("ties", ["all", pytest.param("first", marks=pytest.mark.slow)])
def test_equal_scores_equal_the_definition(ties):
    q, k, v = with_ties(*half(20, 140))
    assert_same(q, k, v, keep=7, ties=ties, scale=SCALE)
    k[:] = k[..., :1, :]
    assert_same(q, k, v, keep=7, ties=ties, scale=SCALE)


def test_the_sign_of_the_scale_decides_which_kernel_selects(monkeypatch):
    q, k, v = half(7, 140)
    wanted = topk_attention(-q, k, v, keep=5, scale=SCALE, impl="triton").out
    monkeypatch.setattr(kernels, "attend_merged", None)
    got = topk_attention(q, k, v, keep=5, scale=-SCALE, impl="triton").out
    torch.testing.assert_close(got, wanted)
