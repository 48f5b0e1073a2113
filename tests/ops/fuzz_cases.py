"""Checks of each op of `tests.ops.fuzz`, and the verdict on a case."""

from contextlib import nullcontext

import torch

from tests.ops.fuzz_attention import check_entmax, check_topk
from tests.ops.fuzz_checks import Judged
from tests.ops.fuzz_inputs import Case
from tests.ops.fuzz_sweeps import check_guidance, check_statistics
from tests.ops.fuzz_tiles import small_tiles

CHECKS = {
    "topk": check_topk,
    "entmax": check_entmax,
    "statistics": check_statistics,
    "guidance": check_guidance,
}


def judge(case: Case, device: str) -> tuple[str | None, int, int]:
    """Return the problem or None, the blocks of queries without a certificate, and all blocks."""
    with small_tiles(case.variant) if device == "cpu" else nullcontext():
        judged = CHECKS[case.op](case)
    numbers = [number for check in judged.checks for number in check[1:]]
    if judged.flagged is not None:
        numbers.append(judged.flagged)
    values = torch.stack(
        [number.double() for number in numbers]
    ).tolist()  # the one synchronisation
    problem = _problem(judged, values)
    return problem, int(values[-1]) if judged.blocks else 0, judged.blocks


def _problem(judged: Judged, values: list[float]) -> str | None:
    pairs = zip(judged.checks, values[::2], values[1::2], strict=False)
    wrong = [
        f"{check.name} off by {error:.2e}, allowed {allowed:.2e}"
        for check, error, allowed in pairs
        if not error <= allowed
    ]
    return "; ".join(wrong) or None
