"""Adoption of Hugging Face models: `adopt` adds sites, `release` removes them."""

from collections.abc import Iterator
from typing import Any, TypeVar, cast

from torch import nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from headwise.hf.interface import install, is_installed, placeholder
from headwise.hf.naming import (
    adapter_of,
    asks_registry_directly,
    attention_modules,
    give_site,
    head_count,
    site_names,
    take_site,
    unreachable_attention,
)
from headwise.sites import Site, all_pruned, find_sites, what_is_changed

Model = TypeVar("Model", bound=nn.Module)


def adopt(model: Model) -> Model:
    """Add a site to every attention module of a Hugging Face model. Outputs do not change.

    Sites are named `encoder.3.self`, `decoder.3.self`, `decoder.3.cross`; BERT and ViT are
    `encoder.*`, decoder-only models `decoder.*`. Layers that share weights (ALBERT) are one site,
    called several times. The configuration is not touched, and the attention backend may be
    changed at any time. The model may be wrapped by torch.compile, data-parallel training, PEFT or
    Sentence Transformers. Returns the same model; adopting twice does nothing. `release` undoes it.
    """
    host = unwrapped(model)
    if is_adopted(host):
        return model
    modules = attention_modules(host)
    _check_reachable(host, modules)
    _check_unused(modules)
    for module in modules.values():
        _check_module(module)
    names = site_names(modules)
    for path, module in modules.items():
        give_site(module, Site(names[path], head_count(module), placeholder, hosted=True))
    return model


def release(model: nn.Module, *, force: bool = False) -> None:
    """Remove the sites of an adopted model.

    Raises while a site is still observed, replaced, gated or guided: undo that first.

    Args:
        model: an adopted model.
        force: release it anyway; needed for a copy of a model whose heads were masked.
    """
    host = unwrapped(model)
    if not is_adopted(host):
        raise ValueError(f"{type(host).__name__} was not adopted, so there is nothing to release.")
    changed = what_is_changed(find_sites(host), of=type(host).__name__)
    if changed and not force:
        raise ValueError(f"{changed}; undo that before release(), or call it with force=True.")
    take_sites_away(host)


def take_sites_away(host: PreTrainedModel) -> None:
    """Release a model even if its sites are in use."""
    for module in host.modules():
        take_site(module)


def unwrapped(model: nn.Module) -> PreTrainedModel:
    """Return the Hugging Face model inside wrappers.

    Known wrappers: torch.compile, data-parallel training, PEFT and Sentence Transformers.
    """
    inner = innermost(model)
    if not isinstance(inner, PreTrainedModel):
        raise ValueError(
            f"A Hugging Face model (a PreTrainedModel) was wanted, got {type(model).__name__}. "
            "Adopt the Hugging Face model inside it; Headwise's own models need no adoption."
        )
    inside = set(inner.modules())
    if any(isinstance(part, PreTrainedModel) and part not in inside for part in model.modules()):
        raise ValueError(
            f"{type(model).__name__} holds several Hugging Face models. Adopt each by itself."
        )
    return inner


def innermost(model: nn.Module) -> nn.Module:
    """Return the model inside known wrappers, or the model itself if it has none."""
    inner = model
    while not isinstance(inner, PreTrainedModel) and (wrapped := _wrapped(inner)) is not None:
        inner = wrapped
    return inner


def _wrapped(wrapper: nn.Module) -> nn.Module | None:
    """Return the model one level inside a wrapper, or None if this is no wrapper."""
    if hasattr(wrapper, "get_base_model"):  # PEFT
        return cast(Any, wrapper).get_base_model()
    if isinstance(wrapper, nn.Sequential):  # Sentence Transformers
        return cast(nn.Module | None, getattr(wrapper[0], "auto_model", None))
    for name in ("_orig_mod", "module"):  # torch.compile, DataParallel, DistributedDataParallel
        inner = getattr(wrapper, name, None)
        if isinstance(inner, nn.Module):
            return inner
    return None


def is_adopted(host: PreTrainedModel) -> bool:
    """Return whether `adopt` was called on this model."""
    modules = attention_modules(host).values()
    return bool(modules) and all(isinstance(m.__dict__.get("site"), Site) for m in modules)


def backend_of(config: PreTrainedConfig) -> str:
    """Return the attention implementation of a configuration; "eager" if it names none."""
    return config._attn_implementation or "eager"  # pyright: ignore[reportPrivateUsage]


def positions_of(model: nn.Module) -> Iterator[int]:
    """Yield the numbers of positions that a model names, of which the smallest is its limit."""
    config: Any = getattr(model, "config", None)
    hosted = isinstance(model, PreTrainedModel)
    named = getattr(config, "max_position_embeddings" if hosted else "max_length", None)
    if isinstance(named, int) and named > 0:
        yield named
    for name, module in model.named_modules():
        # RoBERTa and similar models count positions from the one after that of padding
        if name.split(".")[-1] == "position_embeddings" and isinstance(module, nn.Embedding):
            before = 0 if module.padding_idx is None else module.padding_idx + 1
            yield module.num_embeddings - before


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
    install()  # again: another tool may have restored transformers' own function
    if not is_installed():
        raise ValueError(
            "Another tool has replaced AttentionInterface.get_interface of transformers, through "
            "which headwise reaches a model's attention. Undo that first."
        )


def _check_unused(modules: dict[str, nn.Module]) -> None:
    """Raise if sites of a part of the model are in use, or `site` is another attribute."""
    held = [module.__dict__.get("site") for module in modules.values()]
    if any(site is not None and not isinstance(site, Site) for site in held):
        raise ValueError(
            "An attention module of the model has an attribute `site` that is not headwise's; "
            "rename it."
        )
    if changed := what_is_changed([site for site in held if isinstance(site, Site)]):
        raise ValueError(
            f"A part of this model was adopted before, and {changed}; undo that first."
        )


def _check_module(module: nn.Module) -> None:
    if adapter_of(type(module)) is not None:
        return  # it attends in one way, whatever the configuration says
    name = type(module).__name__
    backend = backend_of(cast(PreTrainedConfig, module.config))
    if backend not in ("eager", "sdpa") and asks_registry_directly(type(module)):
        raise ValueError(
            f"{name} takes some attention functions past the attention interface when it attends "
            f'with {backend!r}. Call model.set_attn_implementation("sdpa") first.'
        )
    if getattr(module, "reorder_and_upcast_attn", False):
        raise ValueError(
            f"{name} computes eager attention outside the interface when reorder_and_upcast_attn "
            "is set. Set it to False; with sdpa it has no effect."
        )
