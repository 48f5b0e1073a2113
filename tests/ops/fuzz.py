"""Random calls of all attention kernels, forward and backward, held to their definitions.

    python -m tests.ops.fuzz [--seconds 240] [--seed S] [--count N] [--only OP] [--device cuda|cpu]

Inputs are drawn fresh at every run: the seed comes from the clock unless given. A case follows from
its op and seed alone, so that a mismatch can be had again. Sizes are any; what must be compiled is
`fuzz_variants.VARIANTS`, shared out among processes, as compiling takes longer than running. With
--device cpu kernels run in Triton's interpreter, with tiles of 16 and a few dozen keys.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from queue import Empty

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.ops.fuzz_variants import VARIANTS, variant_of

MOST_FAILURES = 10
MOST_JOBS = 12  # processes that share the device
PATIENCE = 90  # seconds that a case begun in time may still take


@dataclass(frozen=True)
class Plan:
    """Cases to run: for each op the seeds from `first` on, until time is up."""

    ops: tuple[str, ...]
    seed: int
    count: int | None
    device: str
    end: float  # by time.time()

    def cases(self, job: int = 0, jobs: int = 1) -> Iterator[tuple[str, int]]:
        """Yield the cases of a job: all of some variants."""
        for number in count() if self.count is None else range(self.count):
            for op in self.ops:
                seed = self.seed + number
                if variant_of(op, seed)[0] % jobs != job:
                    continue
                if time.time() > self.end:
                    return
                yield op, seed


@dataclass(frozen=True)
class Outcome:
    """Result of one case."""

    op: str
    seed: int
    problem: str | None  # what was wrong, or None
    about: str  # the case in words
    seconds: float
    flagged: int = 0
    blocks: int = 0
    lost: bool = False  # the device does not answer any more


@dataclass
class Tally:
    """Row of the table for one op."""

    cases: int = 0
    failures: int = 0
    flagged: int = 0
    blocks: int = 0
    seconds: float = 0.0
    variants: set[int] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        """Count a case."""
        self.cases += 1
        self.failures += outcome.problem is not None
        self.flagged += outcome.flagged
        self.blocks += outcome.blocks
        self.seconds += outcome.seconds
        self.variants.add(variant_of(outcome.op, outcome.seed)[0])


def main(arguments: list[str] | None = None) -> int:
    """Run, report and return the exit status: 1 if there was a mismatch."""
    options = _parse(arguments)
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    seed = time.time_ns() // 1000 % 2**40 if options.seed is None else options.seed
    ops = (options.only,) if options.only else tuple(VARIANTS)
    plan = Plan(ops, seed, options.count, options.device, time.time() + options.seconds)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"Seed {seed}")
    tallies = {op: Tally() for op in ops}
    _follow(plan, _jobs(options), tallies, console)
    console.print(_table(tallies))
    return int(any(tally.failures for tally in tallies.values()))


def run_case(op: str, seed: int, device: str) -> Outcome:
    """Generate a case and check it. An exception of a kernel counts as a mismatch."""
    # Here and not above: they import Triton, for which the device must have been chosen.
    from triton import TritonError

    from tests.ops.fuzz_cases import judge
    from tests.ops.fuzz_inputs import draw_case

    started = time.perf_counter()
    case = draw_case(op, seed, device)
    about = str(case)  # while the device still answers
    crashes = (RuntimeError, TritonError, ValueError, TypeError, AssertionError, LookupError,
               AttributeError, ArithmeticError, MemoryError)  # fmt: skip
    try:
        problem, flagged, blocks = judge(case, device)
    except crashes as crash:
        problem, flagged, blocks = f"{type(crash).__name__}: {crash}".strip()[:600], 0, 0
    seconds = time.perf_counter() - started
    lost = problem is not None and _is_lost(device)
    return Outcome(op, seed, problem, about, seconds, flagged, blocks, lost)


def _is_lost(device: str) -> bool:
    """Return whether the device is unusable after a crash, such as an illegal access."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.ops.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=240, help="begin no case later (240)")
    parser.add_argument("--seed", type=int, help="of the first case of each op (from the clock)")
    parser.add_argument("--count", type=int, help="cases of each op (as many as there is time for)")
    parser.add_argument("--only", choices=tuple(VARIANTS), help="one op")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(cuda)")
    parser.add_argument("--jobs", type=int, help=f"processes (up to {MOST_JOBS} on a GPU, else 1)")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or any(x is not None and x < 1 for x in (options.count, options.jobs)):
        parser.error("--seconds, --count and --jobs must be positive")
    if options.seed is not None and not 0 <= options.seed < 2**60:
        parser.error("--seed must be at least 0 and below 2^60")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU; --device cpu runs small cases in Triton's interpreter")
    return options


