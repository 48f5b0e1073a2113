"""Parity: proof that adopting and observing a model change nothing."""

import copy
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from headwise.hf.adoption import adopt, take_sites_away, unwrapped
from headwise.hf.backends import CannotFollow
from headwise.hf.naming import attention_modules, give_site
from headwise.ops.attended import Attended
from headwise.sites import Site, Watcher, find_sites, observe


@dataclass(frozen=True)
class Parity:
    """Result of `check_parity`, true if every output tensor is equal.

    Args:
        equal: whether all outputs are equal.
        outputs: number of tensors compared.
        largest_difference: between the outputs.
        calls_seen: number of attention computations observed.
        first_different: the first site whose output differs, if any does.
        repeatable: whether the host alone gives the same outputs twice.
        unobserved: {site: why it could not be observed}; adopting it is still compared.
    """

    equal: bool
    outputs: int
    largest_difference: float
    calls_seen: int
    first_different: str | None
    repeatable: bool
    unobserved: dict[str, str]

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        if self.equal:
            said = f"equal: {self.outputs} outputs, {self.calls_seen} attention calls observed"
        else:
            said = f"not equal, largest difference {self.largest_difference:.3g}"
            said += f" at {self.first_different}" if self.first_different else ""
            said += "" if self.repeatable else "; the model alone does not repeat its outputs"
        if self.unobserved:
            said += f"; not observable: {', '.join(self.unobserved)}"
        return said


def check_parity(model: nn.Module, batch: Mapping[str, Any]) -> Parity:
    """Compare a model's outputs alone with its outputs when adopted and observed.

    The model is left as it was. In training mode both runs use the same random state. A site that
    cannot be observed is named in the result and raises nothing.

        assert headwise.check_parity(model, tokenizer("hello", return_tensors="pt"))
    """
    if not isinstance(batch, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"A batch is a mapping from argument names to values, got {type(batch).__name__}."
        )
    host = unwrapped(model)
    if isinstance(model, nn.Sequential):  # Sentence Transformers takes a batch as one argument
        model = host
    set_aside = _set_sites_aside(host)
    try:
        alone = _outputs(model, batch)
        if not alone:
            raise ValueError(f"{type(model).__name__} returned no tensors to compare.")
        watched, calls, unobserved = _watched_outputs(model, host, batch)
        equal, gap = _compare(alone, watched)
        first, repeatable = None, True
        if not equal:
            again = _outputs(model, batch)
            repeatable = _compare(alone, again)[0]
            first = _first_different(model, host, batch, unobserved)
    finally:
        _put_sites_back(host, set_aside)
    return Parity(equal, len(alone), gap, calls, first, repeatable, unobserved)


def _watched_outputs(
    model: nn.Module, host: PreTrainedModel, batch: Mapping[str, Any]
) -> tuple[list[Tensor], int, dict[str, str]]:
    """Return the outputs, the number of calls observed, and why sites were not observed."""
    unobserved: dict[str, str] = {}
    calls = 0

    def count(site: Site, attended: Attended) -> None:
        nonlocal calls
        calls += int(attended.peak.numel() > 0)

    while True:
        calls = 0
        try:
            with _adopted(model, host, count, unobserved):
                return _outputs(model, batch), calls, unobserved
        except CannotFollow as error:
            unobserved |= dict.fromkeys(_sites_like(host, error.site), str(error))
        finally:
            take_sites_away(host)


@contextmanager
def _adopted(
    model: nn.Module, host: PreTrainedModel, watcher: Watcher, unobserved: Mapping[str, str]
) -> Generator[None]:
    """Adopt a model and observe all sites but those known to be unobservable."""
    adopt(model)
    if all(site.name in unobserved for site in find_sites(host)):
        yield
        return
    with observe(host, watcher, where=lambda site: site.name not in unobserved):
        yield


def _sites_like(host: PreTrainedModel, site: Site) -> list[str]:
    """Return the names of the sites whose modules have the same class as this one's."""
    holders = {module.__dict__["site"]: module for module in _holders(host).values()}
    return [other.name for other in holders if type(holders[other]) is type(holders[site])]


def _first_different(
    model: nn.Module, host: PreTrainedModel, batch: Mapping[str, Any], unobserved: dict[str, str]
) -> str | None:
    """Return the first site whose attention module gives another output when observed."""
    alone = _attention_outputs(model, host, batch)
    try:
        with _adopted(model, host, lambda site, attended: None, unobserved):
            watched = _attention_outputs(model, host, batch)
            names = {path: module.__dict__["site"].name for path, module in _holders(host).items()}
    finally:
        take_sites_away(host)
    pairs = zip(alone, watched, strict=False)
    return next((names[path] for (path, a), (_, b) in pairs if _gap(a, b)), None)


def _attention_outputs(
    model: nn.Module, host: PreTrainedModel, batch: Mapping[str, Any]
) -> list[tuple[str, Tensor]]:
    """Return (path, first output) of each call of an attention module."""
    outputs: list[tuple[str, Tensor]] = []
    with ExitStack() as stack:
        for path, module in attention_modules(host).items():

            def keep(_: nn.Module, __: Any, output: Any, path: str = path) -> None:
                outputs.extend((path, tensor.clone()) for tensor in _tensors(output)[:1])

            stack.callback(module.register_forward_hook(keep).remove)
        _outputs(model, batch)
    return outputs


def _holders(host: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that have a site, by path."""
    return {path: module for path, module in host.named_modules() if "site" in module.__dict__}


def _set_sites_aside(host: PreTrainedModel) -> dict[str, Site]:
    """Release a model and return its sites with their watchers, replacements and gates."""
    sites = {path: module.__dict__["site"] for path, module in _holders(host).items()}
    take_sites_away(host)
    return sites


def _put_sites_back(host: nn.Module, sites: dict[str, Site]) -> None:
    for path, site in sites.items():
        give_site(host.get_submodule(path), site)


def _outputs(model: nn.Module, batch: Mapping[str, Any]) -> list[Tensor]:
    devices = [value.device for value in batch.values() if isinstance(value, Tensor)]
    cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        torch.manual_seed(0)
        return _tensors(model(**{name: _copied(value) for name, value in batch.items()}))


def _copied(value: Any) -> Any:
    """Copy a value that a model may write into, such as a cache."""
    if isinstance(value, Tensor):
        return value
    return copy.deepcopy(value, {id(tensor): tensor.clone() for tensor in _tensors(value)})


def _tensors(output: Any) -> list[Tensor]:
    """Return every tensor in a model's output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in _tensors(value)]
    if isinstance(output, list | tuple):
        return [tensor for value in output for tensor in _tensors(value)]
    if isinstance(output, Cache | CacheLayerMixin):
        return _tensors(vars(output))
    if is_dataclass(output):
        return [t for one in fields(output) for t in _tensors(getattr(output, one.name))]
    return []


def _compare(alone: list[Tensor], watched: list[Tensor]) -> tuple[bool, float]:
    """Return whether all tensors are equal, and the largest difference."""
    gaps = [_gap(a, b) for a, b in zip(alone, watched, strict=False)]
    return len(alone) == len(watched) and not any(gaps), max(gaps, default=0.0)


def _gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; equal infinities and NaN at the same places count 0."""
    if a.shape != b.shape:
        return float("inf")
    differs = (a != b) & ~(a.isnan() & b.isnan())
    if not differs.any():
        return 0.0
    gap = (a.double() - b.double())[differs].abs().max().item()
    return gap if gap == gap else float("inf")
