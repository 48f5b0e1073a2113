"""A pruned translator's folder: checked wherever it is opened, and whole or absent."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from headwise import cli, pruning
from headwise.pruning import check_replaceable, prune, record_of
from headwise.pruning.record import RECIPE
from headwise.recording import Run
from headwise.recording.checksums import digest
from headwise.sites import find_sites
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.prune import prune_folder
from headwise.workflows.prune.pruning import open_task, run_folder
from headwise_papers.recipes.translator import RECORD, Translator, open_translator
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
    changed = text.replace('"kind": "model"', '"kind": "other"')
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
    with pytest.raises(ValueError, match="no part of a pruned model of this kind"):
        pruning.save(pruning.load(small), small)
    assert digests(small) == before


def test_a_model_that_was_saved_without_its_words_is_not_inspected(small, tmp_path):
    pruning.save(pruning.load(small), tmp_path / "bare")
    with pytest.raises(ValueError, match="holds a Transformer of headwise without its words"):
        open_subject(tmp_path / "bare")


KILLED = """
import os, signal, sys
from pathlib import Path
from headwise.workflows.prune.pruning import open_task
from headwise.pruning import prune
from headwise_papers.recipes import pruning
from tests.papers.pruning.test_pruned_translators import quick
model, out = map(Path, sys.argv[1:])
pruning.seal = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("far", [{"keep": 3}, {"penalty": 0.2}, {"keep": 3, "choose": "random"}])
def test_replayed_steps_prune_as_others_do(small_translation, far, tmp_path):
    files = tuple(Run.open(small_translation).config()["valid"])
    given = {"data": files, "dev": files, "steps": 60, "length": 64, **far}
    found = {}
    for graphs in (True, False):
        config = config_for("translation", small_translation, graphs=graphs, **given)
        run = prune_folder(config, tmp_path / f"small-{graphs}")
        losses = [row["loss"] for row in run.metrics() if "loss" in row]
        found[graphs] = losses, run.read_json("trace/pruning.json")["keep"]
    assert found[True][0] == pytest.approx(found[False][0], rel=0.02)
    assert found[True][1] == found[False][1]


def test_our_runs_stay_runs_that_translate_and_can_be_inspected(small_translation, tmp_path):
    files = tuple(Run.open(small_translation).config()["valid"])
    config = config_for(
        "translation", small_translation, data=files, dev=files, keep=4, steps=20, length=64
    )
    run = prune_folder(config, tmp_path / "small")
    assert run.figures()["heads_before"] == 6 and run.figures()["heads_kept"] == 4
    translator = Translator.load(Run.open(tmp_path / "small"))
    assert record_of(translator.model) is not None
    assert sum(site.num_heads for site in find_sites(translator.model)) == 4
    assert all(translator.translate(["the dog slept ."]))
    text = tmp_path / "text"
    text.write_text("the dog slept .\n" * 3)
    looking = InspectConfig(str(tmp_path / "small"), str(text), sample=0)
    looked = inspect_folder(looking, tmp_path / "looked")
    record = record_of(translator.model)
    assert looked["original"] == tuple(str(record.original(head)) for head in looked.heads)
    assert len(looked) == 4
    # once more: numbers are those of the smaller model, the record counts from the first
    twice = config_for(
        "translation", tmp_path / "small", data=files, dev=files, keep=2, steps=10, length=64
    )
    assert prune_folder(twice, tmp_path / "smaller").figures()["heads_kept"] == 2
    record = record_of(Translator.load(Run.open(tmp_path / "smaller")).model)
    assert sum(record.heads.values()) == 6 and sum(map(len, record.kept.values())) == 2


def test_a_file_beside_a_pruned_run_is_not_deleted(small_translation, tmp_path, monkeypatch):
    files, pruned = tuple(Run.open(small_translation).config()["valid"]), tmp_path / "small"
    given = {"data": files, "dev": files, "choose": "random", "steps": 0, "length": 64}
    config = config_for("translation", small_translation, **given)
    prune_folder(config, pruned)
    before = {path.name: path.read_bytes() for path in pruned.iterdir()}
    run_folder(pruned).rename(tmp_path / "elsewhere")

    task = open_task(config, small_translation)  # a file may also come while a model is trained
    prune(task.model, {"encoder.0.self": [0]})
    task.save(pruned)
    assert {path.name for path in pruned.iterdir()} == before.keys()  # what was saved is replaced
    for name in ("notes.txt", "thesis"):
        (pruned / "thesis").mkdir() if name == "thesis" else (pruned / name).write_text("work")
        with pytest.raises(ValueError, match=f"holds {name}, which is no part of"):
            prune_folder(config, pruned)
        with pytest.raises(ValueError, match=f"holds {name}, which is no part of"):
            task.save(pruned)
        assert (pruned / name).exists() and not run_folder(pruned).exists()
        (pruned / "notes.txt").unlink(missing_ok=True)
