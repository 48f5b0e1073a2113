"""Kernels compile for the device they are made for, also where there is none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hopper.py")
LIMIT = 128  # bytes a thread
# These spill before and after their innermost loops, never inside, and smaller tiles would read
# more from memory in every turn of those.
LIMITS = {
    "headwise.ops.entmax.backward for_keys": 256,  # between the heads that share keys
    "headwise.ops.entmax.forward resident": 640,  # with a mask, outside of the steps to tau
}


@pytest.mark.slow  # five minutes the first time; Triton keeps what it compiled
@pytest.mark.timeout(900)
def test_kernels_compile_for_a_device_and_stay_in_its_registers():
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if not (Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas").exists():
        pytest.skip("this Triton has no assembler for NVIDIA's devices")
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    spilled = re.findall(r"^(\S+ \S+) (.*) spilled (\d+)", done.stdout, flags=re.MULTILINE)
    assert spilled
    above = [line for line in spilled if int(line[2]) > LIMITS.get(line[0], LIMIT)]
    assert not above, above
