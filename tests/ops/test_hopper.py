"""Kernels compile for the device they are made for, also where there is none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hopper.py")


@pytest.mark.slow  # three minutes the first time; Triton keeps what it compiled
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
    spilled = [int(found) for found in re.findall(r"spilled (\d+)", done.stdout)]
    assert spilled and max(spilled) <= 128, done.stdout
