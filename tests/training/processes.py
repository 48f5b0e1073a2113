"""A training by two processes on the CPU, and the same by one.

    python -m tests.training.processes FOLDER

FOLDER gets the runs `one` (one process, two batches a step), `two` (two processes, a batch each),
`mixed`, like `two` by `accelerate launch --mixed_precision bf16`, and `again`, like `two` with
dropout, killed and started again, beside `whole`, which was not.
"""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import accelerate
import torch

from headwise.recording import Run
from headwise.training import FitConfig, fit
from tests.training.noise import CONFIG, batch, evaluate, make_model, summed_loss

STEPS = replace(CONFIG, steps=12, patience=0, precision="float32", epsilon=1e-3)


def train(folder: Path, config: FitConfig, *, dropout: float, stop: int = 0) -> None:
    def progress(step: int, metrics: object) -> None:
        if step == stop:
            os._exit(9)

    model = make_model()
    model[1].p = dropout
    with accelerate.Accelerator().main_process_first():
        run = Run.create(folder, config)
    fit(
        model,
        summed_loss,
        batch,
        run=run,
        config=config,
        evaluate=evaluate,
        progress=progress,
        tokens=lambda batch: len(batch[0]),
    )


def in_processes(count: int, folder: Path, config: FitConfig, **options: float) -> list[int]:
    """Exit codes of so many processes that train together, or are killed together."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    world = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    processes: list[int] = []
    for rank in range(count):
        process = os.fork()
        if process == 0:
            torch.set_num_threads(1)
            if count > 1:
                os.environ |= {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            train(folder, config, **options)
            os._exit(0)
        processes.append(process)
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def main(folder: Path) -> None:
    os.environ |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    single = replace(STEPS, accumulate=1)
    assert in_processes(1, folder / "one", STEPS, dropout=0.0) == [0]
    assert in_processes(2, folder / "two", single, dropout=0.0) == [0, 0]
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"  # as the launcher does
    assert in_processes(2, folder / "mixed", single, dropout=0.0) == [0, 0]
    del os.environ["ACCELERATE_MIXED_PRECISION"]
    assert in_processes(2, folder / "whole", STEPS, dropout=0.5) == [0, 0]
    # the first process ends by itself, the second when it misses the first
    assert in_processes(2, folder / "again", STEPS, dropout=0.5, stop=9)[0] == 9
    assert in_processes(2, folder / "again", STEPS, dropout=0.5) == [0, 0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
