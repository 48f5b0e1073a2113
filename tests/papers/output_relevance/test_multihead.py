from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.recording.run import Run
from headwise_papers.core.running import reproduce
from headwise_papers.data.synthetic import copying
from headwise_papers.models.rnn import Seq2Seq
from headwise_papers.output_relevance._combining import (
    Pool,
    bytes_of_model,
    chunks,
    members_of,
    train_combinations,
)
from headwise_papers.output_relevance._copying import model_config
from headwise_papers.output_relevance.multihead import (
    EXPECTED,
    Config,
    Seeds,
    experiment,
    over_pools,
)

TINY = Config(types=4, hidden=6, batch=2, updates=2, every=2, sequences=3, good=1, bad=1,
              trials=1, candidates=2, rounds=2)  # fmt: skip
CPU = torch.device("cpu")
MODULE = "headwise_papers.output_relevance.multihead"


def test_a_good_head_helps_bad_ones(tmp_path: Path) -> None:
    figures = reproduce("output_relevance/multihead", experiment.smoke, tmp_path / "run")
    assert figures["candidates that are good"].mean == 1 / 4
    assert figures["one good head alone: share that fails"].mean == 0
    assert figures["one bad head alone: share that fails"].mean == 1
    assert figures["one good head or more: share that fails"].mean == 0
    # there is one combination of several bad heads: too few to be sure
    assert figures["one bad head fails more often than several"].mean == 0
    assert {item.metric for item in EXPECTED} <= set(figures)
    for picture in ("sizes", "grid"):
        assert (tmp_path / "run" / "pictures" / f"{picture}.png").stat().st_size > 5000


def test_combined_models_are_the_shared_one_with_the_heads_of_each_alone() -> None:
    pool = Pool.drawn(TINY, [7, 8, 9], seed=3, device=CPU)
    stack = pool.stack(model_config(TINY, heads=2), [[0, 2], [1, 2]])
    data = copying("iid", 5, types=4, generator=torch.Generator().manual_seed(0))
    lengths = torch.full((5,), 5)
    source, target = (x.expand(2, -1, -1) for x in (data.source, data.target_in))
    logits_STBV = stack(source, target)
    for seed, (first, second) in enumerate([(0, 2), (1, 2)]):
        model = Seq2Seq(model_config(TINY, heads=2))
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
    found = list(chunks(range(1, 64), TINY, most=7, device=CPU))
    assert sorted(x for chunk in found for x in chunk) == list(range(1, 64))
    for chunk in found:
        assert len(chunk) <= 7
        assert len({x.bit_count() for x in chunk}) == 1
    room = 3 * bytes_of_model(TINY, 1)
    monkeypatch.setattr("headwise_papers.output_relevance._combining.CPU_BYTES", room)
    sizes = {len(members_of(chunk[0])): len(chunk) for chunk in chunks([1, 2, 4, 8, 3], TINY,
             most=9, device=CPU)}  # fmt: skip
    assert sizes[1] == 1  # three, then the one that is left
    monkeypatch.setattr("headwise_papers.output_relevance._combining.CPU_BYTES", 1)
    assert [len(chunk) for chunk in chunks([1, 2], TINY, most=9, device=CPU)] == [1, 1]


@pytest.mark.slow
def test_a_killed_run_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, chunk=1)
    trained: list[int] = []

    def until_killed(pool: Pool, members: list[list[int]], *args: Any, **options: Any) -> Any:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(len(members))
        return train_combinations(pool, members, *args, **options)

    monkeypatch.setattr(f"{MODULE}._candidates", lambda *args: ["mixed", "good", "bad"])
    monkeypatch.setattr(f"{MODULE}.train_combinations", until_killed)
    with pytest.raises(KeyboardInterrupt):
        reproduce("output_relevance/multihead", config, tmp_path / "run")
    trained.pop()
    figures = reproduce("output_relevance/multihead", config, tmp_path / "run")
    assert trained == [1, 1]  # one before, and the one that was left
    assert figures["one good head or more: share that fails"].mean == 1
    assert len(Run.open(tmp_path / "run").names("pool-000/combinations/*.json")) == 3


@pytest.mark.slow
def test_further_pools_share_no_seed_and_give_one_value_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, pools=2, trials=3, data_seeds=2, enough=0.0)
    one, other = (Seeds.of(config, pool) for pool in (0, 1))
    assert one == Seeds.of(replace(config, pools=1), 0)
    assert other.data - one.data == 5 and other.start != one.start
    assert other.heads - one.heads > config.rounds * config.candidates
    monkeypatch.setattr(f"{MODULE}._candidates", lambda *args: ["good", "bad"])
    streams: list[int] = []

    def remembering(pool: Pool, members: Any, data: list[int], *args: Any, **options: Any) -> Any:
        streams.extend(data)
        return train_combinations(pool, members, data, *args, **options)

    monkeypatch.setattr(f"{MODULE}.train_combinations", remembering)
    figures = reproduce("output_relevance/multihead", config, tmp_path / "run")
    assert sorted(set(streams)) == [3, 4, 8, 9] and len(streams) == 3 * 4
    assert len(figures["bad heads only: share that fails"].values) == 2
    run = Run.open(tmp_path / "run")
    assert len(run.names("pool-000/combinations/*")) == len(run.names("pool-001/combinations/*"))


def test_a_figure_of_several_pools_is_the_mean_of_each() -> None:
    one, other = {"fails": [0.0, 1.0, 1.0, 0.0]}, {"fails": [0.0, 0.0, 1.0, 0.0]}
    assert over_pools([one]) == one
    assert over_pools([one, other]) == {"fails": [0.5, 0.25]}


def test_too_few_good_heads_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 candidates are 0 good, 4 bad, 0 mixed; draw more with"):
        reproduce("output_relevance/multihead", TINY, tmp_path / "run")
