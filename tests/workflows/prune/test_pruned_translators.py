"""A pruned translator's folder: checked wherever it is opened, and whole or absent."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from headwise import cli, pruning
from headwise.pruning.recipe import RECIPE
from headwise.recording import Run
from headwise.recording.checksums import digest
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.prune import prune_folder
from headwise.workflows.prune.places import check_replaceable
from headwise.workflows.prune.pruning import open_task, run_folder
from headwise_papers.recipes.translating import open_translator
from headwise_papers.recipes.translator import RECORD
from tests.workflows.prune.small_tasks import config_for

WEIGHTS = "model.safetensors"
FILES = ("config.json", "model.json", WEIGHTS, "pieces.model", RECORD)
INPUTS = torch.tensor([[4, 5, 6, 2], [7, 8, 2, 0]]), torch.tensor([4, 3]), torch.tensor([[1], [1]])


def quick(model):
    files = tuple(Run.open(model).config()["valid"])
    return config_for(
        "translation", model, data=files, dev=files, choose="random", steps=0, length=64
    )


@pytest.fixture(scope="module")
def made(small_translation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "small"
    prune_folder(quick(small_translation), folder)
    return folder


@pytest.fixture
def small(made, tmp_path):
    return shutil.copytree(made, tmp_path / "small")


def digests(folder):
    return {path.name: digest(path) for path in folder.iterdir()}


def spoil(path, how):
    held = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(held[: len(held) // 2])
    else:  # one bit of it
        path.write_bytes(held[:-3] + bytes([held[-3] ^ 1]) + held[-2:])


def test_the_same_pruning_gives_the_same_files(made, small_translation, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["another", "command"])  # which the environment tells
    again = tmp_path / "again"
    prune_folder(quick(small_translation), again)
    differ = [name for name, found in digests(again).items() if found != digests(made)[name]]
    assert differ == ["environment.json"]
    one, other = (run_folder(folder) for folder in (made, again))
    names = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    timed = {"environment.json", "figures.json", "report.html", "metrics.jsonl"}
    for name in names:
        if name.name not in timed:
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_every_file_has_a_checksum(small):
    named = json.loads((small / RECIPE).read_text())["files"]
    assert {*FILES} <= named.keys()
    assert {*named, RECIPE, "environment.json"} == digests(small).keys()  # it tells the time


OPENINGS = {
    "inspect": open_subject,
    "translate": open_translator,
    "prune": lambda folder: open_task(config_for("translation", folder), folder),
    "load": pruning.load,
    "export": lambda folder: pruning.export(folder, "torch"),
}


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("how", ["cut", "changed", "missing"])
@pytest.mark.parametrize("name", [WEIGHTS, RECORD])
def test_files_that_are_not_whole_are_refused(small, name, how, opening):
    spoil(small / name, how)
    with pytest.raises(ValueError, match=r"is not the file that was saved|is not whole"):
        OPENINGS[opening](small)


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_checksums_that_are_not_whole_are_refused(small, how, opening):
    text = (small / RECIPE).read_text()
    changed = text.replace('"own": true', '"own": false')
    (small / RECIPE).write_text(changed if how == "changed" else text[:90])
    with pytest.raises(ValueError, match=r"was changed after it was written|it was cut short"):
        OPENINGS[opening](small)


@pytest.mark.parametrize("how", ["cut", "changed", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_inspect_refuses_any_file_that_is_not_whole(small, name, how):
    spoil(small / name, how)
    with pytest.raises(ValueError, match=name):
        open_subject(small)


@pytest.mark.parametrize("command", ["inspect", "translate", "prune"])
def test_the_commands_say_so_in_one_sentence(small, command, monkeypatch, capsys):
    record = json.loads((small / RECORD).read_text())
    (small / RECORD).write_text(json.dumps({**record, "settings": {"mine": 1}}))
    text = small.parent / "text"
    text.write_text("the dog slept .\n")
    more = {
        "inspect": ["--data", text],
        "prune": ["--data", text, "--dev", text, "--keep", 1, "--out", small.parent / "smaller"],
    }
    line = [command, small, *more.get(command, ())]
    monkeypatch.setattr(sys, "argv", ["headwise", *map(str, line)])
    monkeypatch.chdir(small.parent)
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1
    assert said.startswith("headwise: ") and f"{RECORD} is not the file that was saved" in said


def test_load_gives_the_model_that_translates(small):
    translator, model = open_translator(small), pruning.load(small)
    assert pruning.record_of(model) == pruning.record_of(translator.model)
    with torch.no_grad():
        got, wanted = (one(*INPUTS) for one in (model, translator.model))
    assert torch.equal(got, wanted)
    tied = model.read_out.weight is model.embed_target.words.weight
    assert tied == (translator.model.read_out.weight is translator.model.embed_target.words.weight)


EXPORTING = "import sys; from headwise import pruning; pruning.export(sys.argv[1], 'torch')"


@pytest.mark.slow
def test_it_is_exported_and_then_still_replaced(small):
    subprocess.run([sys.executable, "-c", EXPORTING, str(small)], check=True)
    graph = torch.export.load(small / "model.pt2").module()
    torch.testing.assert_close(graph(*INPUTS), pruning.load(small)(*INPUTS))
    check_replaceable(small, as_run=True)
    open_translator(small)


def test_what_is_loaded_is_not_saved_over_its_words(small):
    before = digests(small)
    with pytest.raises(ValueError, match=r"which headwise\.pruning\.save did not write"):
        pruning.save(pruning.load(small), small)
    with pytest.raises(ValueError, match="no pruned model of this kind"):
        check_replaceable(small, as_run=False)
    assert digests(small) == before


def test_a_folder_of_before_there_were_checksums_is_opened(small):
    (small / RECIPE).unlink()
    assert open_translator(small).translate(["the dog slept ."])
    with pytest.raises(ValueError, match=r"it has no pruning\.json"):
        pruning.load(small)


def test_a_model_that_was_saved_without_its_words_is_not_inspected(small, tmp_path):
    pruning.save(pruning.load(small), tmp_path / "bare")
    with pytest.raises(ValueError, match="holds a Transformer of headwise without its words"):
        open_subject(tmp_path / "bare")


KILLED = """
import os, signal, sys
from pathlib import Path
from headwise.workflows.prune.pruning import open_task
from headwise_papers.recipes import translator_task
from headwise.pruning import prune
from tests.workflows.prune.test_pruned_translators import quick
model, out = map(Path, sys.argv[1:])
translator_task.seal = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
task = open_task(quick(model), model)
prune(task.model, {"encoder.0.self": [0]})
task.save(out)
"""


def test_kill_9_before_the_checksums_leaves_the_old_folder_or_none(small_translation, small):
    before = digests(small)
    for out in (small, small.parent / "new"):
        command = [sys.executable, "-c", KILLED, str(small_translation), str(out)]
        assert subprocess.run(command).returncode == -9
    assert digests(small) == before and not (small.parent / "new").exists()
    assert len(list(small.parent.glob(".small.*.partial"))) == 1
    pruning.load(small)
    assert not list(small.parent.glob(".small.*.partial"))
