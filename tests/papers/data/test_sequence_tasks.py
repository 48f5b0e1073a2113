"""SynClf and copying."""

import pytest
import torch

from headwise_papers.data.synthetic import IMPORTANT, copying, synclf


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_sequence_is_positive_exactly_if_the_important_token_occurs():
    drawn = synclf(500, generator=generator())
    assert torch.equal(drawn.labels.bool(), (drawn.tokens == IMPORTANT).any(1))
    assert 0.55 < drawn.labels.double().mean() < 0.72  # 1 - (39 / 40)^40 = 0.637
    assert drawn.tokens.min() == 1 and drawn.tokens.max() == 40


def test_all_permutations_are_the_same_bag_of_words():
    drawn = copying("permutation", 50, types=9, generator=generator())
    assert torch.equal(drawn.source.sort(1).values, torch.arange(10).expand(50, -1))
    assert len(drawn.source.unique(dim=0)) > 45


def test_independent_tokens_are_different_bags():
    drawn = copying("iid", 50, types=9, generator=generator())
    assert len(drawn.source.sort(1).values.unique(dim=0)) > 45


@pytest.mark.parametrize("task", ["permutation", "iid"])
def test_the_target_is_the_source_one_step_later(task):
    drawn = copying(task, 3, types=5, length=4, generator=generator())
    assert drawn.source.shape == (3, 5)
    assert torch.equal(drawn.target_out, drawn.source)
    assert torch.equal(drawn.target_in[:, 1:], drawn.source[:, :-1])
    assert drawn.source[:, -1].tolist() == [5] * 3 and drawn.target_in[:, 0].tolist() == [6] * 3


def test_the_same_seed_gives_the_same_sequences():
    first, second = (copying("iid", 4, generator=generator(7)) for _ in range(2))
    assert torch.equal(first.source, second.source)


@pytest.mark.usefixtures("unchecked")
def test_impossible_tasks_are_refused():
    with pytest.raises(ValueError, match="not possible"):
        copying("permutation", 3, types=5, length=6, generator=generator())
    with pytest.raises(ValueError, match="task must be"):
        copying("copy", 3, generator=generator())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="types at least 2"):
        synclf(3, types=1, generator=generator())
