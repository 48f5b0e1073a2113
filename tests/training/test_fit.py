import io
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console
from torch import nn

from headwise.recording import Run
from headwise.training import (
    CHECKPOINT,
    FitConfig,
    fit,
    label_smoothed_loss,
    label_smoothed_sum,
    progress_bar,
)
from headwise_papers.models import Transformer, TransformerConfig

CONFIG = FitConfig(steps=20, learning_rate=1e-2, warmup=4, log_every=3, checkpoint_every=10)
SHAPE = TransformerConfig(9, 9, width=8, heads=2, encoder_layers=1, decoder_layers=1)


class Killed(Exception):
    """What stands for the end of the process."""


def batch(number):
    rng = torch.Generator().manual_seed(number)
    source = torch.randint(3, 9, (4, 5), generator=rng)
    return source, torch.full((4,), 5), source


def copy_loss(model, batch):
    source, lengths, target = batch
    return label_smoothed_loss(model(source, lengths, target[:, :-1]), target[:, 1:], pad=0)


def make_model():
    torch.manual_seed(1)
    return Transformer(replace(SHAPE, dropout=0.2, attention_dropout=0.1))


@pytest.fixture
def new_run(tmp_path):
    runs = []

    def make(name="run", config=CONFIG):
        runs.append(Run.create(tmp_path / name, config))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def killed_at(step):
    def progress(done, metrics):
        if done >= step:
            raise Killed

    return progress


def measured(run):
    return [{name: e[name] for name in ("step", "loss", "gradient_norm")} for e in run.metrics()]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(new_run, accumulate):
    config = replace(CONFIG, accumulate=accumulate)
    whole, killed = new_run("whole", config), new_run("killed", config)
    wanted, got = make_model(), make_model()
    fit(wanted, copy_loss, batch, run=whole, config=config)

    # killed at 15: the checkpoint is of step 10, inside a window of losses not yet logged
    with pytest.raises(Killed):
        fit(make_model(), copy_loss, batch, run=killed, config=config, progress=killed_at(15))
    killed.close()
    assert killed.note(CHECKPOINT) == {"step": "10"}
    torch.randn(7)  # other random numbers are drawn in between
    fit(got, copy_loss, batch, run=new_run("killed", config), config=config)

    assert measured(killed) == measured(whole)
    for name, parameter in wanted.state_dict().items():
        assert torch.equal(got.state_dict()[name], parameter), name


def test_the_seed_decides_dropout(new_run):
    finals = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        model, config = make_model(), replace(CONFIG, steps=5, seed=seed)
        fit(model, copy_loss, batch, run=new_run(name, config), config=config)
        finals.append(model.read_out.weight.detach())
    assert torch.equal(finals[0], finals[1])
    assert not torch.equal(finals[0], finals[2])


def test_the_callers_random_numbers_are_left_alone(new_run):
    model = make_model()
    torch.manual_seed(5)
    wanted = torch.randn(3)
    torch.manual_seed(5)
    fit(model, copy_loss, batch, run=new_run(), config=CONFIG)
    assert torch.equal(torch.randn(3), wanted)


def test_the_loss_falls(new_run):
    run, model = new_run(), Transformer(replace(SHAPE, dropout=0.0))
    fit(model, copy_loss, lambda number: batch(number % 2), run=run, config=CONFIG)
    losses = [entry["loss"] for entry in run.metrics()]
    assert losses[-1] < losses[0] - 0.2


def test_what_is_logged_is_the_mean_since_the_last_log(new_run):
    values = []

    def loss(model, batch):
        values.append(copy_loss(model, batch))
        return values[-1]

    run = new_run()
    fit(make_model(), loss, batch, run=run, config=CONFIG, tokens=lambda batch: 20)
    entries = run.metrics()
    assert [entry["step"] for entry in entries] == [3, 6, 9, 12, 15, 18, 20]
    assert entries[0]["loss"] == pytest.approx(sum(v.item() for v in values[:3]) / 3)
    assert entries[-1]["loss"] == pytest.approx(sum(v.item() for v in values[18:]) / 2)
    assert entries[0]["learning_rate"] == pytest.approx(1e-2 * 3 / 4)
    assert entries[-1]["learning_rate"] == 0
    assert all(entry["tokens_per_second"] > 0 for entry in entries)


