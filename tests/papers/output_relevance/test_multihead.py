from dataclasses import replace
from typing import Any

import pytest
import torch

from headwise_papers.core import find_or_train
from headwise_papers.data.synthetic import copying
from headwise_papers.models.rnn import Seq2Seq
from headwise_papers.output_relevance import _pools
from headwise_papers.output_relevance._copying import Setup
from headwise_papers.output_relevance._pools import (
    Pool,
    PoolConfig,
    bytes_of_model,
    chunks,
    members_of,
    train_combinations,
    train_pool,
)
from headwise_papers.output_relevance.multihead import Config, per_pool
from tests.papers.output_relevance.conftest import missing

TINY = Setup(types=4, hidden=6, batch=2, updates=2, every=2, sequences=3)
POOL = PoolConfig(TINY, good=1, bad=1, trials=1, candidates=2, rounds=2)
CPU = torch.device("cpu")


def test_a_good_head_helps_bad_ones(smoke) -> None:
    found = smoke("multihead")
    assert found["candidates that are good"].mean == 1 / 4
    assert found["one good head alone: share that fails"].mean == 0
    assert found["one bad head alone: share that fails"].mean == 1
    assert found["one good head or more: share that fails"].mean == 0
    # combinations of one pool are not independent, so that it gives one value
    assert len(found["per pool: bad heads only - one good head or more"].values) == 1
    assert not missing("multihead", found.results, "")
    assert found.has_figures("sizes", "grid")


def test_combined_models_are_the_shared_one_with_the_heads_of_each_alone() -> None:
    pool = Pool.drawn(TINY, [7, 8, 9], seed=3, device=CPU)
    stack = pool.stack(TINY.model(heads=2), [[0, 2], [1, 2]])
    data = copying("iid", 5, types=4, generator=torch.Generator().manual_seed(0))
    lengths = torch.full((5,), 5)
    source, target = (x.expand(2, -1, -1) for x in (data.source, data.target_in))
    logits_STBV = stack(source, target)
    for seed, (first, second) in enumerate([(0, 2), (1, 2)]):
        model = Seq2Seq(TINY.model(heads=2))
        heads = {
            f"heads.{name}": torch.stack([x[first], x[second]]) for name, x in pool.heads.items()
        }
        model.load_state_dict({**pool.rest, **heads})
        wanted_BTV = model(data.source, lengths, data.target_in)
        assert torch.allclose(logits_STBV[seed].transpose(0, 1), wanted_BTV, atol=1e-5)


def test_a_head_depends_on_its_own_seed_only() -> None:
    one, other = (Pool.drawn(TINY, seeds, seed=3, device=CPU) for seeds in ([7, 8], [8]))
    for name, pool_P in one.heads.items():
        assert torch.equal(pool_P[1:], other.heads[name])
    assert torch.equal(one.rest["embed.weight"], other.rest["embed.weight"])


def test_chunks_hold_every_combination_once_and_one_size_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_pools, "MAX_MODELS", 7)
    found = list(chunks(range(1, 64), TINY, CPU))
    assert sorted(x for chunk in found for x in chunk) == list(range(1, 64))
    for chunk in found:
        assert len(chunk) <= 7
        assert len({x.bit_count() for x in chunk}) == 1
    room = 3 * bytes_of_model(TINY, 1)
    monkeypatch.setattr(_pools, "CPU_BYTES", room)
    some = chunks([1, 2, 4, 8, 3], TINY, CPU)
    sizes = {len(members_of(chunk[0])): len(chunk) for chunk in some}
    assert sizes[1] == 1  # three, then the one that is left
    monkeypatch.setattr(_pools, "CPU_BYTES", 1)
    assert [len(chunk) for chunk in chunks([1, 2], TINY, CPU)] == [1, 1]


def test_a_killed_run_resumes_with_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def until_killed(pool: Pool, members: list[list[int]], *args: Any, **options: Any) -> Any:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(len(members))
        return train_combinations(pool, members, *args, **options)

    monkeypatch.setattr(_pools, "MAX_MODELS", 1)
    monkeypatch.setattr(_pools, "find_heads", lambda *args: ["mixed", "good", "bad"])
    monkeypatch.setattr(_pools, "train_combinations", until_killed)
    with pytest.raises(KeyboardInterrupt):
        find_or_train(train_pool, POOL)
    trained.pop()
    run = find_or_train(train_pool, POOL)
    assert trained == [1, 1]  # one before, and the one that was left
    assert len(run.names("combinations/*.json")) == 3


def test_further_pools_share_no_seed_and_give_one_value_each(
    smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = replace(POOL, trials=3, data_seeds=2, seed=7)
    monkeypatch.setattr(_pools, "find_heads", lambda *args: ["good", "bad"])
    streams: list[int] = []
    heads: list[Any] = []

    def remembering(pool: Pool, members: Any, data: list[int], *args: Any, **options: Any) -> Any:
        streams.extend(data)
        heads.append(pool.heads["score_weight"])
        return train_combinations(pool, members, data, *args, **options)

    monkeypatch.setattr(_pools, "train_combinations", remembering)
    found = smoke("multihead", Config(pool, pools=2))
    assert sorted(set(streams)) == [3, 4, 8, 9] and len(streams) == 3 * 4
    assert not torch.equal(heads[0], heads[-1])
    assert len(found["bad heads only: share that fails"].values) == 4
    assert len(found["per pool: bad heads only, share that fails"].values) == 2


def test_a_value_of_a_pool_is_its_mean() -> None:
    shares = {"one good head or more": [0.0], "1 good": [0.0]}
    pools = [{"bad heads only": fails, **shares} for fails in ([0.0, 1.0], [1.0, 1.0])]
    found = per_pool(pools)
    assert found["per pool: bad heads only, share that fails"].values == (0.5, 1.0)
    assert found["per pool: bad heads only - one good head or more"].kind == "difference"


def test_too_few_good_heads_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="4 candidates are 0 good, 4 bad, 0 mixed; try more with"):
        find_or_train(train_pool, replace(POOL, seed=1))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="good and bad must be 1 or more"):
        PoolConfig(good=0)
    with pytest.raises(ValueError, match="pools must be 1 or more"):
        Config(pools=0)
