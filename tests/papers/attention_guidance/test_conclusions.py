"""Pre-training with guidance and without: what is concluded from runs, planted and not trained."""

import statistics
from functools import partial
from itertools import count

import pytest
import torch

from headwise.config import changed
from headwise.recording import Run
from headwise_papers.attention_guidance import (
    _losses,
    _pretraining,
    ablation,
    downstream,
    electra,
    fraction,
    pretrain,
    robust,
    sparse,
    transfer,
)
from headwise_papers.attention_guidance._frequencies import best_without_context
from headwise_papers.attention_guidance._pretraining import (
    GUIDED,
    MLM,
    RECIPES,
    found_or_pretrained,
)
from headwise_papers.core.base import Estimate
from headwise_papers.core.shelf import experiment_names, load_experiment
from headwise_papers.measures.classification import student_p
from headwise_papers.recipes.finetuning import FinetuningConfig, Prediction, write_predictions
from headwise_papers.recipes.pretraining import PretrainingConfig


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


def test_arms_all_of_whose_seeds_diverge_have_no_losses(plant):
    wild = plant()
    wild.path("figures.json").unlink()
    wild.write_json("diverged.json", {"why": "nan"})
    figures = pretrain.measured("x", {MLM: [wild] * 3, GUIDED: [plant()] * 3})
    assert figures["x: trainings that diverged, MLM"] == [3.0]
    assert figures["x: MLM does not converge"] == [1.0] * 3
    assert not any("loss of MLM" in name or "less MLM" in name for name in figures)


def test_speeds_of_trainings_beside_others_are_left_out(plant):
    alone, beside = plant(), plant()
    _pretraining.note_company(pretrain.Config(at_once=4), beside)
    _pretraining.note_company(pretrain.Config(), alone)
    figures = _losses.cost_figures("x", {MLM: [alone, beside], GUIDED: [beside, beside]})
    costs = {name.removeprefix("x: "): len(values) for name, values in figures.items()}
    assert costs["minutes, MLM"] == 1 and costs["updates, MLM"] == costs["updates, guided"] == 2
    assert not {"minutes, guided", "thousand pieces a second, guided"} & costs.keys()
    assert "share of an H200's arithmetic, guided" not in costs


def test_best_guess_without_context_is_that_of_bayes():
    known, asked = torch.tensor([7.0, 0.0, 3.0, 12.0]), torch.tensor([2.0, 1.0, 0.0, 5.0])
    p_V, asked_V = (known + 1) / (known + 1).sum(), asked / asked.sum()
    shown_VV = 0.1 * torch.eye(4) + 0.1 / 4  # row: what stands there; column: what is shown
    joint_VV = p_V[:, None] * shown_VV
    guess_VV = joint_VV / joint_VV.sum(dim=0)
    wanted = -(0.8 * asked_V * p_V.log()).sum()
    wanted -= (asked_V[:, None] * shown_VV * guess_VV.log()).sum()
    assert best_without_context(known, asked) == pytest.approx(wanted.item(), rel=1e-6)


def test_every_expected_figure_of_a_pre_training_is_measured(plant, tmp_path, monkeypatch):
    plain = plant()
    small = pretrain.SMALL
    in_small = {
        pretrain: [pretrain.Config(corpora=(pretrain.ENGLISH,), layers=(small,))],
        fraction: [fraction.Config(layers=small)],
        ablation: [ablation.Config(layers=small)],
        electra: [electra.Config(layers=small), electra.Config(layers=electra.SHALLOW)],
        robust: [robust.Config(layers=small)],
    }
    good = plant(0.1)
    for module in (pretrain, sparse, fraction, ablation, electra, robust):
        done = good if module is electra else plain
        monkeypatch.setattr(module, "draw_curves", lambda *args, **named: None, raising=False)
        found = partial(lambda done, *args, **named: done, done)
        monkeypatch.setattr(_pretraining, "found_or_pretrained", found)
        figures = {}
        for config in (module.experiment.config, *in_small.get(module, ())):
            run = Run.create(tmp_path / f"{module.__name__}-{config.layers}", config)
            figures |= module.reproduce(config, run)
        assert {item.metric for item in module.EXPECTED} <= set(figures), module.__name__
        assert all(Estimate.of(values) for values in figures.values())


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


def test_differences_need_three_seeds_and_an_interval_without_0(plant):
    runs = {MLM: [plant(3.0), plant(3.2), plant(3.1)], GUIDED: [plant(2.0), plant(2.1), plant(2.2)]}
    claim = _losses.lower("x", "validation", GUIDED, MLM)
    pairs = [(GUIDED, MLM)]
    assert _losses.claim_figures("x", runs, pairs)[claim] == [1.0]
    few = {arm: several[:2] for arm, several in runs.items()}
    assert _losses.claim_figures("x", few, pairs)[claim] == [0.5]
    against = [(MLM, GUIDED)]
    contrary = _losses.lower("x", "validation", MLM, GUIDED)
    assert _losses.claim_figures("x", runs, against)[contrary] == [0.0]
    assert _losses.claim_figures("x", few, against)[contrary] == [0.5]
    runs[GUIDED][0] = plant(4.5)
    assert _losses.claim_figures("x", runs, pairs)[claim] == [0.5]
    assert _losses.claim_figures("x", runs, against)[contrary] == [0.5]
    assert _losses.difference_figures("x", runs, pairs)[
        _losses.difference("x", "validation", GUIDED, MLM)
    ] == pytest.approx([1.5, -1.1, -0.9])


