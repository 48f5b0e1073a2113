"""Several trainings of an experiment at the same time, each in a process of its own.

An experiment finds what it trained before. So trainings that do not need each other are made here
first, as many at a time as the setting `at_once` says, and then the experiment goes on as if it had
made them one after the other.
"""

import gc
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch

from headwise.recording.run import Run
from headwise.training import progress_bar

__all__ = ["in_company", "make_at_once", "note_company"]

Job = TypeVar("Job")
COMPANY = "at-once.json"
TOO_LITTLE = ("out of memory", "ALLOC_FAILED")  # how CUDA and its libraries say so


@runtime_checkable
class AtOnce(Protocol):
    """Settings that say how many trainings there are at a time."""

    @property
    def at_once(self) -> int: ...


def note_company(config: AtOnce, done: Run) -> None:
    """Write down that others were trained beside, so that its speed says nothing."""
    if config.at_once > 1:
        done.write_json(COMPANY, {"at_once": config.at_once})


def in_company(runs: Iterable[Run]) -> bool:
    """Whether one of some trainings, of this experiment or lent, had others beside it."""
    return any(run.has(COMPANY) for run in runs)


def make_at_once(
    make: Callable[[Run, Job], object], jobs: Sequence[Job], *, run: Run, processes: int
) -> None:
    """Call `make(run, job)` for every job; with one process nothing is done ahead.

    What the processes print goes to `at-once/<process>.log` of the run. The first error stops what
    has not begun and is raised; what is finished stays. Jobs that find too little memory on a
    device which they share are made again, half as many at a time, as long as there is a half.

    Args:
        make: leaves what it made in the run; a function of a module, or a `partial` of one.
        jobs: in this order.
        run: of the experiment.
        processes: at a time.
    """
    if processes < 1:
        raise ValueError(f"at_once must be at least 1, got {processes}.")
    if processes == 1:
        return
    logs = run.path("at-once")
    logs.mkdir(exist_ok=True)
    while jobs:
        processes = min(processes, len(jobs))
        too_large = _make_some(make, jobs, run=run, processes=processes, logs=logs)
        if too_large and processes == 1:
            raise ValueError(
                f"{too_large[0]} finds too little memory on the device even alone; what it said is "
                f"in {logs}."
            )
        jobs, processes = too_large, max(1, processes // 2)


def _make_some(
    make: Callable[[Run, Job], object],
    jobs: Sequence[Job],
    *,
    run: Run,
    processes: int,
    logs: Path,
) -> list[Job]:
    """Make what fits; those that found too little memory on the device are returned."""
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),  # a forked process cannot use CUDA
        initializer=_begin,
        initargs=(logs, max(1, torch.get_num_threads() // processes)),
    )
    with pool, progress_bar(len(jobs), label=f"{processes} at once") as show:
        made = [pool.submit(_make, make, run.folder, job) for job in jobs]
        try:
            for done, one in enumerate(as_completed(made), start=1):
                one.result()
                show(done, {})
            return [job for job, one in zip(jobs, made, strict=True) if not one.result()]
        except BrokenProcessPool as error:
            raise ValueError(
                f"One of at_once={processes} processes was ended from outside, perhaps for want of "
                f"memory; what they printed is in {logs}. The same command goes on from there."
            ) from error
        except BaseException:
            _cancel(made)
            raise


def _begin(logs: Path, threads: int) -> None:
    """Print to a file, leave the other processes their share of the processor, end with the first.

    If that is killed, the others would go on, take what is left to do, and then wait for ever with
    the memory they hold; and whoever starts the command again would train beside them.
    """
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    log = os.open(logs / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    torch.set_num_threads(threads)


def _end_with_the_first() -> None:
    first = multiprocessing.parent_process()
    assert first is not None
    first.join()
    os._exit(1)


def _make(make: Callable[[Run, Job], object], folder: Path, job: Job) -> bool:
    """Whether there was memory enough. Other errors are raised."""
    enough = True
    try:
        make(Run.open(folder), job)
    except RuntimeError as problem:
        if not any(words in str(problem) for words in TOO_LITTLE):
            raise
        enough = False
        traceback.print_exc()
    gc.collect()  # a recorded training step holds itself
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return enough


def _cancel(made: Sequence[Future[bool]]) -> None:
    for one in made:
        one.cancel()
