"""Files of public data sets in a folder that the user names."""

import hashlib
import lzma
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.recording.files import replacing

VARIABLE = "HEADWISE_DATA"


@dataclass(frozen=True)
class DataFile:
    """File of a public data set: its path below the data folder, its checksum and its origin."""

    name: str  # for example "sst/sst2.dev.tsv"; compressed files add ".xz"
    sha256: str  # of the unpacked file
    origin: str  # where the public copy is and what to do with it, a clause
    urls: tuple[str, ...] = ()  # downloads that the file is made of
    make: Callable[[Sequence[bytes]], bytes] | None = None  # None: concatenate the downloads
    other_sha256: tuple[str, ...] = ()  # of other accepted versions

    def read(self, folder: Path, *, verify: bool = True) -> bytes:
        """Return the unpacked contents, from the file itself or its .xz.

        Args:
            folder: the data folder, see `data_folder`.
            verify: raise if the checksum is unknown.
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
        """Return the lines of a UTF-8 text file, split at "\\n" only.

        Some texts contain other line breaks, which are kept.
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
        """Return the path of the file itself or its .xz, or None if neither exists."""
        both = (folder / self.name, folder / f"{self.name}.xz")
        return next((path for path in both if path.is_file()), None)

    def is_known(self, contents: bytes) -> bool:
        """Return whether unpacked contents have a known checksum."""
        return hashlib.sha256(contents).hexdigest() in (self.sha256, *self.other_sha256)

    def is_right(self, folder: Path) -> bool:
        """Return whether the file exists with a known checksum."""
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


def github(repository: str, commit: str, path: str) -> str:
    """Return the address of a file of a GitHub repository; the commit may be shortened."""
    return f"https://github.com/{repository}/raw/{commit}/{path}"


def data_folder(folder: Path | None, *, wanted: str, origin: str) -> Path:
    """Return the given folder, or else the one that HEADWISE_DATA names.

    Args:
        folder: None: the environment variable.
        wanted: name of the data, for error messages.
        origin: of the data, a clause for error messages.
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
            f"{wanted} was expected in {found}, which is not a folder; check {VARIABLE}."
        )
    return found


def write_whole(path: Path, contents: bytes) -> None:
    """Write a file under a temporary name and rename it. Missing folders are made."""
    with replacing(path) as temporary:
        temporary.write_bytes(contents)
