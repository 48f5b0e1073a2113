"""The benchmark of inspecting: everybody finds the same, and who does not is not timed."""

import io
import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks import inspecting
from benchmarks.attention_maps import by_batch, by_head, by_recorders, draw_sentences, small_bert

TINY = inspecting.Sizes(
    width=16, heads=2, layers=2, sentences=5, batch=2, tokens=20, long_tokens=64, steps=2,
    translator="small", translations=2,
)  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "SIZES", TINY)


def test_recorders_and_matrices_give_the_same_figures() -> None:
    sentences = draw_sentences(7, tokens=30, batch=3)
    ours, theirs = (
        small_bert(width=16, heads=2, layers=2, tokens=30, backend=backend)
        for backend in ("sdpa", "eager")
    )
    found = by_recorders(ours, sentences)
    assert by_batch(theirs, sentences) == pytest.approx(found, abs=1e-5)
    assert by_head(theirs, sentences) == pytest.approx(found, abs=1e-5)
    assert 0.05 < found["confidence"] < 1 and 0 < found["previous"] < 1


def test_every_part_has_a_row_for_every_contestant() -> None:
    measured = inspecting.measure(1, CPU, only=("time", "relevance"))
    assert measured.wrong == 0
    assert [row["part"] for row in measured.rows] == [*("time",) * 3, *("relevance",) * 2]
    for part, figure in (("time", "seconds"), ("relevance", "ms_a_step")):
        first, *others = [row for row in measured.rows if row["part"] == part]
        for row in others:
            assert row["times ours"] == pytest.approx(row[figure] / first[figure])
            assert row["aim"] == inspecting.AIMS[part]


def test_a_contestant_with_other_figures_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model, sentences):
        return {name: value + 0.1 for name, value in by_batch(model, sentences).items()}

    monkeypatch.setattr(inspecting, "by_batch", wrong)
    measured = inspecting.measure(1, CPU, only=("time",))
    assert measured.wrong == 1
    assert "seconds" not in measured.rows[-1]
    assert "differ from ours by 0.1" in measured.rows[-1]["reason"]


def test_memory_is_measured_in_a_process_of_its_own(monkeypatch, capsys) -> None:
    said: list[list[str]] = []

    def run(command, *, input, **options):
        said.append(command)
        monkeypatch.setattr(sys, "argv", command[2:])
        monkeypatch.setattr(sys, "stdin", io.StringIO(input))
        inspecting.main()  # here instead: starting Python twice takes long
        return SimpleNamespace(stdout=capsys.readouterr().out)

    monkeypatch.setattr(inspecting.subprocess, "run", run)
    rows = inspecting.measure(1, CPU, only=("memory",)).rows
    assert [row["contestant"] for row in rows] == [inspecting.OURS, inspecting.BATCHES]
    assert all(row["mebibytes"] >= 0 and row["tokens"] == 64 for row in rows)
    assert all(command[1:3] == ["-m", "benchmarks.inspecting"] for command in said)
