from collections.abc import Iterator

import pytest
import torch

from headwise_papers.data.batches import parallel_batch
from headwise_papers.ops.relevance import Looked
from headwise_papers.output_relevance._translators import (
    Config,
    EarlyRuns,
    Patience,
    Recipe,
    early_schedule,
    make_stack,
    pair_batches,
)
from headwise_papers.recipes.stacked import shuffled_order

PAIRS = [(list(range(4, 4 + n)), list(range(20, 20 + 2 * n % 7 + 1))) for n in range(1, 12)]
CPU = torch.device("cpu")


def test_a_batch_holds_each_seeds_pairs_with_marks() -> None:
    seeds = [3, 8]
    batches = pair_batches(PAIRS, batch=4, seeds=seeds, device=CPU)
    order = shuffled_order(len(PAIRS), batch=4, seeds=seeds)
    for step in (0, 2, 5):
        source, target_in, target_out, source_lengths, target_lengths = batches(step)
        for seed, chosen in enumerate(order(step).tolist()):
            wanted = parallel_batch(*zip(*(PAIRS[n] for n in chosen), strict=True))
            assert source_lengths[seed].equal(wanted.source_lengths)
            assert target_lengths[seed].equal(wanted.target_lengths)
            for row in range(4):
                real, told = wanted.source_lengths[row], wanted.target_lengths[row]
                assert source[seed, row, :real].equal(wanted.source[row, :real])
                assert target_in[seed, row, :told].equal(wanted.target_in[row, :told])
                assert target_out[seed, row, :told].equal(wanted.target_out[row, :told])


def test_widths_are_multiples_and_padding_of_sources_and_outputs_is_zero() -> None:
    batches = pair_batches(PAIRS, batch=3, seeds=[0, 1], device=CPU, multiple=8)
    for step in range(8):
        source, target_in, target_out, source_lengths, target_lengths = batches(step)
        assert source.shape[-1] % 8 == 0 and target_out.shape[-1] % 8 == 0
        assert target_in.shape == target_out.shape
        for ids, lengths in ((source, source_lengths), (target_out, target_lengths)):
            beyond = torch.arange(ids.shape[-1]) >= lengths[..., None]
            assert not ids[beyond].any() and bool(ids[~beyond].all())


def test_seeds_see_different_orders_and_every_pair_in_an_epoch() -> None:
    batches = pair_batches(PAIRS, batch=1, seeds=[0, 1], device=CPU)
    lengths_ES = torch.stack([batches(step)[3][:, 0] for step in range(len(PAIRS))])
    assert not lengths_ES[:, 0].equal(lengths_ES[:, 1])
    for seed in (0, 1):
        assert sorted(lengths_ES[:, seed].tolist()) == list(range(2, 13))


def test_early_runs_are_looked_at_less_and_less_often() -> None:
    looked = [step for step in range(201) if early_schedule(step)]
    assert looked == [*range(11), *range(20, 101, 10), 150, 200]


def test_early_runs_are_of_the_first_corpus_and_its_probe() -> None:
    assert Config().early() == EarlyRuns(Recipe("multi30k"), valid=200, seeds=50, updates=1500)
    assert Config(corpora=("iwslt14",)).early().recipe.corpus == "iwslt14"
    with pytest.raises(ValueError, match=r"no corpus 'iwslt'. Did you mean 'iwslt14'"):
        Config(corpora=("iwslt",))


def _patience(right: list[list[int]], *, most: int) -> Patience:
    """Sees 5 rows of two normal models and a uniform one, so many of them right at each look."""
    looks = iter(right)

    def look(_: object) -> Iterator[Looked]:
        right_SN = torch.arange(5) < torch.tensor(next(looks))[:, None]
        rows_SNK = torch.zeros(3, 5, 2)
        yield Looked(rows_SNK, rows_SNK, torch.full((5,), 2), right_SN)

    return Patience(look, normal=2, most=most)


def _seen(patience: Patience, looks: int) -> list[bool]:
    over: list[bool] = []
    stack = make_stack(Recipe(hidden=2), 9, {0: "normal"}, CPU)  # is not asked
    for _ in range(looks):
        assert len(list(patience.read(stack))) == 1
        over.append(patience.over(0))
    return over


def test_training_is_over_when_no_normal_model_gets_better() -> None:
    # the second look is better for one model, the fourth for the uniform one only
    right = [[1, 3, 0], [2, 2, 0], [2, 3, 0], [2, 3, 5], [2, 3, 5]]
    assert _seen(_patience(right, most=3), 5) == [False, False, False, False, True]


def test_patience_goes_on_where_it_was() -> None:
    right = [[1, 3, 0], [1, 3, 0], [1, 3, 0]]
    before, after = _patience(right, most=2), _patience(right, most=2)
    assert _seen(before, 2) == [False, False]
    after.restore(before.tensors())
    assert _seen(after, 1) == [True]
