"""What is logged reaches TensorBoard, if it is wanted and there."""

import importlib.util
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from headwise.recording import Run
from headwise.training import fit
from tests.training.noise import CONFIG, batch, evaluate, make_model, mean_loss

PLAIN = replace(CONFIG, precision="float32", accumulate=1, patience=0, steps=10, tensorboard=True)
MODULE = "torch.utils.tensorboard.writer"


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", PLAIN) as run:
        yield run


class Writer:
    """Stands for TensorBoard's, and remembers."""

    def __init__(self, folder, *, purge_step):
        self.folder, self.purge_step, self.written, self.closed = folder, purge_step, {}, False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def add_scalar(self, name, value, step):
        self.written.setdefault(step, {"step": step})[name] = value


@pytest.fixture
def writers(monkeypatch):
    made = []
    module = ModuleType(MODULE)
    module.SummaryWriter = lambda *args, **options: (
        made.append(Writer(*args, **options)) or made[-1]
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, MODULE, module)
    return made


def test_the_scalars_are_those_of_the_run(run, writers):
    fit(make_model(), mean_loss, batch, run=run, config=PLAIN, evaluate=evaluate)
    (writer,) = writers
    assert writer.folder == str(run.path("tensorboard")) and writer.purge_step == 1
    assert [writer.written[step] for step in sorted(writer.written)] == run.metrics()
    assert writer.closed


def test_a_resumed_run_takes_back_what_comes_again(run, writers):
    def stop(step, metrics):
        if step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(make_model(), mean_loss, batch, run=run, config=PLAIN, progress=stop)
    fit(make_model(), mean_loss, batch, run=run, config=PLAIN)
    assert [writer.purge_step for writer in writers] == [1, 6]
    assert all(writer.closed for writer in writers)
    assert min(writers[1].written) == 6


def test_without_the_package_training_does_not_begin(run, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install headwise\[tensorboard\]"):
        fit(make_model(), mean_loss, pytest.fail, run=run, config=PLAIN)
    assert run.metrics() == []


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="needs tensorboard")
@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_the_real_package_reads_back_what_was_logged(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(make_model(), mean_loss, batch, run=run, config=PLAIN)
    events = EventAccumulator(str(run.path("tensorboard")))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("loss")]
    assert read == [
        (entry["step"], pytest.approx(entry["loss"], rel=1e-6)) for entry in run.metrics()
    ]
