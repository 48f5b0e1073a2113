"""Experiments on SST: sst, competition, purity, predict."""

import json

import pytest
import torch

from headwise_papers.ops.sen import theoretical_norm
from headwise_papers.training_dynamics import competition, predict, sst
from headwise_papers.training_dynamics._sst import SENTENCE, Curves, build_stack, read_corpus

pytestmark = pytest.mark.usefixtures("data_folder")


def test_words_of_feeling_win_and_keep_near_the_theory(smoke, tmp_path):
    results = smoke("sst")
    assert results["SST2 TC test accuracy"].mean > 0.66
    assert results["SST5 TC test accuracy"].mean > 0.28  # the commonest class has 0.29 at most
    assert results["SST2 TC deviation at the end, median"].mean < 0.12
    assert len(results["SST2 TC top words close to the eye"].values) == sst.WORDS
    assert len(results["words of Fig. 4 close to the eye"].values) == 8
    top = json.loads((tmp_path / "run/top-words.json").read_text())
    assert "bad" in top["SST2 TC"][:10]


def test_a_word_that_left_the_theory_does_not_come_back():
    off = torch.tensor([0.0, 0.2, 0.05])[:, None, None]
    assert sst.staying(off).flatten().tolist() == [1, 0, 0]


def test_a_curve_on_the_theory_is_close_in_both_readings():
    score = torch.linspace(0.06, 3, 20, dtype=torch.float64)[:, None, None]
    m = torch.tensor([15.0], dtype=torch.float64)
    norm = 1.2 * theoretical_norm(score, m)
    off = sst.deviations(Curves(torch.zeros(1), torch.arange(20), score, norm), m)
    torch.testing.assert_close(off["point by point"], torch.full_like(score, 0.2))
    torch.testing.assert_close(off["to the eye"][-1], torch.full_like(score[-1], 1 / 6))
    assert off["to the eye"][0].item() < 0.05


def test_stacks_of_one_config_start_from_the_same_numbers():
    training = sst.SMOKE.tc
    first, second = (build_stack(training, read_corpus(training)) for _ in range(2))
    for name, values in first.parameters.items():
        assert torch.equal(values, second.parameters[name])
    assert not torch.equal(first.parameters["embeddings"][0], first.parameters["embeddings"][1])


def test_the_common_word_leads_at_first_and_the_pure_one_in_the_end(smoke):
    results = smoke("competition")
    for model in ("FC", "TC"):
        assert results[f"{model} best has the longer embedding at first"].mean == 1
        assert results[f"{model} score of powerful - best at the end"].mean > 0
        assert results[f"{model} score of best drops"].mean == 1
        moment = results[f"{model} powerful overtakes in score, share of training"].mean
        assert 0.1 < moment < 1


def test_weights_in_the_sentence_are_a_softmax_of_its_words():
    score = torch.randn(3, 2, len(SENTENCE), dtype=torch.float64)
    curves = Curves(torch.zeros(12), torch.arange(3), score, score.abs())
    wanted = score[..., SENTENCE.index("best")].exp() / score.exp().sum(-1)
    torch.testing.assert_close(competition.weights(curves)[..., 1], wanted)


def test_attention_moves_from_common_to_pure_words(smoke):
    results = smoke("purity")
    for model in ("FC", "TC"):
        first, last = (results[f"{model} purity at {when}"].mean for when in ("first", "the end"))
        assert first < 0.3 < 0.5 < last
        beside = results[f"{model} purity beside the five at the end"].mean
        assert last < 0.8 < beside
        often = [results[f"{model} occurrence at {when}"].mean for when in ("first", "the end")]
        assert often[0] > 10 * often[1]


def test_the_state_after_a_tenth_tells_more_than_occurrence(smoke):
    results = smoke("predict")
    for model in ("FC", "TC"):
        found = {
            ranking: results[f"{model} {ranking}, share of the top words found"].mean
            for ranking in predict.RANKINGS
        }
        assert found["Eq. 8"] > 0.1 > found["occurrence"]
        assert found["exact speed"] > 0.2
        assert results[f"{model} exact speed, rank correlation, all words"].mean > 0.3
