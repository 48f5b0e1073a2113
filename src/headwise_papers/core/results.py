"""What a full run found, as data: `results/FAMILY/NAME.json` and the pictures beside the docs.

An experiment may be recorded in parts, as of other texts or sizes that were trained another day:
`results/FAMILY/NAME/PART.json`, each with the command and the machine that made it.
"""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from headwise.config import to_json
from headwise.recording.files import write_text
from headwise.recording.run import Run
from headwise_papers.core.base import Estimate, Experiment

PAPERS = Path("papers")  # papers/<paper>/results/NAME.json and papers/<paper>/figures/NAME/


@dataclass(frozen=True)
class Result:
    """The figures of one run of an experiment, and how they were made."""

    experiment: str
    command: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    seconds: float
    figures: Mapping[str, Estimate]
    pictures: tuple[str, ...]  # file names

    def to_json(self) -> dict[str, Any]:
        """As it is written to disk."""
        held = asdict(self)
        kinds = {name: _kind(name, got) for name, got in self.figures.items()}
        results = {
            name: {
                "kind": kinds[name],
                **{key: found[key] for key in ("values", "mean", "low", "high")},
            }
            for name, found in held.pop("figures").items()
        }
        pictures = held.pop("pictures")
        return {**held, "results": results, "figures": pictures}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Result":
        """What `to_json` wrote."""
        return Result(
            experiment=data["experiment"],
            command=data["command"],
            config=data["config"],
            environment=data["environment"],
            seconds=data["seconds"],
            figures={
                metric: Estimate.of(
                    found["values"],
                    difference=found["kind"] == "difference",
                    trials=found["kind"] == "share",
                )
                for metric, found in data["results"].items()
            },
            pictures=tuple(data["figures"]),
        )


def result_of(
    name: str,
    experiment: Experiment,
    config: Any,
    run: Run,
    figures: Mapping[str, Estimate],
    seconds: float,
) -> Result:
    """Put a run's figures and circumstances together."""
    changed = [
        f"--set {shlex.quote(f'{setting}={_written(value)}')}"
        for setting, value in to_json(config).items()
        if to_json(experiment.config)[setting] != value
    ]
    return Result(
        experiment=name,
        command=" ".join(["headwise reproduce", name, *changed]),
        config=to_json(config),
        environment=_surroundings(run),
        seconds=seconds,
        figures=figures,
        pictures=tuple(sorted(Path(picture).name for picture in run.names("pictures/*.png"))),
    )


def _written(value: Any) -> str:
    """As `headwise.config.override` reads it."""
    if isinstance(value, list):
        return ",".join(map(_written, cast("list[Any]", value)))
    return "none" if value is None else str(value)


def _surroundings(run: Run) -> dict[str, Any]:
    """The run's environment without commands as typed, which may name somebody's folders."""
    environment = _without_command(run.read_json("environment.json"))
    if "resumed" in environment:
        environment["resumed"] = list(map(_without_command, environment["resumed"]))
    return environment


def _without_command(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name != "command"}


def check_part(part: str) -> None:
    """Refuse names of parts that are no good names of files."""
    if part and not re.fullmatch(r"[a-z0-9][a-z0-9-]*", part):
        raise ValueError(f"A part is named in small letters, digits and dashes, got {part!r}.")


def keep(result: Result, run: Run, *, part: str = "") -> Path:
    """Copy a result and its pictures to where the docs are generated from."""
    file = _file(result.experiment, part)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(result.to_json(), indent=1) + "\n")
    folder = _folder(result.experiment + (f"-{part}" if part else ""), "figures")
    folder.mkdir(parents=True, exist_ok=True)
    for picture in result.pictures:
        shutil.copyfile(run.path(f"pictures/{picture}"), folder / picture)
    return file


def kept(name: str, part: str = "") -> Result | None:
    """The committed result of an experiment, or of a part of it, if there is one."""
    file = _file(name, part)
    return Result.from_json(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def kept_parts(name: str) -> dict[str, Result]:
    """All committed results of an experiment by part, the chief one, "", first."""
    parts = [
        "",
        *sorted((file.stem for file in _folder(name, "results").glob("*.json")), key=_by_number),
    ]
    return {part: found for part in parts if (found := kept(name, part)) is not None}


def _by_number(part: str) -> list[str | int]:
    """Sorts 8-layers before 16-layers."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", part)]


def _file(name: str, part: str) -> Path:
    folder = _folder(name, "results")
    return folder / f"{part}.json" if part else folder.with_suffix(".json")


def _kind(name: str, got: Estimate) -> str:
    if got.trials or (got.trials is None and len(got.values) > 1 and set(got.values) <= {0.0, 1.0}):
        return "share"
    return "difference" if " less " in name else "mean"


def _folder(name: str, held: str) -> Path:
    paper, _, experiment = name.partition("/")
    return PAPERS / paper / held / experiment
