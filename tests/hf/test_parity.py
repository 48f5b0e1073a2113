"""Adopting and observing a host leaves its outputs equal, bit by bit."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headwise.hf import adopt, check_parity, release
from headwise.sites import Change, find_sites, masked, observe
from tests.hf.families import (
    ADAPTED,
    CELLS,
    EVERY,
    WITH_CACHE,
    Batch,
    Watch,
    batch_of,
    build,
    cached_steps,
    outputs,
)

Cell = Callable[[str, str], bool | None]  # family, backend -> equal; None where it has no meaning


def unpadded(name: str, backend: str) -> bool | None:
    return same_logits(name, backend, batch_of(name))


def right_padded(name: str, backend: str) -> bool | None:
    if EVERY[name].kind == "image":
        return None
    return same_logits(name, backend, batch_of(name, padding="right"))


def left_padded(name: str, backend: str) -> bool | None:
    if EVERY[name].kind == "image":
        return None
    return same_logits(name, backend, batch_of(name, padding="left"))


def training(name: str, backend: str) -> bool | None:
    return same_gradients(name, backend, checkpointing=False)


def checkpointed(name: str, backend: str) -> bool | None:
    if not EVERY[name].model.supports_gradient_checkpointing:
        return None
    return same_gradients(name, backend, checkpointing=True)


def generated(name: str, backend: str) -> bool | None:
    if EVERY[name].kind not in ("causal", "two stacks"):
        return None
    batch = batch_of(name, padding="left")
    batch.pop("decoder_input_ids", None)
    alone, watched, watch, _ = pair(name, backend)
    first, second = (
        model.generate(**batch, max_new_tokens=5, min_new_tokens=5, do_sample=False)
        for model in (alone, watched)
    )
    assert watch.seen[-1][1].out.shape[2] == 1, "the cache was not used"
    return torch.equal(first, second)


def cached(name: str, backend: str) -> bool | None:
    """One token after the others, then two at once."""
    if name not in WITH_CACHE:
        return None
    alone, watched, watch, _ = pair(name, backend)
    for first, second in zip(cached_steps(alone, name), cached_steps(watched, name), strict=True):
        if not torch.equal(first.logits, second.logits):
            return False
    sizes = [attended.weights.shape[2:] for site, attended in watch.seen if site.endswith("self")]
    assert sizes[-1][0] == 2 and sizes[-1][1] > 2, "the cache was not used"
    return True


def weights(name: str, backend: str) -> bool | None:
    """What output_attentions=True gives."""
    if backend != "eager":
        return None
    alone, watched, _, _ = pair(name, backend)
    batch = batch_of(name)
    with torch.no_grad():
        first, second = (model(**batch, output_attentions=True) for model in (alone, watched))
    kinds = [kind for kind in first if kind.endswith("attentions") and first[kind]]
    assert kinds
    return all(
        torch.equal(a, b) for kind in kinds for a, b in zip(first[kind], second[kind], strict=True)
    )


COLUMNS: tuple[Cell, ...] = (
    unpadded,
    right_padded,
    left_padded,
    training,
    checkpointed,
    generated,
    cached,
    weights,
)


MARKS = {True: "yes", False: "NO", None: "-"}


@pytest.mark.parametrize(("name", "backend"), CELLS)
def test_matrix_of_observed_hosts_equal_to_unmodified_ones(name, backend, record_property):
    title = f"Equal to the unmodified model while observed, {backend}"
    cells = {column.__name__: column(name, backend) for column in COLUMNS}
    for column, equal in cells.items():  # shown at the end of the tests' output
        record_property("cell", [title, name, column, MARKS[equal]])
    assert False not in cells.values(), cells
    assert cells["unpadded"] and cells["training"]


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", ["BERT", "Llama", "BART", "DeBERTa-v2"])
def test_both_kinds_of_checkpointing_show_each_computation_once(name, use_reentrant):
    model = adopt(build(name, "eager" if name in ADAPTED else "sdpa")).train()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    watch = Watch()
    with observe(model, watch):
        model(**batch_of(name), use_cache=False).logits.square().mean().backward()
    assert sorted(watch.names) == sorted(site.name for site in find_sites(model))


@pytest.mark.parametrize("adopted_before", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_check_parity_is_true_and_leaves_the_model_as_it_was(adopted_before, train):
    model = build("BART").train(train)
    if adopted_before:
        adopt(model)
    sites = [module.__dict__.get("site") for module in model.modules()]
    backend, state = model.config._attn_implementation, torch.random.get_rng_state()
    parity = check_parity(model, batch_of("BART", padding="right"))
    assert parity and parity.equal and parity.largest_difference == 0
    assert parity.calls_seen == 6 and parity.outputs > 1
    assert model.config._attn_implementation == backend and model.training == train
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [module.__dict__.get("site") for module in model.modules()] == sites


def test_check_parity_keeps_what_was_put_on_the_sites_and_does_not_disturb_it():
    model = adopt(build("BERT"))
    watch = Watch()
    observe(model, watch)
    with masked(model, {"encoder.0.self": [0]}):
        assert check_parity(model, batch_of("BERT"))
        assert find_sites(model)[0].gates and not watch.seen
        outputs(model, batch_of("BERT"))
    assert len(watch.seen) == 2


def test_check_parity_notices_a_difference():
    model = build("BERT")
    drift = itertools.count()
    model.register_forward_hook(lambda module, args, out: (out.logits + next(drift),))
    parity = check_parity(model, batch_of("BERT"))
    assert not parity and parity.largest_difference > 0.9


def test_check_parity_leaves_the_model_as_it_was_when_the_batch_is_bad():
    model = build("BERT")
    with pytest.raises((ValueError, TypeError)):
        check_parity(model, {"nonsense": torch.zeros(1)})
    assert model.config._attn_implementation == "sdpa"
    adopt(model)
    with pytest.raises((ValueError, TypeError)):
        check_parity(model, {"nonsense": torch.zeros(1)})
    assert find_sites(model)
    release(model)


def pair(name: str, backend: str) -> tuple[nn.Module, nn.Module, Watch, Change]:
    """The same model twice, the second adopted and observed."""
    alone = build(name, backend)
    watched = adopt(copy.deepcopy(alone))
    watch = Watch()
    return alone, watched, watch, observe(watched, watch)


def same_logits(name: str, backend: str, batch: Batch) -> bool:
    alone, watched, watch, observing = pair(name, backend)
    wanted, got = outputs(alone, batch), outputs(watched, batch)
    assert len(watch.seen) == attention_calls(name)
    observing.undo()
    return torch.equal(wanted, got) and torch.equal(wanted, outputs(watched, batch))


def same_gradients(name: str, backend: str, *, checkpointing: bool) -> bool:
    alone, watched, watch, _ = pair(name, backend)
    batch = batch_of(name, padding="right")
    first, second = (gradients(model, batch, checkpointing) for model in (alone, watched))
    assert len(watch.seen) == attention_calls(name)
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def gradients(model: nn.Module, batch: Batch, checkpointing: bool) -> list[Tensor]:
    """The logits of a training step and the gradient of every parameter, from one random state."""
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
        batch = {**batch, "use_cache": False} if "input_ids" in batch else batch
    torch.manual_seed(3)
    logits = model(**batch).logits
    logits.square().mean().backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [logits.detach(), *(grad for grad in found if grad is not None)]


def attention_calls(name: str) -> int:
    """Computations in one forward pass: two layers a stack, one more a layer that looks across."""
    return {"two stacks": 6, "crossed": 4}.get(EVERY[name].kind, 2)
