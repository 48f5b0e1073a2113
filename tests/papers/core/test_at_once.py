"""Trainings in several processes leave what one process leaves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from headwise.recording.run import Run
from headwise_papers.core.at_once import make_at_once
from headwise_papers.sparse_transformer.choose_k import experiment


@dataclass(frozen=True)
class _Config:
    at_once: int = 2


def test_processes_begin_by_themselves_and_what_one_raises_is_raised(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", _Config()) as run:
        with pytest.raises(ValueError, match=r"missing\.json"):
            make_at_once(Run.read_json, ["config.json", "missing.json"], run=run, processes=2)
        assert run.names("at-once/*.log")


def short_of_memory(run: Run, place: tuple[str, int]) -> None:
    """Fails as often as it is told, as a device does whose memory others hold."""
    name, failures = place
    tried = len(run.names(f"tried/{name}-*"))
    run.write_text(f"tried/{name}-{tried}", str(os.getpid()))
    if tried < failures:
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.slow
def test_jobs_that_find_too_little_memory_are_made_again_fewer_at_a_time(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", _Config()) as run:
        with pytest.raises(ValueError, match=r"never.* even alone"):
            make_at_once(short_of_memory, [("later", 1), ("never", 9)], run=run, processes=2)
        assert [len(run.names(f"tried/{name}-*")) for name in ("later", "never")] == [2, 2]


LASTING = """
import os, time
from dataclasses import dataclass
from headwise_papers.core.at_once import make_at_once
from headwise.recording.run import Run

@dataclass(frozen=True)
class Config:
    at_once: int = 2

def make(run, name):
    run.write_text(f"begun/{name}", str(os.getpid()))
    time.sleep(300)

if __name__ == "__main__":
    run = Run.create("run", Config())
    make_at_once(make, ["one", "two"], run=run, processes=2)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux for processes")
def test_processes_end_with_the_command_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "lasting.py").write_text(LASTING)
    begun = [tmp_path / "run" / "begun" / name for name in ("one", "two")]
    command = subprocess.Popen([sys.executable, "lasting.py"], cwd=tmp_path)
    try:
        wait_until(lambda: all(file.is_file() for file in begun))
    finally:
        command.kill()
        command.wait()
    processes = [file.read_text() for file in begun]
    try:
        wait_until(lambda: not any(map(is_running, processes)))
    finally:
        for process in filter(is_running, processes):
            os.kill(int(process), signal.SIGKILL)
    assert not (tmp_path / "run" / "begun" / "later").exists()


def is_running(process: str) -> bool:
    """Whether there is such a process, and not only what is left of one that nobody waits for."""
    state = Path("/proc", process, "stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(true: Callable[[], bool]) -> None:
    """For two minutes at most."""
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_refuses_no_process_and_leaves_one_to_the_experiment(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", _Config()) as run:
        make_at_once(Run.log, [1], run=run, processes=1)
        assert run.metrics() == []
        with pytest.raises(ValueError, match="at least 1"):
            make_at_once(Run.log, [1], run=run, processes=0)


@pytest.mark.slow
def test_an_experiment_finds_the_same(tmp_path: Path, data_folder: Path) -> None:
    found: list[dict[str, list[float]]] = []
    for processes in (1, 2):
        config = replace(experiment.smoke, at_once=processes)
        with Run.create(tmp_path / str(processes), config) as run:
            found.append(experiment.reproduce(config, run))
    assert found[0] == found[1]
