"""Tiles of scores in Triton are the scores."""

from typing import no_type_check

import pytest
import torch

from headwise.ops.scores import Scores

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = pytest.importorskip("triton.language")
tiles = pytest.importorskip("headwise.ops.tiles")

place, load_rows, score_tile = tiles.place, tiles.load_rows, tiles.score_tile
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU; see test_gpu"
)


@triton.jit
@no_type_check
def _scores(
    q, k, lengths, mask, out, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, KEYS_FIRST: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    for start in range(0, n_keys, KEYS):
        keys = start + tl.arange(0, KEYS)
        k_KD = load_rows(k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED)
        s_QK = score_tile(
            q_QD, k_KD, rows, keys, tl.load(lengths + batch), n_queries, scale, first,
            mask + batch * mask_batch + head * mask_head, mask_row, mask_key, CAUSAL, MASKED,
            KEYS_FIRST,
        )  # fmt: skip
        if KEYS_FIRST:
            s_QK = tl.trans(s_QK)
        at = ((batch * heads + head) * n_queries + rows[:, None]) * n_keys + keys[None, :]
        tl.store(at + out, s_QK, mask=(rows[:, None] < n_queries) & (keys[None, :] < n_keys))


@pytest.mark.parametrize("sizes", [(1, 1), (7, 63), (65, 17)], ids=str)
@pytest.mark.parametrize(
    "options", ["", "causal", "mask", "padding", "causal lengths mask", "causal lengths padding"]
)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("keys_first", [False, True])
def test_a_tile_holds_the_scores(sizes, options, groups, keys_first):
    n_queries, n_keys = sizes
    q = torch.randn(2, n_queries, 4, 5).transpose(1, 2)  # heads and rows interleaved
    k = torch.randn(2, groups, n_keys, 5)
    given = {}
    if "causal" in options:
        given["causal"] = True
    if "lengths" in options:
        given["lengths"] = torch.tensor([n_keys, n_keys // 2])
    if "mask" in options:
        given["mask"] = torch.rand(2, 1, n_queries, n_keys) > 0.3
    if "padding" in options:  # the same for all queries
        given["mask"] = torch.rand(2, 1, 1, n_keys) > 0.3
    scores = Scores(q, k, **given)
    call = tiles.Call.of(scores)
    out = torch.full(scores.shape, torch.nan)
    n_blocks = -(-n_queries // 16)
    constants = {"PADDED": 16, "ROWS": 16, "KEYS": 32, "KEYS_FIRST": keys_first}
    _scores[(n_blocks * 8,)](**call.arguments(), out=out, n_blocks=n_blocks, **constants)
    torch.testing.assert_close(out, scores.rows())
