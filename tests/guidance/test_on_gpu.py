"""What must also hold on a CUDA device; run with `pytest -m gpu` where there is one."""

import copy

import pytest
import torch
from transformers import RobertaConfig, RobertaForMaskedLM

import headwise as hw
from headwise.guidance import Plan
from headwise.recording import Run
from headwise.training import FitConfig, fit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PLAN = Plan(next=1, prev=1, first=1, period=1, tokens={"period": (5, 6, 7)})
CONFIG = {
    "vocab_size": 30,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 140,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def guided_on(device, model, ids, mask):
    model = hw.adopt(copy.deepcopy(model)).to(device).train()
    guidance = hw.guide(model, PLAN, schedule="constant")

    def step():
        model.zero_grad()
        output = model(input_ids=ids, attention_mask=mask)
        (output.logits.square().mean() + guidance.loss()).backward()

    return model, guidance, step


@pytest.mark.parametrize("padded", [False, True])
def test_a_guided_step_is_that_of_the_cpu_and_waits_for_nothing(padded):
    model = RobertaForMaskedLM(RobertaConfig(**CONFIG))
    ids = torch.randint(4, 30, (3, 130))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 70:], mask[2, 3:] = 0, 0
    here, guidance, step = guided_on("cpu", model, ids, mask)
    step()
    there, on_gpu, gpu_step = guided_on("cuda", model, ids.cuda(), mask.cuda())
    gpu_step()  # makes what is made once
    output = there(input_ids=ids.cuda(), attention_mask=mask.cuda())
    try:  # the host's own mask may wait, guidance may not
        torch.cuda.set_sync_debug_mode("error")
        there.zero_grad()
        (output.logits.square().mean() + on_gpu.loss()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(on_gpu.unscaled.cpu(), guidance.unscaled, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(there.parameters(), here.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-2, atol=1e-3)


def test_replayed_steps_are_guided_with_the_weight_of_their_step(tmp_path):
    def losses(graphs):
        config = FitConfig(steps=12, warmup=2, log_every=1, precision="bfloat16", graphs=graphs)
        torch.manual_seed(0)
        model, guided = hw.adopt(RobertaForMaskedLM(RobertaConfig(**CONFIG))), []

        def loss(model, ids):
            return model(input_ids=ids, labels=ids).loss + guidance.loss()

        def batch(number):
            rng = torch.Generator().manual_seed(number)
            return torch.randint(4, 30, (2, 40 + number % 2), generator=rng)  # two shapes in turns

        def note(step, metrics):
            guided.append(guidance.unscaled.item())

        folder = tmp_path / f"graphs-{graphs}"
        with Run.create(folder, config) as run, hw.guide(model, PLAN, steps=12) as guidance:
            options = {"on_step": guidance.at_step, "progress": note}
            fit(model, loss, batch, run=run, config=config, **options)
            assert guidance.alpha == pytest.approx(10 / 12)
        return [row["loss"] for row in run.metrics()], guided

    for replayed, plain in zip(losses(graphs=True), losses(graphs=False), strict=True):
        assert len(plain) == 12 and replayed == pytest.approx(plain, rel=1e-3)
