"""Kernels of sparse attention inside models: checkpointing, and Hugging Face layers."""

from functools import partial
from importlib import import_module

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.hf import adopt
from headwise.ops import entmax_attention, topk_attention
from headwise.sites import replace
from tests.hf.families import Batch, batch_of, build

pytest.importorskip("triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KEEP = 3
OPS = {
    "top-k, short rows": partial(topk_attention, keep=KEEP),
    "top-k, long rows": partial(topk_attention, keep=KEEP),
    "entmax": entmax_attention,
}
slow = pytest.mark.slow
use_reentrant = pytest.mark.parametrize("use_reentrant", [False, pytest.param(True, marks=slow)])


@pytest.fixture(params=OPS)
def attend(request, monkeypatch):
    """Return an op that uses its kernels; top-k by either plan."""
    kernels = import_module("headwise.ops.topk.triton")
    monkeypatch.setattr(kernels, "MOST_KEYS", dict.fromkeys((2, 4), 0))
    monkeypatch.setattr(kernels, "GATHER_KEYS", 1 if "long" in request.param else 10**9)
    return partial(OPS[request.param], impl="triton")


@use_reentrant
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=slow), 0.3])
def test_gradients_are_the_same_with_checkpointing(attend, dropout, use_reentrant):
    tensors = [torch.randn(1, 2, n, 16, device=DEVICE) for n in (17, 20, 20)]
    forward_passes = []

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        forward_passes.append(1)
        return attend(2 * q.tanh(), k.tanh(), v.tanh(), dropout=dropout).out.square().sum()

    torch.manual_seed(5)
    wanted = gradients(layer, tensors)
    torch.manual_seed(5)
    got = gradients(partial(checkpoint, layer, use_reentrant=use_reentrant), tensors)
    assert len(forward_passes) == 3
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(
    "name", ["BERT", *(pytest.param(name, marks=slow) for name in ("Llama", "BART"))]
)
def test_a_replaced_host_gives_what_the_definition_gives(name):
    model, batch = adopt(build(name)).to(DEVICE), on_device(batch_of(name, padding="right"))
    got, wanted = (
        trained(model, batch, partial(topk_attention, keep=KEEP, impl=impl))
        for impl in ("triton", "reference")
    )
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
    assert any(gradient.abs().max() > 1e-3 for gradient in got[1:])


def gradients(layer, tensors: list[Tensor]) -> list[Tensor | None]:
    """Compute gradients of fresh leaves; reentrant checkpointing has no torch.autograd.grad."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    layer(*leaves).backward()
    return [x.grad for x in leaves]


def on_device(batch: Batch) -> Batch:
    return {name: x.to(DEVICE) for name, x in batch.items()}


def trained(model, batch: Batch, attend) -> list[Tensor]:
    """Return logits, then the gradient of every parameter that has one."""
    model.zero_grad()
    with replace(model, attend):
        logits = model(**batch).logits
        logits.square().mean().backward()
    return [logits.detach(), *(x.grad for x in model.parameters() if x.grad is not None)]
