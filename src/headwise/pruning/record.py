"""What was pruned of a model, in the numbers its heads had at first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

from headwise.hf.adoption import innermost
from headwise.sites import PRUNED, Head, Site


@dataclass(frozen=True)
class PruningRecord:
    """Which heads a pruned model has left. Pruned again, it still counts from the first model.

    Args:
        heads: how many heads each site had at first, {site name: count}.
        kept: the original numbers of those left, in order, {site name: numbers}; of every site.
        settings: what the configuration of a Hugging Face model said before pruning changed it.

    >>> record = PruningRecord({"encoder.0.self": 4}, {"encoder.0.self": (0, 1, 2, 3)})
    >>> record = record.after({"encoder.0.self": [1, 3]}).after({"encoder.0.self": [1]})
    >>> record.kept, record.original(Head("encoder.0.self", 0))
    ({'encoder.0.self': (3,)}, Head(site='encoder.0.self', index=3))
    """

    heads: Mapping[str, int]
    kept: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @staticmethod
    def of(sites: Sequence[Site]) -> "PruningRecord":
        """That nothing was pruned yet."""
        return PruningRecord(
            {site.name: site.num_heads for site in sites},
            {site.name: tuple(range(site.num_heads)) for site in sites},
        )

    def after(self, keep: Mapping[str, Sequence[int]]) -> "PruningRecord":
        """The record once only these heads are left; `keep` in the numbers of now."""
        chosen = {name: tuple(self.kept[name][index] for index in keep[name]) for name in keep}
        return PruningRecord(self.heads, {**self.kept, **chosen}, self.settings)

    def original(self, head: Head) -> Head:
        """What a head of the pruned model was called in the unpruned one."""
        return Head(head.site, self.kept[head.site][head.index])

    @property
    def removed(self) -> dict[str, list[int]]:
        """The original numbers of the heads that are gone, {site name: numbers}."""
        return {
            name: sorted(set(range(count)) - set(self.kept[name]))
            for name, count in self.heads.items()
        }

    def __str__(self) -> str:
        left, first = sum(map(len, self.kept.values())), sum(self.heads.values())
        return f"{left} of {first} heads left"

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "heads": dict(self.heads),
            "kept": {name: list(numbers) for name, numbers in self.kept.items()},
            "settings": dict(self.settings),
        }

    @staticmethod
    def from_json(value: object) -> "PruningRecord":
        """The record that `to_json` wrote; anything else is refused."""
        if not isinstance(value, dict) or not _is_record(cast(dict[str, Any], value)):
            raise ValueError(
                "A pruning record was wanted, {'heads': {site: count}, 'kept': {site: numbers}, "
                f"'settings': {{}}}}; got {str(cast(object, value))[:80]!r}."
            )
        held = cast(dict[str, Any], value)
        kept = {name: tuple(numbers) for name, numbers in held["kept"].items()}
        return PruningRecord(held["heads"], kept, held["settings"])


def record_of(model: nn.Module) -> PruningRecord | None:
    """What was pruned of a model; None if nothing was."""
    record = innermost(model).__dict__.get(PRUNED)
    return record if isinstance(record, PruningRecord) else None


def _is_record(held: dict[str, Any]) -> bool:
    heads, kept = held.get("heads"), held.get("kept")
    if not (isinstance(heads, dict) and isinstance(kept, dict)):
        return False
    counts, numbers = cast(dict[str, Any], heads), cast(dict[str, Any], kept)
    return (
        counts.keys() == numbers.keys()
        and isinstance(held.get("settings"), dict)
        and all(_is_count(count) for count in counts.values())
        and all(_are_numbers(numbers[name], counts[name]) for name in numbers)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_numbers(value: object, count: int) -> bool:
    if not isinstance(value, list) or not all(map(_is_count, cast(list[object], value))):
        return False
    numbers = cast(list[int], value)
    return numbers == sorted(set(numbers)) and all(number < count for number in numbers)
