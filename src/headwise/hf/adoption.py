"""Giving a Hugging Face model sites, and taking them away."""

from typing import TypeVar, cast

from torch import nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from headwise.hf.interface import MASKS, PREFIX, Host, placeholder, register, resolves_to_us
from headwise.hf.naming import attention_modules, head_count, site_names, unreachable_attention
from headwise.sites import Site, all_pruned, find_sites, what_is_changed

Model = TypeVar("Model", bound=nn.Module)


def adopt(model: Model) -> Model:
    """Give every attention module of a Hugging Face model a site. Outputs do not change.

    Sites are named `encoder.3.self`, `decoder.3.self`, `decoder.3.cross`; BERT and ViT are
    `encoder.*`, decoder-only models `decoder.*`. Layers that share weights (ALBERT) are one site,
    called several times. Returns the same model; adopting twice does nothing. `release` undoes it.
    """
    host = unwrapped(model)
    if is_adopted(host):
        return model
    modules = attention_modules(host)
    _check_unshared(host)
    backends = _backends(host, modules)
    register()
    for module in modules.values():
        _check_module(module, backends[id(module.config)])
    names = site_names(modules)
    for path, module in modules.items():
        module.__dict__["host"] = Host.of(type(module))
        module.__dict__["site"] = Site(
            names[path], head_count(module), placeholder, obstacle=_gone_elsewhere
        )
    for config in _configs(host):
        set_backend(config, PREFIX + backend_of(config))
    return model


def _gone_elsewhere(module: nn.Module) -> str | None:
    """Why an adopted module no longer calls its site, if so."""
    backend = backend_of(cast(PreTrainedConfig, module.config))
    if backend.startswith(PREFIX):
        return None
    return f"the model was switched to {backend!r} after adopt(). Call adopt(model) again."


def release(model: nn.Module) -> None:
    """Take the sites away and give the model its own backend back.

    Raises while something is still observed, replaced, gated or guided there: undo that first.
    """
    host = unwrapped(model)
    if not is_adopted(host):
        raise ValueError(f"{type(host).__name__} was not adopted, so there is nothing to release.")
    if changed := what_is_changed(find_sites(host), of=type(host).__name__):
        raise ValueError(f"{changed}; undo that before release().")
    take_sites_away(host)


def take_sites_away(host: PreTrainedModel) -> None:
    """`release` without its questions."""
    for module in host.modules():
        module.__dict__.pop("site", None)
        module.__dict__.pop("host", None)
    for config in _configs(host):
        set_backend(config, backend_of(config).removeprefix(PREFIX))


def unwrapped(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model inside torch.compile's or data-parallel wrappers."""
    inner = model
    while not isinstance(inner, PreTrainedModel):
        wrapped = getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if not isinstance(wrapped, nn.Module):
            raise ValueError(
                f"A Hugging Face model (a PreTrainedModel) was wanted, got {type(model).__name__}. "
                "Adopt the Hugging Face model inside it; Headwise's own models need no adoption."
            )
        inner = wrapped
    return inner


def is_adopted(host: PreTrainedModel) -> bool:
    """Whether `adopt` was called on this model, and its backend not changed since."""
    modules = attention_modules(host).values()
    return bool(modules) and all(
        "site" in module.__dict__
        and backend_of(cast(PreTrainedConfig, module.config)).startswith(PREFIX)
        for module in modules
    )


def backend_of(config: PreTrainedConfig) -> str:
    """The attention implementation a configuration names; none means eager."""
    return config._attn_implementation or "eager"  # pyright: ignore[reportPrivateUsage]


def set_backend(config: PreTrainedConfig, backend: str) -> None:
    """Name another one, for this configuration alone. It is never saved with the model."""
    config._attn_implementation_internal = backend  # pyright: ignore[reportPrivateUsage]


def _configs(host: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every configuration that a part of the model reads its backend from."""
    held = [getattr(module, "config", None) for module in host.modules()]
    found = {id(config): config for config in held if isinstance(config, PreTrainedConfig)}
    return list(found.values())


def _check_unshared(host: PreTrainedModel) -> None:
    """Models built from one configuration object read one backend, so only one can be adopted."""
    if any(backend_of(config).startswith(PREFIX) for config in _configs(host)):
        raise ValueError(
            f"{type(host).__name__} has the configuration of a model that is adopted already, or a "
            "copy of it. Release that one, or copy the configuration before adopting it."
        )


def _backends(host: PreTrainedModel, modules: dict[str, nn.Module]) -> dict[int, str]:
    name = type(host).__name__
    if not modules:
        raise ValueError(
            all_pruned(host)
            or f"{name} does not route its attention through transformers' attention interface, so "
            "headwise cannot reach it. BERT, GPT-2, Llama, BART, T5, ViT and their kin do."
        )
    if missed := unreachable_attention(host):
        raise ValueError(
            f"{', '.join(sorted(missed))} of {name} compute attention outside transformers' "
            "attention interface; headwise would see only a part of the model, so it refuses."
        )
    backends = {id(config): backend_of(config) for config in _configs(host)}
    for module in modules.values():
        backend = backends[id(module.config)]
        if backend not in MASKS:
            raise ValueError(
                f"{name} attends with {backend!r}; headwise adopts {' and '.join(MASKS)}. "
                'Call model.set_attn_implementation("sdpa") first.'
            )
    return backends


def _check_module(module: nn.Module, backend: str) -> None:
    name = type(module).__name__
    if not resolves_to_us(type(module), backend):
        raise ValueError(
            f"Another tool has registered its own attention function as {PREFIX + backend!r}, "
            f"which {name} would call instead of headwise. Undo that first."
        )
    if backend == "eager" and getattr(module, "reorder_and_upcast_attn", False):
        raise ValueError(
            f"{name} computes eager attention outside the interface when "
            "reorder_and_upcast_attn is set. Use sdpa, or set it to False."
        )
