"""output_relevance/synclf: attention finds the token that decides, and output relevance too."""

import torch

from headwise_papers.output_relevance import synclf
from tests.papers.output_relevance.conftest import missing


def test_attention_and_relevance_find_the_token_that_decides(smoke) -> None:
    found = smoke("synclf")
    assert found["best accuracy"].mean > 0.99
    assert found["alpha* on a 1"].mean > 0.95
    assert found["random baseline"].mean < 0.15 < 0.6 < found["hr(alpha*, beta_unif)"].mean
    assert found["hr(alpha*, beta_unif), all sequences"].mean < 0.7  # negatives have no "1"
    assert found["fall of hr"].mean > 0.1
    assert found[synclf.AREA].mean > 0
    # nothing stands for runs without an s
    without = [] if found["other runs pass hr"].mean else ["s", "accuracy at s"]
    assert missing("synclf", found.results, "") == without
    assert found["acc(alpha*, beta_hat) at the start"].mean < 0.3
    assert found.has_figures("fig2-beta-before-alpha", "relevance-under-uniform-attention")


def test_what_never_passes_one_half_is_not_first() -> None:
    step, never = torch.arange(4), torch.zeros(4, dtype=torch.float64)
    late = torch.tensor([0.0, 0.2, 0.6, 0.9], dtype=torch.float64)
    soon = torch.tensor([0.0, 0.7, 0.8, 0.9], dtype=torch.float64)
    curves = {
        "alpha": torch.stack([late, late, soon, never], dim=1),
        "beta": torch.stack([soon, late, late, never], dim=1),
    }
    order = synclf.order(curves, step, 3)
    assert (order[synclf.AREA] > 0).tolist() == [True, False, False, False]
    assert order[synclf.LEAD].tolist() == [1, 0, -1, 0]


def test_every_run_has_sequences_of_its_own_and_the_same_every_time() -> None:
    batches = synclf.batches(synclf.SMOKE, 3, torch.device("cpu"))
    tokens, lengths, labels = batches(5)
    assert torch.equal(tokens, batches(5)[0])
    assert not torch.equal(tokens, batches(6)[0])
    assert not torch.equal(tokens[0], tokens[1])
    assert torch.equal(labels.bool(), (tokens == 1).any(-1))
    assert lengths.shape == labels.shape
