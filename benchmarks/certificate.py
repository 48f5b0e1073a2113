"""How often the one-sweep selection of top-k attention cannot prove its choice.

All queries of a block are swept a second time where one of them has no proof. Of short rows also
the share of rows is told: those with as many kept keys in one bucket (keys of equal remainder by a
tile's width) as it remembers. The kernel of long rows keeps other books, and tells of blocks only.
"""

from collections.abc import Sequence
from importlib import import_module

import torch
from torch import Tensor

from benchmarks.gpu_cases import Case
from benchmarks.peers import FAILURES, one_line
from headwise.ops.scores import Scores


@torch.no_grad()
def failures(case: Case, inputs: Sequence[Tensor]) -> dict[str, float | str]:
    """The share of blocks that were swept again, and of rows of the first head without a proof."""
    # what only lists keys sweeps short rows as it does long ones, and keeps its flags to itself
    if case.question.keep is None or not case.question.leaves:
        return {}
    try:
        found: dict[str, float | str] = {"flagged_blocks": round(_blocks(case, inputs), 6)}
        rows = _rows(case, inputs)
    except FAILURES as problem:  # figures beside the times; the times stand without them
        return {"flagged": f"not known: {one_line(problem)}"}
    return found if rows is None else found | {"flagged_rows": round(rows, 6)}


def _blocks(case: Case, inputs: Sequence[Tensor]) -> float:
    """From the flags that the forward pass leaves for the backward pass, its last result."""
    q, k, v = inputs
    question = case.question
    assert question.keep is not None
    scores = Scores(q, k, mask=question.mask, causal=question.causal, lengths=question.lengths)
    kernels = import_module("headwise.ops.topk.triton")  # it imports Triton
    *_, flags = kernels._forward(
        q,
        k,
        v,
        scores.mask,
        scores.lengths,
        None,
        float(scores.multiplier),
        scores.first_position,
        scores.causal,
        min(question.keep, k.shape[2]),
        False,
        0.0,
    )
    return (flags != 0).double().mean().item()


def _rows(case: Case, inputs: Sequence[Tensor]) -> float | None:
    selection = import_module("headwise.ops.topk.selection")
    kernels = import_module("headwise.ops.topk.triton")
    question, n_keys = case.question, inputs[1].shape[2]
    keep = question.keep
    assert keep is not None
    if kernels._gathers(inputs[1], keep, 1.0):
        return None
    width = kernels._sweeps(*inputs[::2]).select.keys
    one = [x[:1, :1].float() for x in inputs[:2]]
    mask, lengths = (None if x is None else x[:1] for x in (question.mask, question.lengths))
    scores = Scores(*one, mask=mask, causal=question.causal, lengths=lengths)
    scores_QK = scores.rows()[0, 0]
    last_Q1 = scores_QK.topk(min(keep, n_keys), dim=-1).values[:, -1:]
    kept_QK = (scores_QK >= last_Q1) & scores_QK.isfinite()
    bucket_QK = (torch.arange(n_keys, device=kept_QK.device) % width).expand_as(kept_QK)
    count_QS = torch.zeros(len(kept_QK), width, device=kept_QK.device)
    count_QS.scatter_add_(1, bucket_QK, kept_QK.float())
    return (count_QS.amax(dim=1) >= selection.levels_for(keep)).double().mean().item()
