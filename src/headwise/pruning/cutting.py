"""Cut heads out of a model: smaller projections, and the outputs of the model with masked heads."""

import inspect
from collections.abc import Mapping, Sequence
from operator import index as whole_number
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.config import suggestion
from headwise.hf.adoption import adopt, innermost, is_adopted, take_sites_away
from headwise.hf.naming import attention_modules, interface_forward
from headwise.hf.projections import holder_of, output_projection
from headwise.pruning.choosing import Keep
from headwise.pruning.configuration import tell_config
from headwise.pruning.gates import Gates
from headwise.pruning.parts import (
    ASKS_CONFIG,
    COUNTS,
    WIDTHS_OF_ALL,
    Anatomy,
    Heads,
    anatomy,
    has_own_output,
    named,
    numbers_of,
)
from headwise.pruning.record import PruningRecord, record_of
from headwise.pruning.stand_ins import (
    Headless,
    JustBias,
    cut_bias,
    separate,
    shares_bias,
    tell_tied,
    with_counts,
)
from headwise.sites import PRUNED, Site, find_sites, what_is_changed

Model = TypeVar("Model", bound=nn.Module)
_WANTED = "keep must be {site name: numbers of the heads to keep}, as {'encoder.0.self': [0, 2]}"


def prune(
    model: Model,
    keep: Mapping[str, Sequence[int]] | Gates,
    *,
    scale: Mapping[str, Tensor | Sequence[float]] | None = None,
) -> Model:
    """Cut all other heads out of the model's projections, in place, and return the model.

    Outputs are those of the model with the other heads masked. Afterwards heads are numbered anew;
    `record_of(model)` knows the original numbers, also after pruning twice. A wrong request raises
    before anything is changed. Create the optimiser after pruning.

    - Layers that share their weights (ALBERT) are one site: its heads are cut out of all of them.
    - Heads that share keys and values (Llama, Qwen2) are removed in whole groups, or the same
      number from each group that stays.
    - A layer may lose all its heads. It then adds the bias of its output projection and has no
      site; a norm before it has no effect and no gradient.
    - Attention that may treat heads in an unknown way is refused; `docs/prune.md` lists what is
      known.

    Modules of your own need a `Site`, whose `num_heads` is then the number of heads left, and
    linear layers query, key, value and out. Where names do not tell all, they define:

    - `head_parameters() -> {name: axis}`, in the module with the site or the one around it: other
      parameters with a slice for each head along this axis.
    - `head_output() -> name`, if there are no such linear layers: the parameter by which outputs of
      heads are multiplied. `head_parameters` then names everything to cut, this one too.
    - `before_pruning(keep)`: called before heads are cut.
    - `headwise_rebuild() -> (kind, class_name, settings)`, in the model: what `save` writes. `load`
      calls `rebuild(class_name, settings)` of that kind; see `headwise.kinds.register`.
    - `example_inputs(batch, length, target_length=None, *, padding=0) -> {name: tensor}`, in the
      model: random inputs of `forward`, for `speed` and `export`.

    Args:
        model: with sites; a Hugging Face model must be adopted before.
        keep: {site name: numbers of the heads to keep}; other sites keep all their heads. Or the
            gates of this model, which are undone; outputs stay those of eval mode.
        scale: {site name: a factor for each head of `keep`, in its order}; factors are multiplied
            into the output projection. Gates bring their own.

    >>> class Attention(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
    ...         self.temperature = nn.Parameter(torch.ones(4, 1, 1))
    ...         self.site = Site("encoder.0.self", 4, softmax_attention)
    ...
    ...     def head_parameters(self):
    ...         return {"temperature": 0}
    >>> from headwise.ops import softmax_attention
    >>> model = prune(Attention(), {"encoder.0.self": [1, 3]})
    >>> model.query.weight.shape, model.temperature.shape
    (torch.Size([4, 8]), torch.Size([2, 1, 1]))
    >>> print(record_of(model))
    2 of 4 heads left
    """
    _check_here(model)
    return _prune(model, keep, scale=scale)


def _prune(
    model: Model,
    keep: Mapping[str, Sequence[int]] | Gates,
    *,
    scale: Mapping[str, Tensor | Sequence[float]] | None = None,
) -> Model:
    """Prune a model whose weights may be on the meta device."""
    gates = keep if isinstance(keep, Gates) else None
    if isinstance(keep, Gates):
        keep, scale = _of_gates(model, keep, scale)
    sites = {site.name: site for site in find_sites(model)}
    record = record_of(model) or PruningRecord.of(list(sites.values()))
    _check_names(sites, record)
    chosen = {name: _numbers(name, heads, sites, record) for name, heads in _items(keep)}
    factors = _factors(keep, chosen, scale or {})
    going = {
        name: heads
        for name, heads in chosen.items()
        if name in sites and (len(heads) < sites[name].num_heads or name in factors)
    }
    anatomies = {name: anatomy(model, sites[name]) for name in going}
    groups = {name: _groups_kept(anatomies[name], heads) for name, heads in going.items()}
    _check_unwatched([sites[name] for name in going], gates)
    if gates is not None:
        gates.undo()
    with torch.no_grad():
        for name, heads in going.items():
            _cut(model, anatomies[name], heads, groups[name], factors.get(name))
    inner = innermost(model)
    tell_tied(inner)
    inner.__dict__[PRUNED] = tell_config(inner, record.after(going))
    if isinstance(inner, PreTrainedModel) and not attention_modules(inner):
        take_sites_away(inner)  # no attention is left
    return model


