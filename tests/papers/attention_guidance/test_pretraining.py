"""Pre-training with guidance and without: what is trained, found, lent, and concluded."""

import dataclasses
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from headwise.recording import Run
from headwise_papers.attention_guidance import (
    _tuning,
    downstream,
    transfer,
)
from headwise_papers.attention_guidance._pretraining import (
    ENGLISH,
    GUIDED,
    MLM,
    Job,
)
from headwise_papers.attention_guidance._subjects import runs_of
from headwise_papers.core.running import reproduce
from headwise_papers.core.shelf import load_experiment
from headwise_papers.recipes.pretraining import PretrainingConfig

ROOT = Path(__file__).parents[3]

SMOKES = {
    name: load_experiment(f"attention_guidance/{name}").smoke for name in ("downstream", "transfer")
}


@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reproduced(name, folder):
    with one_thread():
        return reproduce(f"attention_guidance/{name}", SMOKES[name], folder)


def test_an_encoder_that_diverged_is_not_fine_tuned(data_folder, tmp_path, monkeypatch):
    config = dataclasses.replace(SMOKES["downstream"], seeds=2)
    wild = Run.create(tmp_path / "wild", PretrainingConfig())
    wild.write_json("diverged.json", {"why": "nan"})
    monkeypatch.setattr(_tuning, "encoder_run", lambda *args: wild)
    monkeypatch.setattr(_tuning, "finetune", None)
    figures = downstream.reproduce(config, Run.create(tmp_path / "run", config))
    assert figures == {f"masakhanews-orm: trainings that diverged, {arm}": [2.0]
                       for arm in (MLM, GUIDED)}  # fmt: skip
    config = dataclasses.replace(SMOKES["transfer"], seeds=2)
    figures = transfer.reproduce(config, Run.create(tmp_path / "other", config))
    assert figures["sst2: trainings that diverged, none"] == [2.0] and len(figures) == 3


def test_encoders_are_fine_tuned_each_from_its_own_weights(data_folder, tmp_path, monkeypatch):
    figures = reproduced("downstream", tmp_path / "run")
    there = tmp_path / "run" / "tuned" / "masakhanews-orm"
    for arm in ("mlm", "guided"):
        tuned = Run.open(there / f"oromo-{arm}-1-seed-0")
        assert tuned.config()["model"] == str(tmp_path / "run" / "oromo" / f"{arm}-1-seed-0")
        assert not tuned.config()["fresh_weights"] and tuned.config()["folds"] == 3
        losses = [row["loss"] for row in Run.open(tuned.folder / "seed-0-fold-0").metrics()
                  if "loss" in row]  # fmt: skip
        assert losses[-1] < losses[0]
    assert {"masakhanews-orm: MLM", downstream.better("masakhanews-orm")} <= set(figures)
    monkeypatch.setattr(_tuning, "finetune", None)
    assert reproduced("downstream", tmp_path / "run") == figures
    other = dataclasses.replace(SMOKES["downstream"], epochs=3, trained=(str(tmp_path / "run"),))
    with pytest.raises(ValueError, match="trained with epochs=4, but epochs=3"):
        reproduce("attention_guidance/downstream", other, tmp_path / "other")


def test_no_pre_training_has_the_english_tokenizer_and_fresh_weights(
    data_folder, tmp_path, monkeypatch
):
    figures = reproduced("transfer", tmp_path / "run")
    there = tmp_path / "run" / "tuned" / "sst2"
    none, english = (Run.open(there / f"wikitext-2-{arm}-1-seed-0") for arm in ("none", "mlm"))
    assert none.config()["model"] == english.config()["model"]
    assert none.config()["fresh_weights"] and not english.config()["fresh_weights"]
    assert "sst2: oromo, MLM better than none" in figures
    lent = dataclasses.replace(SMOKES["transfer"], trained=(str(tmp_path / "run"),))
    for weights in (tmp_path / "run").rglob("model.safetensors"):
        weights.unlink()
    monkeypatch.setattr(_tuning, "finetune", None)
    assert reproduce("attention_guidance/transfer", lent, tmp_path / "again") == figures
    # what fine-tunings began with is compared too, be the encoders there or only what they say
    longer = dataclasses.replace(lent, steps=40)
    for name in ("longer", "longest"):
        with pytest.raises(
            ValueError, match="trained with fit.steps=20, but fit.steps=40 is asked for"
        ):
            reproduce("attention_guidance/transfer", longer, tmp_path / name)
        for corpus in ("oromo", "wikitext-2"):
            shutil.rmtree(tmp_path / "run" / corpus, ignore_errors=True)
    start = _tuning.Start("sst2", Job("wikitext-2", MLM, 1, 0), fresh=True)
    run = Run.open(tmp_path / "longer")
    assert _tuning.tuned_run(longer, run, start).folder == none.folder  # nothing of it was learnt
    shutil.rmtree(none.folder / "encoder")
    with pytest.raises(ValueError, match=r"cannot be told, as .* is gone"):
        _tuning.tuned_run(longer, run, start)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transfer", "patterns"])
def test_two_at_once_find_what_one_after_the_other_do(name, data_folder, tmp_path):
    experiment = load_experiment(f"attention_guidance/{name}")
    found = []
    for processes in (1, 2):
        config = dataclasses.replace(experiment.smoke, at_once=processes)
        # two processes share the threads, and sums of more threads differ in their last digits
        with one_thread(), Run.create(tmp_path / str(processes), config) as run:
            figures = experiment.reproduce(config, run)
        slow = ("minutes", "a second")
        found.append({key: figures[key] for key in figures if not any(x in key for x in slow)})
        assert bool(run.names("at-once/*.log")) == (processes == 2)
    assert found[0] == found[1]


def test_others_find_the_english_encoders(tmp_path):
    arms = {"MLM": MLM, "guided 1/2": GUIDED, "guided 1": "guided 1"}
    for theirs, ours in arms.items():
        run = Run.create(tmp_path / Job(ENGLISH, ours, 12, 0).folder, PretrainingConfig())
        run.save_figures({})
        ((seed, found),) = runs_of([str(tmp_path)], theirs, layers=12)
        assert seed == 0 and found.folder == run.folder
