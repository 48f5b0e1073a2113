"""Where and with what a run was made: what somebody needs who wants to make it again."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def describe_environment(*, seed: object) -> dict[str, Any]:
    """Commit, versions, hardware, seed, command line and time, as JSON can hold them."""
    # a copy of the tree without its history, or with an older one, can be told which commit it is
    told = os.environ.get("HEADWISE_COMMIT")
    commit = told or _git("rev-parse", "HEAD")
    # untracked files do not count as changes, since run folders are often among them
    changes = None if told else _git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "seed": seed,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _versions() -> dict[str, str | None]:
    """Read from the installed packages' metadata: importing transformers would take seconds."""
    found: dict[str, str | None] = {}
    for name in ("headwise", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _git(*arguments: str) -> str | None:
    """What git says about the current folder, or None without git or a repository."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
