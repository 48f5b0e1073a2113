"""The cost of a forward pass: inputs to try a model with, parameters, FLOPs and memory."""

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headwise.hf.adoption import innermost, positions_of

Inputs = Mapping[str, Tensor]
MakeInputs = Callable[[nn.Module, int, int], Inputs]


def random_text(model: nn.Module, batch: int, length: int) -> Inputs:
    """Return random ids, all rows of one length; source and target have the same length.

    Special tokens are not drawn. The input of an encoder before a decoder ends with the end
    token, which some models need.

    Args:
        model: a Hugging Face model that reads text, or one with a method `example_inputs`.
        batch: rows.
        length: tokens of each row.
    """
    inner = innermost(model)
    if make := getattr(inner, "example_inputs", None):
        return make(batch, length)
    device = next(model.parameters()).device
    random = torch.Generator().manual_seed(0)

    def ids(vocabulary: int, special: Collection[int]) -> Tensor:
        words = torch.tensor([word for word in range(vocabulary) if word not in special])
        drawn = torch.randint(0, len(words), (batch, length), generator=random)
        return words[drawn].to(device)

    if not isinstance(inner, PreTrainedModel) or inner.main_input_name != "input_ids":
        raise ValueError(
            f"{type(inner).__name__} is no Hugging Face model that reads text and has no method "
            "example_inputs; give inputs=, a function of the model, batch and length."
        )
    settings: Any = inner.config.get_text_config()
    special = set(_special_ids(settings))
    inputs = {"input_ids": ids(settings.vocab_size, special)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if settings.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids(settings.vocab_size, special)
        if isinstance(settings.eos_token_id, int):
            inputs["input_ids"][:, -1] = settings.eos_token_id
    return inputs


def without_full_masks(inputs: Inputs) -> Inputs:
    """Return the inputs of a Hugging Face model without attention masks that hide nothing.

    >>> given = {"input_ids": torch.ones(1, 2), "attention_mask": torch.ones(1, 2)}
    >>> list(without_full_masks(given))
    ['input_ids']
    """
    return {
        name: value
        for name, value in inputs.items()
        if not (name.endswith("attention_mask") and bool(value.all()))
    }


def _special_ids(settings: Any) -> Iterator[int]:
    """Yield the ids of special tokens that a model's settings name."""
    for name in dir(settings):
        if name.endswith("token_id"):
            value = getattr(settings, name)
            yield from value if isinstance(value, list) else [] if value is None else [value]


def max_length_of(model: nn.Module) -> int | None:
    """Return the maximum length of a model's input; None if it names none."""
    return min(positions_of(innermost(model)), default=None)


def decodes(model: nn.Module) -> bool:
    """Return whether a model generates text, which takes many passes."""
    inner = innermost(model)
    if isinstance(inner, PreTrainedModel):
        return bool(inner.can_generate())
    return hasattr(inner, "decode")


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_flops(model: nn.Module, inputs: Inputs) -> int:
    """Return the FLOPs of the matrix products of a forward pass, two for a multiplication."""
    # fused attention is counted on some devices only; the math backend is matrix products
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(**inputs)
    return int(counter.get_total_flops())


def peak_memory(model: nn.Module, inputs: Inputs) -> int:
    """Return the bytes of the weights plus the peak memory of a forward pass.

    On a CUDA device the allocator is asked. Elsewhere living tensors are counted, without what an
    operation needs while it runs.
    """
    device = next(model.parameters()).device
    held = {id(t.untyped_storage()): t for t in (*model.parameters(), *model.buffers())}
    weights = sum(tensor.numel() * tensor.element_size() for tensor in held.values())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        model(**inputs)
        return weights + torch.cuda.max_memory_allocated(device) - before
    with _LivingBytes() as living:
        model(**inputs)
    return weights + living.most


class _LivingBytes(TorchDispatchMode):
    """A count of the bytes of tensors that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known = weakref.WeakSet[Any]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, Tensor):
                self._known.add(given.untyped_storage())  # existed before, so does not count
        made = func(*args, **(kwargs or {}))
        for leaf in cast(list[object], tree_leaves(made)):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = int(storage.nbytes())
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size
