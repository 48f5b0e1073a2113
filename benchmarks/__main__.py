"""The command, `python -m benchmarks` or `python -m benchmarks`. See `benchmarks/__init__.py`."""

import argparse
import gc
import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import SEED, Measured, Parser
from headwise.recording.environment import describe_environment
from headwise.recording.files import write_text

# Where each can run, and the module that does it. A benchmark is imported only when it is asked
# for, since its peers may be packages that are not there.
BENCHMARKS = {
    "ops": {"cpu": "ops", "cuda": "gpu_ops"},
    "sen": {"cpu": "sen", "cuda": "sen"},
    "relevance": {"cpu": "relevance", "cuda": "relevance"},
    "guided-step": {"cuda": "guided_step"},
    "translation": {"cpu": "translation", "cuda": "translation"},
    "fit": {"cpu": "fitting", "cuda": "fitting"},
    "mlm": {"cpu": "encoder", "cuda": "encoder"},
    "inspect": {"cpu": "inspecting", "cuda": "inspecting"},
    "prune": {"cpu": "pruning", "cuda": "pruning"},
}
REPEAT = {"gpu_ops": 20, "guided_step": 10}  # turns of each contestant; 5 elsewhere
# What --only takes: parts of a benchmark, by its module.
PARTS = {
    "ops": ("softmax", "topk", "entmax", "sparsemax", "statistics", "guidance"),
    "gpu_ops": (
        *("softmax", "topk", "entmax", "sparsemax", "statistics", "guidance"),
        "adasplash",  # causal entmax with that peer tuned, which takes minutes
    ),
    "guided_step": ("usual",),  # nothing compiled, which takes minutes
    "translation": ("training", "decoding"),
    "inspecting": ("time", "memory", "relevance"),
    "pruning": ("usual", "attention"),
}
RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


