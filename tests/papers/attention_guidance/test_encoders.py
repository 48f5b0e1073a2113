"""Pre-training with guidance and without: what is trained, found, recorded and concluded."""

import dataclasses
import math
from itertools import count
from pathlib import Path

import pytest
import torch

from headwise.config import flat
from headwise.guidance import pattern
from headwise.recording import NotFinite, Run
from headwise_papers.attention_guidance import (
    _encoders,
    _grid,
    ablation,
    electra,
    fraction,
    pretrain,
    robust,
    sparse,
)
from headwise_papers.attention_guidance._encoders import (
    ALL,
    ENGLISH,
    GUIDED,
    MLM,
    RECIPES,
    TINY,
    Trained,
    encoder_config,
)
from headwise_papers.attention_guidance._maps import attention_maps, weight_on_patterns
from headwise_papers.core import find_or_train, using_cache
from headwise_papers.core.record import recorded
from headwise_papers.core.runner import load_experiment, reproduce
from headwise_papers.models.encoder_heads import ReplacedToken
from headwise_papers.recipes.pretraining import PretrainingConfig, load_pretrained
from headwise_papers.recipes.pretraining_data import text_in, validation_batches

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cached(data_folder, tmp_path_factory):
    """Run smoke experiments in one cache, on one thread."""
    folder, found = tmp_path_factory.mktemp("encoders"), {}
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(name):
        if name not in found:
            smoke = load_experiment(f"attention_guidance/{name}").smoke
            found[name] = reproduce(f"attention_guidance/{name}", smoke, folder / name)
        return found[name]

    with using_cache(folder / "models"):
        run.folder = folder
        yield run
    torch.set_num_threads(before)


def smoke_run(module, part, arm):
    """The run of a smoke encoder, found in the cache."""
    (config,) = (c for *found, c in module.SMOKE.encoders() if found == [part, arm])
    return find_or_train(_encoders.pretrain_encoder, config)


def cell_of(config, arm, cell):
    """The settings of one arm in one cell of a grid, first seed."""
    every = [encoder for _, own, encoder in config.encoders() if own == arm]
    return every[config.cells.index(cell)]


def attends(run, name, head):
    """How much of the weight of a head of each layer lies on a pattern, in some text."""
    model, pieces = load_pretrained(run)
    ids = [pieces.begin, *pieces.encode("oduu haaraa har'aa biyya keessaa fi alaa")][:24]
    maps = attention_maps(model.encoder, ids)
    return weight_on_patterns(maps, ids, {name: pattern(name)})[name][:, head]


def test_guided_heads_follow_their_patterns_and_plain_ones_do_not(cached):
    results = cached("pretrain")
    part = "oromo, 2 layers"
    guided, plain = (smoke_run(pretrain, part, arm) for arm in (GUIDED, MLM))
    rows = [row["guidance_loss"] for row in guided.metrics() if "guidance_loss" in row]
    assert rows[-1] < 0.8 * rows[0]
    for head, name in enumerate(("next", "prev")):  # half of four heads
        assert attends(guided, name, head).mean() > 2 * attends(plain, name, head).mean()
    assert len(results[_encoders.difference(part, "average", GUIDED, MLM)].values) == 1
    assert f"{part}: guidance loss of {MLM}" not in results
    one, other = guided.config(), plain.config()
    assert {name for name in one if one[name] != other[name]} == {"guide"}
    assert guided.names("*.safetensors") == ["model.safetensors"]  # the text is cached once
    assert (cached.folder / "pretrain/figures/losses.png").stat().st_size > 5000


def test_a_finished_encoder_is_found_again(cached, tmp_path, monkeypatch):
    results = cached("pretrain")
    monkeypatch.setattr(_encoders, "pretrain", None)
    again = reproduce("attention_guidance/pretrain", pretrain.SMOKE, tmp_path / "run")
    assert again == results


