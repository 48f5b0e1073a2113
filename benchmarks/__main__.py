"""The command. See `benchmarks/__init__.py`."""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import Benchmark, Measured, ops, sen
from headwise.recording.environment import describe_environment
from headwise.recording.files import write_text

BENCHMARKS: dict[str, Benchmark] = {"ops": ops.measure, "sen": sen.measure}
RESULTS = Path(__file__).parent.parent / "results"


def main() -> None:
    """Run the named benchmarks, print their tables and save them if asked."""
    options = _parse(sys.argv[1:])
    torch.set_num_threads(options.threads)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name in options.names or BENCHMARKS:
        measured = BENCHMARKS[name](options.repeat)
        console.print(measured.table)
        if options.save:
            path = RESULTS / f"{name}-cpu.json"
            write_text(path, json.dumps(_document(measured), indent=2) + "\n")
            console.print(f"Saved results/{path.name}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument("--repeat", type=int, default=5, help="turns each contestant gets (5)")
    parser.add_argument("--save", action="store_true", help="write results/NAME-cpu.json")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown or options.threads < 1 or options.repeat < 1:
        parser.error(
            f"unknown benchmark {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}"
            if unknown
            else "--threads and --repeat must be at least 1"
        )
    return options


def _document(measured: Measured) -> dict[str, object]:
    environment = describe_environment(seed=ops.SEED)
    environment["command"] = ["python", "-m", "benchmarks", *sys.argv[1:]]
    environment["versions"]["entmax"] = version("entmax")
    return {"environment": environment, "rows": measured.rows}


if __name__ == "__main__":
    main()
