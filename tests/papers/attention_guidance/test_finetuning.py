"""Fine-tuning pre-trained encoders: what is made, and what is concluded."""

import dataclasses
from itertools import count

import pytest
import torch

from headwise.recording import Run
from headwise_papers.attention_guidance import _tuning, downstream, transfer
from headwise_papers.attention_guidance._encoders import GUIDED, MLM, pretrain_encoder
from headwise_papers.attention_guidance._tuning import tuned
from headwise_papers.core import find_or_train, using_cache
from headwise_papers.core.runner import reproduce
from headwise_papers.recipes.finetuning import (
    FinetuningConfig,
    Prediction,
    compare,
    write_predictions,
)


@pytest.fixture(scope="module")
def cache(data_folder, tmp_path_factory):
    """Use one cache and one thread."""
    folder = tmp_path_factory.mktemp("tuned")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with using_cache(folder):
        yield folder
    torch.set_num_threads(before)


def test_encoders_are_fine_tuned_each_from_its_own_weights(cache, tmp_path, monkeypatch):
    results = reproduce("attention_guidance/downstream", downstream.SMOKE, tmp_path / "run")
    for _, _, start in downstream._starts(downstream.SMOKE):
        own = Run.open(tuned(start).path("tuning"))
        assert own.config()["model"] == str(find_or_train(pretrain_encoder, start.encoder).folder)
        assert not own.config()["fresh_weights"] and own.config()["folds"] == 3
        rows = Run.open(own.folder / "seed-0-fold-0").metrics()
        losses = [row["loss"] for row in rows if "loss" in row]
        assert losses[-1] < losses[0]
    assert {"masakhanews-orm: MLM", "masakhanews-orm: guided - MLM"} <= set(results)
    assert (tmp_path / "run/figures/scores.png").is_file()
    monkeypatch.setattr(_tuning, "finetune", None)
    again = reproduce("attention_guidance/downstream", downstream.SMOKE, tmp_path / "again")
    assert again == results


def test_no_pre_training_has_the_english_tokenizer_and_fresh_weights(cache, tmp_path):
    results = reproduce("attention_guidance/transfer", transfer.SMOKE, tmp_path / "run")
    starts = {name: start for _, name, start in transfer._starts(transfer.SMOKE)}
    none, english = (
        Run.open(tuned(starts[name]).path("tuning")).config()
        for name in ("none", "wikitext-2, MLM")
    )
    assert none["model"] == english["model"]
    assert none["fresh_weights"] and not english["fresh_weights"]
    assert "sst2: oromo, MLM - none" in results


def test_an_encoder_that_diverged_is_not_fine_tuned(cache, tmp_path, monkeypatch):
    config = dataclasses.replace(
        downstream.SMOKE, seeds=2, changes=(*downstream.SMOKE.changes, "fit.steps=30")
    )
    wild = Run.create(tmp_path / "wild", config)
    wild.save_figures({"diverged": "nan"})
    monkeypatch.setattr(_tuning, "find_or_train", lambda train, settings: (
        wild if train is pretrain_encoder else find_or_train(train, settings)))  # fmt: skip
    monkeypatch.setattr(_tuning, "finetune", None)
    results = downstream.run(config, wild)
    assert {name: result.values for name, result in results.items()} == {
        f"masakhanews-orm: trainings that diverged, {arm}": (2.0,) for arm in (MLM, GUIDED)
    }
    assert downstream.draw(results, wild)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: downstream.Config(tasks=("qqp",)), "There is no task 'qqp' here"),
        (lambda: transfer.Config(arms=("both",)), "arms are MLM or guided or both"),
        (lambda: transfer.Config(english="klingon"), "There is no recipe for 'klingon'"),
        (lambda: _tuning.check_tasks((), _tuning.TUNING), "One task or more"),
    ],
)
def test_wrong_settings_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.fixture
def plant(tmp_path):
    """Make fine-tunings that are right about the first so many of 100 examples."""
    numbers = count()

    def planted(right, *, folds=0):
        run = Run.create(tmp_path / str(next(numbers)), FinetuningConfig())
        if right is None:
            run.save_figures({"diverged": "nan"})
            return run
        said = [Prediction("seed-0", n, "no", "no" if n < right else "yes") for n in range(100)]
        if folds:
            said = [one._replace(part=f"seed-0-fold-{one.example % folds}") for one in said]
        figures = (
            {"task": "rte", "metric": "accuracy", "classes": ["no", "yes"], "score": right / 100}
            | {"examples": {"train": 10, "test": 100}, "minutes": 1.0, "updates": 10}
            | {"commonest_class": 0.5}
        )
        with Run.create(run.path("tuning"), FinetuningConfig()) as own:
            write_predictions(own, sorted(said))
            own.save_figures(figures)
        run.save_figures(figures)
        return run

    return planted


def test_scores_are_compared_by_seed_and_over_examples(plant):
    runs = {MLM: [plant(60), plant(62), plant(61)], GUIDED: [plant(80), plant(83), plant(63)]}
    results = downstream.measured("rte", runs)
    assert results["rte: guided - MLM"].values == pytest.approx([20, 21, 2])
    assert results["rte: guided better over test examples"].values == (1.0, 1.0, 0.0)
    assert results["rte: MLM better over test examples"].values == (0.0, 0.0, 0.0)
    assert "rte: arms differ over folds" not in results


def test_folds_have_a_paired_t_test_of_their_own(plant):
    runs = {MLM: [plant(60, folds=4)], GUIDED: [plant(81, folds=4)]}
    (differ,) = downstream.measured("rte", runs)["rte: arms differ over folds"].values
    p = compare(*(Run.open(runs[arm][0].path("tuning")) for arm in (GUIDED, MLM))).p
    assert p is not None and 0 < p < 1 and differ == float(p < 0.05)


def test_a_seed_whose_encoder_diverged_is_left_out_with_its_partner(plant):
    runs = {MLM: [plant(60), plant(None), plant(61)], GUIDED: [plant(80), plant(99), plant(63)]}
    results = downstream.measured("rte", runs)
    assert results["rte: MLM"].values == pytest.approx([60, 61])
    assert results["rte: guided"].values == pytest.approx([80, 99, 63])
    assert results["rte: guided - MLM"].values == pytest.approx([20, 2])
    assert results["rte: guided better over test examples"].values == (1.0, 0.0)
    assert results["rte: trainings that diverged, MLM"].values == (1.0,)
    assert "rte: trainings that diverged, guided" not in results
    named = {"none": runs[MLM], "oromo, MLM": runs[GUIDED]}
    results = transfer.measured("rte", named, [("oromo, MLM", "none")])
    assert results["rte: oromo, MLM - none"].values == pytest.approx([20, 2])
    assert results["rte: trainings that diverged, none"].values == (1.0,)
