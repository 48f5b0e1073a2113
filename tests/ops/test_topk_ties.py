"""Keys of long rows that tie for the last place of top-k attention; kernels are interpreted."""

import pytest
import torch
from torch import Tensor

from headwise.ops.topk import topk_selected
from headwise.ops.topk.rows import kept
from tests.ops.attention_cases import out_and_grads

pytest.importorskip("triton", reason="Triton is not installed")
from tests.ops.test_topk_triton import TIES, Tile, assert_same, by_kernel, interpreted, kernels

IN_DOUBT, SEEN_TWICE, TIED = 1, 2, 3  # flags of a block of queries; 0: certain at once
KEEP = 8
# Of each query how many keys too many tie for the last place. Sixteen queries share a flag.
FEW = torch.arange(16) % 5
MANY = torch.arange(16) % 7
ONE = torch.eye(16, dtype=torch.int64)[11]


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch) -> None:
    """Use few large tiles, which take the interpreter less time."""
    for name in ("HALF", "SINGLE"):
        tiles = [Tile(16, 512, warps=4, stages=1)] * 5
        monkeypatch.setattr(kernels, name, kernels.Sweeps(*tiles))


def tied(
    excess: Tensor, n_keys: int, keep: int = KEEP, visible: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Make q, k and v with exact scores, all different but for ties, one to three of them kept."""
    rng = torch.Generator().manual_seed(n_keys)
    n_queries = len(excess)
    scores = torch.stack([torch.randperm(n_keys, generator=rng) for _ in range(n_queries)]) / 64
    for row, more in enumerate(excess.tolist()):
        seen = scores[row] if visible is None else scores[row].masked_fill(~visible[row], -1)
        order = seen.argsort(descending=True)
        last = order[keep - 1]
        scores[row, order[max(0, keep - 1 - row % 3) : keep + more]] = scores[row, last].item()
    q = torch.eye(n_queries)[None, None]  # then a score is a number of a key
    v = torch.randn(1, 1, n_keys, 5, generator=rng)
    return q, scores.T[None, None].contiguous(), v


def chosen(
    q: Tensor, k: Tensor, v: Tensor, ties: str, keep: int = KEEP, mask: Tensor | None = None
) -> tuple[list[Tensor], list[int]]:
    """Return the bounds, the list and the flags that a forward pass leaves."""
    results = kernels._forward(q, k, v, mask, None, None, 1.0, 0, False, keep, ties == "first", 0.0)
    return list(results[2:7]), results[-1].tolist()


@interpreted
@pytest.mark.parametrize("ties", TIES)
def test_one_tie_is_listed_and_no_block_is_swept(poisoned_memory, ties):
    bounds, flags = chosen(*tied(ONE, 1024), ties)
    assert flags == [TIED if ties == "all" else SEEN_TWICE]
    places = (bounds[3] >= 0).sum(0).flatten()
    assert torch.equal(places, KEEP + (ONE if ties == "all" else 0 * ONE))


@interpreted
@pytest.mark.parametrize(("ties", "wanted"), [("all", IN_DOUBT), ("first", SEEN_TWICE)])
def test_more_ties_than_places_are_swept_where_all_arekept(ties, wanted):
    excess = torch.cat([FEW, MANY, 0 * FEW])
    q, k, v = tied(excess, 1031)
    _, flags = chosen(q, k, v, ties)
    assert flags[:2] == [TIED if ties == "all" else SEEN_TWICE, wanted]
    assert flags[2] in (0, SEEN_TWICE)
    _, flags = chosen(q[:, :, :3], torch.ones_like(k), v, ties)
    assert flags == [IN_DOUBT]


@interpreted
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("keep", [1, 16, pytest.param(3, marks=pytest.mark.slow)])
def test_lists_and_bounds_of_tied_rows_keep_what_the_definition_keeps(poisoned_memory, ties, keep):
    q, k, v = tied(FEW, 1100, keep)
    (low, high, last, keys, weights), flags = chosen(q, k, v, ties, keep)
    assert IN_DOUBT not in flags
    rows = q @ k.mT
    wanted = kept(rows, keep, ties)
    listed = torch.zeros_like(rows).scatter_add(
        -1, keys.clamp(min=0).long().permute(1, 2, 3, 0), (keys >= 0).float().permute(1, 2, 3, 0)
    )
    torch.testing.assert_close(listed, wanted.float())
    torch.testing.assert_close(weights.sum(0), torch.ones_like(low))
    assert not weights[keys < 0].any()

    # Bounds are read by sweeps, which may round otherwise.
    for nudged in (rows - 1e-4, rows, rows + 1e-4):
        admitted = nudged >= low[..., None]
        if ties == "first":
            early = torch.arange(1100) <= last[..., None]
            admitted &= early | (nudged >= high[..., None])
        assert torch.equal(admitted, wanted)


@interpreted
@pytest.mark.parametrize(
    ("option", "ties"),
    [
        ("nothing", "all"),
        ("mask", "all"),
        ("causal", "first"),
        pytest.param("causal", "all", marks=pytest.mark.slow),
        pytest.param("nothing", "first", marks=pytest.mark.slow),
        pytest.param("mask", "first", marks=pytest.mark.slow),
    ],
)
def test_tied_rows_equal_the_definition(poisoned_memory, ties, option):
    excess, n_keys = torch.cat([MANY, FEW]) if option == "nothing" else FEW, 1137
    visible, options = torch.ones(len(excess), n_keys, dtype=torch.bool), {}
    if option == "causal":
        visible, options = visible.tril(n_keys - len(excess)), {"causal": True}
    if option == "mask":
        visible = torch.rand(visible.shape) > 0.4
        visible[10, 3:] = False
        options = {"mask": visible}
    q, k, v = tied(excess, n_keys, visible=visible)
    assert_same(q, k, v, keep=KEEP, ties=ties, scale=1.0, **options)


@pytest.mark.slow
@interpreted
def test_ties_of_half_precision_equal_the_definition(poisoned_memory):
    q, k, v = (x.half() for x in tied(torch.arange(64) % 5, 1025))
    assert set(chosen(q, k, v, "all")[1]) == {TIED}
    assert_same(q, k, v, keep=KEEP, scale=1.0)


@interpreted
@pytest.mark.parametrize("ties", ["all", pytest.param("first", marks=pytest.mark.slow)])
def test_what_is_dropped_of_a_list_with_ties_is_dropped_by_sweeps(
    poisoned_memory, monkeypatch, ties
):
    given = tied(FEW, 1060)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        return out_and_grads(by_kernel, *given, keep=KEEP, ties=ties, scale=1.0, dropout=0.3)

    listed = run()
    torch.use_deterministic_algorithms(True)
    try:
        swept_backward = run()
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(kernels, "GATHER_KEYS", 10**9)
    swept = run()
    torch.testing.assert_close(swept_backward, listed)
    torch.testing.assert_close(swept, listed)


@interpreted
def test_selected_keys_of_tied_rows_are_the_first():
    q, k, _ = tied(MANY, 1050)
    selected = topk_selected(q, k, keep=KEEP, scale=1.0, impl="triton")
    rows = q @ k.mT
    wanted = rows.sort(dim=-1, descending=True, stable=True).indices[..., :KEEP]
    assert torch.equal(selected.keys.long(), wanted)
    weights = rows.gather(-1, wanted).softmax(-1)
    torch.testing.assert_close(selected.weights, weights)
