"""A run that goes on does so with the data it began with: their checksum is kept in it."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.config import Dataclass, to_json
from headwise.recording import Run

__all__ = ["check_data", "checksum_of", "keep_checksum"]

DATA = "data.json"


def checksum_of(*parts: Sequence[Any] | Tensor) -> str:
    """SHA-256 of texts, numbers, and lists of them, where each one ends counts too; or of tensors.

    >>> checksum_of(["a", "b"]) == checksum_of(["a"], ["b"])
    False

    Args:
        parts: such as the sentences of a language; one at a time is held in memory as bytes.
    """
    found = hashlib.sha256()
    for part in parts:
        found.update(_bytes(part) if isinstance(part, Tensor) else json.dumps(part).encode())
    return found.hexdigest()


def _bytes(part: Tensor) -> memoryview:
    return part.contiguous().flatten().view(torch.uint8).numpy().data


def keep_checksum(run: Run, checksum: str) -> None:
    """Write the checksum of the data into a run that begins with them."""
    run.write_json(DATA, {"sha256": checksum})


def check_data(folder: Path, config: Dataclass, checksum: str) -> None:
    """Refuse data with which an unfinished run did not begin.

    Runs from before there were checksums are not refused, nor are other settings, of which
    `Run.create` tells.

    Args:
        folder: of the run, which need not be there.
        config: the settings with which it would go on.
        checksum: of the data.
    """
    begun = all((folder / name).is_file() for name in ("config.json", DATA))
    if not begun or (folder / "figures.json").is_file():
        return
    run = Run.open(folder)
    before = str(run.read_json(DATA, {"sha256": str})["sha256"])
    if run.config() == to_json(config) and before != checksum:
        raise ValueError(
            f"The data are not those that the run in {folder} began with: their checksum was "
            f"{before[:16]} and is now {checksum[:16]}; put the files back, or take another --out."
        )
