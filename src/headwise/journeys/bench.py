"""Benchmarks live beside the package in its repository; here they are found."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import headwise

RESULTS = "results/bench"


def bench(arguments: Sequence[str]) -> None:
    """Run `headwise bench` with these arguments; the answers are those of `python -m benchmarks`.

    Ends with SystemExit where something is given wrongly (2) or ours is wrong (1).
    """
    root = checkout()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    command = import_module("benchmarks.__main__")
    command.main(arguments, command=("headwise", "bench"), out=RESULTS)


def checkout() -> Path:
    """The repository this package is run from; a ValueError where it was installed without one."""
    root = Path(headwise.__file__).resolve().parents[2]
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise ValueError(
            "The benchmarks are not part of the installed package; run headwise bench from a "
            "checkout of its repository, installed with pip install --editable."
        )
    return root
