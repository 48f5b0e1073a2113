"""output_relevance/synclf: attention finds the token that decides, and output relevance finds it too."""

from pathlib import Path

import torch

from headwise_papers.core.running import reproduce
from headwise_papers.output_relevance import synclf
from headwise_papers.output_relevance.synclf import EXPECTED, experiment


def test_attention_and_relevance_find_the_token_that_decides(tmp_path: Path) -> None:
    figures = reproduce("output_relevance/synclf", experiment.smoke, tmp_path / "run")
    assert figures["best accuracy"].mean > 0.99
    assert figures["alpha* on a 1"].mean > 0.95
    assert figures["random baseline"].mean < 0.15 < 0.6 < figures["hr(alpha*, beta_unif)"].mean
    assert figures["hr(alpha*, beta_unif), all sequences"].mean < 0.7  # negatives have no "1"
    assert figures["fall of hr"].mean > 0.1
    assert figures["area between the curves, in updates"].mean > 0
    if not figures["other runs pass hr"].mean:
        assert not {synclf.S, synclf.AT_S} & set(figures)  # nothing stands for runs without an s
    assert {item.metric for item in EXPECTED} - {synclf.S, synclf.AT_S} <= set(figures)
    assert figures["acc(alpha*, beta_hat) at the start"].mean < 0.3
    for name in ("fig2-beta-before-alpha", "relevance-under-uniform-attention"):
        assert (tmp_path / "run" / "pictures" / f"{name}.png").stat().st_size > 5000


def test_what_never_passes_one_half_is_not_first() -> None:
    step, never = torch.arange(4), torch.zeros(4, dtype=torch.float64)
    late = torch.tensor([0.0, 0.2, 0.6, 0.9], dtype=torch.float64)
    soon = torch.tensor([0.0, 0.7, 0.8, 0.9], dtype=torch.float64)
    curves = {
        "alpha": torch.stack([late, late, soon, never], dim=1),
        "beta": torch.stack([soon, late, late, never], dim=1),
    }
    order = synclf._order(curves, step, 3)
    assert order["beta strictly first"].tolist() == [True, False, False, False]
    assert order["beta first or equal"].tolist() == [True, True, False, False]
    assert order["area between the curves above 0"].tolist() == [True, False, False, False]
    assert order["updates by which beta is first"].tolist() == [1, 0, -1, 0]


def test_only_curves_near_a_random_position_start_at_the_baseline() -> None:
    curves = {"alpha": torch.tensor([[0.03, 0.2], [0.9, 0.9]]), "beta": torch.zeros(2, 2)}
    starts = synclf._starts(curves, baseline=1 / 40)
    assert starts["alpha starts at the baseline"].tolist() == [True, False]
    assert starts["beta starts at the baseline"].tolist() == [True, True]


def test_every_run_has_sequences_of_its_own_and_the_same_every_time() -> None:
    batches = synclf._batches(experiment.smoke, 3, torch.device("cpu"))
    tokens, lengths, labels = batches(5)
    assert torch.equal(tokens, batches(5)[0])
    assert not torch.equal(tokens, batches(6)[0])
    assert not torch.equal(tokens[0], tokens[1])
    assert torch.equal(labels.bool(), (tokens == 1).any(-1))
    assert lengths.shape == labels.shape
