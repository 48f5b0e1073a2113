"""The benchmark of masked language modelling: the same task for all, and figures that follow."""

from dataclasses import replace

import pytest
import torch

from benchmarks import encoder
from headwise.experiments.guidance._masked_steps import FIRST_WORD
from headwise.models.encoder_flops import training_flops

CPU = torch.device("cpu")
SIZES = replace(encoder.SIZES["cpu"], batch=2, length=16)


def test_everybody_starts_with_one_loss_and_learns(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call: call)  # takes its time
    measured = encoder.measure(2, CPU, sizes=replace(SIZES, compiled=True))
    names = ["ours", "RoBERTa", "ours, compiled", "RoBERTa, compiled"]
    assert [row["contestant"] for row in measured.rows] == names
    assert len({row["loss_before"] for row in measured.rows}) == 1
    assert all(row["loss_after"] < row["loss_before"] for row in measured.rows)
    assert measured.wrong == 0
    assert {"over RoBERTa", "over RoBERTa, compiled"} <= measured.rows[0].keys()
    assert measured.table.row_count == 4


def test_only_what_is_really_computed_counts():
    ours, theirs = encoder.measure(1, CPU, sizes=SIZES).rows
    config = SIZES.config
    assert ours["flops"] == training_flops(config, texts=2, length=16, scored=4)
    assert theirs["flops"] - ours["flops"] == 6 * (32 - 4) * (32 * 32 + 32 * 500)


def test_masks_are_where_the_labels_are():
    (batch, *_) = encoder.drawn_batches(SIZES, CPU)
    assert batch.places.shape == (4,)  # 15 % of 16 words in each of 2 texts
    assert torch.equal(batch.labels.flatten()[batch.places], batch.words)
    assert int((batch.labels != -100).sum()) == 4
    assert (batch.ids.flatten()[batch.places] == FIRST_WORD - 1).all()


def test_nothing_is_reported_of_other_losses(monkeypatch):
    export = encoder.to_hugging_face

    def wrong(model):
        other = export(model)
        torch.nn.init.ones_(other.lm_head.dense.bias)
        return other

    monkeypatch.setattr(encoder, "to_hugging_face", wrong)
    with pytest.raises(SystemExit, match="nothing is reported"):
        encoder.measure(1, CPU, sizes=SIZES)


def test_who_cannot_train_says_why(monkeypatch):
    def refuse(call):
        def called(batch):
            raise RuntimeError("no compiler")

        return called

    monkeypatch.setattr(torch, "compile", refuse)
    measured = encoder.measure(1, CPU, sizes=replace(SIZES, compiled=True))
    reasons = {row["contestant"]: row.get("reason") for row in measured.rows}
    assert reasons["ours"] is None and "no compiler" in reasons["ours, compiled"]
