"""The kept keys of top-k attention as a list, by Triton kernels, interpreted."""

import pytest
import torch
from torch import Tensor

from headwise.ops.topk import topk_selected
from tests.ops.attention_cases import inputs

pytest.importorskip("triton", reason="Triton is not installed")
from tests.ops.test_topk_triton import SMALL, interpreted, kernels, selection

IN_DOUBT = 1  # a flag of a block of queries


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch) -> None:
    """Use small tiles and few levels."""
    monkeypatch.setattr(kernels, "SINGLE", kernels.Sweeps(*[SMALL] * 5))
    monkeypatch.setattr(selection, "LEVELS", {64: 2})


@interpreted
def test_queries_in_doubt_list_their_first_keys(poisoned_memory, monkeypatch):
    flags, list_flagged = [], kernels.list_flagged

    def watched(call, listed) -> None:
        flags.extend(listed.flags.tolist())
        list_flagged(call, listed)

    monkeypatch.setattr(kernels, "list_flagged", watched)
    q, k, _ = inputs(3, 40, heads=1)
    selected = topk_selected(
        q, torch.ones_like(k), keep=4, lengths=torch.tensor([40, 3]), impl="triton"
    )
    assert flags[0] == IN_DOUBT  # more keys tie than there is room for
    assert selected.keys[0, 0].tolist() == [[0, 1, 2, 3]] * 3
    assert selected.keys[1, 0].tolist() == [[0, 1, 2, -1]] * 3
    torch.testing.assert_close(selected.weights[0], torch.full((1, 3, 4), 1 / 4))
    torch.testing.assert_close(selected.weights[1, 0, :, :3], torch.full((3, 3), 1 / 3))
    assert not selected.weights[1, 0, :, 3].any()


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numbers overflow aloud
def test_a_query_that_is_not_a_number_has_no_weights(poisoned_memory):
    q, k, _ = inputs(3, 20, batch=1, heads=1)
    q[0, 0, 1] = torch.nan
    selected = topk_selected(q, k, keep=2, impl="triton")
    of_it = selected.weights.isnan().all(dim=-1)
    assert of_it.flatten().tolist() == [False, True, False]


def given_to(q: Tensor, k: Tensor) -> tuple[object, ...]:
    """Return the arguments of the custom op."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(2)
    return q, k, mask, torch.tensor([6]), 0.5, 2, True, 3


@interpreted
def test_the_operation_is_registered_as_torch_wants_it():
    q, k, _ = inputs(5, 7, batch=1, heads=2, groups=1)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(kernels._selected, given_to(q, k), test_utils=tests)


@interpreted
def test_the_operation_compiles_as_one_graph():
    def weights(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        keys, weights = kernels._selected(*given_to(q, k))
        return keys + 1, 2 * weights

    q, k, _ = inputs(5, 7, batch=1, heads=2, groups=1)
    compiled = torch.compile(weights, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k), weights(q, k))
