from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.guidance import Plan, guide, pattern
from headwise_papers.data.synthetic import copying
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.output_relevance._copying import (
    BLOCK,
    FRESH,
    STREAM,
    CopyCurves,
    Setup,
    accuracy,
    stream,
    train,
)
from headwise_papers.output_relevance.copying import FAILS, HARDER, Config, Runs, models
from tests.papers.output_relevance.conftest import missing

TINY = Setup(types=5, hidden=8, batch=3, every=2, sequences=4)
CPU = torch.device("cpu")


def test_permutations_are_harder_to_copy_because_relevance_is_learned_late(smoke) -> None:
    found = smoke("copying")
    assert found["iid: runs that succeed"].mean == 1
    assert found[HARDER].mean > 0.5
    assert found["iid: attention on the source at the cut"].mean > 0.8
    assert found[f"{FAILS}: attention on the source at the cut"].mean < 0.5
    assert found[f"{FAILS}: beta learned later than in every iid run"].mean == 1
    assert found[f"{FAILS}: advantage of the source in beta, early on"].mean < 0.3
    assert found["iid: advantage of the source in beta, early on"].mean > 0.5
    least, at_the_cut = (
        found[f"{FAILS}: evenness of attention {when}"]
        for when in ("where it is least", "at the cut")
    )
    assert all(one <= other for one, other in zip(least.values, at_the_cut.values, strict=True))
    assert not missing("copying", found.results, "")
    assert found.has_figures("runs", "mechanism")


@pytest.mark.parametrize("every", [0, 30])
def test_a_cut_without_an_evaluation_is_refused(every: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of every, .* got 200 and {every}"):
        Setup(every=every)


def test_permutation_runs_are_continued_and_others_end_at_the_cut() -> None:
    found: list[Any] = [job.config for job in models(Config(longer=300))]
    assert found == [Runs("permutation", Setup(), 300, 100), Runs("iid", Setup(), 200, 100)]


@pytest.mark.parametrize("combine", ["concat", "context", "add"])
def test_every_output_layer_learns(combine) -> None:
    setup = Setup(types=4, hidden=16, combine=combine, batch=16, rate=1e-2, updates=20)
    stack = Seq2SeqStack(setup.drawn(range(2), CPU))
    loss_ES = train(stack, "iid", [0, 1], setup)["loss"]
    assert (loss_ES[-1] < 0.8 * loss_ES[0]).all()


def test_each_seed_has_a_stream_of_its_own_whoever_is_beside_it() -> None:
    several = stream("permutation", [4, 7, 4], TINY, CPU)
    alone = stream("permutation", [7], TINY, CPU)
    for update in (0, 1, BLOCK, 0):
        source_SBK, target_in_SBK, target_out_SBK = several(update)
        assert torch.equal(source_SBK[1:2], alone(update)[0])
        assert torch.equal(source_SBK[0], source_SBK[2])
        assert not torch.equal(source_SBK[0], source_SBK[1])
        assert torch.equal(target_in_SBK[..., 1:], target_out_SBK[..., :-1])
        assert (source_SBK[..., :-1].sort().values == torch.arange(5)).all()
    assert not torch.equal(several(0)[0], several(1)[0])
    assert not torch.equal(several(0)[0], several(BLOCK)[0])


def test_evaluations_are_on_data_that_no_stream_has() -> None:
    # a generator of a CPU looks at 32 bits of its seed
    streams = {(seed * STREAM + block) % 2**32 for seed in (0, 99, 50_099) for block in range(20)}
    assert not streams & {(FRESH + step) % 2**32 for step in range(400)}


def test_curves_say_where_models_look() -> None:
    stack = Seq2SeqStack(TINY.drawn(range(3), CPU))
    with torch.no_grad():
        stack.weights["heads.score_weight"][0] = 0  # the first model attends to all alike
        stack.weights["heads.score_bias"][0] = 0
    curves = CopyCurves("iid", TINY, CPU)
    for step in range(5):
        curves(step, stack)
    found = curves.tensors()
    assert found["step"].tolist() == [0, 2, 4]
    assert found["accuracy"].shape == (3, 3)
    assert torch.allclose(found["evenness"][:, 0], torch.ones(3, dtype=torch.float64))
    assert (found["evenness"][:, 1:] < 1).all()
    # equal scores: the first position is the largest, so the mean offset is -(0 + ... + 5) / 6
    assert torch.allclose(found["offset"][:, 0], torch.full((3,), -2.5, dtype=torch.float64))
    assert (found["on"][:, 0] - 1 / 6).abs().max() < 1e-12
    assert (found["beta_token"] >= found["beta_on"]).all()
    again = CopyCurves("iid", TINY, CPU)
    again.restore(found)
    assert torch.equal(again.tensors()["beta_gap"], found["beta_gap"])


def test_looking_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Seq2SeqStack(TINY.drawn(range(2), CPU))
    whole, parts = (CopyCurves("permutation", TINY, CPU) for _ in range(2))
    whole(0, stack)
    monkeypatch.setattr("headwise_papers.output_relevance._copying.MAX_NUMBERS", {"cpu": 1})
    parts(0, stack)
    for name, value in whole.tensors().items():
        assert torch.allclose(value, parts.tensors()[name])


def test_accuracy_is_that_of_each_model_alone() -> None:
    models = TINY.drawn(range(3), CPU)
    data = copying("iid", 20, types=5, generator=torch.Generator().manual_seed(0))
    lengths = torch.full((20,), 6)
    for model, found in zip(models, accuracy(Seq2SeqStack(models), data), strict=True):
        right = model(data.source, lengths, data.target_in).argmax(-1) == data.target_out
        assert found.item() == pytest.approx(right.double().mean().item())


def test_training_goes_the_same_way_in_any_company() -> None:
    together = Seq2SeqStack(TINY.drawn([3, 8], CPU))
    alone = Seq2SeqStack(TINY.drawn([8], CPU))
    loss_ES = train(together, "permutation", [1, 2], TINY, updates=4)["loss"]
    assert torch.allclose(
        train(alone, "permutation", [2], TINY, updates=4)["loss"], loss_ES[:, 1:], atol=1e-6
    )


def guided_weights(model_seeds: list[int], data_seeds: list[int]) -> Tensor:
    """The scores' weights of the last model after a few guided updates."""
    stack = Seq2SeqStack(TINY.drawn(model_seeds, CPU))
    plan = Plan({0: pattern("offset", offset=0)})
    with guide(stack, plan, alpha=1000.0, steps=4, where="*.cross") as guidance:
        train(stack, "permutation", data_seeds, TINY, updates=4, guidance=guidance)
        assert guidance.alpha == 250.0  # of the last update
    return stack.weights["heads.score_weight"][-1].detach()


def test_each_model_of_a_stack_has_its_own_guidance() -> None:
    alone = guided_weights([8], [2])
    assert torch.allclose(guided_weights([3, 8], [1, 2]), alone, atol=1e-6)
    plain = Seq2SeqStack(TINY.drawn([8], CPU))
    train(plain, "permutation", [2], TINY, updates=4)
    assert not torch.allclose(plain.weights["heads.score_weight"][0], alone, atol=1e-4)
