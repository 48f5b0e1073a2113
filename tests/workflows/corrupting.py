"""Runs with one file broken: what commands say of them must be right, or one sentence.

for fault in sweep(run, [Command("translate", "{run}", stdin=b"a dog\n")]):
    print(fault)
"""

import io
import json
import random
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwise import cli

Corruption = Callable[[Path], None]


def _becomes(contents: Callable[[bytes], bytes]) -> Corruption:
    return lambda path: path.write_bytes(contents(path.read_bytes())) and None


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CORRUPTIONS: dict[str, Corruption] = {
    "cut in half": _becomes(lambda old: old[: len(old) // 2]),
    "empty": _becomes(lambda old: b""),
    "a list": _becomes(lambda old: b"[]"),
    "null": _becomes(lambda old: b"null"),
    "an object": _becomes(lambda old: b"{}"),
    "nested": _becomes(lambda old: b"[" * 100_000 + b"]" * 100_000),
    "noise": _becomes(lambda old: random.Random(0).randbytes(max(64, len(old)))),
    "a link to itself": _link_to_itself,
    "a folder": _folder,
}
CLOCKS, BAR = ("minutes", "tokens per second", "seconds"), "0:00:"  # what is not compared
LOG = "metrics.jsonl"  # a part of it that is lost is missed by nobody
VALUES = (None, True, -1, "x", [], {}, [None], {"x": None})


def field_changes(path: Path) -> dict[str, Corruption]:
    """Each field of a JSON object missing, or with a value of another type; {} for other files."""
    try:
        held = json.loads(path.read_bytes())
    except ValueError:
        return {}
    if not isinstance(held, dict):
        return {}
    changes = {}
    for name in held:
        rest = {key: value for key, value in held.items() if key != name}
        changes[f"without {name}"] = _written(rest)
        for value in VALUES:
            if type(value) is not type(held[name]):
                changes[f"{name}={value}"] = _written({**held, name: value})
    return changes


def _written(held: object) -> Corruption:
    return lambda path: path.write_text(json.dumps(held)) and None


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code, or the error that nobody caught."""

    code: int | str
    out: str
    error: str
    made: object = None

    @property
    def is_one_sentence(self) -> bool:
        lines = self.error.splitlines()
        said = [line for line in lines if line.startswith("headwise: ")]
        return self.code == 2 and len(said) == 1 and "Traceback" not in self.error


@dataclass(frozen=True, init=False)
class Command:
    """A command line: {run} stands for the run, {out} for a new folder.

    Args:
        arguments: of `headwise`.
        stdin: what it reads.
        made: what is to be compared in the new folder, beside what was printed.
    """

    arguments: tuple[str, ...]
    stdin: bytes
    made: Callable[[Path], object]

    def __init__(
        self,
        *arguments: object,
        stdin: bytes = b"",
        made: Callable[[Path], object] = lambda out: None,
    ) -> None:
        object.__setattr__(self, "arguments", tuple(map(str, arguments)))
        object.__setattr__(self, "stdin", stdin)
        object.__setattr__(self, "made", made)

    def outcome(self, run: Path, out: Path) -> Outcome:
        """Run it in this process."""
        names = {"{run}": str(run), "{out}": str(out)}
        arguments = list(self.arguments)
        for name, value in names.items():
            arguments = [argument.replace(name, value) for argument in arguments]
        printed, said = io.StringIO(), io.StringIO()
        code: int | str
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["headwise", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(self.stdin)))
            with redirect_stdout(printed), redirect_stderr(said):
                code = _ended()
        lines = printed.getvalue().replace(str(out), "OUT").splitlines()
        shown = "\n".join(line for line in lines if not line.startswith(CLOCKS) and BAR not in line)
        made = self.made(out) if code == 0 else None
        return Outcome(code, shown, said.getvalue(), made)


def _ended() -> int | str:
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:  # any at all is what this looks for
        place = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in place if "/headwise/" in frame.filename] or list(place)
        at = f"{ours[-1].filename.rpartition('/headwise/')[2]}:{ours[-1].lineno}"
        return f"{type(error).__name__} at {at}: {str(error)[:100]}"
    return 0


def sweep(
    run: Path,
    commands: Iterable[Command],
    work: Path,
    *,
    names: Iterable[str] | None = None,
    corruptions: Iterable[str] = tuple(CORRUPTIONS),
    fields: bool = False,
) -> Iterator[str]:
    """Break every file of a run in every way, and say which command did not do what it should.

    Args:
        run: a finished one, which is copied.
        commands: that open it.
        work: a folder for copies and results.
        names: of files in the run; None takes all.
        corruptions: names of `CORRUPTIONS`.
        fields: whether the fields of JSON files are changed one by one, too.
    """
    broken, out = work / "run", work / "out"
    for command in commands:
        _renew(run, broken, out)
        wanted = command.outcome(broken, out)
        assert wanted.code == 0, (command.arguments, wanted)
        for name in files_of(run) if names is None else names:
            changes = {name: CORRUPTIONS[name] for name in corruptions}
            if fields:
                changes |= field_changes(run / name)
            for how, change in changes.items():
                _renew(run, broken, out)
                change(broken / name)
                got = command.outcome(broken, out)
                same = how in CORRUPTIONS and not name.endswith(LOG)
                if fault := _fault(wanted, got, same=same):
                    yield f"{command.arguments[:2]} {name} {how}: {fault}"


def files_of(run: Path) -> list[str]:
    """The files of a run, by their paths in it."""
    found = (path for path in sorted(run.rglob("*")) if path.is_file())
    return [path.relative_to(run).as_posix() for path in found]


def _renew(run: Path, broken: Path, out: Path) -> None:
    for folder in (broken, out, out.with_name(f"{out.name}-pruning")):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        run,
        broken,
    )


def _fault(wanted: Outcome, got: Outcome, *, same: bool) -> str:
    if got.is_one_sentence:
        return ""
    if got.code != 0:
        return f"{got.code} {got.error[-200:]!r}"
    if same and got.out != wanted.out:
        return f"printed {got.out[-200:]!r} instead of {wanted.out[-200:]!r}"
    return "" if not same or got.made == wanted.made else f"made {str(got.made)[:100]}"