def test_the_plateau_is_left_when_the_loss_is_a_nat_below_frequencies(plant):
    soon, later, late, never = (*(plant(fell_at=at) for at in (20, 30, 80)), plant(5.6))
    assert [_losses.updates_on_plateau(run) for run in (soon, late, never)] == [20, 80, 100]
    assert [_losses.converged(run) for run in (soon, never)] == [True, False]
    figures = pretrain.measured("x", {MLM: [late] * 3, GUIDED: [soon, soon, later]})
    assert figures[pretrain.sooner("x")] == [1.0]
    figures = pretrain.measured("x", {MLM: [never], GUIDED: [soon]})
    assert figures["x: MLM does not converge"] == [1.0]
    figures = pretrain.measured("x", {MLM: [never, never], GUIDED: [never, soon]})
    assert figures["x: MLM does not converge"] == [1.0]  # of the second seed
    # where neither does, the runs may be too short
    assert "x: MLM does not converge" not in pretrain.measured("x", {MLM: [never], GUIDED: [never]})


def test_a_plateau_that_is_never_left_is_no_share_of_trials(plant):
    never, soon = [plant(5.6)] * 3, [plant()] * 3
    figures = pretrain.measured("x", {MLM: never, GUIDED: soon})
    name = "x: share of updates on the plateau, MLM"
    assert figures[name] == [1.0] * 3
    assert pretrain.experiment.estimate(name, figures[name]).low == 1.0
    for name in ("x: MLM converges", "x: MLM does not converge"):
        estimate = pretrain.experiment.estimate(name, figures[name])
        assert estimate.trials and estimate.high - estimate.low > 0.5  # three seeds are few
    names = [name for name in experiment_names() if name.startswith("attention_guidance/")]
    assert all(load_experiment(name).marks_trials for name in names)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_convergence_takes_three_seeds_to_be_reproduced(plant, seeds):
    part = pretrain.part_of("oromo", 12)
    found = pretrain.measured(part, {MLM: [plant(5.6)] * seeds, GUIDED: [plant()] * seeds})
    for claim in (f"{part}: {GUIDED} converges", f"{part}: {MLM} does not converge"):
        assert found[claim] == [1.0] * seeds
        (item,) = (item for item in pretrain.EXPECTED if item.metric == claim)
        verdict = item.paper_verdict(Estimate.of(found[claim]))
        assert verdict == ("reproduced" if seeds == 3 else "partly")
    (item,) = (one for one in ablation.EXPECTED if one.metric.startswith(ablation.PART)
               and "does not converge" in one.metric)  # fmt: skip
    assert item.enough == 3


def test_electra_is_compared_where_something_was_learned_from_words(plant):
    floor, wild = 0.4267, plant()
    wild.path("figures.json").unlink()
    wild.write_json("diverged.json", {"why": "nan"})
    guess, marks, words = plant(0.4322), plant(0.4266), plant(0.30)
    runs = {electra.PLAIN: [guess, guess, words, wild], GUIDED: [marks, words, guess, words]}
    kept = electra.learned(runs, floor)
    assert kept == {electra.PLAIN: [guess, words, wild], GUIDED: [words, guess, words]}
    none = electra.learned({electra.PLAIN: [guess] * 3, GUIDED: [marks] * 3}, floor)
    assert not _losses.claim_figures("x", none, [(GUIDED, electra.PLAIN)])


def test_grids_are_compared_seed_by_seed():
    good, bad = robust.Ended(3.0, True, 6.5, 1.0), robust.Ended(6.4, False, 6.5, 1.0)
    plain, guided = [good] + [bad] * 7, [good] * 8
    figures = robust.compared({MLM: plain, GUIDED: guided}, seeds=1)
    assert figures["sign test over settings, p"] == [2 / 2**7]
    for claim in (robust.MORE, robust.LESS_SENSITIVE, robust.LOWER):
        assert figures[claim] == [0.5]  # one seed is none too many
    # seeds differ in how many settings of the plain arm converge
    plain = [one for many in (1, 1, 2) for one in [good] * many + [bad] * (8 - many)]
    figures = robust.compared({MLM: plain, GUIDED: guided * 3}, seeds=3)
    for claim in (robust.MORE, robust.LESS_SENSITIVE, robust.LOWER):
        assert figures[claim] == [1.0]
    assert figures[robust.always_lower(GUIDED)] == [6.0]  # of eight, seven, seven and six a seed
    assert figures[robust.always_lower(MLM)] == [0.0]
    figures = robust.compared({MLM: guided * 3, GUIDED: plain}, seeds=3)
    assert figures[robust.MORE] == [0.0] and figures[robust.LOWER] == [0.0]
    other = [*guided, *guided, *plain[:8]]  # two seeds are as good
    for found in ({MLM: other, GUIDED: guided * 3}, {MLM: guided * 3, GUIDED: other}):
        assert robust.compared(found, seeds=3)[robust.MORE] == [0.5]


