"""The benchmark of masked language modelling: the same task for all, and figures that follow."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import encoder
from headwise_papers.attention_guidance._masked_steps import FIRST_WORD
from headwise_papers.models.encoder import training_flops

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
SIZES = replace(encoder.SIZES["cpu"], batch=2, length=16)


def test_everybody_starts_with_one_loss_and_learns(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call: call)  # takes its time
    measured = encoder.measure(2, CPU, sizes=replace(SIZES, compiled=True))
    names = ["ours", "RoBERTa", "RoBERTa, rounded vocabulary"]
    assert [row["contestant"] for row in measured.rows] == [
        *names,
        *(f"{name}, compiled" for name in names),
    ]
    same = [row["loss_before"] for row in measured.rows if "rounded" not in row["contestant"]]
    more = [row["loss_before"] for row in measured.rows if "rounded" in row["contestant"]]
    assert len(set(same)) == len(set(more)) == 1
    assert same[0] < more[0] < same[0] + 0.05  # 512 words to choose from, and not 500
    assert all(row["loss_after"] < row["loss_before"] for row in measured.rows)
    assert measured.wrong == 0
    anywhere = [peer for peer in encoder.PEERS if encoder.REPLAYED not in peer]
    assert {f"over {peer}" for peer in anywhere} <= measured.rows[0].keys()
    assert measured.table.row_count == 6 and {row["turns"] for row in measured.rows} == {2}


def test_on_a_gpu_the_peer_is_replayed_as_ours_is():
    names = encoder._names(encoder.SIZES["cuda"], torch.device("cuda"))
    ours, theirs = "ours, compiled", "RoBERTa, rounded vocabulary, compiled"
    assert {f"{ours}, replayed", f"{theirs}, replayed"} <= set(names)
    assert set(encoder.PEERS) <= set(names) and set(encoder.AIM) <= set(names)


def test_rows_are_kept_as_they_come_with_a_speed_each():
    kept = []
    measured = encoder.measure(2, CPU, sizes=SIZES, keep=lambda rows: kept.append(len(rows)))
    assert kept == [1, 2, 3, 3, 3]
    seen = []

    def killed(rows):
        seen.append([dict(row) for row in rows])
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoder.measure(2, CPU, sizes=SIZES, keep=killed)
    assert [row["turns"] for row in seen[-1]] == [1, 1]
    assert all(row["tokens_per_second"] > 0 for row in (*seen[-1], *measured.rows))


@pytest.mark.slow
def test_every_compiled_contestant_has_a_graph_of_its_own():
    command = [sys.executable, "-m", "tests.benchmarks.compiling_encoder"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_what_is_really_computed_counts():
    ours, theirs, rounded = encoder.measure(1, CPU, sizes=SIZES).rows
    config = SIZES.config
    assert ours["flops"] == training_flops(config, texts=2, length=16, scored=4)
    assert theirs["flops"] - ours["flops"] == 6 * (32 - 4) * (32 * 32 + 32 * 500)
    assert rounded["flops"] - theirs["flops"] == 6 * 32 * 32 * 12  # 512 words, and not 500


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