def rebuild(model: Model, record: PruningRecord) -> Model:
    """Give a fresh, unpruned model the shapes of a pruned one, in place, and return it.

    Args:
        model: with the configuration of the model that was pruned; adopted or not.
        record: what was pruned.
    """
    inner = innermost(model)
    fresh = isinstance(inner, PreTrainedModel) and not is_adopted(inner)
    if fresh:
        adopt(inner)
    here = {site.name: site.num_heads for site in find_sites(inner)}
    if here != dict(record.heads):
        raise ValueError(
            f"The record is of a model with {_described(record.heads)}, but this "
            f"{type(inner).__name__} has {_described(here)}; build it with the settings it had."
        )
    _prune(inner, record.kept)
    if fresh and isinstance(inner, PreTrainedModel):
        take_sites_away(inner)
    return model


def _check_here(model: nn.Module) -> None:
    """Raise if weights are offloaded or on the meta device: placeholders would be cut instead."""
    for path, module in model.named_modules():
        held: Any = getattr(module, "_hf_hook", None)  # accelerate's; a chain of them has `hooks`
        if any(getattr(hook, "offload", False) for hook in getattr(held, "hooks", (held,))):
            raise ValueError(
                f"Weights of {path or type(model).__name__} are offloaded by accelerate, so heads "
                "cannot be cut out of them; load the model without offloading, prune, save it, and "
                "offload what pruning.load returns."
            )
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"{name} is on the meta device, which holds no weights, so heads cannot be cut out "
                "of it; load the weights before prune()."
            )


def _check_names(sites: Mapping[str, Site], record: PruningRecord) -> None:
    """Raise if the names of sites are not those of the record."""
    for name, site in sites.items():
        if len(record.kept.get(name, ())) != site.num_heads:
            raise ValueError(
                f"{name} has {site.num_heads} heads, but {len(record.kept.get(name, ()))} by the "
                "record of what was pruned: sites are numbered anew when a model that has layers "
                "without heads is adopted again. Prune it at once, before it is saved."
            )


def _described(heads: Mapping[str, int]) -> str:
    return f"{sum(heads.values())} heads at {len(heads)} sites"


def _of_gates(model: nn.Module, gates: Gates, scale: object) -> tuple[Keep, dict[str, Tensor]]:
    if scale is not None:
        raise ValueError("Gates bring their own scale; give prune(model, gates) no other.")
    gates.check_fit(innermost(model))
    return gates.keep(), gates.scale()


def _items(keep: object) -> list[tuple[str, Any]]:
    """Return site names and heads; raise if `keep` is no such mapping."""
    if not isinstance(keep, Mapping):
        raise ValueError(f"{_WANTED}; got {str(keep)[:80]!r}.")
    for name in (held := cast(Mapping[Any, Any], keep)):
        if not isinstance(name, str):
            raise ValueError(f"{_WANTED}; got {name!r} for the name of a site.")
    return list(held.items())


def _whole_numbers(name: str, heads: Any) -> list[int]:
    listed: Any = heads.tolist() if isinstance(heads, Tensor) else heads
    try:
        given = list(listed)
        numbers = [whole_number(number) for number in given]
    except TypeError:
        raise ValueError(f"{_WANTED}; got {str(heads)[:80]!r} for {name}.") from None
    if any("bool" in str(getattr(number, "dtype", type(number))) for number in given):
        raise ValueError(f"{_WANTED}, not whether each is kept; got {heads} for {name}.")
    return numbers


def _numbers(
    name: str, heads: Sequence[int], sites: Mapping[str, Site], record: PruningRecord
) -> list[int]:
    """Return the heads to keep in order; raise if they are not heads of the site."""
    numbers = _whole_numbers(name, heads)
    if name not in sites and name in record.kept:
        if numbers:
            raise ValueError(f"{name} has no heads left, got {numbers} to keep.")
        return []
    if name not in sites:
        raise ValueError(f"The model has no site {name!r}. {suggestion(name, sites)}")
    count = sites[name].num_heads
    wrong = [number for number in numbers if not 0 <= number < count]
    if wrong:
        raise ValueError(f"{name} has heads 0 to {count - 1}, got {wrong[0]} to keep.")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"The heads of {name} to keep are named twice in {numbers}.")
    return sorted(numbers)


