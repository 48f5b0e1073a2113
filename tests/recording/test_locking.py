"""Locks: one process writes, however it ends; nesting and reading are free."""

import errno
import os
import signal
from dataclasses import dataclass

import pytest
from filelock import FileLock

from headwise.recording import Run
from headwise.recording.files import writing_alone
from tests.recording.second_process import another_process_in


@dataclass(frozen=True)
class Config:
    steps: int = 1


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    folder = tmp_path / "deep" / "run"
    with another_process_in(folder) as other:
        with pytest.raises(ValueError, match=r"process is writing to .*run; .* another folder"):
            writing_alone(folder).__enter__()
        with writing_alone(tmp_path / "deep"), writing_alone(folder.with_name("other")):
            pass  # a folder around it, or beside, is another one
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with writing_alone(folder), Run.create(folder, Config()):
            pass


def test_reading_a_run_that_is_written_to_is_free(tmp_path):
    with Run.create(tmp_path / "run", Config()) as run:
        run.log(1, loss=0.5)
    with another_process_in(tmp_path / "run"):
        assert Run.open(tmp_path / "run").metrics() == [{"step": 1, "loss": 0.5}]


def test_one_process_may_lock_a_folder_within_and_after_itself(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), writing_alone(tmp_path):
            with writing_alone(tmp_path / "." / "."):
                pass
            with writing_alone(tmp_path):
                raise KeyError
    with another_process_in(tmp_path):
        pass  # it was released


def test_a_file_is_left_to_those_who_refuse_it(tmp_path):
    (tmp_path / "run").write_text("precious")
    with pytest.raises(ValueError, match="is a file"), writing_alone(tmp_path / "run"):
        Run.create(tmp_path / "run", Config())


def test_where_folders_cannot_be_locked_nobody_is_refused(tmp_path, monkeypatch):
    def no_locks(self, timeout):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    with another_process_in(tmp_path), writing_alone(tmp_path):
        pass


def test_what_a_killed_process_left_is_removed_by_the_next_one_that_writes(tmp_path):
    run, other = tmp_path / "run", tmp_path / "run" / "trace" / ".keep.partial.txt"
    with writing_alone(run), Run.create(run, Config()) as made:
        made.write_json("trace/one.json", {})
    other.write_text("kept")
    left = [run / ".heads.json.0a1b2c3d.partial", run / "trace" / ".x.y.ffffffff.partial"]
    for path in left:
        path.write_text("half")
    half = run / "seed-0" / ".hugging-face.4711.partial"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    others = [run / ".video.0a1.partial", run / ".mine.0a1b2c3d.partial" / "text.txt"]
    others[1].parent.mkdir()
    for path in others:
        path.write_text("kept")
    Run.create(run, Config())
    assert all(path.exists() for path in (*left, half))  # without the lock somebody may be writing
    with writing_alone(run), Run.create(run, Config()):
        assert not any(path.exists() for path in (*left, half))
    assert all(path.read_text() == "kept" for path in (other, *others))
    assert (run / "trace" / "one.json").exists()
