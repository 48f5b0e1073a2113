"""Pre-training on a GPU: compiled steps that are replayed learn what compiled steps learn.

Each training is a command in a process of its own, as what checks shapes in tests cannot be
compiled.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.recording import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# the command, which says when it records a step
TELLING = """
from headwise.cli import main
from headwise.ops.graphs import Replayed
record = Replayed._record
def told(*given):
    print("a step was recorded")
    return record(*given)
Replayed._record = told
main()
"""
SETTINGS = {
    "width": 64,
    "heads": 4,
    "feed_forward": 128,
    "layers": 2,
    "vocab_size": 280,
    "max_length": 32,
    "batch_size": 8,
    "steps": 40,  # several are compiled and recorded before the first is replayed
    "warmup": 4,
    "learning_rate": 3e-3,
    "dropout": 0.0,  # a replayed step drops others
    "attention_dropout": 0.0,
    "evaluate_every": 20,
    "checkpoint_every": 40,
    "compile": "true",
}


@pytest.mark.parametrize("guide", ["", "next=1,prev=1,first=1"], ids=["plain", "guided"])
def test_compiled_steps_that_are_replayed_have_the_losses_of_those_that_are_not(guide, tmp_path):
    replayed, stepped = (losses(tmp_path, plan=guide, graphs=graphs) for graphs in (True, False))
    assert len(stepped) >= (14 if guide else 10)
    assert stepped["loss", 40] < stepped["loss", 10]  # there was something to learn
    assert replayed == pytest.approx(stepped, rel=1e-2)


def losses(folder: Path, *, guide: str, graphs: bool) -> dict[tuple[str, int], float]:
    """Of a training, by name and update."""
    lines = (f"ann saw bob and {n % 7} of {n % 5} ran .\n\n" for n in range(400))
    (folder / "text.txt").write_text("".join(lines))
    given = {**SETTINGS, "plan": guide, "graphs": str(graphs).lower()}
    options = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    out = folder / ("replayed" if graphs else "stepped")
    train = [sys.executable, "-c", TELLING, "train", "mlm", "--file", "text.txt"]
    done = subprocess.run(
        [*train, "--out", str(out), *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("a step was recorded" in done.stdout) == graphs
    rows = Run.open(out).metrics()
    return {
        (name, int(row["step"])): value
        for row in rows
        for name, value in row.items()
        if name.endswith("loss")
    }
