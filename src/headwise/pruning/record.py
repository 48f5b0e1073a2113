"""Which heads were pruned from a model, and `pruning.json`, which rebuilds a saved one."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from torch import nn

from headwise.hf.adoption import innermost
from headwise.json_files import check_shape, read_json
from headwise.recording.checksums import check_files
from headwise.sites import PRUNED, Head, Site

# shape of a record, as in headwise.json_files
RECORD = {"heads": {...: int}, "kept": {...: [int]}, "settings": dict}


@dataclass(frozen=True)
class PruningRecord:
    """Heads that a pruned model has left, in the numbers of the unpruned model.

    Args:
        heads: the number of heads of each site before pruning, {site name: count}.
        kept: the original numbers of the heads left, in order, {site name: numbers}; of every site.
        settings: the settings of a Hugging Face model's configuration before pruning changed them.

    >>> record = PruningRecord({"encoder.0.self": 4}, {"encoder.0.self": (0, 1, 2, 3)})
    >>> record = record.after({"encoder.0.self": [1, 3]}).after({"encoder.0.self": [1]})
    >>> record.kept, record.original(Head("encoder.0.self", 0))
    ({'encoder.0.self': (3,)}, Head(site='encoder.0.self', index=3))
    """

    heads: Mapping[str, int]
    kept: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @staticmethod
    def of(sites: Sequence[Site]) -> "PruningRecord":
        """Return the record of an unpruned model with these sites."""
        return PruningRecord(
            {site.name: site.num_heads for site in sites},
            {site.name: tuple(range(site.num_heads)) for site in sites},
        )

    def after(self, keep: Mapping[str, Sequence[int]]) -> "PruningRecord":
        """Return the record after keeping only these heads, in the model's current numbers."""
        chosen = {name: tuple(self.kept[name][index] for index in keep[name]) for name in keep}
        return PruningRecord(self.heads, {**self.kept, **chosen}, self.settings)

    def original(self, head: Head) -> Head:
        """Return the head of the unpruned model that is this head of the pruned one."""
        return Head(head.site, self.kept[head.site][head.index])

    @property
    def removed(self) -> dict[str, list[int]]:
        """The original numbers of the removed heads, {site name: numbers}."""
        return {
            name: sorted(set(range(count)) - set(self.kept[name]))
            for name, count in self.heads.items()
        }

    def __str__(self) -> str:
        left, first = sum(map(len, self.kept.values())), sum(self.heads.values())
        return f"{left} of {first} heads left"

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "heads": dict(self.heads),
            "kept": {name: list(numbers) for name, numbers in self.kept.items()},
            "settings": dict(self.settings),
        }

    @staticmethod
    def from_json(value: object) -> "PruningRecord":
        """Return the record that `to_json` wrote; raise if it is something else."""
        check_shape(value, RECORD, name="A pruning record")
        held = cast(dict[str, Any], value)
        heads, kept = (
            held["heads"],
            {name: tuple(numbers) for name, numbers in held["kept"].items()},
        )
        if heads.keys() != kept.keys() or not all(_fit(kept[name], heads[name]) for name in kept):
            raise ValueError(
                f"A pruning record keeps heads that a site has, in order, got {str(held)[:80]!r}."
            )
        return PruningRecord(heads, kept, held["settings"])


def record_of(model: nn.Module) -> PruningRecord | None:
    """Return what was pruned from a model; None if nothing was."""
    record = innermost(model).__dict__.get(PRUNED)
    return record if isinstance(record, PruningRecord) else None


def _fit(kept: Sequence[int], count: int) -> bool:
    """Return whether numbers of heads rise, and lie below their count."""
    return count >= 0 and list(kept) == sorted({head for head in kept if 0 <= head < count})


FORMAT = 2
RECIPE = "pruning.json"
TEXTS = {name: {...: str} for name in ("files", "tied", "buffers", "attention")}
FIELDS = {"kind": str, "class_name": str, "versions": dict, **TEXTS}  # besides the record


@dataclass(frozen=True)
class Recipe:
    """The contents of `pruning.json`: what a folder needs besides configuration and weights.

    Args:
        kind: "transformers", or the kind of `headwise.kinds` that rebuilds the model.
        class_name: the class of the model.
        record: what was pruned.
        files: the SHA-256 of each other file, by its path in the folder.
        tied: shared parameters, {name: name of the one that is saved}.
        buffers: dtypes of floating-point buffers that are not saved.
        versions: of the packages that wrote the folder, for messages.
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
        """Write `pruning.json`, with a checksum of its own."""
        held = {"format": FORMAT, **asdict(self), "record": self.record.to_json()}
        text = json.dumps({**held, "checksum": _checksum(held)}, indent=2, ensure_ascii=False)
        (folder / RECIPE).write_text(text + "\n", encoding="utf-8", newline="\n")

    @staticmethod
    def read(folder: Path) -> "Recipe":
        """Read the recipe of a folder; raise if there is none, or it was cut or changed."""
        path = folder / RECIPE
        held = _read_json(path)
        if held.get("format") != FORMAT:
            raise ValueError(
                f"{path} is of format {held.get('format')!r}, written by headwise "
                f"{_written_by(held)}; this version reads format {FORMAT}. Use that version."
            )
        if held.pop("checksum", None) != _checksum(held):
            raise ValueError(f"{path} was changed after it was written; save the model again.")
        check_shape(held, FIELDS, name=str(path))
        return Recipe(
            **{name: held[name] for name in FIELDS},
            record=PruningRecord.from_json(held.get("record")),
        )

    def check_files(self, folder: Path) -> None:
        """Raise if files of the folder are missing or changed."""
        check_files(folder, self.files)


def check_whole(folder: Path) -> None:
    """Raise if a folder has a recipe and files are missing or changed."""
    if (folder / RECIPE).exists():
        Recipe.read(folder).check_files(folder)


def files_named(folder: Path) -> set[str]:
    """Return the files that a folder's recipe names, whatever its format; raise if it is cut."""
    held: object = _read_json(folder / RECIPE).get("files")
    return set(cast(dict[str, Any], held)) if isinstance(held, dict) else set()


def unnamed(folder: Path, names: Collection[str]) -> list[str]:
    """Return what a folder holds besides these files and the folders they are in.

    Args:
        folder: the folder.
        names: paths of files in it.
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


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(
            f"There is no pruned model in {path.parent}: it has no {path.name}. Folders are made "
            "by headwise.pruning.save."
        )
    return read_json(path, dict)


def _written_by(held: dict[str, Any]) -> str:
    told: Any = held.get("versions")
    return str(told.get("headwise", "?")) if isinstance(told, dict) else "?"


def _checksum(held: dict[str, Any]) -> str:
    text = json.dumps(held, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