def main(
    arguments: Sequence[str] | None = None,
    *,
    command: Sequence[str] = ("python", "-m", "benchmarks"),
    out: str | None = None,
) -> None:
    """Run the named benchmarks, print their tables and write them if asked.

    Args:
        arguments: of the command line.
        command: what they were given to.
        out: the folder to write to unless they name one.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(arguments, " ".join(command), out)
    torch.set_num_threads(options.threads)
    environment = describe_environment(seed=SEED)
    environment["command"] = [*command, *arguments]
    wrong = sum(_run(name, options, environment) for name in _names(options))
    if wrong:
        print(f"headwise: {wrong} wrong; no speed is reported for what is wrong.", file=sys.stderr)
        raise SystemExit(1)


def _run(name: str, options: argparse.Namespace, environment: dict[str, Any]) -> int:
    """Run one; how many contestants were wrong, peers that are told of apart not counted."""
    console = Console(width=None if sys.stdout.isatty() else 220)
    device = _device(name, options.device)
    module = BENCHMARKS[name][device.type]
    repeat = options.repeat or REPEAT.get(module, 5)
    settings = {"benchmark": name, "device": device.type, "repeat": repeat, "only": options.only}
    paths = _paths(name, device, options)

    def keep(rows: list[Row]) -> None:
        document = {"environment": _with_peers(environment), "settings": settings, "rows": rows}
        for path in paths:
            write_text(path, json.dumps(document, indent=2) + "\n")

    measured = _measure(module, repeat, device, tuple(options.only), keep)
    keep(measured.rows)
    console.print(measured.table)
    if measured.wrong_peers:
        console.print(_told_of_peers(measured.wrong_peers), soft_wrap=True)
    for path in paths:
        console.print(f"Saved {_shown(path)}", soft_wrap=True)
    return measured.wrong


def _measure(
    module: str,
    repeat: int,
    device: torch.device,
    only: tuple[str, ...],
    keep: Callable[[list[Row]], None],
) -> Measured:
    measure = _load(module)
    # What was imported stays: looking for garbage in it takes a quarter of a second every time.
    gc.collect()
    gc.freeze()
    if module == "gpu_ops":
        return measure(repeat, device, only=only, keep=keep)
    if module == "guided_step":
        return measure(repeat, device, keep=keep, compiled=not only)
    if module in ("fitting", "encoder"):
        return measure(repeat, device, keep=keep)
    return measure(repeat, device, only=only) if only else measure(repeat, device)


def _told_of_peers(wrong: int) -> str:
    if wrong == 1:
        return "1 peer's answer was wrong; it is not timed."
    return f"{wrong} peers' answers were wrong; they are not timed."


def _parse(arguments: list[str], prog: str, out: str | None) -> argparse.Namespace:
    parser = Parser(prog=prog, description="Measure speed against peers, and print a table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(auto)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument(
        "--repeat", type=int, help="turns each contestant gets (5; on a GPU ops 20, guided-step 10)"
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        metavar="PART,…",
        help=f"of ops, some of {', '.join(PARTS['gpu_ops'])}; of guided-step, "
        f"{PARTS['guided_step'][0]}, which compiles nothing; of translation, "
        f"{' or '.join(PARTS['translation'])}; of inspect, {', '.join(PARTS['inspecting'])}",
    )
    parser.add_argument(
        "--save", action="store_true", help="write results/NAME[-PART…]-cpu or -gpu.json"
    )
    parser.add_argument(
        "--out",
        default=out,
        metavar="FOLDER",
        help=f"write NAME[-PART…]-HARDWARE-DATE.json there ({out or 'not written'})",
    )
    options = parser.parse_args(arguments)
    obstacle = _obstacle(options)
    if obstacle:
        parser.error(obstacle)
    return options


def _obstacle(options: argparse.Namespace) -> str | None:
    """Why these options cannot be obeyed, in a sentence."""
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        return f"unknown benchmark {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}."
    if options.threads < 1 or (options.repeat is not None and options.repeat < 1):
        return "--threads and --repeat must be at least 1."
    if options.device == "cuda" and not torch.cuda.is_available():
        return "--device cuda was asked for, but there is no GPU."
    for name in _names(options):
        device = _device(name, options.device).type
        if device not in BENCHMARKS[name]:
            return f"{name} has no {device.upper()} version; it needs a GPU (--device cuda)."
        parts = PARTS.get(BENCHMARKS[name][device], ())
        if strange := [part for part in options.only if part not in parts]:
            if not parts:
                return f"--only chooses among the ops of ops, and {name} has no parts."
            return f"{name} has no part {strange[0]!r} on {device}; choose from {', '.join(parts)}."
    return None


def _names(options: argparse.Namespace) -> list[str]:
    """Those that are named, or all that can run on the device."""
    if options.names:
        return options.names
    return [
        name for name, places in BENCHMARKS.items() if _device(name, options.device).type in places
    ]


def _device(name: str, asked: str) -> torch.device:
    if asked != "auto":
        return torch.device(asked)
    possible = "cuda" in BENCHMARKS[name] and torch.cuda.is_available()
    return torch.device("cuda" if possible else "cpu")


def _load(module: str) -> Callable[..., Measured]:
    try:
        return import_module(f"benchmarks.{module}").measure
    except ModuleNotFoundError as missing:
        if missing.name != "entmax":
            raise
        print("ops compares with the package entmax; install headwise[bench].", file=sys.stderr)
        raise SystemExit(2) from missing


def _paths(name: str, device: torch.device, options: argparse.Namespace) -> list[Path]:
    """Where results go; those of some parts beside those of all, whose file they would empty."""
    parts = PARTS.get(BENCHMARKS[name][device.type], ())
    name = "-".join([name, *(part for part in parts if part in options.only)])
    paths: list[Path] = []
    if options.save:
        paths.append(RESULTS / f"{name}-{'gpu' if device.type == 'cuda' else 'cpu'}.json")
    if options.out:
        day = datetime.now(UTC).date().isoformat()
        paths.append(Path(options.out) / f"{name}-{_hardware(device)}-{day}.json")
    return paths


def _hardware(device: torch.device) -> str:
    """For a file's name."""
    if device.type == "cpu":
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(device).lower()).strip("-")


def _shown(path: Path) -> str:
    return f"benchmarks/results/{path.name}" if path.parent == RESULTS else str(path)


def _with_peers(environment: dict[str, Any]) -> dict[str, Any]:
    """With the versions of peers, None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in ("triton", "entmax", "adasplash", "x-transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return environment | {"versions": environment["versions"] | found}


if __name__ == "__main__":
    main()
