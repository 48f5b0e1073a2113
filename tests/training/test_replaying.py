"""Steps replayed as CUDA graphs go the way of steps that are not."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_flatten

from headwise.ops.graphs import Replayed
from headwise.recording import Run
from headwise.training import FitConfig, fit, label_smoothed_sum
from headwise_papers.data.batches import parallel_batch
from headwise_papers.models import Transformer, TransformerConfig

SHAPE = TransformerConfig(
    30, 30, width=64, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.2
)
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def batch(number):
    """Sentences to copy, of two shapes in turns."""
    rng = torch.Generator().manual_seed(number)
    rows = torch.randint(4, 30, (16, 5 + number % 2), generator=rng).tolist()
    return parallel_batch(rows, rows)


def loss(model, inputs):
    scores = model(inputs.source, inputs.source_lengths, inputs.target_in)
    return label_smoothed_sum(scores, inputs.target_out, pad=0)


class KilledError(Exception):
    pass


def losses(folder, *, stop=0, attention="softmax", **changes):
    """Of every step."""
    settings = {"steps": 40, "warmup": 5, "log_every": 1, "checkpoint_every": 10, **changes}
    config = FitConfig(precision="bfloat16", **settings)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**{**vars(SHAPE), "encoder_attention": attention}))

    def progress(step, metrics):
        if step == stop:
            raise KilledError

    with Run.create(folder, config) as run:
        fit(model, loss, batch, run=run, config=config, progress=progress)
    return [row["loss"] for row in run.metrics() if "loss" in row], model


@pytest.mark.parametrize(
    ("attention", "accumulate"),
    [("softmax", 1), ("softmax", 2), ("topk:3", 1), ("entmax:1.5", 1), ("gaussian:-1,1", 1)],
)
class TestOnAGpu:
    pytestmark = on_a_gpu

    def test_replayed_steps_have_the_same_losses(self, tmp_path, attention, accumulate):
        options = {"attention": attention, "accumulate": accumulate}
        plain, before = losses(tmp_path / "plain", **options)
        replayed, after = losses(tmp_path / "replayed", graphs=True, **options)
        assert replayed == pytest.approx(plain, rel=1e-3)
        assert replayed[-1] < 0.8 * replayed[0]
        torch.testing.assert_close(after.read_out.weight, before.read_out.weight, atol=5e-3, rtol=0)

    def test_a_killed_training_goes_on_as_if_nothing_had_happened(
        self, tmp_path, attention, accumulate
    ):
        options = {"attention": attention, "accumulate": accumulate, "graphs": True}
        whole, _ = losses(tmp_path / "whole", **options)
        with pytest.raises(KilledError):
            losses(tmp_path / "again", stop=25, **options)
        again, _ = losses(tmp_path / "again", **options)
        assert again[-15:] == pytest.approx(whole[-15:], rel=1e-3)


def test_graphs_are_refused_where_there_are_none(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="graphs=True needs one process with a GPU"):
        losses(tmp_path / "run", graphs=True)


@pytest.mark.parametrize("warm", [1, 3])
def test_a_shape_is_recorded_when_it_has_come_before(warm, monkeypatch):
    ran, recorded = [], []
    replayed = Replayed(lambda batch: ran.append(batch) or torch.tensor(0.0), warm=warm)

    class Graph:
        def replay(self):
            recorded.append("replayed")

    def record(self, leaves, form):
        recorded.append("recorded")
        return SimpleNamespace(graph=Graph(), inputs=leaves, result=torch.tensor(1.0))

    monkeypatch.setattr(Replayed, "_record", record)
    results = [replayed([torch.zeros(2)]).item() for _ in range(warm + 2)]
    assert len(ran) == warm and results == [0.0] * warm + [1.0, 1.0]
    assert recorded == ["recorded", "replayed", "replayed"]
    assert replayed([torch.zeros(3)]).item() == 0.0  # another shape


class FailedGraph:
    """A CUDA graph that cannot be ended, as after an operation that cannot be recorded."""

    def capture_begin(self, **options):
        pass

    def capture_end(self):
        raise RuntimeError("operation failed due to a previous error during capture")


def test_why_a_step_cannot_be_recorded_is_what_is_said(monkeypatch):
    def step(batch):
        raise ValueError("the real reason")

    for name in ("current_device", "graph_pool_handle", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FailedGraph)
    with pytest.raises(ValueError, match="the real reason"):
        Replayed(step)._record(*tree_flatten([1]))