def test_arms_guide_a_share_of_the_heads():
    plans = {
        arm: encoder_config("oromo", 1, arm, 0, TINY).guide.plan for arm in (MLM, "guided 1/4", ALL)
    }
    assert plans == {MLM: "", "guided 1/4": "next=1", ALL: "next=1,prev=1,first=2"}


def test_patterns_are_left_out(cached):
    results = cached("ablation")
    plans = {arm: c.guide.plan for _, arm, c in ablation.SMOKE.encoders()}
    assert plans == {
        "all": "next=1,prev=1,first=2,delim=1,period=1",
        "without next and prev": "first=2,delim=1,period=1",
    }
    for arm in plans:
        run = smoke_run(ablation, ablation.SMOKE.part, arm)
        rows = [row["guidance_loss"] for row in run.metrics() if "guidance_loss" in row]
        assert rows[-1] < 0.9 * rows[0]
    loss = results["oromo, 1 layers: validation loss of all"].mean
    assert loss < math.log(400) - 0.5  # of 400 tokens


def test_a_training_that_diverges_is_kept_and_not_tried_again(cached, tmp_path, monkeypatch):
    results, part = cached("robust"), "oromo, 1 layers"
    wild = cell_of(robust.SMOKE, GUIDED, (1e38, 0.1, 0.0))
    run = find_or_train(_encoders.pretrain_encoder, wild)
    assert "diverged" in run.figures() and not run.names("*.safetensors")
    ended = [results[f"{part}: {arm}: best validation loss"].mean for arm in (MLM, GUIDED)]
    unigram = results[f"{part}: unigram loss"].mean
    assert results[f"{part}: MLM: validation loss"].values[1] == max(*ended, unigram)
    assert results[f"{part}: MLM: settings that converge"].values[1] == 0
    monkeypatch.setattr(_encoders, "pretrain", None)
    assert reproduce("attention_guidance/robust", robust.SMOKE, tmp_path / "run") == results


def test_only_a_loss_that_is_no_number_is_a_divergence(cached, tmp_path, monkeypatch):
    config = encoder_config("oromo", 1, MLM, 9, TINY)

    def wild(settings, folder, *, text):
        Run.create(folder, settings, "pretraining").close()
        raise NotFinite("Training went wrong at step 7: the loss is nan.")

    def broken(*args, **named):
        raise ValueError("The disk is full.")

    monkeypatch.setattr(_encoders, "pretrain", broken)
    with pytest.raises(ValueError, match="disk"):
        find_or_train(_encoders.pretrain_encoder, config)
    monkeypatch.setattr(_encoders, "pretrain", wild)
    one = _encoders.trained(config)
    assert one.diverged and "step 7" in one.run.figures()["diverged"]
    assert not one.converged and one.plateau == 1


def test_both_arms_are_pre_trained_with_topk_too(cached):
    results = cached("sparse")
    plain = smoke_run(sparse, "oromo, 1 layers, softmax", MLM)
    runs = {arm: smoke_run(sparse, "oromo, 1 layers, topk:2", arm) for arm in (MLM, GUIDED)}
    one, other = flat(plain.config()), flat(runs[MLM].config())
    assert {name for name in one if one[name] != other[name]} == {"model.attention"}
    for run in runs.values():  # two keys of a row have weight
        maps_LHTT = attention_maps(load_pretrained(run).model.encoder, list(range(5, 25)))
        assert ((maps_LHTT > 0).sum(dim=-1) == 2).all()
    assert attends(runs[GUIDED], "prev", 1).mean() > 2 * attends(runs[MLM], "prev", 1).mean()
    assert sparse.gains_more("topk:2") in results


