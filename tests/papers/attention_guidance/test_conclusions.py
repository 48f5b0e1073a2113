"""Pre-training with guidance and without: what is concluded from runs, planted and not trained."""

import statistics
from itertools import count

import pytest

from headwise.recording import Run
from headwise_papers.attention_guidance import (
    downstream,
    transfer,
)
from headwise_papers.attention_guidance._pretraining import (
    GUIDED,
    MLM,
)
from headwise_papers.measures.classification import student_p
from headwise_papers.recipes.finetuning import FinetuningConfig, Prediction
from headwise_papers.recipes.pretraining import PretrainingConfig
from headwise_papers.recipes.tuning.judging import write_predictions


class Planted:
    """Makes finished runs without training: losses fall from 7 to what is asked for."""

    def __init__(self, folder):
        self.folder, self.numbers = folder, count()

    def __call__(self, loss=3.0, *, fell_at=20):
        run = Run.create(self.folder / str(next(self.numbers)), PretrainingConfig())
        for step in range(10, 101, 10):
            run.log(step, task_loss=7.0 if step < fell_at else loss)
        run.save_figures(
            {f"{name}_loss": loss for name in ("train", "validation", "average")}
            | {"updates": 100, "tokens_seen": 1e6, "minutes": 1.0, "tokens_per_second": 1e5}
            | {"parameters": 10, "model_flops_utilisation": 0.5}
        )
        run.write_json("frequencies.json", {"loss": 6.5, "drawn_right": 0.01})
        run.close()
        return run

    def tuned(self, right, *, task="rte", folds=0):
        """A fine-tuning that is right about the first so many of 100 examples."""
        run = Run.create(self.folder / str(next(self.numbers)), FinetuningConfig())
        said = [Prediction("seed-0", n, "no", "no" if n < right else "yes") for n in range(100)]
        if folds:
            said = [one._replace(part=f"seed-0-fold-{one.example % folds}") for one in said]
        write_predictions(run, sorted(said))
        run.save_figures(
            {"task": task, "metric": "accuracy", "classes": ["no", "yes"], "score": right / 100}
            | {"examples": {"train": 10, "test": 100}, "minutes": 1.0, "updates": 10}
            | {"commonest_class": 0.5}
        )
        return run


@pytest.fixture
def plant(tmp_path):
    return Planted(tmp_path / "planted")


def test_every_expected_figure_of_a_fine_tuning_is_measured(plant, tmp_path, monkeypatch):
    done = plant.tuned(60)
    for module in (downstream, transfer):
        monkeypatch.setattr(module, "tuned_run", lambda *args, **named: done)
        monkeypatch.setattr(module, "check_tasks", lambda *args: None)
        config = module.experiment.config
        figures = module.reproduce(config, Run.create(tmp_path / module.__name__, config))
        assert {item.metric for item in module.EXPECTED} <= set(figures)
        if module is downstream:
            assert len(figures[downstream.SHARE]) == 6  # Oromo news is not English


def test_scores_are_compared_by_seed_and_over_examples(plant):
    runs = {MLM: [plant.tuned(60), plant.tuned(62), plant.tuned(61)],
            GUIDED: [plant.tuned(80), plant.tuned(83), plant.tuned(63)]}  # fmt: skip
    figures = downstream.measured("rte", runs)
    assert figures["rte: guided less MLM"] == pytest.approx([20, 21, 2])
    assert figures[downstream.better("rte")] == [0.5]
    assert figures["rte: guided better, sure over test examples"] == [1.0, 1.0, 0.0]
    assert figures["rte: MLM better, sure over test examples"] == [0.0, 0.0, 0.0]
    t = (43 / 3) / (statistics.stdev([20, 21, 2]) / 3**0.5)
    assert figures["rte: paired t-test over seeds, p"] == [pytest.approx(student_p(t, 2))]
    assert 0.05 < student_p(t, 2) < 0.2
    assert "rte: guided and MLM differ, paired t-test over folds" not in figures
    few = downstream.measured("rte", {arm: several[:1] for arm, several in runs.items()})
    assert "rte: paired t-test over seeds, p" not in few


def test_folds_have_a_paired_t_test_of_their_own(plant):
    runs = {MLM: [plant.tuned(60, folds=4)], GUIDED: [plant.tuned(81, folds=4)]}
    (differ,) = downstream.measured("rte", runs)[
        "rte: guided and MLM differ, paired t-test over folds"
    ]
    p = downstream.compare(runs[GUIDED][0], runs[MLM][0]).p
    assert p is not None and 0 < p < 1 and differ == float(p < 0.05)


def test_a_seed_whose_encoder_diverged_is_left_out_with_its_partner(plant):
    wild = plant()
    wild.path("figures.json").unlink()
    wild.write_json("diverged.json", {"why": "nan"})
    runs = {MLM: [plant.tuned(60), wild, plant.tuned(61)],
            GUIDED: [plant.tuned(80), plant.tuned(99), plant.tuned(63)]}  # fmt: skip
    figures = downstream.measured("rte", runs)
    assert figures["rte: MLM"] == pytest.approx([60, 61])
    assert figures["rte: guided"] == pytest.approx([80, 99, 63])
    assert figures["rte: guided less MLM"] == pytest.approx([20, 2])
    assert figures["rte: guided better, sure over test examples"] == [1.0, 0.0]
    assert figures["rte: trainings that diverged, MLM"] == [1.0]
    assert "rte: trainings that diverged, guided" not in figures
    named = {"none": runs[MLM], "oromo, MLM": runs[GUIDED]}
    figures = transfer.measured("rte", named, [("oromo, MLM", "none")])
    assert figures["rte: oromo, MLM less none"] == pytest.approx([20, 2])
    assert figures["rte: trainings that diverged, none"] == [1.0]