def _jobs(options: argparse.Namespace) -> int:
    """Split cases into jobs: one process for few cases, and in the interpreter."""
    if options.jobs:
        return options.jobs
    few = options.count is not None and options.count < MOST_JOBS
    if options.device == "cpu" or few:
        return 1
    return max(1, min(MOST_JOBS, (os.cpu_count() or 1) - 2))


def _follow(plan: Plan, jobs: int, tallies: dict[str, Tally], console: Console) -> None:
    """Show progress, print mismatches, and stop after too many."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
               TimeElapsedColumn())  # fmt: skip
    started = time.time()
    total = plan.end - started if plan.count is None else plan.count * len(plan.ops)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)
        for outcome in _outcomes(plan, jobs):
            tallies[outcome.op].add(outcome)
            cases = sum(tally.cases for tally in tallies.values())
            failures = sum(tally.failures for tally in tallies.values())
            done = time.time() - started if plan.count is None else cases
            progress.update(task, completed=done, description=f"{cases} cases, {failures} failures")
            if outcome.problem:
                _print_failure(outcome, plan.device, console)
            if failures >= MOST_FAILURES:
                break


def _print_failure(outcome: Outcome, device: str, console: Console) -> None:
    where = "" if device == "cuda" else f" --device {device}"
    command = f"python -m tests.ops.fuzz --only {outcome.op} --seed {outcome.seed} --count 1{where}"
    lines = [f"MISMATCH {outcome.op} seed {outcome.seed}: {outcome.about}",
             f"  {outcome.problem}", f"  {command}"]  # fmt: skip
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _outcomes(plan: Plan, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes of all cases, from this process or from workers."""
    if jobs > 1:
        yield from _reported(plan, jobs)
        return
    for op, seed in plan.cases():
        outcome = run_case(op, seed, plan.device)
        yield outcome
        if outcome.lost:
            return


def _reported(plan: Plan, jobs: int) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    given = ((plan, job, jobs, reports) for job in range(jobs))
    workers = [context.Process(target=_work, args=one, daemon=True) for one in given]
    for worker in workers:
        worker.start()
    working = jobs
    try:
        while working:
            try:
                report = reports.get(timeout=1)
            except Empty:
                _raise_if_dead(workers, late=time.time() > plan.end + PATIENCE)
                continue
            if report is None:
                working -= 1
            else:
                yield report
    finally:
        for worker in workers:
            worker.terminate()


def _work(
    plan: Plan, job: int, jobs: int, reports: "multiprocessing.Queue[Outcome | None]"
) -> None:
    """Run the cases of one process, then send None."""
    for op, seed in plan.cases(job, jobs):
        outcome = run_case(op, seed, plan.device)
        reports.put(outcome)
        if outcome.lost:
            break
    reports.put(None)


def _raise_if_dead(workers: list, *, late: bool) -> None:
    dead = [worker.exitcode for worker in workers if worker.exitcode]
    if dead:
        raise RuntimeError(f"a process ended with status {dead[0]}; use --jobs 1 to see where")
    if late:
        raise RuntimeError(f"a case took more than {PATIENCE} s; use --jobs 1 to see which")


def _table(tallies: dict[str, Tally]) -> Table:
    columns = ("op", "variants", "cases", "failures", "blocks without certificate", "seconds")
    table = Table(*columns, title="Kernels against their definitions")
    for op, tally in tallies.items():
        share = f"{tally.flagged / tally.blocks:.2%} of {tally.blocks}" if tally.blocks else "-"
        row = (op, len(tally.variants), tally.cases, tally.failures, share, f"{tally.seconds:.0f}")
        table.add_row(*map(str, row))
    return table


if __name__ == "__main__":
    sys.exit(main())
