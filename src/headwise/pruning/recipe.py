"""`pruning.json`: how to build a pruned model before its weights are loaded."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from headwise.json_files import read_json
from headwise.pruning.record import PruningRecord
from headwise.recording.checksums import check_files

FORMAT = 2
RECIPE = "pruning.json"
TEXTS = ("files", "tied", "buffers", "attention")  # {name: text} each
FIELDS = {"kind": str, "class_name": str, "versions": dict, **dict.fromkeys(TEXTS, dict)}


@dataclass(frozen=True)
class Recipe:
    """What a folder needs beside configuration and weights.

    Args:
        kind: of the model: "transformers", or the one in `headwise.kinds` that rebuilds it.
        class_name: of the model.
        record: of what was pruned.
        files: the SHA-256 of each other file, by its path in the folder.
        tied: names of parameters that are another one's, {name: that one's name}.
        buffers: dtypes of floating buffers that are not saved, as they follow from the settings.
        versions: of what wrote it, for messages.
        attention: the attention backends of a Hugging Face model, by module.
    """

    kind: str
    class_name: str
    record: PruningRecord
    files: dict[str, str]
    tied: dict[str, str]
    buffers: dict[str, str]
    versions: dict[str, str | None]
    attention: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write it, with a checksum of its own."""
        held = {"format": FORMAT, **asdict(self), "record": self.record.to_json()}
        text = json.dumps({**held, "checksum": _checksum(held)}, indent=2, ensure_ascii=False)
        (folder / RECIPE).write_text(text + "\n", encoding="utf-8", newline="\n")

    @staticmethod
    def read(folder: Path) -> "Recipe":
        """The recipe of a folder; one sentence if there is none, or it was cut or changed."""
        path = folder / RECIPE
        held = _read_json(path)
        if held.get("format") != FORMAT:
            raise ValueError(
                f"{path} is of format {held.get('format')!r}, written by headwise "
                f"{_written_by(held)}; this version reads format {FORMAT}. Use that version."
            )
        checksum = held.pop("checksum", None)
        if checksum != _checksum(held) or not _fits(held):
            raise ValueError(f"{path} was changed after it was written; save the model again.")
        return Recipe(
            **{name: held[name] for name in FIELDS},
            record=PruningRecord.from_json(held.get("record")),
        )

    def check_files(self, folder: Path) -> None:
        """Refuse a folder whose files are not those that were written."""
        check_files(folder, self.files)


def check_whole(folder: Path) -> None:
    """Refuse a folder with a recipe whose files are not those that were written."""
    if (folder / RECIPE).exists():
        Recipe.read(folder).check_files(folder)


def files_named(folder: Path) -> set[str]:
    """The files that a folder's recipe names, of whatever format; one sentence if it is cut."""
    held: object = _read_json(folder / RECIPE).get("files")
    return set(cast(dict[str, Any], held)) if isinstance(held, dict) else set()


def unnamed(folder: Path, names: Collection[str]) -> list[str]:
    """What lies in a folder and is none of these files; folders of such files alone may be there.

    Args:
        folder: to look into.
        names: paths of files in it, as a recipe has them.
    """
    found: list[str] = []
    for path in sorted(folder.iterdir()):
        begin = f"{path.name}/"
        inside = {name.removeprefix(begin) for name in names if name.startswith(begin)}
        if path.is_dir() and inside:
            found += [begin + name for name in unnamed(path, inside)]
        elif path.name not in names or not path.is_file():
            found.append(path.name)
    return found


def versions() -> dict[str, str | None]:
    """Of the packages that decide what a saved model looks like."""
    found: dict[str, str | None] = {}
    for name in ("headwise", "torch", "transformers", "safetensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(
            f"There is no pruned model in {path.parent}: it has no {path.name}. Folders are made "
            "by headwise.pruning.save."
        )
    return read_json(path, dict)


def _fits(held: dict[str, Any]) -> bool:
    return all(isinstance(held.get(name), kind) for name, kind in FIELDS.items()) and all(
        isinstance(text, str) for name in TEXTS for text in held[name].values()
    )


def _written_by(held: dict[str, Any]) -> str:
    told: Any = held.get("versions")
    return str(told.get("headwise", "?")) if isinstance(told, dict) else "?"


def _checksum(held: dict[str, Any]) -> str:
    text = json.dumps(held, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
