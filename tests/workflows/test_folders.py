"""Folders that bring Python code of their own: no way of opening them runs it."""

import io
import json
import logging
import sys
from pathlib import Path

import pytest
import transformers as hf

from headwise import adopt, cli, pruning
from headwise.pruning.record import RECIPE, record_of
from headwise.recording import Run
from headwise.workflows.inspect.opening import load_tokenizer, open_subject
from tests.hf.families import SIZES
from tests.papers.recipes.small_finetuning import small_config, write_classes
from tests.workflows.small_hosts import LINES, classifier, host, save, tokenizer_for

CLASSES = ("AutoConfig", "AutoModel", "AutoTokenizer", "AutoModelForMaskedLM")
CLASSES += ("AutoModelForSequenceClassification", "AutoModelForTokenClassification")
AUTO_MAP = {name: f"code.{name}" for name in CLASSES} | {"AutoTokenizer": ["code.Own", None]}
SAID = "it needs Python code of its own (auto_map), which headwise never runs"


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """A file that code of the model folders would make; whoever is asked says yes."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "marker"


@pytest.fixture
def unknown(tmp_path, marker) -> Path:
    """A model of a class that transformers does not have."""
    folder = save(host("BERT"), tokenizer_for("BERT"), tmp_path / "model")
    changed = {"model_type": "own", "architectures": ["OwnModel"]}
    return with_code(folder, marker, **changed)


@pytest.fixture
def headless(tmp_path, marker) -> Path:
    """A model that transformers has, but with no class of it that classifies texts."""
    sizes = {name: size for name, size in SIZES.items() if name != "type_vocab_size"}
    model = hf.BertGenerationEncoder(hf.BertGenerationConfig(**sizes))
    return with_code(save(model, tokenizer_for("BERT"), tmp_path / "model"), marker)


def with_code(folder: Path, marker: Path, **settings: object) -> Path:
    """The folder, with code that its settings name; it leaves a file when it is run."""
    (folder / "code.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    change(folder / "config.json", auto_map=AUTO_MAP, **settings)
    change(folder / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="Own")
    return folder


def change(path: Path, **settings: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def complaint(*arguments: object, monkeypatch, capsys) -> str:
    """The one line of a command that ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["headwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1
    return said


def options(command: str, folder: Path) -> list[object]:
    text = folder / "text.txt"
    text.write_text("\n".join(LINES) + "\n")
    if command == "inspect":
        return ["inspect", folder, "--data", text]
    if command == "prune":
        return ["prune", folder, "--data", text, "--dev", text, "--keep", 4, "--out", "small"]
    files = write_classes(folder / "files")
    named = [f"--set={name}={path}" for name, path in files.items()]
    fresh = f"--set=fresh_weights={command == 'train fresh'}"
    return ["train", "classifier", "--model", folder, "--set=task=files", fresh, *named]


@pytest.mark.parametrize("command", ["inspect", "prune", "train classifier", "train fresh"])
def test_no_command_runs_code_of_a_model_folder(command, unknown, marker, monkeypatch, capsys):
    said = complaint(*options(command, unknown), monkeypatch=monkeypatch, capsys=capsys)
    assert SAID in said
    assert not marker.exists()
    assert not (Path("runs")).exists()


@pytest.mark.parametrize("command", ["train classifier", "train fresh"])
def test_no_class_of_a_folder_stands_in_for_one_that_is_missing(
    command, headless, marker, monkeypatch, capsys
):
    (headless / "tokenizer_config.json").unlink()  # the tokenizer alone could be loaded
    tokenizer_for("BERT").save_pretrained(headless)
    said = complaint(*options(command, headless), monkeypatch=monkeypatch, capsys=capsys)
    assert SAID in said
    assert not marker.exists()


def test_no_tokenizer_runs_code(unknown, marker):
    with pytest.raises(ValueError, match="has no tokenizer that can be loaded: it needs Python"):
        load_tokenizer(unknown)
    assert not marker.exists()


def test_transformers_says_nothing_of_its_own_before_the_refusal(unknown, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with pytest.raises(ValueError, match="headwise never runs"):
        load_tokenizer(unknown)
    assert not caplog.records


def test_no_run_of_a_classifier_runs_code(tmp_path, unknown, marker):
    run = Run.create(
        tmp_path / "run", small_config(write_classes(tmp_path / "files")), "classifier"
    )
    unknown.rename(run.path("hugging-face"))
    run.write_text("tokenizer.json", run.path("hugging-face/tokenizer.json").read_text())
    about = {"classes": ["bad", "good"], "reads": "text", "pad": 0, "length": 24}
    run.write_json("classifier.json", about)
    with pytest.raises(ValueError, match="headwise never runs"):
        open_subject(run.folder)
    assert not marker.exists()


def test_no_pruned_model_runs_code(tmp_path, marker):
    model, folder = adopt(classifier()), tmp_path / "small"
    pruning.prune(model, {"encoder.0.self": [0]})
    pruning.save(model, folder, tokenizer_for("BERT"))
    with_code(folder, marker, architectures=["OwnModel"])
    (folder / RECIPE).unlink()
    pruning.saving.seal(folder, model, record_of(model))
    assert type(pruning.load(folder)) is type(model)
    open_subject(folder)  # transformers has a tokenizer for it
    assert not marker.exists()


@pytest.mark.parametrize("vocab", ["[" * 100_000 + "]" * 100_000, '{"<unk>": 0, "</s>": 1}'])
def test_damaged_files_of_a_slow_tokenizer_get_one_sentence(tmp_path, vocab):
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    (tmp_path / "vocab.json").write_text(vocab)
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="has no tokenizer that can be loaded"):
        load_tokenizer(tmp_path)
