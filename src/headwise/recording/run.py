"""Run: the folder of one execution."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat, TextIO

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headwise.config import Dataclass, Kind, flat, from_json, to_json
from headwise.json_files import check_shape, parse_json, read_json, read_text
from headwise.recording import files
from headwise.recording.checksums import plain_note, read_tensors, sealed_note
from headwise.recording.environment import describe_environment
from headwise.recording.heads import HeadTable, plain_number

CONFIG, ENVIRONMENT = "config.json", "environment.json"
TABLE = {"heads": [str], "columns": {...: [(str, float, None)]}}  # shape of heads.json
_UNSET = object()  # stands for a setting that a config does not have


class NotFinite(ValueError):
    """A loss or metric that stopped being a finite number: the training has diverged."""


class Run:
    """Folder with the settings, environment, metrics, tensors and figures of one execution.

    `config.json`, `environment.json`, `metrics.jsonl`, `trace/<recorder>/...`, `heads.json`,
    `figures.json`, `report.html` and checkpoints. Files are whole or absent, and only JSON,
    safetensors and text are ever read. A file's `name` is its path inside the folder.

    >>> import tempfile
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Config:
    ...     steps: int = 2
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> with Run.create(folder, Config()) as run:
    ...     run.log(1, loss=0.5)
    >>> Run.open(folder).metrics()
    [{'step': 1, 'loss': 0.5}]
    """

    def __init__(self, folder: Path) -> None:
        """Store the folder; use `create` or `open`, which check it."""
        self.folder = folder
        self._metrics_file: TextIO | None = None

    @staticmethod
    def create(folder: Path | str, config: Dataclass, kind: str = "") -> "Run":
        """Start a run in a new or empty folder, or resume the one there with the same config.

        Args:
            folder: made when missing.
            config: a frozen dataclass; kept in `config.json`.
            kind: kept with it, such as "translation"; `headwise.kinds` says what opens the run.
        """
        folder = Path(folder)
        run, settings = Run(folder), to_json(config)
        if run.has(CONFIG):
            _check_same(folder, run.config(), settings)
            _check_same(folder, {"kind": run.kind}, {"kind": kind})
        else:
            _check_free(folder)
            run.write_json(CONFIG, {"kind": kind, "settings": settings})
        if files.is_locked_here(folder):
            files.remove_leftovers(folder)
        run._write_environment(seed=settings.get("seed"))
        return run

    @staticmethod
    def open(folder: Path | str) -> "Run":
        """Open the run in a folder; raise when there is none."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"A run is a folder, but {folder} is not one; check the path.")
        run = Run(folder)
        if not run.has(CONFIG):
            raise ValueError(f"{folder} holds no run: config.json is missing; check the path.")
        run.config()
        return run

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Return whether a folder holds a run, whole or damaged: a model's folder does not."""
        return (folder / ENVIRONMENT).is_file()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the metrics file. A later `log` opens it again."""
        if self._metrics_file is not None:
            self._metrics_file.close()
            self._metrics_file = None

    def path(self, name: str) -> Path:
        """Return the path of a file of the run, which need not exist."""
        path = self.folder / name
        folder, there = _resolved(self.folder), _resolved(path)
        if there == folder or not there.is_relative_to(folder):
            raise ValueError(f"A name stays inside the run folder, but {name!r} does not.")
        return path

    def has(self, name: str) -> bool:
        """Return whether the run has this file."""
        return self.path(name).is_file()

    def names(self, pattern: str) -> list[str]:
        """Return the names of files that match a pattern such as "trace/confidence/*", sorted."""
        found = (path for path in self.folder.glob(pattern) if path.is_file())
        names = (path.relative_to(self.folder) for path in found if not path.name.startswith("."))
        return sorted(name.as_posix() for name in names)

    def config(self) -> dict[str, Any]:
        """Return the settings; `headwise.config.from_json` makes the dataclass of them."""
        return self.read_json(CONFIG, {"kind": str, "settings": dict})["settings"]

    @property
    def kind(self) -> str:
        """The kind that `create` was given; "" for a run of no kind."""
        return self.read_json(CONFIG, {"kind": str, "settings": dict})["kind"]

    def log(self, step: int, **metrics: SupportsFloat) -> None:
        """Append metrics to `metrics.jsonl` and flush; nan and infinity raise.

        Args:
            step: when they were measured.
            metrics: a finite number each, by name; a tensor of one number without axes is one too.
        """
        numbers = {name: _finite(name, value, step=step) for name, value in metrics.items()}
        if self._metrics_file is None:
            path = self.path("metrics.jsonl")
            _drop_half_line(path)
            self._metrics_file = path.open("a", encoding="utf-8", newline="\n")
        self._metrics_file.write(json.dumps({"step": step, **numbers}) + "\n")
        self._metrics_file.flush()

    def metrics(self) -> list[dict[str, float | int]]:
        """Return what was logged, one dictionary per step, by step.

        Lines of one step are merged; the later value of a metric counts, as a resumed run repeats
        the steps after its checkpoint. A half-written last line is skipped.
        """
        path = self.path("metrics.jsonl")
        by_step: dict[int, dict[str, float | int]] = {}
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        for number, line in enumerate(lines, start=1):
            try:
                entry = parse_json(line, {"step": int, ...: float}, name="it")
            except ValueError:
                raise ValueError(
                    f"Line {number} of {path} is not a JSON object with a step and numbers; delete "
                    "that line."
                ) from None
            by_step.setdefault(entry["step"], {}).update(entry)
        return [by_step[step] for step in sorted(by_step)]

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, for example the report."""
        files.write_text(self.path(name), text)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file; nan and infinity are no JSON and raise."""
        try:
            text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError) as problem:
            raise ValueError(f"{name} cannot be written as JSON: {problem}.") from None
        self.write_text(name, text + "\n")

    def read_text(self, name: str) -> str:
        """Read a text file of the run."""
        return read_text(self._existing(name))

    def read_json(self, name: str, shape: Any = object) -> Any:
        """Read a JSON file of the run; raise if it is damaged.

        Args:
            name: of the file.
            shape: what it must hold, as in `headwise.json_files`.
        """
        return read_json(self._existing(name), shape)

    def read_settings(self, name: str, kind: type[Kind]) -> Kind:
        """Read a JSON file of the run that `to_json` of a dataclass made.

        Args:
            name: of the file.
            kind: the dataclass.
        """
        held = self.read_json(name, dict)
        try:
            return from_json(kind, held)
        except ValueError as problem:
            raise ValueError(f"{self.path(name)} cannot be used: {problem}") from None

    def save_tensors(
        self, name: str, tensors: Mapping[str, Tensor], note: Mapping[str, str] = {}
    ) -> None:
        """Write tensors as safetensors.

        Each tensor is copied to the CPU first, so that tied weights and views may be saved; tied
        weights are written once per name, and `load_state_dict` of a tied model ties them again.

        Args:
            name: ends in ".safetensors".
            tensors: by name, for example a state_dict.
            note: text to keep with them, see `note`.
        """
        contiguous = torch.contiguous_format
        copies = {
            key: tensor.detach().cpu().clone(memory_format=contiguous)
            for key, tensor in tensors.items()
        }
        with files.replacing(self.path(name)) as temporary:
            temporary.touch()
            rights = temporary.stat().st_mode  # that other files get; the library gives fewer
            try:
                safetensors.torch.save_file(copies, temporary, metadata=sealed_note(copies, note))
                _sort_note(temporary)
                temporary.chmod(rights)
            except SafetensorError as problem:  # a full disk, for one
                raise OSError(f"{self.path(name)} could not be written: {problem}") from None

    def load_tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors that `save_tensors` wrote, on the CPU; raise on a wrong checksum."""
        path = self._existing(name)
        try:
            return read_tensors(path)
        except SafetensorError as problem:
            raise _broken_tensors(path, problem) from None

    def note(self, name: str) -> dict[str, str]:
        """Return the note of `save_tensors` without loading the tensors."""
        path = self._existing(name)
        try:
            with safe_open(path, framework="pt") as file:
                return plain_note(file.metadata() or {})
        except SafetensorError as problem:
            raise _broken_tensors(path, problem) from None

    def save_heads(self, table: HeadTable) -> None:
        """Write the table of heads to `heads.json`."""
        self.write_json("heads.json", table.to_json())

    def heads(self) -> HeadTable:
        """Return the table of heads."""
        held = self.read_json("heads.json", TABLE)
        try:
            return HeadTable.from_json(held)
        except ValueError as problem:
            raise ValueError(f"{self.path('heads.json')} cannot be used: {problem}") from None

    def save_figures(self, figures: Mapping[str, Any]) -> None:
        """Write the results of the run to `figures.json`."""
        self.write_json("figures.json", dict(figures))

    def figures(self) -> dict[str, Any]:
        """Return the results by name."""
        figures = self.read_json("figures.json", dict)
        if not figures:
            raise ValueError(f"{self.path('figures.json')} holds no figures; delete it.")
        return figures

    def _existing(self, name: str) -> Path:
        if not self.has(name):
            raise ValueError(f"The run in {self.folder} has no {name}; it may not be finished.")
        return self.path(name)

    def _write_environment(self, *, seed: object) -> None:
        """Write `environment.json`; each later start is added under "resumed"."""
        now = describe_environment(seed=seed)
        if self.has(ENVIRONMENT):
            first = self.read_json(ENVIRONMENT, dict)
            check_shape(first.get("resumed", []), list, name=str(self.path(ENVIRONMENT)))
            now = {**first, "resumed": [*first.get("resumed", []), now]}
        self.write_json(ENVIRONMENT, now)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (RuntimeError, OSError):  # which of them is a matter of the version of Python
        raise ValueError(f"{path} is a symbolic link to itself; delete it.") from None


