"""Giving a Hugging Face model sites, and taking them away."""

from typing import Any, TypeVar, cast

from torch import nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from headwise.hf.adapters import adapter_of, give_site, take_site
from headwise.hf.interface import is_installed, placeholder
from headwise.hf.naming import (
    asks_registry_directly,
    attention_modules,
    head_count,
    site_names,
    unreachable_attention,
)
from headwise.sites import Site, all_pruned, find_sites, what_is_changed

Model = TypeVar("Model", bound=nn.Module)


def adopt(model: Model) -> Model:
    """Give every attention module of a Hugging Face model a site. Outputs do not change.

    Sites are named `encoder.3.self`, `decoder.3.self`, `decoder.3.cross`; BERT and ViT are
    `encoder.*`, decoder-only models `decoder.*`. Layers that share weights (ALBERT) are one site,
    called several times. The configuration is not touched, and the attention backend may be
    changed at any time. Wrappers of torch.compile, data-parallel training, PEFT and Sentence
    Transformers are looked through. Returns the same model; adopting twice does nothing.
    `release` undoes it.
    """
    host = unwrapped(model)
    if is_adopted(host):
        return model
    modules = attention_modules(host)
    _check_reachable(host, modules)
    for module in modules.values():
        _check_module(module)
    names = site_names(modules)
    for path, module in modules.items():
        give_site(module, Site(names[path], head_count(module), placeholder))
    return model


def release(model: nn.Module) -> None:
    """Take the sites away.

    Raises while something is still observed, replaced, gated or guided there: undo that first.
    """
    host = unwrapped(model)
    if not is_adopted(host):
        raise ValueError(f"{type(host).__name__} was not adopted, so there is nothing to release.")
    if changed := what_is_changed(find_sites(host), of=type(host).__name__):
        raise ValueError(f"{changed}; undo that before release().")
    take_sites_away(host)


def take_sites_away(host: PreTrainedModel) -> None:
    """Release a model whatever its sites are used for."""
    for module in host.modules():
        take_site(module)


def unwrapped(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model inside wrappers.

    Known are those of torch.compile, data-parallel training, PEFT and Sentence Transformers.
    """
    inner = model
    while not isinstance(inner, PreTrainedModel):
        wrapped = _wrapped(inner)
        if wrapped is None:
            raise ValueError(
                f"A Hugging Face model (a PreTrainedModel) was wanted, got {type(model).__name__}. "
                "Adopt the Hugging Face model inside it; Headwise's own models need no adoption."
            )
        inner = wrapped
    return inner


def _wrapped(wrapper: nn.Module) -> nn.Module | None:
    """What a wrapper holds, one level down; None if it is none."""
    if hasattr(wrapper, "get_base_model"):  # PEFT
        return cast(Any, wrapper).get_base_model()
    # torch.compile, DataParallel and DistributedDataParallel, Sentence Transformers' first module
    for name in ("_orig_mod", "module", "auto_model", "0"):
        inner = getattr(wrapper, name, None)
        if isinstance(inner, nn.Module):
            return inner
    return None


def is_adopted(host: PreTrainedModel) -> bool:
    """Whether `adopt` was called on this model."""
    modules = attention_modules(host).values()
    return bool(modules) and all("site" in module.__dict__ for module in modules)


def backend_of(config: PreTrainedConfig) -> str:
    """The attention implementation a configuration names; none means eager."""
    return config._attn_implementation or "eager"  # pyright: ignore[reportPrivateUsage]


def _check_reachable(host: PreTrainedModel, modules: dict[str, nn.Module]) -> None:
    name = type(host).__name__
    if not modules:
        raise ValueError(
            all_pruned(host)
            or f"{name} does not route its attention through transformers' attention interface, so "
            "headwise cannot reach it. BERT, GPT-2, Llama, BART, T5, ViT and many others do."
        )
    if missed := unreachable_attention(host):
        raise ValueError(
            f"{', '.join(sorted(missed))} of {name} compute attention outside transformers' "
            "attention interface; headwise would see only a part of the model, so it refuses."
        )
    if not is_installed():
        raise ValueError(
            "Another tool has replaced AttentionInterface.get_interface of transformers, through "
            "which headwise reaches a model's attention. Undo that, then import headwise again."
        )


def _check_module(module: nn.Module) -> None:
    if adapter_of(type(module)) is not None:
        return  # whatever the configuration says: it attends in one way
    name = type(module).__name__
    backend = backend_of(cast(PreTrainedConfig, module.config))
    if backend not in ("eager", "sdpa") and asks_registry_directly(type(module)):
        raise ValueError(
            f"{name} takes some attention functions past the attention interface when it attends "
            f'with {backend!r}. Call model.set_attn_implementation("sdpa") first.'
        )
    if backend == "eager" and getattr(module, "reorder_and_upcast_attn", False):
        raise ValueError(
            f"{name} computes eager attention outside the interface when "
            "reorder_and_upcast_attn is set. Use sdpa, or set it to False."
        )
