import pytest
import torch

from headwise.sites import observe
from headwise_papers.data.bags import Bags
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.training_dynamics._transformer import (
    Words,
    centred,
    followed_words,
    observe_words,
)
from headwise_papers.training_dynamics.transformer import VARIANTS

BAGS = Bags.of([[4, 5, 6, 4], [6, 7], [5], [7, 4, 8, 8, 5]], [0, 1, 1, 0])


@pytest.mark.usefixtures("data_folder")
def test_pure_words_move_further(smoke):
    results = smoke("transformer")
    for variant in VARIANTS:
        if variant.endswith("AdamW"):  # one epoch of SGD moves nothing far
            pure = results[f"{variant}: value change of pure words"].mean
            assert pure > 1.2 * results[f"{variant}: value change of mixed words"].mean
            assert results[f"{variant}: test accuracy"].mean > 0.55
        assert -1 <= results[f"{variant}: correlation, value change"].mean <= 1


def one_by_one(model: TransformerClassifier, word: int) -> torch.Tensor:
    """Score of a word in each head by the definition, from the matrix of scores."""
    leads: list[torch.Tensor] = []

    def watch(site, attended):
        scores_HQK = attended.scores.rows()[0]
        for place in (tokens[0] == word).nonzero()[:, 0].tolist():
            others = [k for k in range(tokens.shape[1]) if k != place]
            lead_HQ = scores_HQK[..., place] - scores_HQK[..., others].mean(-1)
            leads.append(lead_HQ.mean(-1))

    for tokens, length in zip(BAGS.tokens[0], BAGS.lengths[0], strict=True):
        if length > 1:
            tokens = tokens[None, :length]
            with observe(model, watch, where="encoder.0.self"):
                model(tokens, length[None])
    return torch.stack(leads).mean(0)


def test_the_score_of_a_word_is_its_lead_over_the_others_of_its_sentences():
    for norm in ("pre", "post"):
        model = TransformerClassifier(ClassifierConfig(9, width=8, heads=2, norm=norm)).eval()
        words = Words(torch.tensor([4, 5, 8]), torch.ones(3), torch.ones(3), m=2.0)
        got = observe_words(model, BAGS, words)
        with torch.no_grad():
            for place, word in enumerate(words.numbers_W.tolist()):
                wanted = one_by_one(model, word)
                torch.testing.assert_close(got["score"][:, place], wanted, atol=1e-5, rtol=1e-5)
        assert got["value"].shape == (3, 2, 4)


def test_a_bias_of_all_keys_or_values_changes_nothing():
    model = TransformerClassifier(ClassifierConfig(9, width=8, heads=2)).eval()
    words = Words(torch.tensor([4, 5]), torch.ones(2), torch.ones(2), m=2.0)
    before = observe_words(model, BAGS, words)
    with torch.no_grad():
        model.encoder[0].attention.key.bias.add_(3.0)
        model.encoder[0].attention.value.bias.add_(3.0)
    after = observe_words(model, BAGS, words)
    for name, wanted in before.items():
        torch.testing.assert_close(after[name], wanted, atol=1e-5, rtol=1e-4)


def test_followed_words_are_common_enough_and_sorted_by_purity():
    words = followed_words(BAGS, 9, minimum=2)
    assert words.numbers_W.tolist() == [4, 5, 6, 7]
    assert words.occurrence_W.tolist() == [2, 3, 2, 2]
    assert words.m == 2.0  # twelve words in four sentences
    pure, mixed = words.by_purity(1)
    assert words.numbers_W[pure].tolist() == [4]
    assert words.purity_W[mixed].tolist() == [0.0]


def test_growth_is_counted_from_the_start():
    start = {"score": torch.ones(2, 3), "value": torch.ones(3, 2, 4), "embedding": torch.ones(3, 4)}
    grown = centred([start, {name: 3 * x for name, x in start.items()}])
    assert not any(values[0].any() for values in grown.values())
    assert torch.equal(grown["score"][1], torch.full((2, 3), 2.0))
    for name in ("value change", "value norm"):
        torch.testing.assert_close(grown[name][1], torch.full((2, 3), 4.0))
    torch.testing.assert_close(grown["embedding norm"][1], torch.full((3,), 4.0))
