"""What stands in the place of attention that has lost all its heads.

Without heads the output projection has nothing to mix: what it adds is its bias. In a Hugging Face
model the module must also return what its layer expects, and count positions in a cache.
"""

from typing import Any, cast

from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

# What an attention module may have behind its output projection, in this order. All else that it
# has, and `obstacle` knows, is before the heads are mixed and goes with them.
AFTER = ("output_dropout", "resid_dropout", "out_drop", "proj_drop", "projection_dropout")
NORM = "LayerNorm"  # ALBERT adds what it was given and normalises inside


class JustBias(nn.Module):
    """In the place of an output projection without inputs: its bias, at every position.

    Args:
        projection: what stood there.
        width: of the model.
    """

    bias: nn.Parameter | None

    def __init__(self, projection: nn.Module, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_parameter("bias", cast(nn.Parameter | None, projection.bias))

    def forward(self, nothing: Tensor) -> Tensor:
        """As many vectors as there are positions."""
        if self.bias is None:
            return nothing.new_zeros(*nothing.shape[:-1], self.width)
        return self.bias.expand(*nothing.shape[:-1], self.width)


class Headless(nn.Module):
    """In the place of an attention module of a Hugging Face model.

    `lost` are the names of the tensors that the module had and this one has not.

    Args:
        attention: what stood there; what it has behind its heads stays, under its name.
        output: the name of its output projection, which is JustBias by now; None if that stands
            outside of it, as in BERT.
        cross: whether it looked at the encoder, of which nothing need be remembered.
        results: how many things the layer expects back.
    """

    def __init__(
        self, attention: nn.Module, *, output: str | None, cross: bool, results: int
    ) -> None:
        super().__init__()
        self.cross, self.results = cross, results
        self.had = list(attention.state_dict())
        self.layer_idx = cast(int | None, getattr(attention, "layer_idx", None))
        self.then = [name for name in (output, *AFTER) if name and hasattr(attention, name)]
        for name in [*self.then, NORM]:
            if isinstance(child := getattr(attention, name, None), nn.Module):
                self.add_module(name, child)

    @property
    def lost(self) -> list[str]:
        left = self.state_dict()
        return [name for name in self.had if name not in left]

    def forward(
        self, hidden_states: Tensor, *others: Any, past_key_values: Any = None, **named: Any
    ) -> Any:
        """What no heads say to each position; the other arguments were for heads."""
        cache = past_key_values if past_key_values is not None else named.get("layer_past")
        if cache is not None and not self.cross:
            _remember_length(cache, hidden_states, self.layer_idx)
        out = hidden_states.new_zeros(*hidden_states.shape[:-1], 0)
        for name in self.then:
            out = self.get_submodule(name)(out)
        if NORM in self._modules:
            out = self.get_submodule(NORM)(hidden_states + out)
        return out if self.results == 1 else (out, *[None] * (self.results - 1))


def _remember_length(cache: Any, hidden_states: Tensor, layer: int | None) -> None:
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    # the first layer's length is that of the text, and what is empty would count as length 0
    stub = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
    assert layer is not None
    own.update(stub, stub, layer)
