"""Records of full runs: `papers/<paper>/results/NAME.json`, with figures beside them.

An experiment may be recorded in parts, for example other data trained another day, as
`results/NAME/PART.json`; each part has its own command and environment.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headwise.config import Dataclass, to_json
from headwise.json_files import read_json
from headwise.recording import Run, write_text
from headwise_papers.core.experiment import Result

__all__ = ["PAPERS_FOLDER", "Record", "changes_since", "figure_folder", "recorded", "save_record"]

PAPERS_FOLDER = Path("papers")
NEAR = 0.02  # relative difference of means that counts as none


@dataclass(frozen=True)
class Record:
    """Results of one run of an experiment, and how they were made.

    Args:
        experiment: its name.
        command: that makes it again.
        config: the settings.
        environment: commit, versions and hardware.
        seconds: the run took.
        results: by name.
        figures: file names.
    """

    experiment: str
    command: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    seconds: float
    results: Mapping[str, Result]
    figures: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON can hold it."""
        results = {name: result.to_json() for name, result in self.results.items()}
        return {**vars(self), "results": results, "figures": list(self.figures)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Record":
        """Rebuild a record from JSON."""
        fields: dict[str, Any] = dict(data)
        results = {name: Result.from_json(held) for name, held in data["results"].items()}
        fields |= {"results": results, "figures": tuple(data["figures"])}
        return Record(**fields)


def command_of(name: str, config: Dataclass, default: Dataclass, *, jobs: int = 1) -> str:
    """Write the command that runs an experiment with these settings."""
    settings = dict(_flat(to_json(default)))
    changed = [
        f"--set {shlex.quote(f'{setting}={_typed(value)}')}"
        for setting, value in _flat(to_json(config))
        if settings.get(setting) != value
    ]
    in_parallel = [f"--jobs {jobs}"] if jobs > 1 else []
    return " ".join(["headwise reproduce", name, *in_parallel, *changed])


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted name."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _typed(value: Any) -> str:
    """Write a value as `headwise.config.override` reads it."""
    if isinstance(value, list):
        return ",".join(map(_typed, cast("list[Any]", value)))
    return "none" if value is None else str(value)


def environment_of(run: Run) -> dict[str, Any]:
    """Return a run's environment without typed commands, which may name private folders."""
    environment = run.read_json("environment.json", dict)
    for start in (environment, *environment.get("resumed", [])):
        start.pop("command", None)
    return environment


def check_part(part: str) -> None:
    """Raise if the name of a part is no good file name."""
    if part and not re.fullmatch(r"[a-z0-9][a-z0-9-]*", part):
        raise ValueError(f"A part is named in small letters, digits and dashes, got {part!r}.")


def save_record(record: Record, run: Run, *, part: str = "") -> Path:
    """Copy a record and its figures from a run folder to `papers/`, and return the file."""
    file = _file(record.experiment, part)
    write_text(file, json.dumps(record.to_json(), indent=1) + "\n")
    folder = figure_folder(record.experiment, part)
    folder.mkdir(parents=True, exist_ok=True)
    for name in record.figures:
        shutil.copyfile(run.path(f"figures/{name}"), folder / name)
    return file


def recorded(name: str) -> dict[str, Record]:
    """Return all records of an experiment by part; the main one, "", comes first."""
    main = _file(name, "")
    files = {part.stem: part for part in main.with_suffix("").glob("*.json")}
    parts = {part: files[part] for part in sorted(files, key=_numerically)}
    every = {"": main, **parts} if main.is_file() else parts
    return {part: Record.from_json(read_json(file, dict)) for part, file in every.items()}


def figure_folder(name: str, part: str) -> Path:
    """Return where the figures of a part lie."""
    paper, _, own = name.partition("/")
    return PAPERS_FOLDER / paper / "figures" / "-".join(filter(None, (own, part)))


def _file(name: str, part: str) -> Path:
    paper, _, own = name.partition("/")
    results = PAPERS_FOLDER / paper / "results"
    return results / own / f"{part}.json" if part else results / f"{own}.json"


def _numerically(part: str) -> list[str | int]:
    """Sort 8-layers before 16-layers."""
    return [int(text) if text.isdigit() else text for text in re.split(r"(\d+)", part)]


def changes_since(
    records: Mapping[str, Record], results: Mapping[str, Result], *, part: str = ""
) -> list[str]:
    """Name the recorded results that now come out differently, or not at all.

    A result is unchanged if the intervals overlap, or if the means differ by at most 2 %.

    Args:
        records: all parts, see `recorded`.
        results: of the present run.
        part: that this run is; the main one is compared with all parts that share a result.
    """
    own = {part: records[part]} if part in records else {}
    sharing = {p: one for p, one in records.items() if one.results.keys() & results.keys()}
    before: dict[str, list[Result]] = {}
    for one in (own if part else sharing or own).values():
        for name, result in one.results.items():
            before.setdefault(name, []).append(result)
    return [
        name
        for name, found in before.items()
        if name not in results or not any(_is_same(one, results[name]) for one in found)
    ]


def _is_same(before: Result, now: Result) -> bool:
    apart = max(before.low - now.high, now.low - before.high)
    return apart <= 0 or abs(now.mean - before.mean) <= NEAR * abs(before.mean)