def test_an_arm_that_converges_nowhere_is_not_called_insensitive():
    good, fair, bad = (robust.Ended(loss, loss < 5.5, 6.5, 1.0) for loss in (3.0, 4.0, 6.4))
    nowhere, somewhere = [bad] * 4, [good, good, fair, bad]
    for found in ({MLM: somewhere, GUIDED: nowhere}, {MLM: nowhere, GUIDED: somewhere}):
        assert robust.LESS_SENSITIVE not in robust.compared(found, seeds=1)
    # barely converged, and the other settings lose nearly all of that
    barely = robust.Ended(5.4, True, 6.5, 1.0)
    wary = [barely, bad, bad, bad] * 2 + [barely, bad, bad, bad._replace(loss=6.3)]
    figures = robust.compared({MLM: somewhere * 3, GUIDED: wary}, seeds=3)
    assert figures[robust.LESS_SENSITIVE] == [0.0]
    # of three seeds one has an arm that converges nowhere: the other two are no sure thing
    seeds = {MLM: [*nowhere, *somewhere, *somewhere], GUIDED: [good] * 12}
    assert robust.compared(seeds, seeds=3)[robust.LESS_SENSITIVE] == [0.5]


def test_a_training_that_diverged_is_no_better_than_any_that_ended():
    good, worst = robust.Ended(3.0, True, 6.5, 1.0), robust.Ended(7.0, False, 6.5, 1.0)
    wild = robust.Ended(None, False, 6.5, None)
    found = {MLM: [good, worst], GUIDED: [good, wild]}
    figures = robust.compared(found, seeds=1)
    assert figures["validation loss of guided less MLM"] == [0.0, 0.0]
    assert figures[robust.LOWER] == [0.5]
    grid = [robust.Setting(rate, 0.0, 0.0, 0) for rate in (1e-4, 1e-3)]
    by_arm = robust._by_arm(grid, {MLM: [wild, wild], GUIDED: [worst, wild]}, seeds=1)
    assert by_arm["guided: best validation loss"] == [7.0]
    assert "MLM: best validation loss" not in by_arm
    assert by_arm["MLM: validation loss"] == [7.0, 7.0]
    assert by_arm["MLM: settings that diverge"] == [1.0, 1.0]


def test_settings_are_counted_by_how_far_below_the_best_guess_they_end():
    """A training that ends 0.8 nats below has not converged, and has learned something."""
    losses = (6.6, 6.3, 5.8, 5.6, 5.0)
    ends = [robust.Ended(loss, loss < 5.5, 6.5, 1.0) for loss in losses]
    grid = [robust.Setting(1e-3, 0.0, 0.0, seed) for seed in range(6)]
    wild = robust.Ended(None, False, 6.5, None)
    figures = robust._by_arm(grid, {MLM: [*ends, wild], GUIDED: [ends[3]] * 6}, seeds=1)
    counts = [sum(figures[robust.deep(MLM, depth)]) for depth in robust.DEPTHS]
    assert counts == [3, 3, 1] and robust.DEPTHS == (0.25, 0.5, 1.0)
    assert figures[robust.deep(MLM, 1.0)] == figures["MLM: settings that converge"]
    assert sum(figures[robust.deep(GUIDED, 0.5)]) == 6
    assert not sum(figures["guided: settings that converge"])


def test_the_warm_up_of_the_recipe_does_not_say_how_long_a_grid_trains():
    assert robust.Config(steps=100).steps == 100
    config = robust.Config()
    settings = robust._settings(config, GUIDED, robust.Setting(5e-4, 0.25, 0.0, 0))
    assert (settings.fit.steps, settings.fit.warmup) == (2000, 500)


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


def test_compiled_models_do_not_pile_up(plant, tmp_path, monkeypatch):
    done, resets = plant(), []
    monkeypatch.setattr(_pretraining, "pretrain", lambda *args: done)
    monkeypatch.setattr(_pretraining, "_text_run", lambda *args: done)
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
    config = pretrain.Config()
    run = Run.create(tmp_path / "run", config)
    for compiled in (True, False):
        settings = changed(RECIPES["oromo"], {"fit.compile": compiled})
        found_or_pretrained(config, run, ("x", settings))
    assert len(resets) == 1
