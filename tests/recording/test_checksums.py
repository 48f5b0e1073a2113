"""Damage to a file is noticed when it is opened; files that have no checksum are opened."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from headwise.recording import Run
from headwise.recording.checksums import LIST, check_checksums, write_checksums
from headwise.training import BEST, CHECKPOINT, fit
from tests.training.noise import CONFIG, batch, make_model, mean_loss

NAME = "model.safetensors"
TENSORS = {
    "weight": torch.arange(6.0).view(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "one": torch.tensor(7),
    "none": torch.zeros(0, 4),
    "which": torch.tensor([True, False]),
}


@dataclass(frozen=True)
class Config:
    steps: int = 2


@pytest.fixture
def run(tmp_path) -> Run:
    run = Run.create(tmp_path / "run", Config())
    run.save_tensors(NAME, TENSORS, {"step": "3"})
    return run


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_tensors_and_note_come_back(run):
    torch.testing.assert_close(run.load_tensors(NAME), TENSORS, rtol=0, atol=0)
    assert run.note(NAME) == {"step": "3"}


def test_no_bit_of_a_file_can_change(run):
    path = run.path(NAME)
    whole = path.read_bytes()
    for place in range(len(whole)):
        flip(path, place, bit=place % 8)
        with pytest.raises(ValueError, match=r"model\.safetensors (was damaged|is not a whole)"):
            run.load_tensors(NAME)
        path.write_bytes(whole)
    run.load_tensors(NAME)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_cut_short_is_noticed(kept, run):
    path = run.path(NAME)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        run.load_tensors(NAME)


def test_files_of_earlier_versions_have_no_checksum_and_are_opened(run):
    safetensors.torch.save_file(TENSORS, run.path("old.safetensors"), metadata={"step": "3"})
    torch.testing.assert_close(run.load_tensors("old.safetensors"), TENSORS, rtol=0, atol=0)
    assert run.note("old.safetensors") == {"step": "3"}
    safetensors.torch.save_file(TENSORS, run.path("older.safetensors"))
    assert run.load_tensors("older.safetensors").keys() == TENSORS.keys()


def test_no_file_of_a_training_is_resumed_from_when_damaged(tmp_path):
    settings = replace(CONFIG, precision="float32", accumulate=1, patience=0)

    def trained() -> Run:
        with Run.create(tmp_path / "run", settings) as run:
            fit(make_model(), mean_loss, batch, run=run, config=settings, evaluate=score)
        return run

    def score(model):
        return {"figure": 0.0}

    run = trained()
    names = [CHECKPOINT, BEST, *run.names("checkpoints/*.safetensors")]
    assert len(names) > 2
    for name in names:
        flip(run.path(name), -3)
        with pytest.raises(ValueError, match=r"was damaged or changed after it was written"):
            run.load_tensors(name)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors was damaged"):
        trained()


def test_a_note_may_have_any_name_but_ours(run):
    note = {"sha256": "mine", "checksum": "mine"}
    run.save_tensors(NAME, TENSORS, note)
    assert run.load_tensors(NAME).keys() == TENSORS.keys() and run.note(NAME) == note
    with pytest.raises(ValueError, match="must not have the names headwise"):
        run.save_tensors(NAME, TENSORS, {"headwise.sha256": "mine"})


def test_a_folder_with_checksums_is_whole_or_refused(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "inner" / "b.txt").write_text("b")
    check_checksums(tmp_path)  # has none
    for _ in range(2):
        write_checksums(tmp_path)
        check_checksums(tmp_path)
    (tmp_path / "more.txt").write_text("what is added does no harm")
    check_checksums(tmp_path)
    flip(tmp_path / "a.bin", 1)
    with pytest.raises(ValueError, match=r"a\.bin is not the file .* delete headwise_check"):
        check_checksums(tmp_path)
    flip(tmp_path / "a.bin", 1)
    (tmp_path / "inner" / "b.txt").unlink()
    with pytest.raises(ValueError, match=r"has no inner/b\.txt.* delete headwise_checksums\.json"):
        check_checksums(tmp_path)
    deep = "[" * 100_000 + "]" * 100_000
    for broken in ("{", "[]", '{"sha256": 3}', '{"sha256": {"../x": "1"}}', deep):
        (tmp_path / LIST).write_text(broken)
        with pytest.raises(ValueError, match=r"headwise_checksums\.json (is|must)|has no \.\./x"):
            check_checksums(tmp_path)


def test_checksums_of_others_are_left_alone(tmp_path):
    (tmp_path / "checksums.json").write_text('{"model.safetensors": "abc"}')
    check_checksums(tmp_path)
