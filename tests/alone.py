"""Running something in a Python of its own, and in two processes that train together."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed

ROOT = Path(__file__).parents[1]


def run_alone(*command: str) -> str:
    """What a fresh Python prints, started from the root of the repository, on the CPU."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_two_processes(train: Callable[[int], None], meeting: Path) -> None:
    """Call `train` with rank 0 and rank 1, each in a process of one group; a file is made."""
    children: list[int] = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            where = f"file://{meeting}"
            distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
            train(rank)
            distributed.destroy_process_group()
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
