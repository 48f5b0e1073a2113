"""What a model was called with: token ids, and which positions are real."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from headwise.sites import find_sites

IDS = ("input_ids", "ids", "source", "tokens")
DECODER_IDS = ("decoder_input_ids", "target")
MASK, DECODER_MASK = "attention_mask", "decoder_attention_mask"
LABELS = "labels"
IGNORED = -100  # the label of what is not to be guessed


# what configs call the number of tokens, of the stack itself first
VOCABULARY = {
    "encoder": ("source_vocab", "src_vocab_size", "vocab", "vocab_size"),
    "decoder": ("target_vocab", "tgt_vocab_size", "decoder_vocab_size", "vocab", "vocab_size"),
}


def vocabulary(model: nn.Module, stack: str) -> int | None:
    """How many tokens "encoder" or "decoder" knows, if the model's configuration tells it."""
    holders: tuple[Any, ...] = (getattr(model, stack, None), model)
    configs = [holder.config for holder in holders if hasattr(holder, "config")]
    found = (getattr(c, name, None) for c in configs for name in VOCABULARY.get(stack, ()))
    return next((number for number in found if isinstance(number, int)), None)


class Inputs:
    """The tensors of a forward pass that guidance needs, found by the names of its arguments."""

    def __init__(self, model: nn.Module) -> None:
        names = list(inspect.signature(model.forward).parameters)
        wanted = (*IDS, *DECODER_IDS, MASK, DECODER_MASK, LABELS)
        self.places = [(name, names.index(name) if name in names else None) for name in wanted]
        stacks = {site.queries for site in find_sites(model)}  # wrappers have no names to tell it
        self.two_stacks = any(name in names for name in DECODER_IDS) or len(stacks) > 1
        self.names = names

    def caught(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Tensor]:
        """Those of one call, by name."""
        found: dict[str, Tensor] = {}
        for name, place in self.places:
            given = named.get(name)
            if given is None and place is not None and place < len(args):
                given = args[place]
            if isinstance(given, Tensor):
                found[name] = given
        return found

    def ids(self, caught: Mapping[str, Tensor], stack: str) -> Tensor | None:
        """Token ids of "encoder" or "decoder", (B, T)."""
        found = (caught[name] for name in self._known(stack) if name in caught)
        return next((ids for ids in found if ids.dim() == 2 and not ids.is_floating_point()), None)

    def names_of(self, stack: str) -> list[str]:
        """What the model calls these ids."""
        return [name for name in self._known(stack) if name in self.names]

    def _known(self, stack: str) -> tuple[str, ...]:
        return DECODER_IDS if self.two_stacks and stack == "decoder" else IDS

    def real(self, caught: Mapping[str, Tensor], stack: str) -> Tensor | None:
        """The attention mask of a stack's positions, (B, T), if one was given.

        Where a second stack has none, it is what labels tell: each of its positions guesses one.
        Labels of a model of one stack may hide a prompt, whose positions are real.
        """
        mask = caught.get(MASK)
        if self.two_stacks and stack == "decoder":
            labels = caught.get(LABELS)
            mask = caught.get(DECODER_MASK, None if labels is None else labels != IGNORED)
        return mask if mask is not None and mask.dim() == 2 else None
