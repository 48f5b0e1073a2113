"""Kernels compile for a Hopper GPU, also on machines without one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hopper.py")
LIMIT = 128  # bytes a thread
# What is known to spill more, as a pattern of its line. Smaller tiles would read more from memory,
# and tiles of calls that the benchmark times are those that were fastest there.
LIMITS = {
    r"entmax\.backward for_keys": 256,  # between the heads that share keys
    r"entmax\.backward for_keys .*'WIDTH': 128, 'CAUSAL': True": 368,
    r"entmax\.forward resident .*'MASKED': 1": 640,  # outside of the steps to tau
    r"entmax\.forward resident .*'POWER': 0, 'DROPOUT': True": 160,
    r"entmax\.forward streaming": 288,  # mostly between its loops over keys
    r"entmax\.forward streaming .*'ROWS': 128": 672,
    r"topk\.merged _merged_kernel .*'WIDTH': 48.*dropout": 208,
    r"topk\.selection _select_kernel .*'LEVELS': 4": 160,
    r"topk\.weighing _weigh_kernel .*dropout": 136,
    # Only runs for queries in doubt.
    r"topk\.weighing _queries_kernel .*'WIDTH': 128.* 1100 keys": 480,
}


def limit(line: str) -> int:
    """Return how many bytes the kernel of a report line may spill."""
    return max((most for known, most in LIMITS.items() if re.search(known, line)), default=LIMIT)


@pytest.mark.slow  # some 560 kernels, minutes the first time; Triton keeps what it compiled
@pytest.mark.timeout(1800)
def test_kernels_compile_for_a_device_and_stay_in_its_registers():
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if not (Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas").exists():
        pytest.skip("this Triton has no assembler for NVIDIA's devices")
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    spilled = re.findall(r"^(.*) spilled (\d+)", done.stdout, flags=re.MULTILINE)
    assert spilled
    above = [line for line in spilled if int(line[1]) > limit(line[0])]
    assert not above, above
