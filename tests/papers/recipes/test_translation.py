"""Training a translator: what it writes, that it learns, and that it survives being stopped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.recording import Run
from headwise.training import FitConfig
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise_papers.recipes.training_run import Clock, choose_weights
from headwise_papers.recipes.translation import TranslationConfig, train_translation
from headwise_papers.recipes.translator import SubwordCodec, Translator, WordCodec, save_codecs
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_translation import (
    SMALL,
    config_of,
    lasting,
    quietly,
    small_config,
    stopping,
    write_texts,
)

module = sys.modules[train_translation.__module__]
ATTENTIONS = ("softmax", "topk:4", "sparsemax", "entmax:1.5", "entmax:learned")
FAST = {"steps": 2, "warmup": 1, "average": 1, "beams": 1, "test_pairs": 2, "valid_pairs": 4}


def validation(run):
    return [row["validation_loss"] for row in run.metrics() if "validation_loss" in row]


def test_a_run_has_all_its_files(small_translation):
    paths = small_translation.rglob("*")
    names = {path.relative_to(small_translation).as_posix() for path in paths}
    assert names >= {
        *("config.json", "environment.json", "metrics.jsonl", "checkpoint.safetensors"),
        *("model.json", "model.safetensors", "pieces.model", "best.safetensors"),
        *("translations.txt", "figures.json", "report.html"),
    }
    assert not [name for name in names if "partial" in name]


def test_it_learns_and_says_how_well(small_translation):
    run = Run.open(small_translation)
    losses = validation(run)
    assert len(losses) == 6 and losses[-1] < losses[0] - 1
    figures = run.figures()
    assert figures["validation_loss"] <= min(losses) + 1e-6
    assert figures["bleu"] > 2  # one word again and again has 0.7
    assert "case:mixed" in figures["bleu_signature"] and "tok:13a" in figures["bleu_signature"]
    assert "case:lc" in figures["tokenised_bleu_signature"]
    assert "smooth:none" in figures["tokenised_bleu_signature"]
    assert figures["updates"] == 120 and figures["tokens_per_second"] > 0
    assert 0 < figures["minutes"] < 5
    model = Translator.load(run).model
    assert figures["parameters"] == sum(p.numel() for p in model.parameters())


def test_the_translations_are_those_of_the_saved_model(small_translation):
    run = Run.open(small_translation)
    test = Path(run.config()["test"][0]).read_text().splitlines()
    lines = (small_translation / "translations.txt").read_text().split("\n")
    assert len(lines) == len(test) + 1 and not lines[-1]
    assert Translator.load(run).translate(test, beams=2) == lines[:-1]


def test_a_training_stopped_and_started_again_ends_the_same(
    small_translation, tmp_path, monkeypatch
):
    config = config_of(small_translation)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 70))
        quietly(config, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    stopped, whole = quietly(config, tmp_path / "run"), Run.open(small_translation)
    assert lasting(stopped) == lasting(whole)
    texts = [run.path("translations.txt").read_text() for run in (stopped, whole)]
    assert texts[0] == texts[1]
    one, other = (run.load_tensors("model.safetensors") for run in (stopped, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_run_killed_before_its_report_is_given_one(small_translation, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(small_translation, folder)
    (folder / "report.html").unlink()
    figures = (folder / "figures.json").read_bytes()
    train_translation(config_of(small_translation), folder)
    assert "</html>" in (folder / "report.html").read_text()
    assert (folder / "figures.json").read_bytes() == figures


def test_a_training_goes_on_only_with_the_texts_it_began_with(tmp_path, monkeypatch):
    folder, config = tmp_path / "run", _stopped(tmp_path, monkeypatch)
    path, environment = Path(config.train[0]), (folder / "environment.json").read_bytes()
    before = path.read_text()
    path.write_text(before.replace("the", "a", 1))
    with pytest.raises(ValueError, match="not those that the run in"):
        train_translation(config, folder)
    assert (folder / "environment.json").read_bytes() == environment
    with pytest.raises(ValueError, match="train_pairs=0, but this one has train_pairs=9"):
        train_translation(configured(config, train_pairs=9), folder)
    path.write_text(before)
    figures = train_translation(config, folder).figures()
    path.write_text("another\n" * 300)  # a finished run needs it no more
    assert train_translation(config, folder).figures() == figures


def _stopped(folder, monkeypatch):
    """The settings of a training that was stopped after a checkpoint."""
    changes = {**FAST, "steps": 30, "checkpoint_every": 10}
    config = small_config(folder, **changes)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 20))
        train_translation(config, folder / "run")
    assert (folder / "run" / "checkpoint.safetensors").exists()
    return config


def test_a_finished_run_is_left_as_it_is(small_translation, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(module, "fit", fail)
    before = (small_translation / "figures.json").read_bytes()
    train_translation(config_of(small_translation), small_translation)
    assert (small_translation / "figures.json").read_bytes() == before


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_trains_and_translates(attention, tmp_path):
    places = {f"{place}_attention": attention for place in ("encoder", "decoder", "cross")}
    run = train_translation(small_config(tmp_path, **FAST, **places), tmp_path / "run")
    assert len(run.path("translations.txt").read_text().splitlines()) == 2
    assert run.read_json("model.json")["cross_attention"] == attention


def test_batches_padded_as_on_a_gpu_stay_within_max_length(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "width_multiple", lambda: 8)
    tiny = {"steps": 4, "warmup": 1, "evaluate_every": 4, "average": 1}
    # the longest pairs have 18 to 21 pieces, which are padded to 24 where there is room
    config = small_config(tmp_path, max_length=21, batch_tokens=21, **tiny)
    run = train_translation(config, tmp_path / "run")
    assert run.figures()["train_pairs_too_long"] > 0 and run.figures()["updates"] == 4


def test_languages_may_have_pieces_of_their_own(tmp_path):
    run = train_translation(small_config(tmp_path, **FAST, joint=False), tmp_path / "run")
    assert run.has("source_pieces.model") and not run.has("pieces.model")
    translator = Translator.load(run)
    assert translator.source != translator.target
    assert len(translator.translate(["the dog saw a cat .", ""])) == 2


def test_inspect_shows_the_pieces_of_a_translator(small_translation, tmp_path):
    (tmp_path / "text.txt").write_text("the dogs saw a catdog .\n")
    config = InspectConfig(str(small_translation), str(tmp_path / "text.txt"), ablation_lines=1)
    table = inspect_folder(config, tmp_path / "out")
    assert len(table) == 6 and table.columns["output_change"]
    (sentence,) = Run.open(tmp_path / "out").read_json("trace/attention.json")["sentences"]
    tokens = sentence["tokens"]["encoder"]
    assert tokens[-1] == "<eos>" and "".join(tokens[:-1]) == "▁the▁dogs▁saw▁a▁catdog▁."
    assert len(tokens) > 7  # some word is in pieces
    assert len(sentence["sites"]["decoder.0.cross"][0]) == len(sentence["tokens"]["decoder"])


@pytest.mark.slow
def test_a_few_hundred_pairs_of_multi30k_are_learnt_from(data_folder, tmp_path):
    pairs = {"train_pairs": 300, "valid_pairs": 60, "test_pairs": 3}
    changes = {"corpus": "multi30k", "vocab_size": 500, "beams": 1}
    config = configured(TranslationConfig, **{**SMALL, **pairs, **changes})
    run = quietly(config, tmp_path / "run")
    losses = validation(run)
    assert losses[-1] < losses[0] - 0.5
    assert len(run.path("translations.txt").read_text().splitlines()) == 3


def test_files_of_unequal_length_are_refused(tmp_path):
    files = write_texts(tmp_path)
    Path(files["valid"][1]).write_text("one line\n")
    with pytest.raises(ValueError, match=r"valid.toy-en has 30 lines, but .*valid.toy-xx has 1;"):
        train_translation(configured(TranslationConfig, **{**SMALL, **files}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": ("only-one",)}, "train takes two files"),
        ({"test": ()}, "test takes two files"),
        ({"valid": ("nowhere.en", "nowhere.de")}, "There is no text file nowhere.en"),
    ],
)
def test_files_that_are_missing_are_named(tmp_path, changes, sentence):
    config = configured(TranslationConfig, **{**SMALL, **write_texts(tmp_path), **changes})
    with pytest.raises(ValueError, match=sentence):
        train_translation(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 100}, "steps must be more than warmup, got 100 and 300"),
        ({"cross_attention": "topk"}, "Attention must be"),
        (
            {"batch_tokens": 100},
            "batch_tokens must be at least model.max_length, .* got 100 and 256",
        ),
        ({"label_smoothing": 1.0}, "label_smoothing must be"),
        ({"heads": 3}, "width must be even and a multiple of heads"),
        ({"corpus": "files"}, "Your own files"),
        ({"average": 0}, "average must be at least 1"),
        ({"train_pairs": -1}, "train_pairs must be at least 0"),
    ],
)
def test_settings_that_a_part_would_refuse_are_refused_before_anything_is_made(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        configured(TranslationConfig, **changes)


def test_auto_is_bfloat16_on_a_gpu_only():
    config = FitConfig()
    assert config.on_device(cuda=True).precision == "bfloat16"
    assert config.on_device(cuda=False).precision == "float32"
    exact = configured(config, precision="float32")
    assert exact.on_device(cuda=True).precision == "float32"


def test_of_the_best_and_the_mean_of_the_last_the_better_is_taken(tmp_path):
    run = Run.create(tmp_path / "run", TranslationConfig())
    model = nn.Linear(1, 1, bias=False)
    for step, weight in ((1, 0.0), (2, 4.0)):
        run.save_tensors(f"checkpoints/{step}.safetensors", {"weight": torch.tensor([[weight]])})
    run.save_tensors("best.safetensors", {"weight": torch.tensor([[4.0]])}, {"step": "2"})

    def distance_to(wanted):
        return lambda model: {"distance": abs(model.weight.item() - wanted)}

    assert choose_weights(run, model, distance_to(3.9)) == "step 2"
    assert model.weight.item() == 4
    assert choose_weights(run, model, distance_to(2.1)) == "mean of the last 2 checkpoints"
    assert model.weight.item() == 2 and not model.training


def test_minutes_before_an_interruption_count(tmp_path):
    with Run.create(tmp_path / "run", TranslationConfig()) as run:
        run.save_tensors("checkpoint.safetensors", {}, {"step": "10"})
        run.log(10, minutes=3.0)
        run.log(20, minutes=5.0)  # of steps that will be done again
        assert 3 <= Clock(run).minutes() < 3.1


def test_words_and_pieces_are_not_mixed_in_a_run(tmp_path, small_run, small_translation):
    words, pieces = (Translator.load(Run.open(path)) for path in (small_run, small_translation))
    assert isinstance(words.source, WordCodec) and isinstance(pieces.source, SubwordCodec)
    run = Run.create(tmp_path / "run", TranslationConfig())
    with pytest.raises(ValueError, match="got WordCodec and SubwordCodec"):
        save_codecs(run, words.source, pieces.target)


@pytest.mark.slow
def test_two_processes_train_as_one_does_with_two_batches_an_update(tmp_path):
    files = write_texts(tmp_path)
    own = [word for part, paths in files.items() for path in paths for word in (f"--{part}", path)]
    settings = {k: v for k, v in SMALL.items() if k != "corpus"} | {
        "batch_tokens": 512,
        "steps": 40,
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    train = ["-m", "headwise", "train", "translation", *own, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for start, out in ((launch, ["two"]), ([sys.executable], ["one", "--set", "accumulate=2"])):
        command = [*start, *train, "--out", *out]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
    two, one = (Run.open(tmp_path / name) for name in ("two", "one"))
    assert len(two.load_tensors("checkpoint.safetensors")["random.cpu"]) == 2
    assert validation(two) == pytest.approx(validation(one), rel=1e-5)
