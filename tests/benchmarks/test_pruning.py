"""The benchmark of pruning: a model that is wrong is not timed, and a missing peer is named."""

import pytest
import torch

from benchmarks import pruning

CPU = torch.device("cpu")
TINY = pruning.Sizes(
    width=32, heads=4, layers=2, feed_forward=32, vocabulary=50, positions=32, batches=(1,),
    lengths=(8,), long_lengths=(16,), backends=("sdpa",),
)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SIZES", TINY)


def test_every_share_is_measured_and_saves_more_than_the_one_before() -> None:
    measured = pruning.measure(0, CPU)
    ours = [row for row in measured.rows if row["contestant"] == "headwise"]
    assert measured.wrong == 0 and len(ours) == 3 * 2
    saved = [row["saved_flops"] for row in ours if row["part"] == "usual"]
    assert saved == sorted(saved) and saved[0] > 0
    if (peer := next(row for row in measured.rows if row["contestant"] != "headwise")).get(
        "reason"
    ):
        assert peer["reason"] == "not installed"


def test_a_model_with_other_outputs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_kept", lambda share: [0])
    right = pruning._by_headwise

    def wrong(model, share):
        small = right(model, share)
        torch.nn.init.ones_(small.embeddings.word_embeddings.weight)
        return small

    monkeypatch.setattr(pruning, "_contestants", lambda: {"headwise": wrong})
    measured = pruning.measure(0, CPU, only=("usual",))
    assert measured.wrong == 3 and all("differ" in row["reason"] for row in measured.rows)