def test_electra_is_guided_too(cached):
    results, part = cached("electra"), "oromo, 2 layers"
    # 40 updates: about as good as a guess that knows the share
    assert results[f"{part}: validation loss of {GUIDED}"].mean < 0.5
    guided, plain = (smoke_run(electra, part, arm) for arm in (GUIDED, electra.PLAIN))
    (settings,) = (c for _, arm, c in electra.SMOKE.encoders() if arm == GUIDED)
    source = find_or_train(_encoders.tokenize_text, _encoders._text_config(settings))
    batches = validation_batches(settings, text_in(source, settings, None))
    share = torch.cat([batches(n).replaced for n in range(len(batches))]).float().mean().item()
    said, _ = electra.guess_shares(settings, source.figures()["drawn_right"])
    assert 0.13 < said < 5 / 32 and said == pytest.approx(share, rel=0.03)
    assert results[f"{part}: loss from the share alone"].mean == electra.guess_loss(said)
    model, pieces = load_pretrained(guided)
    assert isinstance(model, ReplacedToken) and pieces.piece(pieces.begin) == "[CLS]"
    assert attends(guided, "prev", 1).mean() > 2 * attends(plain, "prev", 1).mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fraction", "pretrain"])
def test_models_trained_in_parallel_are_the_same(name, data_folder, tmp_path):
    smoke, found = load_experiment(f"attention_guidance/{name}").smoke, []
    for jobs in (1, 2):
        with using_cache(tmp_path / f"models-{jobs}"):
            results = reproduce(
                f"attention_guidance/{name}", smoke, tmp_path / str(jobs), jobs=jobs
            )
        slow = ("minutes", "a second")
        found.append({k: r for k, r in results.items() if not any(x in k for x in slow)})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("part", "corpora", "layers"),
    [
        ("", (ENGLISH,), 12),
        ("8-layers", (ENGLISH,), 8),
        ("16-layers", (ENGLISH,), 16),
        ("filipino-oromo", ("filipino", "oromo"), 12),
        ("wikitext-2", ("wikitext-2",), 12),
    ],
)
def test_recorded_results_follow_from_the_curves(part, corpora, layers, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    record = recorded("attention_guidance/pretrain")[part]
    config = pretrain.Config(
        corpora=corpora,
        layers=(layers,),
        seeds=record.config["seeds"],
        finished="papers/attention_guidance/results/encoders",
    )
    results = reproduce("attention_guidance/pretrain", config, tmp_path / "again")
    check_same(results, record)


def test_the_recorded_fraction_follows_from_the_curves(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    record = recorded("attention_guidance/fraction")[""]
    config = fraction.Config(
        arms=tuple(record.config["arms"]), finished="papers/attention_guidance/results/encoders"
    )
    check_same(reproduce("attention_guidance/fraction", config, tmp_path / "again"), record)
    longer = dataclasses.replace(config, changes=("fit.steps=6000",))
    with pytest.raises(ValueError, match=r"trained with fit.steps=5000, but fit.steps=6000"):
        reproduce("attention_guidance/fraction", longer, tmp_path / "longer")


def check_same(results, record):
    assert results.keys() == record.results.keys()
    for name, result in results.items():
        assert result.values == pytest.approx(record.results[name].values, rel=1e-5)


def test_recipes_are_those_of_the_paper_where_it_says():
    plans = {layers: encoder_config(ENGLISH, layers, GUIDED, 0) for layers in (8, 12, 16)}
    assert {layers: (one.guide.plan, one.guide.alpha) for layers, one in plans.items()} == {
        8: ("next=1,prev=1,first=4", 100.0),
        12: ("next=1,prev=1,first=4", 30.0),
        16: ("next=1,prev=1,first=6", 30.0),
    }
    assert RECIPES["filipino"].next_sentence and RECIPES[ENGLISH].vocab_size == 52_000
    assert RECIPES[ENGLISH].fit.steps * RECIPES[ENGLISH].batch_size * 512 == 40_960_000
    grid = cell_of(robust.Config(), GUIDED, (5e-4, 0.25, 0.0))
    assert (grid.fit.steps, grid.fit.warmup) == (2000, 500)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fraction.Config(arms=("guided 1/3",)), "There is no arm 'guided 1/3'"),
        (lambda: fraction.Config(corpus="klingon"), "There is no recipe for 'klingon'"),
        (lambda: ablation.Config(arms=("without all",)), "There is no arm 'without all'"),
        (lambda: robust.Config(warmups=()), "The grid needs one learning rate"),
        (lambda: fraction.Config(changes=("model.heads=1",)), "at least one of 1 heads"),
        (lambda: robust.Config(warmups=(1.0,)), "steps must be more than warmup"),
        (lambda: sparse.Config(attentions=()), "attentions must name one"),
    ],
)
def test_wrong_settings_are_refused_before_there_is_a_folder(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.fixture
def plant(tmp_path):
    """Makes finished runs without training: losses fall from 7 to what is asked for."""
    numbers = count()

    def planted(loss=3.0, *, fell_at=20, diverged=False):
        run = Run.create(tmp_path / str(next(numbers)), PretrainingConfig())
        for step in range(10, 101, 10):
            run.log(step, task_loss=7.0 if step < fell_at else loss)
        run.save_figures(
            {f"{name}_loss": loss for name in ("train", "validation", "average")}
            | {"updates": 100, "tokens_seen": 1e6, "minutes": 1.0, "tokens_per_second": 1e5}
            | {"parameters": 10, "model_flops_utilisation": 0.5}
            if not diverged
            else {"diverged": "nan"}
        )
        run.close()
        return Trained(run, 6.5)

    return planted


def test_seeds_that_diverge_leave_out_their_partners(plant):
    wild = plant(diverged=True)
    results = pretrain.measured("x", {MLM: [wild] * 3, GUIDED: [plant()] * 3})
    assert results["x: trainings that diverged, MLM"].values == (3.0,)
    assert results["x: MLM does not converge"].values == (1.0,) * 3
    assert not any("loss of MLM" in name or "loss of guided - MLM" in name for name in results)
    runs = {MLM: [plant(5.0), wild], GUIDED: [plant(4.0), plant(2.0)]}
    results = pretrain.measured("x", runs)
    assert results["x: validation loss of guided - MLM"].values == (-1.0,)
    assert results["x: share of updates on the plateau, MLM"].values[1] == 1


def test_speeds_of_models_trained_in_parallel_are_left_out(plant):
    alone, beside = plant(), plant()
    beside.run.path(".trained-in-parallel").touch()
    results = _encoders.costs("x", {MLM: [alone, beside], GUIDED: [beside, beside]})
    costs = {name.removeprefix("x: "): len(result.values) for name, result in results.items()}
    assert costs["minutes, MLM"] == 1 and costs["updates, MLM"] == costs["updates, guided"] == 2
    assert not {"minutes, guided", "thousand tokens a second, guided"} & costs.keys()


def test_unigram_loss_is_that_of_bayes():
    known, asked = torch.tensor([7.0, 0.0, 3.0, 12.0]), torch.tensor([2.0, 1.0, 0.0, 5.0])
    p_V, asked_V = (known + 1) / (known + 1).sum(), asked / asked.sum()
    shown_VV = 0.1 * torch.eye(4) + 0.1 / 4  # row: the token; column: what is shown
    joint_VV = p_V[:, None] * shown_VV
    guess_VV = joint_VV / joint_VV.sum(dim=0)
    wanted = -(0.8 * asked_V * p_V.log()).sum()
    wanted -= (asked_V[:, None] * shown_VV * guess_VV.log()).sum()
    found = _encoders.best_without_context(known, asked)
    assert found == pytest.approx(wanted.item(), rel=1e-6)


def test_the_plateau_is_left_a_nat_below_the_unigram_loss(plant):
    soon, late, never = plant(fell_at=20), plant(fell_at=80), plant(5.6)
    assert [one.plateau for one in (soon, late, never)] == [0.2, 0.8, 1.0]
    assert [one.converged for one in (soon, never)] == [True, False]
    results = pretrain.measured("x", {MLM: [late, never], GUIDED: [soon, soon]})
    assert results[pretrain.sooner("x")].values == pytest.approx((0.6, 0.8))
    # seeds in which neither converges may only be too short
    results = pretrain.measured("x", {MLM: [never, never], GUIDED: [never, soon]})
    assert results["x: MLM does not converge"].values == (1.0,)
    none = pretrain.measured("x", {MLM: [never], GUIDED: [never]})
    assert "x: MLM does not converge" not in none


def test_electra_is_compared_where_words_were_learned(plant):
    guess, special, words = plant(0.4322), plant(0.4266), plant(0.30)
    wild = plant(diverged=True)
    runs = {electra.PLAIN: [guess, guess, words, wild], GUIDED: [special, words, guess, words]}
    kept = electra.learned(runs, 0.4267)
    assert kept == {electra.PLAIN: [guess, words, wild], GUIDED: [words, guess, words]}


GOOD, BAD = _grid.Ended(3.0, True, 6.5, 1.0), _grid.Ended(6.4, False, 6.5, 1.0)
WILD = _grid.Ended(None, False, 6.5, None)
CELLS = [(rate, 0.0, 0.0) for rate in (1e-4, 1e-3, 1e-2)]


def test_grids_are_compared_cell_by_cell_and_seed_by_seed():
    plain = [[GOOD, BAD, BAD], [GOOD, GOOD, BAD]]
    results = _grid.compared(CELLS, {MLM: plain, GUIDED: [[GOOD] * 3] * 2})
    found = [results[_grid.cell_difference(cell)].values for cell in CELLS]
    assert found == [(0, 0), pytest.approx((-3.4, 0)), pytest.approx((-3.4, -3.4))]
    assert results[_grid.MORE].values == pytest.approx((2 / 3, 1 / 3))
    assert len(results[_grid.STEADIER].values) == 2
    nowhere = {MLM: [[BAD] * 3] * 2, GUIDED: [[GOOD] * 3] * 2}
    assert _grid.STEADIER not in _grid.compared(CELLS, nowhere)  # no best setting to lose


def test_a_training_that_diverged_is_no_better_than_any_that_ended():
    worst = _grid.Ended(7.0, False, 6.5, 1.0)
    found = {MLM: [[GOOD, worst, WILD]], GUIDED: [[GOOD, WILD, worst]]}
    assert _grid.compared(CELLS, found)["validation loss of guided - MLM"].values == (0, 0, 0)
    results = _grid.by_arm(CELLS, {MLM: [[WILD] * 3], GUIDED: [[worst, WILD, WILD]]})
    assert results["guided: best validation loss"].values == (7.0,)
    assert "MLM: best validation loss" not in results
    assert results["MLM: settings that diverge"].values == (1.0,) * 3


def test_settings_are_counted_by_how_far_below_the_unigram_loss_they_end():
    ends = [_grid.Ended(loss, loss < 5.5, 6.5, 1.0) for loss in (6.3, 5.8, 5.0)]
    results = _grid.by_arm(CELLS, {MLM: [ends], GUIDED: [ends]})
    name = "MLM: settings that end {} nats below the unigram loss"
    assert [sum(results[name.format(depth)].values) for depth in ("0.25", "0.5", "1")] == [2, 2, 1]


def test_curves_have_one_legend_and_an_arm_one_colour(plant):
    parts = {"a": {MLM: [plant()], GUIDED: [plant(), plant()]}, "b": {GUIDED: [plant()]}}
    figure = _encoders.loss_curves(parts, floors={"a": 6.5, "b": 6.5})
    first, second = figure.axes
    assert first.lines[1].get_color() == second.lines[0].get_color()
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {MLM, GUIDED, "unigram loss"}