def _factors(
    keep: Mapping[str, Sequence[int]],
    chosen: Mapping[str, list[int]],
    scale: Mapping[str, Tensor | Sequence[float]],
) -> dict[str, Tensor]:
    """Return a factor for each head kept, in the order of their numbers, where some is not 1."""
    factors: dict[str, Tensor] = {}
    for name, given in scale.items():
        values = torch.as_tensor(given, dtype=torch.float64).detach().cpu()
        wanted = len(chosen.get(name, ()))
        if name not in chosen or values.shape != (wanted,) or not values.isfinite().all():
            raise ValueError(
                f"scale needs a finite factor for each of the {wanted} heads that keep names for "
                f"{name}, got {values.tolist()}."
            )
        order = torch.tensor([list(keep[name]).index(n) for n in chosen[name]], dtype=torch.long)
        if bool((values != 1).any()):
            factors[name] = values[order]
    return factors


def _groups_kept(found: Anatomy, keep: list[int]) -> list[int]:
    """Return the sets of keys and values that the heads still use."""
    each = found.heads.each
    left = [sum(head // each == group for head in keep) for group in range(found.heads.groups)]
    if len({count for count in left if count}) > 1:
        members = [list(range(g * each, g * each + each)) for g in range(found.heads.groups)]
        raise ValueError(
            f"{each} heads of {found.site.name} share each set of keys and values: {members}. "
            "Keep whole groups, or the same number of heads in each group that stays; got "
            f"{left} heads of the groups."
        )
    return [group for group, count in enumerate(left) if count]


def _check_unwatched(sites: Sequence[Site], gates: Gates | None) -> None:
    """Raise if anything but `gates` is in effect on the sites."""
    own = set(gates.modules()) if gates is not None else set[nn.Module]()
    busy = [site for site in sites if site.changes > sum(gate in own for gate in site.gates)]
    if changed := what_is_changed(busy):
        raise ValueError(f"{changed}; undo that before prune().")


def _cut(
    model: nn.Module,
    found: Anatomy,
    keep: list[int],
    groups: list[int],
    factors: Tensor | None,
) -> None:
    if prepare := getattr(found.holder, "before_pruning", None):
        prepare(keep)
    if shares_bias(found.holder):
        separate(innermost(model))
        cut_bias(found.holder, keep)
    for part in found.parts:
        part.cut(keep, groups, before=found.heads)
    for part in found.output if factors is not None else ():
        assert factors is not None
        shape = [-1 if axis == part.axis else 1 for axis in range(part.tensor.dim())]
        part.tensor.mul_(factors.repeat_interleave(part.unit).view(shape).to(part.tensor))
    for part in found.parts:
        _tell_layer(part.module)
    _tell_counts(found, Heads(len(keep), len(groups)))
    if not keep and not has_own_output(found.holder):
        _without_heads(model, found)
    found.site.num_heads = len(keep)


def _without_heads(model: nn.Module, found: Anatomy) -> None:
    path, holder = holder_of(model, found.site)
    output = output_projection(model, found.site)
    model.set_submodule(output.path, JustBias(output.module, output.weight.shape[0]))
    if isinstance(innermost(model), PreTrainedModel):
        inside = output.path.startswith(f"{path}.")
        stand_in = Headless(
            holder,
            output=output.path.removeprefix(f"{path}.") if inside else None,
            cross=found.site.name.endswith(".cross"),
            results=_results(holder),
        )
        model.set_submodule(path, stand_in.train(holder.training))


def _results(holder: nn.Module) -> int:
    """Return the number of values that attention returns: usually output and weights."""
    if shares_bias(holder):
        return 3  # T5 passes its biases on
    forward = interface_forward(type(holder))
    assert forward is not None
    last = inspect.getsource(forward).rpartition("return ")[2]
    return 2 if "," in last else 1  # the image encoders of Qwen-VL return no weights


def _tell_counts(found: Anatomy, now: Heads) -> None:
    """Update the numbers of heads that an attention module stores."""
    told = found.holder.__dict__
    for name in [name for name in COUNTS if name in told] or [COUNTS[0]] * found.site.hosted:
        told[name] = now.queries
    if not found.site.hosted:
        return
    for name in [name for name in WIDTHS_OF_ALL if name in told]:
        told[name] = now.queries * found.width
    if "num_key_value_heads" in told:
        told["num_key_value_heads"] = now.groups
    if "num_key_value_groups" in told and now.groups:
        told["num_key_value_groups"] = now.each
    counts = {"groups": now.groups, "group width": now.groups * found.width}
    counts["query width"] = now.queries * found.width
    for name, number in numbers_of(found.holder).items():
        told[name] = counts[number]
    if named(found.holder, ASKS_CONFIG):
        of_config = {"num_attention_heads": now.queries, "num_key_value_heads": now.groups}
        told["config"] = with_counts(told["config"], of_config)


def _tell_layer(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = layer.weight.shape
    elif hasattr(layer, "nf"):  # Conv1D
        assert isinstance(layer.weight, Tensor)
        layer.__dict__["nx"], layer.__dict__["nf"] = layer.weight.shape
