"""The benchmarks run, refuse what is wrong and save what they found; how fast is not asked here."""

import json
import sys

import pytest
import torch

from benchmarks import Measured, relevance
from benchmarks import __main__ as command

TINY = relevance.Sizes(
    classifiers=3,
    batch=2,
    hidden=8,
    copiers=2,
    copying_batch=2,
    copying_hidden=4,
    sentences=6,
    positions=100,
    lstms=(2, 1),
    lstm_width=3,
    in_sequence=2,
    warm=1,
    updates=1,
    agreement=1e-3,
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(relevance, "SIZES", {"cpu": TINY})
    monkeypatch.setattr(relevance, "WORDS", 50)


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # those of the tests stay
    command.main()


def test_the_relevance_benchmark_saves_a_row_for_every_peer(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    run(monkeypatch, "relevance", "--device", "cpu", "--repeat", "1", "--save")
    saved = json.loads((tmp_path / "relevance-cpu.json").read_text())
    peers = [row["peer"] for row in saved["rows"]]
    assert peers == [
        "RnnClassifier, in sequence",
        "nn.LSTM unpacked, in sequence",
        "a loop over sentences",
        "nn.LSTM unpacked, in sequence",
        "nn.LSTM, in sequence",
        "nn.LSTM",
    ]
    assert all(row["ours_ms"] > 0 and row["peer_ms"] > 0 for row in saved["rows"])
    assert saved["environment"]["command"][2:4] == ["benchmarks", "relevance"]
    assert "many at once" in capsys.readouterr().out


def test_a_peer_that_learns_otherwise_is_not_timed(tiny, monkeypatch):
    other = relevance.classified
    monkeypatch.setattr(relevance, "classified", lambda *given: 3 * other(*given))
    with pytest.raises(SystemExit, match=r"nn\.LSTM unpacked, in sequence: results differ"):
        relevance.measure(1, torch.device("cpu"))


def test_measures_that_differ_are_not_timed(tiny, monkeypatch):
    monkeypatch.setattr(relevance, "look_at_sentences", lambda *given: lambda: (0.5, 2.0))
    with pytest.raises(SystemExit, match="measures differ"):
        relevance.measure(1, torch.device("cpu"))


def test_a_benchmark_without_a_gpu_version_says_so(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "ops", "--device", "cuda")
    assert stopped.value.code == 2
    assert "ops has no GPU version yet; run it with --device cpu" in capsys.readouterr().err


def test_a_benchmark_with_one_wants_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "relevance", "--device", "cuda")
    assert stopped.value.code == 2 and "there is no GPU" in capsys.readouterr().err


def test_auto_takes_a_gpu_where_benchmark_and_machine_have_one(monkeypatch):
    for there, wanted in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert command._device("relevance", "auto").type == wanted
        assert command._device("ops", "auto").type == "cpu"


def test_only_the_benchmark_with_that_peer_wants_entmax(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "entmax", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "benchmarks.ops", raising=False)
    assert command._load("relevance") is relevance.measure
    with pytest.raises(SystemExit) as stopped:
        command._load("ops")
    assert stopped.value.code == 2 and "install headwise[bench]" in capsys.readouterr().err


def test_results_of_a_machine_without_entmax_say_so(monkeypatch):
    def version(name: str) -> str:
        raise command.PackageNotFoundError(name)

    monkeypatch.setattr(command, "version", version)
    assert command._document(Measured([], None))["environment"]["versions"]["entmax"] is None
