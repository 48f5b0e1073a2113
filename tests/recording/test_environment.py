"""Recording the environment runs nothing that the current folder's repository names."""

import subprocess
from pathlib import Path

import pytest

from headwise.recording.environment import describe_environment


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository with one commit, in which the test runs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HEADWISE_COMMIT", raising=False)
    _git("init")
    _commit("notes.txt", "a note\n")
    return folder


def _git(*arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.fsmonitor=false")
    command = ["git", *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _commit(name: str, text: str) -> None:
    Path(name).write_text(text)
    _git("add", name)
    _git("commit", "-m", name)


def _script(path: Path, marker: Path) -> Path:
    """A program that leaves a file behind when it is run."""
    path.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("setting", ["core.fsmonitor", "filter.x.clean", "filter.x.process"])
def test_no_program_of_the_repository_is_run(setting, repository, tmp_path):
    marker = tmp_path / "marker"
    _commit(".gitattributes", "*.txt filter=x\n")
    _git("config", setting, str(_script(tmp_path / "program", marker)))
    _git("config", "filter.x.required", "true")
    Path("notes.txt").write_text("A note\n")  # of the same size, so that its text is compared
    found = describe_environment(seed=0)
    assert not marker.exists()
    assert found["commit"] == _git("rev-parse", "HEAD")
    assert found["dirty"] is True


def test_no_hook_of_the_repository_is_run(repository, tmp_path):
    marker = tmp_path / "marker"
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    _script(hooks / "post-index-change", marker)
    Path("notes.txt").touch()  # git would write its index again, and then run the hook
    assert describe_environment(seed=0)["dirty"] is False
    assert not marker.exists()


def test_variables_of_git_do_not_name_another_repository(repository, tmp_path, monkeypatch):
    other = tmp_path / "other"
    subprocess.run(["git", "init", str(other)], check=True, capture_output=True)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    found = describe_environment(seed=0)
    monkeypatch.delenv("GIT_DIR")
    assert found["commit"] == _git("rev-parse", "HEAD")


def test_a_filter_that_cannot_be_left_out_leaves_it_open_whether_files_changed(repository):
    with (repository / ".git" / "config").open("a") as file:
        file.write('[filter "a=b"]\n\tclean = false\n')
    found = describe_environment(seed=0)
    assert found["commit"] is not None
    assert found["dirty"] is None
