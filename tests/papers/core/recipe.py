"""A recipe small enough for tests: a line fitted by gradient descent, with checkpoints."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.recording.run import Run

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class LineConfig:
    """Settings; `stop_at` raises after so many steps, but only if nothing was resumed."""

    slope: float = 2.0
    steps: int = 4
    seed: int = 0
    stop_at: int | None = None
    out_of_memory: int = 0  # how many times the GPU is said to be full
    seconds: float = 0.0  # to wait before training


def train_line(config: LineConfig, folder: Path) -> Run:
    """Fit y = slope * x, and write the loss; resume from the last step."""
    with Run.create(folder, config) as run:
        started = len(run.names("started/*"))
        run.write_text(f"started/{started}", str(os.getpid()))
        if started < config.out_of_memory:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        time.sleep(config.seconds)
        generator = torch.Generator().manual_seed(config.seed)
        x = torch.randn(32, generator=generator)
        w, done = torch.zeros(()), 0
        if run.has(CHECKPOINT):
            w, done = run.load_tensors(CHECKPOINT)["w"], int(run.note(CHECKPOINT)["step"])
        for step in range(done, config.steps):
            if step == config.stop_at and not started:
                raise KeyboardInterrupt
            w = w - 0.2 * (2 * x * (w * x - config.slope * x)).mean()
            run.log(step, loss=float(((w - config.slope) * x).square().mean()))
            run.save_tensors(CHECKPOINT, {"w": w}, {"step": str(step + 1)})
        run.save_tensors("model.safetensors", {"w": w})
        run.save_figures({"slope": float(w), "first_step": done})
    return run
