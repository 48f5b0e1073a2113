"""Checksums of what is written, so that a damaged file is noticed when it is opened.

The checksum of tensors is in their file, which is whole or absent. The checksums of a folder that
other libraries fill are in a list of their own. They detect damage and mistakes, not changes on
purpose. Files that other programs wrote have none and are opened unchecked.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from headwise.json_files import read_json

ALGORITHM = "sha256"
# both in a note, as one of them may be what is damaged; users' notes have other names
KEY, KIND = f"headwise.{ALGORITHM}", "headwise.checksum"
LIST = "headwise_checksums.json"  # a name that no other library gives
AGAIN = "Copy or save the model again."


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(folder: Path, *, without: Collection[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder, by its path there; `without` some of them."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: digest(path) for name, path in paths.items() if path.is_file() and name not in without
    }


def check_files(folder: Path, files: Mapping[str, str], advice: str = AGAIN) -> None:
    """Raise if the files of a folder are not those that were written.

    Args:
        folder: that holds them.
        files: the SHA-256 of each, by its path in the folder.
        advice: end of the error message.
    """
    for name, wanted in files.items():
        path, within = folder / name, PurePosixPath(name)
        if within.is_absolute() or ".." in within.parts or not path.is_file():
            raise ValueError(f"{folder} has no {name}, so the model in it is not whole. {advice}")
        if digest(path) != wanted:
            raise ValueError(
                f"{path} is not the file that was saved: its checksum differs, so it was cut "
                f"short or changed. {advice}"
            )


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files in a folder into it, before it is moved to its place."""
    files = digests(folder, without=(LIST,))
    text = json.dumps({ALGORITHM: files}, indent=2, ensure_ascii=False) + "\n"
    (folder / LIST).write_text(text, encoding="utf-8", newline="\n")


def check_checksums(folder: Path) -> None:
    """Raise if files differ from those that `write_checksums` saw; a folder may have no list."""
    path = folder / LIST
    if path.is_file():
        held = read_json(path, {ALGORITHM: {...: str}})
        advice = f"Copy or save the model again; delete {LIST} if you changed the model yourself."
        check_files(folder, held[ALGORITHM], advice)


def sealed_note(tensors: Mapping[str, Tensor], note: Mapping[str, str]) -> dict[str, str]:
    """Return the note of a file of tensors, with the checksum of both.

    Args:
        tensors: by name, on the CPU and contiguous.
        note: the text that is kept with them.
    """
    if KEY in note or KIND in note:
        raise ValueError(f"A note must not have the names {KEY} and {KIND}; choose other ones.")
    return {**note, KIND: ALGORITHM, KEY: _of_tensors(tensors, note)}


def plain_note(note: Mapping[str, str]) -> dict[str, str]:
    """Return the note without the checksum that `sealed_note` added."""
    return {name: text for name, text in note.items() if name not in (KEY, KIND)}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU; raise if their checksum is wrong."""
    tensors = safetensors.torch.load_file(path)
    with safe_open(path, framework="pt") as file:
        note = dict(file.metadata() or {})
    _check_tensors(path, tensors, note)
    return tensors


def _check_tensors(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, str]) -> None:
    has_one = KEY in note or KIND in note
    if has_one and note != sealed_note(tensors, plain_note(note)):
        raise ValueError(
            f"{path} was damaged or changed after it was written: its checksum differs. Copy it "
            "again, or delete it and make it again."
        )


def _of_tensors(tensors: Mapping[str, Tensor], note: Mapping[str, str]) -> str:
    """Return the SHA-256 of a note and of the names, dtypes, shapes and bytes of tensors."""
    found = hashlib.sha256(json.dumps(dict(note), sort_keys=True).encode())
    for name in sorted(tensors):  # files keep tensors in an order of their own
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
