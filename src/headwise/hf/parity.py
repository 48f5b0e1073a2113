"""Proof that adopting and watching a model change nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.hf.adoption import adopt, is_adopted, release, take_sites_away, unwrapped
from headwise.ops.attended import Attended
from headwise.sites import Site, observe


@dataclass(frozen=True)
class Parity:
    """What `check_parity` found: whether every output tensor is equal, and which is not."""

    equal: bool
    outputs: int  # tensors compared
    largest_difference: float
    calls_seen: int  # attention computations observed on the way

    def __bool__(self) -> bool:
        return self.equal


def check_parity(model: nn.Module, batch: Mapping[str, Any]) -> Parity:
    """Compare a model's outputs alone with those when adopted and observed, on your own batch.

    The model is left as it was found. In training mode both runs use the same random state.

        assert headwise.check_parity(model, tokenizer("hello", return_tensors="pt"))
    """
    if not isinstance(batch, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"A batch is a mapping from argument names to values, got {type(batch).__name__}."
        )
    host = unwrapped(model)
    set_aside = _set_sites_aside(host) if is_adopted(host) else None
    try:
        alone = _outputs(model, batch)
        calls, watched = _watched_outputs(model, batch)
    finally:
        if set_aside is not None:
            adopt(model)
            _put_sites_back(host, set_aside)
    return _compare(alone, watched, calls)


def _watched_outputs(model: nn.Module, batch: Mapping[str, Any]) -> tuple[int, list[Tensor]]:
    """How many computations were seen, and the outputs."""
    calls = 0

    def count(site: Site, attended: Attended) -> None:
        nonlocal calls
        calls += int(attended.peak.numel() > 0)

    adopt(model)
    try:
        with observe(model, count):
            watched = _outputs(model, batch)
    finally:
        release(model)
    return calls, watched


def _set_sites_aside(host: PreTrainedModel) -> dict[str, Site]:
    """Release a model, keeping its sites with their watchers, replacements and gates."""
    sites = {
        path: module.__dict__["site"]
        for path, module in host.named_modules()
        if "site" in module.__dict__
    }
    take_sites_away(host)
    return sites


def _put_sites_back(host: nn.Module, sites: dict[str, Site]) -> None:
    for path, site in sites.items():
        host.get_submodule(path).__dict__["site"] = site


def _outputs(model: nn.Module, batch: Mapping[str, Any]) -> list[Tensor]:
    devices = [
        batch_value.device for batch_value in batch.values() if isinstance(batch_value, Tensor)
    ]
    cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        torch.manual_seed(0)
        return _tensors(model(**batch))


def _tensors(output: Any) -> list[Tensor]:
    """Every tensor in a model's output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in _tensors(value)]
    if isinstance(output, list | tuple):
        return [tensor for value in output for tensor in _tensors(value)]
    return []


def _compare(alone: list[Tensor], watched: list[Tensor], calls: int) -> Parity:
    pairs = list(zip(alone, watched, strict=False))
    gaps = [_gap(a, b) for a, b in pairs]
    equal = len(alone) == len(watched) and not any(gaps)
    return Parity(equal, len(pairs), max(gaps, default=0.0), calls)


def _gap(a: Tensor, b: Tensor) -> float:
    """The largest difference; 0 for equal values, infinities and NaN at the same places too."""
    if a.shape != b.shape:
        return float("inf")
    differs = (a != b) & ~(a.isnan() & b.isnan())
    if not differs.any():
        return 0.0
    gap = (a.double() - b.double())[differs].abs().max().item()
    return gap if gap == gap else float("inf")
