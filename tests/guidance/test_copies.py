"""Guidance moves no queries and keys: kernels read them, and write gradients, where they lie."""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import headwise as hw
from headwise.guidance import Plan
from headwise.guidance import loss as guidance_loss
from headwise.ops.guidance import guidance_rows
from tests.guidance.toy import Toy
from tests.ops.sweep_cases import use_tiles

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"
)
MOVING = ("cat", "clone", "copy", "contiguous", "index", "slice_backward", "zeros", "fill")


class Moved(TorchDispatchMode):
    """Names of the ops that moved as many numbers as half the heads of a layer have."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.names = numbers, list[str]()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        made = op(*args, **(kwargs or {}))
        large = isinstance(made, torch.Tensor) and made.numel() >= self.numbers
        if large and any(word in str(op) for word in MOVING):
            self.names.append(str(op))
        return made


def step(model, ids, guidance=None):
    loss = model(ids).square().mean()
    (loss if guidance is None else loss + guidance.loss()).backward()


@interpreted
def test_a_guided_step_copies_nothing_that_a_plain_step_does_not(monkeypatch):
    use_tiles(monkeypatch, 16, 16)
    monkeypatch.setattr(guidance_loss, "guidance_rows", partial(guidance_rows, impl="triton"))
    model, ids = Toy(width=16), torch.randint(0, 20, (2, 16))
    numbers = 2 * 16 * 4 * 16 // 2
    with Moved(numbers) as plain:
        step(model, ids)
    guidance = hw.guide(model, Plan(next=1, first=1), schedule="constant")
    with Moved(numbers) as guided:
        step(model, ids, guidance)
    assert sorted(guided.names) == sorted(plain.names)


@interpreted
@pytest.mark.parametrize("plan", ["next=1,first=1", {"encoder.0.*": "next=2", "*.1.*": "prev=3"}])
def test_kernels_give_a_model_the_gradients_that_blocks_give(plan, monkeypatch):
    use_tiles(monkeypatch, 16, 16)
    torch.manual_seed(0)
    model, ids = Toy(groups=2), torch.randint(0, 20, (2, 7))
    found = {}
    for impl in ("torch", "triton"):
        monkeypatch.setattr(guidance_loss, "guidance_rows", partial(guidance_rows, impl=impl))
        model.zero_grad()
        with hw.guide(model, plan, schedule="constant") as guidance:
            step(model, ids, guidance)
        found[impl] = [p.grad.clone() for p in model.parameters()]
    torch.testing.assert_close(found["triton"], found["torch"], atol=1e-5, rtol=1e-4)