def _finite(name: str, value: object, *, step: int) -> float | int:
    number = plain_number(value)
    if not isinstance(number, float | int):
        raise ValueError(f"{name} must be a number, got {value!r} at step {step}.")
    if not math.isfinite(number):
        raise NotFinite(f"{name} is {number} at step {step}; a metric must be finite.")
    return number


def _check_same(folder: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    there, wanted = flat(there), flat(wanted)
    for name in dict.fromkeys([*wanted, *there]):
        old, new = there.get(name, _UNSET), wanted.get(name, _UNSET)
        if old != new:
            old, new = ("unset" if value is _UNSET else repr(value) for value in (old, new))
            raise ValueError(
                f"{folder} holds a run with {name}={old}, but this one has {name}={new}; "
                "choose another folder."
            )


def _check_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"A run is a folder, but {folder} is a file; choose another path.")
    # hidden files do not count: they may be what a killed start left behind
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ValueError(f"{folder} holds files but no run; choose a new or empty folder.")


def _drop_half_line(path: Path) -> None:
    """Truncate a half-written last line of a killed process."""
    if path.is_file():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)


def _sort_note(path: Path) -> None:
    """Order the note of a safetensors file by name: the library writes it in a random order."""
    with path.open("rb+") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(header["__metadata__"]) > 1 and len(text) <= length:  # padded by spaces, as before
            file.seek(8)
            file.write(text.ljust(length))


def _broken_tensors(path: Path, problem: SafetensorError) -> ValueError:
    return ValueError(
        f"{path} is not a whole safetensors file ({problem}); delete it and make it again."
    )
