"""Public data in a folder the user names: found, checked, and never fetched unasked."""

import hashlib
import lzma
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["VARIABLE", "DataFile", "data_folder"]

VARIABLE = "HEADWISE_DATA"


@dataclass(frozen=True)
class DataFile:
    """One file of a public data set: where it lies below the data folder, and what it must hold."""

    name: str  # for example "sst/sst2.dev.tsv"; compressed files add ".xz"
    sha256: str  # of the unpacked file
    origin: str  # where the public copy is and what to do with it, a clause

    def read(self, folder: Path, *, verify: bool = True) -> bytes:
        """The unpacked contents, from the file itself or its .xz.

        Args:
            folder: the data folder, see `data_folder`.
            verify: refuse contents whose checksum is not the known one.
        """
        contents = self._contents(folder)
        found = hashlib.sha256(contents).hexdigest()
        if verify and found != self.sha256:
            raise ValueError(
                f"{folder / self.name} has checksum {found[:16]}, but {self.sha256[:16]} was "
                f"wanted: the file is damaged or another version; take it from {self.origin}."
            )
        return contents

    def _contents(self, folder: Path) -> bytes:
        plain, packed = folder / self.name, folder / f"{self.name}.xz"
        if plain.is_file():
            return plain.read_bytes()
        if not packed.is_file():
            raise ValueError(
                f"There is no {self.name} or {packed.name} in {folder}; make it from {self.origin}."
            )
        try:
            return lzma.decompress(packed.read_bytes())
        except lzma.LZMAError as problem:
            raise ValueError(
                f"{packed} is not a whole xz file ({problem}); get it again."
            ) from None


def data_folder(folder: Path | None, *, wanted: str, origin: str) -> Path:
    """The folder given, or else the one HEADWISE_DATA names.

    Args:
        folder: None takes the environment variable.
        wanted: what is looked for, for the message.
        origin: where it can be had, a clause for the message.
    """
    named = os.environ.get(VARIABLE)
    if folder is None and not named:
        raise ValueError(
            f"{wanted} is read from the folder that {VARIABLE} names, but {VARIABLE} is not set; "
            f"set it to a folder made from {origin}."
        )
    found = folder if folder is not None else Path(named or "")
    if not found.is_dir():
        raise ValueError(
            f"{wanted} is looked for in {found}, which is not a folder; check {VARIABLE}."
        )
    return found
