"""Training a language model of characters: it learns, remembers across a stop, and says bits."""

import shutil
import sys

import pytest
import torch

from headwise.recording import Run
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.models.xl import TransformerXL, segment_loss
from headwise_papers.recipes.language import (
    LanguageConfig,
    Reading,
    load_language_model,
    train_language,
)
from headwise_papers.recipes.translator import Translator
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_translation import lasting, quietly, stopping

module = sys.modules[train_language.__module__]
SMALL = {
    "corpus": "file",
    "width": 32,
    "heads": 2,
    "layers": 2,
    "feed_forward": 64,
    "dropout": 0.1,
    "memory": 16,
    "segment": 32,
    "batch_size": 8,
    "steps": 60,
    "warmup": 10,
    "learning_rate": 1e-2,
    "evaluate_every": 20,
    "checkpoint_every": 20,
    "average": 2,
    "evaluation_rows": 4,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    pairs = ToyLanguage(nouns=6, transitive_verbs=3).pairs(400, seed=0)
    path.write_text("".join(" ".join(pair.source) + "\n" for pair in pairs))
    return path


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    config = configured(LanguageConfig, **SMALL, file=str(text))
    return quietly(config, tmp_path_factory.mktemp("lm"), train_language)


def test_it_learns_and_says_bits_per_character(finished):
    bits = [row["valid_bits"] for row in finished.metrics() if "valid_bits" in row]
    figures = finished.figures()
    assert len(bits) == 3 and bits[-1] < bits[0] - 0.3
    assert 0 < figures["valid_bits_per_character"] <= min(bits) + 1e-6
    assert abs(figures["bits_per_character"] - figures["valid_bits_per_character"]) < 0.5
    assert figures["updates"] == 60 and finished.has("report.html")


def test_the_saved_model_has_the_bits_that_were_said(finished, text):
    model = load_language_model(finished)
    test = torch.tensor(list(text.read_bytes()))
    test = test[len(test) * 95 // 100 :]
    rows = test[: len(test) // 4 * 4].view(4, -1)
    bits = segment_loss(model, rows, segment=32).bits
    assert bits == pytest.approx(finished.figures()["bits_per_character"], rel=1e-6)


def test_a_training_stopped_and_started_again_ends_the_same(finished, text, tmp_path, monkeypatch):
    config = configured(LanguageConfig, **SMALL, file=str(text))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 30))
        train_language(config, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    again = train_language(config, tmp_path / "run")
    assert lasting(again) == lasting(finished)
    one, other = (run.load_tensors("model.safetensors") for run in (again, finished))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_run_killed_before_its_report_is_given_one(finished, text, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    (folder / "report.html").unlink()
    figures = (folder / "figures.json").read_bytes()
    train_language(configured(LanguageConfig, **SMALL, file=str(text)), folder)
    assert "</html>" in (folder / "report.html").read_text()
    assert (folder / "figures.json").read_bytes() == figures


def test_a_training_goes_on_with_the_text_it_began_with_alone(text, tmp_path, monkeypatch):
    own = tmp_path / "own.txt"
    own.write_bytes(text.read_bytes())
    config = configured(LanguageConfig, **SMALL, file=str(own))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 30))
        train_language(config, tmp_path / "run")
    own.write_bytes(text.read_bytes()[::-1])
    with pytest.raises(ValueError, match="The data are not those that the run in"):
        train_language(config, tmp_path / "run")


def test_what_was_read_is_remembered_and_forgotten_at_the_beginning():
    config = configured(LanguageConfig, **SMALL, file="x").model
    reading = Reading(TransformerXL(config), rows=2).eval()
    first, second = torch.randint(256, (2, 2, 32))
    alone = reading(second, 0)
    reading(first, 0)
    assert torch.equal(reading(second, 0), alone)
    reading(first, 0)
    followed = reading(second, 16)
    _, memory = reading.model(first)
    assert not torch.allclose(followed, alone)
    assert torch.allclose(followed, reading.model(second, memory)[0], atol=1e-6)


@pytest.mark.parametrize("attention", ["topk:4", "sparsemax", "entmax:1.5", "entmax:learned"])
def test_every_attention_trains(attention, text, tmp_path):
    tiny = {**SMALL, "steps": 2, "warmup": 1, "attention": attention, "valid_symbols": 200}
    run = train_language(
        configured(LanguageConfig, **tiny, file=str(text), test_symbols=200), tmp_path / "run"
    )
    assert 0 < run.figures()["bits_per_character"] < 12


def test_the_wikipedia_at_hand_is_read(data_folder, tmp_path):
    sizes = {"train_symbols": 20_000, "valid_symbols": 500, "test_symbols": 500}
    settings = {**SMALL, **sizes, "corpus": "enwiki-xml-6mb", "steps": 20, "evaluate_every": 10}
    run = train_language(configured(LanguageConfig, **settings), tmp_path / "run")
    assert run.figures()["valid_bits_per_character"] < 7.5  # 8 would be a byte as it is


def test_a_language_model_is_no_translator(finished):
    with pytest.raises(ValueError, match="holds no translator"):
        Translator.load(Run.open(finished.folder))


def test_files_that_cannot_be_learnt_from(tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    for name, sentence in (("no.txt", "There is no text file"), ("short.txt", "9 bytes")):
        with pytest.raises(ValueError, match=sentence):
            train_language(
                configured(LanguageConfig, **SMALL, file=str(tmp_path / name)), tmp_path / "run"
            )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention": "sharp"}, "Attention must be"),
        ({"segment": 0}, "segment must be at least 1, got 0"),
        ({"file": ""}, "Your own text"),
        ({"valid_symbols": -1}, "valid_symbols must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        configured(configured(LanguageConfig, **SMALL, file="x"), **changes)
