"""A real disk of four megabytes, on which a Python of its own runs; and how to fill it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MOUNTED = 'mount -t tmpfs -o size=4m tmpfs "$1" && shift && exec "$@"'
PAGE = 4096  # bytes, the least that a file takes


def run_on_small_disk(script: str, disk: Path, *arguments: object) -> subprocess.CompletedProcess:
    """A script that has `disk`, its first argument, for itself; a skip where none can be mounted.

    The disk is gone when the script ends.
    """
    disk.mkdir()
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh", str(disk)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*alone, "true"], capture_output=True).returncode
    ):
        pytest.skip("a tmpfs cannot be mounted here: unshare is missing or not permitted")
    command = [*alone, sys.executable, "-c", script, str(disk), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def leave_room(disk: Path, room: int) -> None:
    """Fill the disk so that so many bytes are left, whatever filled it before."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - room))
