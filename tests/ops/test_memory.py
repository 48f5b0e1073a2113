"""A long call fits in little memory: the promise of Attended, measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

METER = Path(__file__).with_name("memory.py")


def extra_mb(op: str, length: int, use: str) -> float:
    command = [sys.executable, str(METER), op, str(length), use]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    meter = json.loads(done.stdout)
    print(f"\n{op}, B=1 H=8 n={length} d=64, {use}: {meter}")
    return meter["extra_mb"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute alone, minutes on a busy machine
@pytest.mark.parametrize("op", ["softmax", "topk"])
def test_all_statistics_of_a_long_call_fit_in_600_mb(op):
    """The matrix itself would take 8 * 16384 * 16384 * 4 bytes = 8192 MB."""
    assert extra_mb(op, 16384, "statistics") <= 600


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("op", "use"),
    [
        ("softmax", "gradients"),
        ("softmax", "statistics"),
        ("topk", "statistics"),
        ("topk", "output"),
        ("sparsemax", "statistics"),
        ("entmax", "statistics"),
        ("sparsemax", "gradients"),
        ("sparsemax", "output"),
    ],
)
def test_a_long_call_takes_a_few_blocks(op, use):
    """A matrix would take 512 MB, and autograd would keep several."""
    assert extra_mb(op, 4096, use) <= 250
