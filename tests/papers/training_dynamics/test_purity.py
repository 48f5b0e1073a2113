from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headwise_papers.core.running import reproduce
from headwise_papers.data.bags import Bags
from headwise_papers.measures.sen_curves import AttendedWords
from headwise_papers.training_dynamics.purity import EXPECTED, AttendedLists, experiment


@pytest.mark.usefixtures("data_folder")
def test_attention_moves_from_common_to_pure_words(tmp_path: Path) -> None:
    figures = reproduce("training_dynamics/purity", experiment.smoke, tmp_path / "run")
    assert {item.metric for item in EXPECTED} <= set(figures)
    for model in ("FC", "TC"):
        first, last = (figures[f"{model} purity at {when}"].mean for when in ("first", "the end"))
        assert first < 0.3 < 0.5 < last
        beside = figures[f"{model} purity beside the five at the end"].mean
        assert last < 0.8 < beside
        often = [figures[f"{model} occurrence at {when}"].mean for when in ("first", "the end")]
        assert often[0] > 10 * often[1]
    for name in ("fig6-attended-beside-five-words", "fig7-attended-in-all-sentences"):
        assert (tmp_path / "run" / "pictures" / f"{name}.png").stat().st_size > 5000


def test_lists_of_attended_words_go_on_after_a_restart() -> None:
    bags = Bags.of([[1, 2], [2, 3]], [0, 1])
    words = AttendedWords(bags, torch.zeros(4).double(), torch.ones(4))
    recorder = AttendedLists(words, every=2)
    model = SimpleNamespace(word_scores=lambda: torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
    for epoch in range(3):
        recorder(epoch, model)
    recorded = recorder.tensors()
    assert recorded["epoch"].tolist() == [0, 2]
    assert recorded["word"].tolist() == [[[2, 3]], [[2, 3]]]
    again = AttendedLists(words, every=2)
    again.restore(recorded)
    again(4, model)
    assert again.tensors()["word"].shape == (3, 1, 2)
