"""Try every verb of Headwise on a tiny random model of every family of transformers.

    python -m tests.hf.survey [--only NAME…] [--jobs 2] [--write docs/models.md] [--resume]

Each family runs in a process of its own, with a limit of time and memory. Results are kept as JSON
lines in runs/survey.jsonl (or --rows FILE), which --resume continues. Exits with 1 if anything is
wrong: outputs that differ, an unexpected exception, or a verb without effect.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.utils import logging

import headwise
import headwise.pruning
from tests.hf.survey import page, tiny
from tests.hf.survey.trying import Row, try_family

SECONDS, PATIENCE, MEMORY = 120, 600, 16 << 30  # of CPU time, of a busy machine, in bytes
KEPT = Path("runs/survey.jsonl")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="tests.hf.survey")
    parser.add_argument("--only", nargs="+", default=[], help="families, as folders are named")
    parser.add_argument("--jobs", type=int, default=2, help="processes in parallel")
    parser.add_argument("--write", type=Path, help="page to write")
    parser.add_argument("--rows", type=Path, default=KEPT, help="file of results")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the last run")
    chosen = parser.parse_args(arguments)
    _import_all()
    known = tiny.families()
    if unknown := set(chosen.only) - set(known):
        parser.error(f"transformers has no family {', '.join(sorted(unknown))}.")
    rows = _kept(chosen.rows) if chosen.resume else []
    done = {row["family"] for row in rows}
    todo = [name for name in chosen.only or known if name not in done]
    chosen.rows.parent.mkdir(parents=True, exist_ok=True)
    with chosen.rows.open("a" if chosen.resume else "w") as file:
        for row in _in_parallel(todo, chosen.jobs):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    rows.sort(key=lambda row: (row["family"], row["model"]))
    if chosen.write:
        chosen.write.write_text(page.page(rows), encoding="utf-8")
    print(page.counts(rows))
    for line in (problems := page.wrong(rows)):
        print(line)
    return 1 if problems else 0


def _kept(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _import_all() -> None:
    """Import what verbs use before processes are forked, so that none has to do it again."""
    for package in (headwise, headwise.pruning):
        for name in package.__all__:
            getattr(package, name)


def _in_parallel(todo: list[str], jobs: int) -> Iterator[Row]:
    """The rows of each family as they come; a process that dies or takes too long gets a row."""
    context = multiprocessing.get_context("fork")  # torch and transformers are imported once
    waiting, live = list(reversed(todo)), dict[Connection, tuple[str, float, object]]()
    columns = (TextColumn("{task.description:30}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn()) as progress:
        bar = progress.add_task("", total=len(todo))
        while waiting or live:
            while waiting and len(live) < jobs:
                name = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(name, theirs))
                process.start()
                theirs.close()
                live[ours] = (name, time.monotonic(), process)
                progress.update(bar, description=name)
            ready = wait(list(live), timeout=1)
            for ours, (name, since, process) in list(live.items()):
                late = time.monotonic() - since > PATIENCE
                if ours not in ready and not late:
                    continue
                yield from _received(ours, name, late)
                process.kill()
                process.join()
                del live[ours]
                progress.advance(bar)


def _received(ours: Connection, name: str, late: bool) -> list[Row]:
    reason = f"the process hung for {PATIENCE} seconds"
    if not late or ours.poll():
        try:
            return ours.recv()
        except EOFError:
            reason = f"the process died, or took more than {SECONDS} seconds"
    return [Row(family=name, model="", reason=reason, cells={})]


def _work(name: str, theirs: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    theirs.send(try_family(name))
    theirs.close()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    sys.exit(main())
