"""A configuration with other numbers of heads, for one attention module of a Hugging Face model.

Some modules (Phi-3's) ask their configuration how many heads they have whenever they are called,
and it has one number for all layers. All else is what the model's says, also later.
"""

from collections.abc import Mapping
from typing import Any, cast

from transformers.configuration_utils import PreTrainedConfig


class OwnCounts:
    """A view of a configuration, with some of its settings replaced.

    Args:
        config: of the model.
        counts: {setting: number}.
    """

    def __init__(self, config: PreTrainedConfig, counts: Mapping[str, int]) -> None:
        self.__dict__["_viewed"] = config
        self.__dict__["_counts"] = dict(counts)

    @property
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._viewed)  # so that it is taken for a configuration

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        counts = self.__dict__["_counts"]
        return counts[name] if name in counts else getattr(self.__dict__["_viewed"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it in the model's configuration, the counts apart."""
        if name not in self.__dict__["_counts"]:
            setattr(self.__dict__["_viewed"], name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnCounts, (self.__dict__["_viewed"], self.__dict__["_counts"])


def with_counts(config: PreTrainedConfig, counts: Mapping[str, int]) -> PreTrainedConfig:
    """Return a configuration that says these numbers, and else what the model's says."""
    return cast(PreTrainedConfig, OwnCounts(viewed(config), counts))


def viewed(config: Any) -> Any:
    """Return the configuration of the model that a module's is a view of, or the module's own."""
    return config.__dict__["_viewed"] if type(config) is OwnCounts else config
