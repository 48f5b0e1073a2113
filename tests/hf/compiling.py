"""Kernels in the place of compiled hosts' attention, with the masks that hosts make.

    python -m tests.hf.compiling

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

import os
from functools import partial

import torch

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from headwise.hf import adopt, check_parity
from headwise.ops import softmax_attention, topk_attention
from headwise.ops.scores import Scores
from headwise.sites import Site, masked, observe, replace, tapped
from tests.hf.families import BACKENDS, Watch, batch_of, build, outputs

NAMES = ("BERT", "ModernBERT", "GPT-2", "Llama", "BART", "BERT decoder")
top_two = partial(topk_attention, keep=2)
top_two_by_kernel = partial(top_two, impl="triton")  # refuses a bias


def check_kernel(name: str, backend: str) -> None:
    """A kernel takes a compiled host's masks, and hides what the host hides."""
    torch.compiler.reset()
    model, batch = adopt(build(name, backend)), batch_of(name, padding="right")
    with replace(model, top_two):
        wanted = outputs(model, batch)
    with replace(model, top_two_by_kernel):
        got = outputs(torch.compile(model, backend="aot_eager", fullgraph=True), batch)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def check_tap(name: str, backend: str) -> None:
    """What is kept for a loss by kernels has no bias either, and its mask is stored once."""
    torch.compiler.reset()
    model, kept = adopt(build(name, backend)), list[Scores]()

    def keep(site: Site, scores: Scores) -> None:
        kept.append(scores)

    with tapped(model, keep):
        torch.compile(model, backend="eager")(**batch_of(name, padding="right"))
    assert kept and all(scores.mask is not None and scores.bias is None for scores in kept)
    assert all(scores.mask.shape[2] == 1 for scores in kept)


def check_unpadded(name: str, backend: str) -> None:
    """Where nothing is padded a compiled host shows masks only where an uncompiled one does."""
    torch.compiler.reset()
    model, batch = adopt(build(name, backend)), batch_of(name)
    there: list[tuple[bool, bool]] = []

    def note(site: Site, scores: Scores) -> None:
        there.append((scores.mask is not None, scores.bias is not None))

    with tapped(model, note):
        wanted = model(**batch).logits
        uncompiled = list(there)
        there.clear()
        got = torch.compile(model, backend="aot_eager")(**batch).logits
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert uncompiled and len(there) == len(uncompiled)
    for compiled, plain in zip(there, uncompiled, strict=True):
        assert all(has <= had for has, had in zip(compiled, plain, strict=True))


def check_part(name: str) -> None:
    """A layer that is compiled alone gets a mask which was made outside."""
    torch.compiler.reset()
    model, batch = adopt(build(name, "eager")), batch_of(name, padding="left")
    with replace(model, top_two_by_kernel):
        wanted = outputs(model, batch)
        for layer in model.model.layers:
            layer.compile(backend="eager")
        torch.testing.assert_close(outputs(model, batch), wanted, atol=1e-5, rtol=1e-5)


def check_bias(*, last: bool) -> None:
    """A mask that adds to scores is obeyed, before and after others of its shape that do not."""
    torch.compiler.reset()
    model, batch = adopt(build("BERT", "eager")), batch_of("BERT", padding="right")
    biased = {**batch, "attention_mask": torch.randn(3, 1, 9, 9)}
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with replace(model, softmax_attention):
        for one in (batch, biased) if last else (biased, batch):
            got, wanted = outputs(compiled, one), outputs(model, one)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def check_adopted_later() -> None:
    """A model that was compiled and run before it is adopted is compiled anew."""
    torch.compiler.reset()
    model, batch = build("BERT"), batch_of("BERT")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    wanted = outputs(compiled, batch)
    with masked(adopt(model), {"encoder.0.self": [0, 1, 2]}):
        assert not torch.allclose(outputs(compiled, batch), wanted)
    assert torch.equal(outputs(compiled, batch), wanted)


def check_parity_of_compiled(name: str, backend: str) -> None:
    """A compiled model that is adopted computes what the same compiled model computes alone."""
    torch.compiler.reset()
    model, batch = build(name, backend), batch_of(name, padding="right")
    compiled = torch.compile(model, backend="inductor")
    wanted = outputs(compiled, batch)
    adopt(model)
    assert torch.equal(outputs(compiled, batch), wanted), f"{name} with {backend}"


def check_flex(padding: str) -> None:
    """Flex attention computes by itself, and the functions of its masks are followed."""
    torch.compiler.reset()
    model, batch = build("Llama"), batch_of("Llama", padding=padding)
    model.set_attn_implementation("flex_attention")
    wanted, watch = outputs(model, batch), Watch()
    with observe(adopt(model), watch):
        assert torch.equal(outputs(model, batch), wanted)
    assert len(watch.seen) == 2
    with replace(model, softmax_attention):
        torch.testing.assert_close(outputs(model, batch), wanted, atol=1e-4, rtol=1e-4)
    assert check_parity(model, batch)


def main() -> None:
    torch.manual_seed(0)
    for backend in BACKENDS:
        for name in NAMES:
            check_kernel(name, backend)
            check_unpadded(name, backend)
        check_tap("BERT", backend)
    check_part("Llama")
    check_bias(last=True)
    check_bias(last=False)
    check_adopted_later()
    for backend in BACKENDS:
        check_parity_of_compiled("BERT", backend)
    check_flex("none")
    check_flex("right")


if __name__ == "__main__":
    main()
