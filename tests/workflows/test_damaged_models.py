"""A model of a finished run that was damaged is refused, whichever command opens it."""

import shutil
import sys

import pytest

from headwise import cli
from headwise.config import from_json
from headwise.recording import Run
from headwise.recording.checksums import write_checksums
from headwise.workflows.inspect.opening import open_subject
from headwise_papers.recipes.classifier import Classifier, TruncatingTokenizer
from headwise_papers.recipes.training_run import check_models
from headwise_papers.recipes.translation import TranslationConfig, train_translation
from tests.papers.recipes.small_finetuning import small_config, write_classes
from tests.recording.test_checksums import flip
from tests.workflows.small_hosts import LINES, classifier, tokenizer_for


def commands(run, text):
    yield "inspect", run, "--data", text
    texts = ["--data", text, "--data", text, "--dev", text, "--dev", text]
    yield "prune", run, *texts, "--keep", 2, "--out", "small"
    yield "translate", run


def test_every_command_refuses_damaged_weights_with_one_sentence(
    small_translation, tmp_path, monkeypatch, capsys
):
    run, text = tmp_path / "run", tmp_path / "text.txt"
    shutil.copytree(small_translation, run)
    text.write_text("\n".join(LINES) + "\n")
    flip(run / "model.safetensors", -5)
    monkeypatch.chdir(tmp_path)
    for command in commands(run, text):
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, command)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr().err
        assert end.value.code == 2 and said.count("\n") == 1
        assert "model.safetensors was damaged or changed after it was written" in said


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_finished_training_with_a_damaged_model_is_not_shown(small_translation, tmp_path, damage):
    run = tmp_path / "run"
    shutil.copytree(small_translation, run)
    config = from_json(TranslationConfig, Run.open(run).config())
    train_translation(config, run)
    model = run / "model.safetensors"
    if damage == "cut":
        model.write_bytes(model.read_bytes()[:-100])
    else:
        flip(model, -5)
    with pytest.raises(ValueError, match=r"model\.safetensors (was damaged|is not a whole)"):
        train_translation(config, run)


def test_damaged_classifiers_of_a_finished_training_are_found(tmp_path):
    run = Run.create(
        tmp_path / "run", small_config(write_classes(tmp_path / "files")), "classifier"
    )
    (run.folder / "seed-0" / "hugging-face").mkdir(parents=True)
    weights = run.path("seed-0/hugging-face/model.safetensors")
    weights.write_bytes(b"weights")
    write_checksums(weights.parent)
    check_models(run)
    flip(weights, 0)
    with pytest.raises(ValueError, match=r"model\.safetensors is not the file that was saved"):
        check_models(run)
    weights.rename(run.path("seed-0/model.safetensors"))
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        check_models(run)


def test_a_hugging_face_classifier_in_a_run_is_checked(tmp_path):
    definition = tokenizer_for("BERT").backend_tokenizer.to_str()
    kept = Classifier(classifier(), TruncatingTokenizer(definition, 0, 24), ("a", "b", "c"), "text")
    run = Run.create(
        tmp_path / "run", small_config(write_classes(tmp_path / "files")), "classifier"
    )
    kept.save(run)
    open_subject(run.folder)
    flip(run.path("hugging-face/model.safetensors"), -5)
    with pytest.raises(ValueError, match=r"model\.safetensors is not the file that was saved"):
        open_subject(run.folder)
