"""Pre-training with guidance and without: what is trained, found, lent, and concluded."""

import dataclasses
import math
import shutil
from contextlib import contextmanager
from itertools import count

import pytest
import torch

from headwise.experiments import load_experiment
from headwise.experiments.base import Estimate
from headwise.experiments.guidance import (
    _losses,
    _pretraining,
    _tuning,
    ablation,
    downstream,
    electra,
    fraction,
    pretrain,
    robust,
    transfer,
)
from headwise.experiments.guidance._frequencies import best_without_context
from headwise.experiments.guidance._maps import attention_maps, weight_on_patterns
from headwise.experiments.guidance._pretraining import (
    ENGLISH,
    GUIDED,
    MLM,
    RECIPES,
    Job,
    found_or_pretrained,
    settings_of,
)
from headwise.experiments.guidance._subjects import runs_of
from headwise.experiments.running import reproduce
from headwise.guidance import pattern
from headwise.journeys.finetuning import FinetuningConfig, Prediction
from headwise.journeys.pretraining import PretrainingConfig, load_pretrained
from headwise.journeys.tuning.judging import write_predictions
from headwise.models.encoder_heads import ReplacedToken
from headwise.recording import Run

SMOKES = {
    name: load_experiment(f"guidance/{name}").smoke
    for name in ("pretrain", "fraction", "ablation", "robust", "electra", "downstream", "transfer")
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
        return reproduce(f"guidance/{name}", SMOKES[name], folder)


@pytest.fixture(scope="module")
def pretrained(data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain") / "run"
    return folder, reproduced("pretrain", folder)


def looks_at(run, name, head):
    """How much of the weight of a head of each layer lies on a pattern, in some text."""
    model, pieces = load_pretrained(run)
    ids = [pieces.begin, *pieces.encode("oduu haaraa har'aa biyya keessaa fi alaa")][:24]
    maps = attention_maps(model.encoder, ids)
    return weight_on_patterns(maps, ids, {name: pattern(name)})[name][:, head]


def test_guided_heads_look_where_they_are_told_and_plain_ones_do_not(pretrained):
    folder, figures = pretrained
    guided, plain = (Run.open(folder / "oromo" / f"{arm}-2-seed-0") for arm in ("guided", "mlm"))
    rows = [row["guidance_loss"] for row in guided.metrics() if "guidance_loss" in row]
    assert rows[-1] < 0.8 * rows[0]
    for head, name in enumerate(("next", "prev")):  # half of four heads
        told, free = (looks_at(run, name, head).mean() for run in (guided, plain))
        assert told > 2 * free
    part = pretrain.part_of("oromo", 2)
    assert len(figures[_losses.difference(part, "average", GUIDED, MLM)].values) == 1
    assert f"{part}: guidance loss of {MLM}" not in figures
    assert (folder / "pictures" / "losses.png").stat().st_size > 5000


def test_arms_differ_in_guidance_alone_and_share_their_text(pretrained):
    folder, _ = pretrained
    runs = {arm: Run.open(folder / "oromo" / f"{arm}-2-seed-0") for arm in ("guided", "mlm")}
    one, other = (run.config() for run in runs.values())
    assert {name for name in one if one[name] != other[name]} == {"guide", "alpha"}
    assert one["text_of"] == str(folder / "texts" / "oromo")
    assert all(run.names("*.safetensors") == ["model.safetensors"] for run in runs.values())
    costs = [run.figures() for run in runs.values()]
    assert costs[0]["updates"] == costs[1]["updates"] == 40


def test_what_is_done_is_found_again_and_lent(pretrained, tmp_path, monkeypatch):
    folder, figures = pretrained
    monkeypatch.setattr(_pretraining, "pretrain", None)
    assert reproduced("pretrain", folder) == figures
    lent = dataclasses.replace(SMOKES["pretrain"], trained=(str(folder),))
    assert reproduce("guidance/pretrain", lent, tmp_path / "run") == figures
    other = dataclasses.replace(lent, learning_rate=1e-3)
    with pytest.raises(ValueError, match=r"trained with learning_rate=0\.01, but"):
        reproduce("guidance/pretrain", other, tmp_path / "other")
    nowhere = dataclasses.replace(lent, trained=(str(tmp_path / "nowhere"),))
    with pytest.raises(ValueError, match="names no folder; give runs of guidance/pretrain"):
        reproduce("guidance/pretrain", nowhere, tmp_path / "third")


def test_shares_of_heads_are_guided(data_folder, tmp_path):
    reproduced("fraction", tmp_path / "run")
    plans = {
        arm: Run.open(tmp_path / "run" / "oromo" / f"{arm}-1-seed-0").config()["guide"]
        for arm in ("mlm", "guided-1-4", "guided-1")
    }
    assert plans == {"mlm": "", "guided-1-4": "next=1", "guided-1": "next=1,prev=1,first=2"}
    told = looks_at(Run.open(tmp_path / "run" / "oromo" / "guided-1-1-seed-0"), "first", 3)
    free = looks_at(Run.open(tmp_path / "run" / "oromo" / "mlm-1-seed-0"), "first", 3)
    assert told.mean() > 2 * free.mean()


def test_patterns_are_left_out(data_folder, tmp_path):
    figures = reproduced("ablation", tmp_path / "run")
    there = tmp_path / "run" / "ablation" / "oromo"
    plans = {path.name: Run.open(path).config()["guide"] for path in there.iterdir()}
    assert plans == {
        "all-1-seed-0": "next=1,prev=1,first=2,delim=1,period=1",
        "without-next-prev-1-seed-0": "first=2,delim=1,period=1",
    }
    for path in there.iterdir():
        rows = [row["guidance_loss"] for row in Run.open(path).metrics() if "guidance_loss" in row]
        assert rows[-1] < 0.9 * rows[0]
    loss = figures["oromo, 1 layers: validation loss of all"].mean
    assert loss < math.log(400) - 0.5  # of 400 pieces


def test_settings_that_diverge_are_noted_and_not_tried_again(data_folder, tmp_path, monkeypatch):
    figures = reproduced("robust", tmp_path / "run")
    wild = [path.parent.name for path in (tmp_path / "run").glob("robust/*/diverged.json")]
    assert sorted(wild) == [
        f"{arm}-1-rate-1e+38-warmup-0.1-dropout-0-seed-0" for arm in ("guided", "mlm")
    ]
    assert not list((tmp_path / "run" / "robust").rglob("*.safetensors"))
    plateau = figures["loss from frequencies alone"].mean
    assert figures["MLM: validation loss"].values[1] == plateau
    assert figures["MLM: settings that converge"].values[1] == 0
    monkeypatch.setattr(_pretraining, "pretrain", None)
    assert reproduced("robust", tmp_path / "run") == figures


def test_another_error_is_no_divergence(tmp_path, monkeypatch):
    def broken(*args, **named):
        raise ValueError("The disk is full.")

    monkeypatch.setattr(robust, "found_or_pretrained", broken)
    with pytest.raises(ValueError, match="disk"):
        robust.reproduce(robust.Config(), Run.create(tmp_path / "run", robust.Config()))


def test_electra_is_guided_too(data_folder, tmp_path):
    figures = reproduced("electra", tmp_path / "run")
    part = pretrain.part_of("oromo", 2)
    # 40 updates of learning: about as good as a guess that knows the share
    assert figures[f"{part}: validation loss of {GUIDED}"].mean < 0.5
    assert figures[f"{part}: loss from the share alone"].mean == pytest.approx(0.4227, abs=1e-4)
    guided, plain = (
        Run.open(tmp_path / "run" / "electra" / "oromo" / f"{arm}-2-seed-0")
        for arm in ("guided", "electra")
    )
    model, pieces = load_pretrained(guided)
    assert isinstance(model, ReplacedToken) and pieces.piece(pieces.begin) == "[CLS]"
    assert looks_at(guided, "prev", 1).mean() > 2 * looks_at(plain, "prev", 1).mean()


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
        reproduce("guidance/downstream", other, tmp_path / "other")


def test_no_pre_training_has_the_english_tokenizer_and_fresh_weights(data_folder, tmp_path):
    figures = reproduced("transfer", tmp_path / "run")
    there = tmp_path / "run" / "tuned" / "sst2"
    none, english = (Run.open(there / f"wikitext-2-{arm}-1-seed-0") for arm in ("none", "mlm"))
    assert none.config()["model"] == english.config()["model"]
    assert none.config()["fresh_weights"] and not english.config()["fresh_weights"]
    assert "sst2: oromo, MLM better than none" in figures


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrain", "robust", "transfer", "patterns"])
def test_two_at_once_find_what_one_after_the_other_do(name, data_folder, tmp_path):
    experiment = load_experiment(f"guidance/{name}")
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


def test_best_guess_without_context_is_that_of_bayes():
    known, asked = torch.tensor([7.0, 0.0, 3.0, 12.0]), torch.tensor([2.0, 1.0, 0.0, 5.0])
    p_V, asked_V = (known + 1) / (known + 1).sum(), asked / asked.sum()
    shown_VV = 0.1 * torch.eye(4) + 0.1 / 4  # row: what stands there; column: what is shown
    joint_VV = p_V[:, None] * shown_VV
    guess_VV = joint_VV / joint_VV.sum(dim=0)
    wanted = -(0.8 * asked_V * p_V.log()).sum()
    wanted -= (asked_V[:, None] * shown_VV * guess_VV.log()).sum()
    assert best_without_context(known, asked) == pytest.approx(wanted.item(), rel=1e-6)


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
        run.write_json("frequencies.json", {"loss": 6.5})
        run.close()
        return run

    def tuned(self, right, *, task="rte"):
        """A fine-tuning that is right about the first so many of 100 examples."""
        run = Run.create(self.folder / str(next(self.numbers)), FinetuningConfig())
        said = [Prediction("seed-0", n, "no", "no" if n < right else "yes") for n in range(100)]
        write_predictions(run, said)
        run.save_figures(
            {"task": task, "metric": "accuracy", "classes": ["no", "yes"], "score": right / 100}
            | {"examples": {"train": 10, "test": 100}, "minutes": 1.0, "updates": 10}
            | {"commonest_class": 0.5}
        )
        return run


@pytest.fixture
def plant(tmp_path):
    return Planted(tmp_path / "planted")


def test_every_expected_figure_of_a_pre_training_is_measured(plant, tmp_path, monkeypatch):
    done = plant()
    for module in (pretrain, fraction, ablation, electra, robust):
        monkeypatch.setattr(module, "draw_curves", lambda *args, **named: None, raising=False)
        monkeypatch.setattr(module, "encoder_run", lambda *args: done, raising=False)
        monkeypatch.setattr(
            module, "found_or_pretrained", lambda *args, **named: done, raising=False
        )
        config = module.experiment.config
        run = Run.create(tmp_path / module.__name__, config)
        figures = module.reproduce(config, run)
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


def test_differences_need_three_seeds_and_an_interval_without_0(plant):
    runs = {MLM: [plant(3.0), plant(3.2), plant(3.1)], GUIDED: [plant(2.0), plant(2.1), plant(2.2)]}
    claim = _losses.lower("x", "validation", GUIDED, MLM)
    pairs = [(GUIDED, MLM)]
    assert _losses.claim_figures("x", runs, pairs)[claim] == [1.0]
    few = {arm: several[:2] for arm, several in runs.items()}
    assert _losses.claim_figures("x", few, pairs)[claim] == [0.5]
    runs[GUIDED][0] = plant(4.5)
    assert _losses.claim_figures("x", runs, pairs)[claim] == [0.5]
    assert _losses.difference_figures("x", runs, pairs)[
        _losses.difference("x", "validation", GUIDED, MLM)
    ] == pytest.approx([1.5, -1.1, -0.9])


def test_the_plateau_is_left_when_the_loss_is_a_nat_below_frequencies(plant):
    soon, late, never = plant(fell_at=20), plant(fell_at=80), plant(5.6)
    assert [_losses.updates_on_plateau(run) for run in (soon, late, never)] == [20, 80, 100]
    assert [_losses.converged(run) for run in (soon, never)] == [True, False]
    figures = pretrain.measured("x", {MLM: [late] * 3, GUIDED: [soon] * 3})
    assert figures[pretrain.sooner("x")] == [1.0]
    figures = pretrain.measured("x", {MLM: [never], GUIDED: [soon]})
    assert figures["x: MLM does not converge"] == [1.0]


def test_grids_are_compared_setting_by_setting():
    good, bad = robust.Ended(3.0, True, 6.5, 1.0), robust.Ended(6.4, False, 6.5, 1.0)
    figures = robust.compared({MLM: [good] * 2 + [bad] * 6, GUIDED: [good] * 8})
    assert figures[robust.MORE] == [1.0] and figures[robust.LESS_SENSITIVE] == [1.0]
    figures = robust.compared({MLM: [good] * 3 + [bad] * 5, GUIDED: [good] * 8})
    assert figures[robust.MORE] == [0.5]  # five of five may be chance
    figures = robust.compared({MLM: [good] * 8, GUIDED: [good] * 7 + [bad]})
    assert figures[robust.MORE] == [0.0] and figures[robust.LOWER] == [0.0]


def test_scores_are_compared_by_seed_and_over_examples(plant):
    runs = {MLM: [plant.tuned(60), plant.tuned(62), plant.tuned(61)],
            GUIDED: [plant.tuned(80), plant.tuned(83), plant.tuned(63)]}  # fmt: skip
    figures = downstream.measured("rte", runs)
    assert figures["rte: guided less MLM"] == pytest.approx([20, 21, 2])
    assert figures[downstream.better("rte")] == [0.5]
    assert figures["rte: guided better, sure over test examples"] == [1.0, 1.0, 0.0]
    assert figures["rte: MLM better, sure over test examples"] == [0.0, 0.0, 0.0]


def test_others_find_the_english_encoders(tmp_path):
    arms = {"MLM": MLM, "guided 1/2": GUIDED, "guided 1": "guided 1"}
    for theirs, ours in arms.items():
        run = Run.create(tmp_path / Job(ENGLISH, ours, 12, 0).folder, PretrainingConfig())
        run.save_figures({})
        ((seed, found),) = runs_of([str(tmp_path)], theirs, layers=12)
        assert seed == 0 and found.folder == run.folder


def test_recipes_are_those_of_the_paper_where_it_says():
    config = pretrain.Config()
    plans = {layers: settings_of(config, Job(ENGLISH, GUIDED, layers, 0)) for layers in (8, 12, 16)}
    assert {layers: (one.guide, one.alpha) for layers, one in plans.items()} == {
        8: ("next=1,prev=1,first=4", 100.0),
        12: ("next=1,prev=1,first=4", 10.0),
        16: ("next=1,prev=1,first=6", 10.0),
    }
    assert RECIPES["filipino"].next_sentence and RECIPES[ENGLISH].vocab == 52_000
    assert RECIPES[ENGLISH].steps * RECIPES[ENGLISH].batch_size * 512 == 131_072_000


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fraction.Config(arms=("guided 1/3",)), "There is no arm 'guided 1/3'"),
        (lambda: fraction.Config(corpus="klingon"), "There is no recipe for 'klingon'"),
        (lambda: ablation.Config(arms=("without all",)), "There is no arm 'without all'"),
        (lambda: robust.Config(warmups=()), "The grid needs one learning rate"),
        (lambda: downstream.Config(tasks=("qqp",)), "There is no task 'qqp' here"),
        (lambda: transfer.Config(arms=("both",)), "arms are MLM or guided or both"),
        (lambda: pretrain.Config(corpora=("oromo",), heads=1), "at least one of 1 heads"),
        (lambda: pretrain.Config(layers=()), "One text and one number of layers"),
        (lambda: robust.Config(warmups=(1.0,)), "steps must be more than warmup"),
        (lambda: electra.Config(seeds=0), "seeds must be at least 1"),
    ],
)
def test_slips_are_said(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_an_encoder_that_was_finished_but_not_tidied_up_is(pretrained, tmp_path):
    folder, _ = pretrained
    here = tmp_path / "run"
    config = SMOKES["pretrain"]
    run, job = Run.create(here, config), Job("oromo", MLM, 2, 0)
    shutil.copytree(folder / job.folder, here / job.folder)
    there = Run.open(here / job.folder)
    there.path("frequencies.json").unlink()
    (here / "texts").symlink_to(folder / "texts")
    settings = {**there.config(), "text_of": str(here / "texts" / "oromo")}
    there.write_json("config.json", settings)
    there.save_tensors("checkpoint.safetensors", {"x": torch.zeros(1)})
    done = found_or_pretrained(config, run, (job.folder, settings_of(config, job)))
    assert done.names("*.safetensors") == ["model.safetensors"] and done.has("frequencies.json")


def test_compiled_models_do_not_pile_up(plant, tmp_path, monkeypatch):
    done, resets = plant(), []
    monkeypatch.setattr(_pretraining, "pretrain", lambda *args: done)
    monkeypatch.setattr(_pretraining, "_text_run", lambda *args: done)
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
    config = pretrain.Config()
    run = Run.create(tmp_path / "run", config)
    for compiled in (True, False):
        settings = dataclasses.replace(RECIPES["oromo"], compile=compiled)
        found_or_pretrained(config, run, ("x", settings))
    assert len(resets) == 1
