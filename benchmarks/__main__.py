"""The command. See `benchmarks/__init__.py`."""

import argparse
import json
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import SEED, Benchmark, Measured
from headwise.recording.environment import describe_environment
from headwise.recording.files import write_text

# Where each can run. A benchmark is imported only when it is asked for, since its peers may be
# packages that are not there.
BENCHMARKS = {"ops": ("cpu",), "sen": ("cpu", "cuda"), "relevance": ("cpu", "cuda")}
RESULTS = Path(__file__).parent.parent / "results"


def main() -> None:
    """Run the named benchmarks, print their tables and save them if asked."""
    options = _parse(sys.argv[1:])
    torch.set_num_threads(options.threads)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name in options.names or BENCHMARKS:
        device = _device(name, options.device)
        measured = _load(name)(options.repeat, device)
        console.print(measured.table)
        if options.save:
            path = RESULTS / f"{name}-{'gpu' if device.type == 'cuda' else 'cpu'}.json"
            write_text(path, json.dumps(_document(measured), indent=2) + "\n")
            console.print(f"Saved results/{path.name}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(auto)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument("--repeat", type=int, default=5, help="turns each contestant gets (5)")
    parser.add_argument("--save", action="store_true", help="write results/NAME-cpu or -gpu.json")
    options = parser.parse_args(arguments)
    obstacle = _obstacle(options)
    if obstacle:
        parser.error(obstacle)
    return options


def _obstacle(options: argparse.Namespace) -> str | None:
    """Why these options cannot be obeyed, in a sentence."""
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        return f"unknown benchmark {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}"
    if options.threads < 1 or options.repeat < 1:
        return "--threads and --repeat must be at least 1"
    if options.device != "cuda":
        return None
    without = [name for name in options.names or BENCHMARKS if "cuda" not in BENCHMARKS[name]]
    if without:
        return f"{without[0]} has no GPU version yet; run it with --device cpu"
    return None if torch.cuda.is_available() else "--device cuda was asked for, but there is no GPU"


def _device(name: str, asked: str) -> torch.device:
    if asked != "auto":
        return torch.device(asked)
    possible = "cuda" in BENCHMARKS[name] and torch.cuda.is_available()
    return torch.device("cuda" if possible else "cpu")


def _load(name: str) -> Benchmark:
    try:
        return import_module(f"benchmarks.{name}").measure
    except ModuleNotFoundError as missing:
        if missing.name != "entmax":
            raise
        print(f"{name} compares with the package entmax; install headwise[bench].", file=sys.stderr)
        raise SystemExit(2) from missing


def _document(measured: Measured) -> dict[str, object]:
    environment = describe_environment(seed=SEED)
    environment["command"] = ["python", "-m", "benchmarks", *sys.argv[1:]]
    try:
        environment["versions"]["entmax"] = version("entmax")
    except PackageNotFoundError:
        environment["versions"]["entmax"] = None
    return {"environment": environment, "rows": measured.rows}


if __name__ == "__main__":
    main()
