"""Provenance of a run: commit, versions and hardware, for those who want to repeat it."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

# A repository may name programs in its settings, and `git status` would run them in any folder that
# somebody else has made: a file system monitor, hooks, filters, transports of a partial clone.
_HARMLESS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "safe.bareRepository": "explicit",
}
PACKAGES = ("headwise", "torch", "transformers")  # that decide what a run computes
_FILTERS = re.compile(r"filter\..*\.(?:clean|process|required)", re.DOTALL)


def describe_environment(*, seed: object) -> dict[str, Any]:
    """Return commit, versions, hardware, seed, command line and time, ready for JSON."""
    # a copy of the tree without its history, or with an older one, can be told which commit it is
    told = os.environ.get("HEADWISE_COMMIT")
    commit = told or _git("rev-parse", "HEAD")
    changes = None if told or commit is None else _changes()
    return {
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "versions": {"python": platform.python_version(), **versions(*PACKAGES)},
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "seed": seed,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Read versions from package metadata: importing transformers would take seconds."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _changes() -> str | None:
    """Return changed files of the repository as git lists them, or None if unknown.

    Untracked files do not count, since run folders are often among them. Filters of files do not
    run, so a file that a filter changes counts as changed when it was touched since its checkout.
    """
    named = _git("config", "--list", "--name-only", "-z")
    if named is None:
        return None
    filters = {name: "" for name in named.split("\0") if _FILTERS.fullmatch(name)}
    if any("=" in name for name in filters):  # git could not be told to leave that one out
        return None
    listing = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    return _git(*listing, settings=filters)


def _git(*arguments: str, settings: Mapping[str, str] = {}) -> str | None:
    """Ask git about the current folder; None without git or a repository.

    Nothing is written, fetched or started that the repository's own settings name.
    """
    given = [f"{name}={value}" for name, value in {**_HARMLESS, **settings}.items()]
    options = [part for one in given for part in ("-c", one)]
    # variables of the caller, such as GIT_DIR inside a hook, may name another repository
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "--no-pager", "--no-optional-locks", *options, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**own, "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0"},
            timeout=10,
        )
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
