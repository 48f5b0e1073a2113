"""Minibatch training of many seeds at once."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.recording.run import Run
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.rnn_stack import (
    RnnClassifierSequence,
    RnnClassifierStack,
    many_classifiers,
)
from headwise_papers.recipes.stacked import shuffled_order, train_stack

SHAPE = RnnClassifierConfig(vocabulary=7, embedding=4, hidden=6, attention=4)


@dataclass(frozen=True)
class Config:
    """Of the runs of these tests."""

    updates: int = 8


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", Config()) as made:
        yield made


def models(seeds: int = 3) -> list[RnnClassifier]:
    torch.manual_seed(3)
    return [RnnClassifier(SHAPE) for _ in range(seeds)]


def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 7, (3, 5, 4 + step % 2), generator=draw)
    return tokens, torch.full((3, 5), 4), (tokens == 1).any(-1).long()


@dataclass
class Watch:
    """Records how often it was called, and the first weight."""

    name: str = "watch"

    def __post_init__(self) -> None:
        self.seen: list[float] = []
        self.steps: list[int] = []

    def __call__(self, step: int, model: RnnClassifierStack) -> None:
        self.steps.append(step)
        self.seen.append(model.weights["output.weight"][0, 0, 0].item())

    def tensors(self) -> dict[str, Tensor]:
        return {"seen": torch.tensor(self.seen), "steps": torch.tensor(self.steps)}

    def restore(self, tensors) -> None:
        self.seen, self.steps = tensors["seen"].tolist(), tensors["steps"].tolist()


def test_each_seed_goes_the_way_it_goes_alone():
    alone, stack = models(), RnnClassifierStack(models())
    losses_ES = train_stack(stack, batch, steps=8, rate=1e-2)
    for seed, model in enumerate(alone):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(8):
            tokens, lengths, labels = (x[seed] for x in batch(step))
            loss = cross_entropy(model(tokens, lengths), labels)
            torch.testing.assert_close(losses_ES[step, seed], loss.detach(), rtol=1e-4, atol=1e-5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_recorders_see_the_stack_before_the_first_update_and_after_each():
    watch, stack = Watch(), RnnClassifierStack(models())
    train_stack(stack, batch, steps=4, recorders=[watch])
    assert watch.steps == [0, 1, 2, 3, 4]
    assert len(set(watch.seen)) == 5


def test_training_can_be_stopped_early():
    stack = RnnClassifierStack(models())
    assert len(train_stack(stack, batch, steps=9, stop=lambda step: step == 4)) == 4


def test_a_killed_training_goes_on_through_the_same_numbers(run):
    whole, watch = RnnClassifierStack(models()), Watch()
    losses = train_stack(whole, batch, steps=8, recorders=[watch])

    def killed(step: int) -> tuple[Tensor, Tensor, Tensor]:
        if step == 6:
            raise KeyboardInterrupt
        return batch(step)

    with pytest.raises(KeyboardInterrupt):
        train_stack(
            RnnClassifierStack(models()), killed, steps=8, recorders=[Watch()], run=run,
            checkpoint_every=4,
        )  # fmt: skip
    again, continued = RnnClassifierStack(models()), Watch()
    went_on = train_stack(again, batch, steps=8, recorders=[continued], run=run)
    assert torch.equal(went_on, losses)
    assert continued.seen == pytest.approx(watch.seen) and continued.steps == watch.steps
    for name, weight in whole.weights.items():
        assert torch.equal(weight, again.weights[name])


def test_a_finished_run_is_not_trained_again(run):
    stack = RnnClassifierStack(models())
    losses = train_stack(stack, batch, steps=8, run=run)

    def never(step: int) -> tuple[Tensor, Tensor, Tensor]:
        raise AssertionError("no batch is needed")

    again = RnnClassifierStack(models())
    assert torch.equal(train_stack(again, never, steps=8, run=run), losses)
    assert torch.equal(again.weights["output.weight"], stack.weights["output.weight"])


def test_a_recorder_is_not_called_twice_where_a_run_goes_on(run):
    watch = Watch()
    train_stack(RnnClassifierStack(models()), batch, steps=4, recorders=[watch], run=run)
    longer = Watch()
    train_stack(RnnClassifierStack(models()), batch, steps=6, recorders=[longer], run=run)
    assert longer.steps == [0, 1, 2, 3, 4, 5, 6]


def test_a_stack_of_another_shape_does_not_go_on(run):
    train_stack(RnnClassifierStack(models()), batch, steps=2, run=run)
    with pytest.raises(ValueError, match="same config and seeds"):
        train_stack(RnnClassifierStack(models(2)), batch, steps=4, run=run)


def test_a_training_that_goes_wrong_says_which_seed_and_keeps_no_checkpoint(run):
    stack = RnnClassifierStack(models())
    with torch.no_grad():
        stack.weights["output.weight"][1] = torch.nan
    with pytest.raises(ValueError, match=r"seeds \[1\] is not finite"):
        train_stack(stack, batch, steps=3, run=run)
    assert not run.has("stacked.safetensors")


def test_every_pass_shows_each_example_once():
    order = shuffled_order(10, batch=4, seeds=[0, 1, 1])
    shown = torch.cat([order(step) for step in range(5)], dim=1)  # two passes
    for part in (shown[:, :10], shown[:, 10:]):
        assert torch.equal(part.sort(1).values, torch.arange(10).expand(3, -1))
    assert torch.equal(shown[1], shown[2]) and not torch.equal(shown[0], shown[1])
    assert not torch.equal(shown[0, :10], shown[0, 10:])
    assert torch.equal(order(1), shuffled_order(10, batch=4, seeds=[0, 1, 1])(1))


def test_a_batch_may_be_larger_than_a_pass():
    shown = shuffled_order(3, batch=8, seeds=[0])(0)
    assert sorted(shown[0].bincount().tolist()) == [2, 3, 3]


def test_a_sequence_goes_the_way_of_a_stack():
    stack, sequence = RnnClassifierStack(models()), many_classifiers(models())
    assert isinstance(sequence, RnnClassifierSequence)  # there is no GPU here
    losses = [train_stack(many, batch, steps=6, rate=1e-2) for many in (stack, sequence)]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    tokens, lengths, labels = (x[0] for x in batch(0))
    seen = [many.look(tokens, lengths, labels) for many in (stack, sequence)]
    torch.testing.assert_close(seen[0].alpha, seen[1].alpha, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(seen[0].beta, seen[1].beta, rtol=1e-2, atol=1e-3)
    assert torch.equal(seen[0].right, seen[1].right)
