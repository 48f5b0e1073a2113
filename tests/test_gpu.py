"""What must also hold on a CUDA device; run with `pytest -m gpu` where there is one."""

from copy import deepcopy
from functools import partial

import pytest
import torch

import headwise as hw
from headwise.hf import adopt, check_parity
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.recipes.stacked import train_stack
from tests.hf.families import batch_of, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

OPS = {
    "softmax": hw.softmax_attention,
    "topk": partial(hw.topk_attention, keep=8),
    "sparsemax": hw.sparsemax_attention,
    "entmax": hw.entmax_attention,
    "uniform": hw.uniform_attention,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_an_op_gives_on_the_device_what_it_gives_on_the_cpu(op, dtype):
    q, k, v = torch.randn(3, 2, 4, 65, 32, dtype=dtype)
    lengths = torch.tensor([65, 40])
    here = op(q, k, v, causal=True, lengths=lengths)
    there = op(q.cuda(), k.cuda(), v.cuda(), causal=True, lengths=lengths.cuda())
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(there.out.cpu(), here.out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(there.entropy.cpu(), here.entropy, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["BERT", "ModernBERT", "GPT-2", "Llama", "BART", "T5", "ViT"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_watching_a_host_on_the_device_changes_nothing(name, dtype, backend):
    model = build(name, backend).to("cuda", dtype)
    batch = {
        key: value.to("cuda", dtype if value.is_floating_point() else value.dtype)
        for key, value in batch_of(name).items()
    }
    assert check_parity(model, batch)


def test_statistics_of_a_long_row_fit_in_little_device_memory():
    q, k, v = torch.randn(3, 1, 8, 16_384, 64, device="cuda")
    attended = hw.softmax_attention(q, k, v)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert attended.entropy.isfinite().all()
    assert attended.mass(offset=-1).isfinite().all()
    assert torch.cuda.max_memory_allocated() - before < 600e6  # the matrix would be 8.6 GB


@pytest.mark.usefixtures("unchecked")  # what checks shapes cannot be compiled
def test_a_masked_head_stays_masked_when_compiled_on_the_device():
    model = adopt(build("BERT")).cuda().eval()
    batch = {key: value.cuda() for key, value in batch_of("BERT").items()}
    compiled = torch.compile(model)
    with torch.no_grad():
        whole = compiled(**batch).logits
        with hw.masked(model, {"encoder.0.self": [0, 1]}):
            without, wanted = compiled(**batch).logits, model(**batch).logits
        again = compiled(**batch).logits
    torch.testing.assert_close(without, wanted, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(without, whole, atol=1e-4)
    torch.testing.assert_close(again, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("replay", [True, False], ids=["graphs", "no graphs"])
def test_a_stack_learns_on_the_device_as_on_the_cpu(replay):
    config = RnnClassifierConfig(vocabulary=12, embedding=16, hidden=16, attention=16)
    models = [RnnClassifier(config) for _ in range(3)]
    # two shapes, each with two contents: a replay must take the batch it is given
    batches = [labelled_sentences(seeds=3, width=width) for width in (5, 9, 5, 9)]

    def losses(device: str) -> torch.Tensor:
        stack = RnnClassifierStack([deepcopy(model).to(device) for model in models])
        there = [tuple(x.to(device) for x in batch) for batch in batches]
        return train_stack(stack, lambda step: there[step % 4], steps=12, rate=0.02, replay=replay)

    here, there = losses("cpu"), losses("cuda")
    torch.testing.assert_close(there, here, atol=1e-2, rtol=1e-2)
    assert (here[-4:].mean(0) < here[:4].mean(0) - 0.1).all()  # there was something to learn


def labelled_sentences(*, seeds: int, width: int) -> tuple[torch.Tensor, ...]:
    tokens = torch.randint(1, 12, (seeds, 8, width))
    lengths = torch.randint(1, width + 1, (seeds, 8))
    return tokens, lengths, (tokens[..., 0] > 6).long()
