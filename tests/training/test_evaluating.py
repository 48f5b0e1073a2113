"""Evaluations are logged, the best weights kept, and patience ends."""

from dataclasses import replace

import pytest
import torch

from headwise.recording import Run
from headwise.training import BEST, CHECKPOINT, Diverged, average_checkpoints, fit
from headwise.training.fit import best_of, out_of_patience
from tests.training.noise import CONFIG, batch, evaluate, make_model, mean_loss

PLAIN = replace(CONFIG, precision="float32", accumulate=1, patience=0, average=1, steps=10)


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", PLAIN) as run:
        yield run


def figures(*values):
    """An evaluation whose figure is known beforehand."""
    coming = iter(values)
    return lambda model: {"figure": next(coming)}


def logged(run, name):
    return {entry["step"]: entry[name] for entry in run.metrics() if name in entry}


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_best_is_the_first_of_equals_and_patience_counts_from_it(better):
    sign = 1 if better == "lower" else -1
    series = [sign * figure for figure in (3.0, 1.0, 2.0, 1.0, 5.0)]
    assert best_of(series, better=better) == 1
    ends = [out_of_patience(series[:n], better=better, patience=2) for n in range(6)]
    assert ends == [False, False, False, False, True, True]
    assert not out_of_patience(series, better=better, patience=0)


def test_figures_are_logged_every_so_many_steps_and_at_the_end(run):
    config = replace(PLAIN, steps=9, evaluate_every=4)
    fit(make_model(), mean_loss, batch, run=run, config=config, evaluate=evaluate)
    assert list(logged(run, "valid_loss")) == [4, 8, 9] == list(logged(run, "accuracy"))


def test_an_evaluation_sees_the_model_at_rest_and_leaves_it_training(run):
    model = make_model()

    def look(seen):
        assert seen is model and not seen.training and not torch.is_grad_enabled()
        return {"figure": 1.0}

    fit(model, mean_loss, batch, run=run, config=PLAIN, evaluate=look)
    assert model.training and len(logged(run, "figure")) == 5


def test_training_is_the_same_with_and_without_evaluations(tmp_path):
    models = make_model(), make_model()
    for model, check in zip(models, (None, evaluate), strict=True):
        with Run.create(tmp_path / str(check is None), PLAIN) as run:
            fit(model, mean_loss, batch, run=run, config=PLAIN, evaluate=check)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("better", "best", "end"), [("lower", 4, 8), ("higher", 2, 6)], ids=["lower", "higher"]
)
def test_patience_stops_and_the_best_weights_are_kept(run, better, best, end):
    weights = {}
    coming = iter([0.7, 0.5, 0.6, 0.5, 0.1])

    def check(model):
        weights[2 * len(weights) + 2] = model[3].weight.clone()
        return {"figure": next(coming), "other": 0.25}

    config = replace(PLAIN, patience=2, better=better)
    fit(make_model(), mean_loss, batch, run=run, config=config, evaluate=check)
    assert run.metrics()[-1]["step"] == end
    assert run.note(CHECKPOINT)["step"] == str(end)
    assert run.note(BEST)["step"] == str(best)
    assert run.note(BEST)["other"] == "0.25"
    assert torch.equal(run.load_tensors(BEST)["3.weight"], weights[best])


def test_a_run_that_ran_out_of_patience_is_finished(run):
    config = replace(PLAIN, patience=1)
    fit(make_model(), mean_loss, batch, run=run, config=config, evaluate=figures(1, 2))
    before = run.metrics()
    again = make_model()
    fit(again, mean_loss, batch, run=run, config=config, evaluate=figures())
    assert run.metrics() == before
    weights = run.load_tensors(CHECKPOINT)["model.3.weight"]
    assert torch.equal(again[3].weight, weights)


def test_evaluations_that_cannot_decide_are_refused(run):
    def train(**options):
        fit(make_model(), mean_loss, batch, run=run, **options)

    with pytest.raises(ValueError, match="patience=3 needs something to wait for"):
        train(config=replace(PLAIN, patience=3))
    with pytest.raises(ValueError, match="evaluate gave no metric"):
        train(config=PLAIN, evaluate=lambda model: {})
    with pytest.raises(ValueError, match=r"called 'loss', which .* call it 'valid_loss'"):
        train(config=PLAIN, evaluate=lambda model: {"loss": 1.0})
    with pytest.raises(ValueError, match="At least one value"):
        best_of([], better="lower")


def test_a_training_gone_wrong_is_not_evaluated(run):
    def loss(model, batch):
        return mean_loss(model, batch) * float("nan")

    with pytest.raises(Diverged, match="wrong at step 1: the loss is nan"):
        fit(make_model(), loss, batch, run=run, config=PLAIN, evaluate=figures())
    assert not run.has(BEST)


def test_an_evaluation_that_is_not_finite_is_a_divergence(run):
    with pytest.raises(Diverged, match="figure is nan at step 2"):
        fit(make_model(), mean_loss, batch, run=run, config=PLAIN, evaluate=figures(float("nan")))
    assert not run.has(BEST)


def test_the_best_weights_are_not_kept_where_nobody_wants_them(run):
    config = replace(PLAIN, keep_best=False)
    fit(make_model(), mean_loss, batch, run=run, config=config, evaluate=figures(3, 2, 1, 2, 3))
    assert not run.has(BEST) and len(logged(run, "figure")) == 5


def test_extra_state_is_resumed_and_is_no_weight(tmp_path):
    def train(steps):
        counted = torch.zeros(1)

        def counting(model, given):
            counted.add_(1)
            return mean_loss(model, given)

        with Run.create(tmp_path / "run", PLAIN) as run:
            config = replace(PLAIN, steps=steps, average=2)
            options = {"run": run, "config": config, "evaluate": evaluate}
            fit(make_model(), counting, batch, extra_state=lambda: {"counted": counted}, **options)
        return counted.item(), run

    assert train(6)[0] == 6
    number, run = train(10)
    assert number == 10
    assert "extra.counted" in run.load_tensors(CHECKPOINT)
    names = make_model().state_dict().keys()
    assert run.load_tensors(BEST).keys() == average_checkpoints(run).keys() == names
    with pytest.raises(ValueError, match="extra state is counted, and that of this one nothing"):
        fit(make_model(), mean_loss, batch, run=run, config=replace(PLAIN, steps=12))
