"""Public data in a folder the user names: found, checked, and never fetched unasked."""

import hashlib
import lzma
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

__all__ = ["VARIABLE", "DataFile", "data_folder", "write_whole"]

VARIABLE = "HEADWISE_DATA"


@dataclass(frozen=True)
class DataFile:
    """One file of a public data set: where it lies below the data folder, and what it must hold."""

    name: str  # for example "sst/sst2.dev.tsv"; compressed files add ".xz"
    sha256: str  # of the unpacked file
    origin: str  # where the public copy is and what to do with it, a clause
    urls: tuple[str, ...] = ()  # what `headwise.text.fetching.fetch` makes the file of
    make: Callable[[Sequence[bytes]], bytes] | None = None  # None: the downloads, joined
    other_sha256: tuple[str, ...] = ()  # of other versions that are as good

    def read(self, folder: Path, *, verify: bool = True) -> bytes:
        """The unpacked contents, from the file itself or its .xz.

        Args:
            folder: the data folder, see `data_folder`.
            verify: refuse contents whose checksum is not the known one.
        """
        contents = self._contents(folder)
        if verify and not self.is_known(contents):
            found = hashlib.sha256(contents).hexdigest()
            raise ValueError(
                f"{folder / self.name} has checksum {found[:16]}, but {self.sha256[:16]} was "
                f"wanted: the file is damaged or another version; take it from {self.origin}."
            )
        return contents

    def lines(self, folder: Path, *, verify: bool = True) -> list[str]:
        """The lines of a UTF-8 text file, ended by "\\n" only, as `read` reads it.

        Other characters that count as line breaks stand inside some texts and are kept.
        """
        try:
            text = self.read(folder, verify=verify).decode("utf-8")
        except UnicodeDecodeError as problem:
            raise ValueError(
                f"{folder / self.name} is not UTF-8 text (byte {problem.start}); get it again."
            ) from None
        if not text.strip():
            raise ValueError(f"{folder / self.name} holds no text; get it from {self.origin}.")
        return text.rstrip("\n").split("\n")

    def path(self, folder: Path) -> Path | None:
        """The file itself or its .xz, or None if neither is there."""
        both = (folder / self.name, folder / f"{self.name}.xz")
        return next((path for path in both if path.is_file()), None)

    def is_known(self, contents: bytes) -> bool:
        """Whether unpacked contents have a known checksum."""
        return hashlib.sha256(contents).hexdigest() in (self.sha256, *self.other_sha256)

    def is_right(self, folder: Path) -> bool:
        """Whether the file is there, whole and known."""
        return self.path(folder) is not None and self.is_known(self._contents(folder))

    def _contents(self, folder: Path) -> bytes:
        path = self.path(folder)
        if path is None:
            packed = Path(f"{self.name}.xz").name
            raise ValueError(
                f"There is no {self.name} or {packed} in {folder}; make it from {self.origin}."
            )
        if path.suffix != ".xz":
            return path.read_bytes()
        try:
            return lzma.decompress(path.read_bytes())
        except lzma.LZMAError as problem:
            raise ValueError(f"{path} is not a whole xz file ({problem}); get it again.") from None


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


def write_whole(path: Path, contents: bytes) -> None:
    """Write a whole file, or nothing: under a temporary name first. Missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid4().hex[:8]}.partial"
    try:
        temporary.write_bytes(contents)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