def test_accumulated_batches_are_one_large_batch(new_run):
    def halves(number):
        return tuple(part[number % 2 * 2 :][:2] for part in batch(number // 2))

    models = [Transformer(replace(SHAPE, dropout=0.0)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    # epsilon keeps Adam from turning the rounding of tiny gradients into whole steps
    one = replace(CONFIG, steps=5, epsilon=1e-3)
    two = replace(one, accumulate=2)
    fit(models[0], copy_loss, batch, run=new_run("one", one), config=one)
    fit(models[1], copy_loss, halves, run=new_run("two", two), config=two)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("number", ["tensor", "int"])
def test_a_sum_and_its_number_make_batches_of_any_size_one_large_batch(new_run, number):
    def parts(index):  # 1, 2 and 1 of the four sentences
        cut = [slice(0, 1), slice(1, 3), slice(3, 4)][index % 3]
        return tuple(part[cut] for part in batch(index // 3))

    def loss(model, batch):
        source, lengths, target = batch
        scores = model(source, lengths, target[:, :-1])
        total, words = label_smoothed_sum(scores, target[:, 1:], pad=0)
        return total, words if number == "tensor" else int(words)

    models = [Transformer(replace(SHAPE, dropout=0.0)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    one = replace(CONFIG, steps=5, epsilon=1e-3)
    three = replace(one, accumulate=3)
    runs = new_run("one", one), new_run("three", three)
    fit(models[0], copy_loss, batch, run=runs[0], config=one)
    fit(models[1], loss, parts, run=runs[1], config=three)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    for a, b in zip(*map(measured, runs), strict=True):
        assert a == pytest.approx(b, rel=1e-4)


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(new_run, bad):
    steps = iter(range(1, 100))

    def loss(model, batch):
        return copy_loss(model, batch) * (float(bad) if next(steps) == 14 else 1)

    run, model = new_run(), make_model()
    with pytest.raises(ValueError, match=f"wrong at step 14: the loss is {bad} .* is kept"):
        fit(model, loss, batch, run=run, config=CONFIG)
    assert run.note(CHECKPOINT) == {"step": "10"}
    assert all(t.isfinite().all() for t in run.load_tensors(CHECKPOINT).values())
    assert run.metrics()[-1]["step"] == 12


def test_a_gradient_that_is_not_finite_never_reaches_a_checkpoint(new_run):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.zeros(1))

        def forward(self):
            return self.x.sqrt().sum()  # 0 with an infinite slope

    config, run = replace(CONFIG, clip=0.0, checkpoint_every=1), new_run()
    with pytest.raises(ValueError, match=r"wrong at step 1: the loss is 0\.0 .* gradient inf"):
        fit(Root(), lambda model, batch: model(), batch, run=run, config=config)
    assert not run.has(CHECKPOINT)


def test_a_truncated_checkpoint_is_refused_by_name(new_run):
    run = new_run()
    fit(make_model(), copy_loss, batch, run=run, config=CONFIG)
    path = run.path(CHECKPOINT)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is not a whole safetensors"):
        fit(make_model(), copy_loss, batch, run=run, config=CONFIG)


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(new_run):
    run = new_run()
    fit(make_model(), copy_loss, batch, run=run, config=CONFIG)
    wider = Transformer(replace(SHAPE, source_vocab=10))
    with pytest.raises(ValueError, match=r"another model: embed_source.words.weight has shape"):
        fit(wider, copy_loss, batch, run=run, config=CONFIG)
    run.save_tensors(CHECKPOINT, make_model().state_dict())
    with pytest.raises(ValueError, match="was not written by `fit`"):
        fit(make_model(), copy_loss, batch, run=run, config=CONFIG)


def test_a_finished_run_gives_its_model_back_without_training(new_run):
    run, trained, again = new_run(), make_model(), make_model()
    fit(trained, copy_loss, batch, run=run, config=CONFIG)
    fit(again, copy_loss, lambda number: pytest.fail("trained"), run=run, config=CONFIG)
    assert torch.equal(again.read_out.weight, trained.read_out.weight)


def test_parameters_without_a_gradient_stay_and_resuming_knows(new_run):
    def frozen():
        model = make_model()
        model.decoder.requires_grad_(False)
        return model

    run, model = new_run(), frozen()
    fit(model, copy_loss, batch, run=run, config=CONFIG)
    before = frozen()
    assert torch.equal(model.decoder[0].cross.key.weight, before.decoder[0].cross.key.weight)
    assert not torch.equal(
        model.encoder[0].attention.key.weight, before.encoder[0].attention.key.weight
    )
    fit(before, copy_loss, batch, run=run, config=CONFIG)
    assert torch.equal(
        model.encoder[0].attention.key.weight, before.encoder[0].attention.key.weight
    )


def test_parameters_may_have_rates_of_their_own_and_resuming_knows(new_run):
    config = replace(CONFIG, steps=6, schedule="constant", warmup=0, clip=1e-3, weight_decay=1.0)
    rates = {"encoder_norm.*": 0.0, "encoder.*": 0.5}
    models = [make_model() for _ in range(3)]
    before = {name: value.clone() for name, value in models[0].state_dict().items()}
    with pytest.raises(Killed):
        interrupted = new_run("killed", config)
        fit(models[0], copy_loss, batch, run=interrupted, config=replace(config, log_every=1,
            checkpoint_every=2), progress=killed_at(4), rates=rates)  # fmt: skip
    fit(models[1], copy_loss, batch, run=interrupted, config=config, rates=rates)
    fit(models[2], copy_loss, batch, run=new_run("whole", config), config=config, rates=rates)
    for name, value in models[2].state_dict().items():
        assert torch.equal(value, models[1].state_dict()[name]), name
        moved = (value - before[name]).abs().max()
        if name.startswith("encoder_norm"):
            assert moved == 0  # neither moved nor decayed
        elif name == "encoder.0.attention.query.weight":
            assert moved > 0.4  # a step of Adam is about its rate
        elif name == "decoder.0.self_attention.query.weight":
            assert 0 < moved < 0.2


def test_a_rate_for_nothing_is_refused(new_run):
    with pytest.raises(ValueError, match="no parameter that learns is called so"):
        fit(make_model(), copy_loss, batch, run=new_run(), config=CONFIG, rates={"gates.*": 0.1})


def test_bfloat16_is_close_and_leaves_weights_and_forward_as_they_were(new_run):
    config = replace(CONFIG, precision="bfloat16")
    runs = new_run("a"), new_run("b", config)
    models = make_model(), make_model()
    fit(models[0], copy_loss, batch, run=runs[0], config=CONFIG)
    fit(models[1], copy_loss, batch, run=runs[1], config=config)
    assert models[1].read_out.weight.dtype == torch.float32
    assert "forward" not in vars(models[1])
    a, b = (run.metrics()[0]["loss"] for run in runs)
    assert a != b
    assert a == pytest.approx(b, abs=0.1)


@pytest.fixture
def fresh_accelerate():
    """As in a new process: Accelerate keeps what it was first told."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("before", ["an Accelerator", "accelerate launch"])
def test_mixed_precision_of_others_changes_nothing(
    new_run, fresh_accelerate, monkeypatch, precision, before
):
    config = replace(CONFIG, steps=5, precision=precision)
    runs, models = (new_run("a", config), new_run("b", config)), (make_model(), make_model())
    fit(models[0], copy_loss, batch, run=runs[0], config=config)
    AcceleratorState._reset_state(reset_partial_state=True)
    if before == "an Accelerator":
        assert Accelerator(mixed_precision="bf16").native_amp
    else:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    fit(models[1], copy_loss, batch, run=runs[1], config=config)
    assert "forward" not in vars(models[1])
    assert measured(runs[1]) == measured(runs[0])


def test_others_keep_their_mixed_precision(new_run, fresh_accelerate):
    theirs = Accelerator(mixed_precision="bf16")
    fit(make_model(), copy_loss, batch, run=new_run(), config=CONFIG)
    assert theirs.mixed_precision == "bf16"
    assert theirs.native_amp


def test_the_progress_bar_shows_steps_and_loss(new_run, monkeypatch):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with progress_bar(20, label="toy") as progress:
        fit(make_model(), copy_loss, batch, run=new_run(), config=CONFIG, progress=progress)
    shown = console.file.getvalue()
    assert "toy" in shown
    assert "20/20  loss " in shown


def test_the_progress_bar_keeps_the_last_evaluation_in_sight(monkeypatch):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with progress_bar(20, label="toy") as progress:
        progress(10, {"bleu": 30.5})
        progress(20, {"loss": 2.0, "gradient_norm": 7.0, "tokens_per_second": 12_000.0})
    assert "bleu 30.500  loss 2.000  12,000 tokens/s" in console.file.getvalue()


@pytest.mark.parametrize("name", ["steps", "accumulate", "log_every", "average", "evaluate_every"])
def test_settings_that_cannot_be_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        replace(CONFIG, **{name: 0})
    with pytest.raises(ValueError, match="patience must be at least 0, got -1"):
        replace(CONFIG, patience=-1)
    with pytest.raises(ValueError, match="checkpoint_every must be at least 0"):
        replace(CONFIG, checkpoint_every=-1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("clip", -1.0),
        ("learning_rate", -1e-3),
        ("learning_rate", float("nan")),
        ("weight_decay", -0.1),
        ("epsilon", -1e-8),
        ("beta1", 1.0),
        ("beta2", 2.0),
        ("seed", -1),
        ("seed", 10**23),
    ],
)
def test_numbers_that_no_optimiser_takes_are_refused(name, wrong):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        replace(CONFIG, **{name: wrong})


def test_a_training_without_checkpoints_keeps_its_best_weights_alone(new_run):
    run = new_run()
    fit(
        make_model(),
        copy_loss,
        batch,
        run=run,
        config=replace(CONFIG, checkpoint_every=0),
        evaluate=lambda model: {"figure": 1.0},
    )
    assert run.names("*.safetensors") == ["best.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_refused(dtype, new_run):
    model = make_model().to(dtype)
    with pytest.raises(ValueError, match=r"weight is in b?float16, .* call model.float\(\) first"):
        fit(model, copy_loss, batch, run=new_run(), config=CONFIG)
