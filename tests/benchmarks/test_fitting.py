"""The benchmark of whole trainings: everybody trains the same, and the loop does all its work."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from benchmarks import __main__ as command
from benchmarks import fitting
from benchmarks.fitting import COMPILED, PLAIN, REPLAYED
from benchmarks.marian import WITH_TRAINER

CPU = torch.device("cpu")
SIZES = replace(
    fitting.SIZES["cpu"],
    changes=(("width", 16), ("feed_forward", 16), ("encoder_layers", 1), ("decoder_layers", 1)),
    turn=4,
    log_every=2,
)


def test_all_ways_train_through_one_loss_and_are_kept_as_they_come(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call: call)  # takes its time
    kept: list[list[str]] = []
    sizes = replace(SIZES, ways=(PLAIN, REPLAYED, COMPILED))
    measured = fitting.measure(
        2, CPU, keep=lambda rows: kept.append([row["contestant"] for row in rows]), sizes=sizes
    )
    plain, replayed, compiled, peer = measured.rows
    assert kept == [[PLAIN], [PLAIN, REPLAYED], [PLAIN, REPLAYED, COMPILED]]
    assert compiled["last_loss"] == plain["last_loss"] < plain["first_loss"]
    assert "needs one process with a GPU" in replayed["reason"]
    assert peer["contestant"] == WITH_TRAINER and "kernels" not in plain
    for row in (plain, compiled, peer):
        assert len(row["ms_by_turn"]) == 2
        assert row["updates_per_second"] == pytest.approx(1000 / row["ms"], rel=1e-2)
    assert plain[f"over {WITH_TRAINER}"] == pytest.approx(peer["ms"] / plain["ms"], abs=1e-3)
    assert measured.wrong == 0 and measured.table.row_count == 4


def test_a_turn_logs_and_writes_a_checkpoint(monkeypatch):
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(fitting, "fit", lambda *given, config, **options: seen.append(
        (config.log_every, config.checkpoint_every)
    ))  # fmt: skip
    config = fitting._config(PLAIN, SIZES, CPU, steps=8, log_every=SIZES.log_every)
    watch = fitting._Watch(SIZES.turn)
    fitting._fit(PLAIN, config, SIZES, lambda number: None, CPU, progress=watch)
    assert seen == [(2, 4)]
    for step in (2, 4, 6, 8):
        watch(step, {"loss": float(step)})
    assert len(watch.times) == 3 and watch.losses == [2, 4, 6, 8]


@pytest.mark.parametrize(("losses", "said"), [((9.0, 9.1), "at first"), ((9.0, 7.0), "plain")])
def test_a_training_that_goes_elsewhere_is_wrong(losses, said):
    rows = [
        {"contestant": name, "ms": 1.0, "first_loss": first, "last_loss": last}
        for name, (first, last) in {PLAIN: (9.0, 8.0), REPLAYED: losses}.items()
    ]
    fitting._compare(rows)
    assert "wrong" not in rows[0] and said in rows[1]["wrong"]


def test_kernels_and_copies_are_told_apart():
    def event(name, us, *, device=DeviceType.CUDA, annotation=False):
        return SimpleNamespace(
            name=name,
            device_type=device,
            is_user_annotation=annotation,
            time_range=SimpleNamespace(elapsed_us=lambda: us),
        )

    events = [
        *(event("gemm", 1500) for _ in range(6)),
        event("Memcpy HtoD (Pinned -> Device)", 1000),
        event("cudaLaunchKernel", 900, device=DeviceType.CPU),
        event("Optimizer.step", 9000, annotation=True),
    ]
    assert fitting.kernel_figures(events, 2) == {"kernels": 3, "gpu_ms": 5.0}


def test_what_is_traced_has_what_is_counted():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as tracer:
        torch.zeros(1)
    (event, *_) = tracer.events()
    assert event.time_range.elapsed_us() >= 0 and not event.is_user_annotation
    assert fitting.kernel_figures(tracer.events(), 1) == {"kernels": 0, "gpu_ms": 0}


def test_a_gpu_must_be_hidden_to_measure_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit, match="CUDA_VISIBLE_DEVICES"):
        fitting.measure(1, CPU)


def test_rows_are_kept_by_the_command_too(monkeypatch):
    given = {}
    monkeypatch.setattr(
        command, "_load", lambda module: lambda *_, **options: given.update(options)
    )
    command._measure(command.BENCHMARKS["fit"]["cuda"], 1, CPU, (), print)
    assert given == {"keep": print}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_replayed_trainings_have_kernels_and_one_loss_on_a_gpu():
    sizes = replace(SIZES, turn=20, changes=(), ways=(PLAIN, REPLAYED))
    measured = fitting.measure(2, torch.device("cuda"), sizes=sizes)
    plain, replayed, peer = measured.rows
    assert measured.wrong == 0 and "reason" not in replayed and peer["ms"] > 0
    assert replayed["kernels"] == pytest.approx(plain["kernels"], rel=0.1)
    assert plain["kernels"] > 100 and 0 < replayed["gpu_ms"] < replayed["ms"] * 1.2
