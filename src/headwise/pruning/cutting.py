"""Cutting heads out of a model: smaller projections, and the same outputs as with them masked."""

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
from headwise.pruning.configuring import tell_config
from headwise.pruning.gates import Gates
from headwise.pruning.headless import Headless, JustBias
from headwise.pruning.obstacles import ASKS_CONFIG, COUNTS, WIDTHS_OF_ALL, named, numbers_of
from headwise.pruning.own_counts import with_counts
from headwise.pruning.parts import Anatomy, Heads, anatomy
from headwise.pruning.position_bias import cut_bias, separate, shares_bias, tell_tied
from headwise.pruning.record import PruningRecord, record_of
from headwise.sites import PRUNED, Site, find_sites, what_is_changed
from headwise_papers.models.rnn import Seq2Seq

Model = TypeVar("Model", bound=nn.Module)
_WANTED = "keep must be {site name: numbers of the heads to keep}, as {'encoder.0.self': [0, 2]}"


def prune(
    model: Model,
    keep: Mapping[str, Sequence[int]] | Gates,
    *,
    scale: Mapping[str, Tensor | Sequence[float]] | None = None,
) -> Model:
    """Cut all other heads out of the model's projections, in place; returns the model.

    Outputs are those of the model with these heads masked. Head numbers then count those left;
    `record_of(model)` knows the original ones, also after pruning twice. What was wrong with the
    request is said before anything is changed. An optimiser made before must be made anew.

    Layers that share their weights (ALBERT) are one site: its heads are cut out of all of them.
    Heads that share keys and values (Llama, Qwen2) go by whole groups, or the same number of each
    group left, as each set of keys and values must serve the same number of heads. A layer may
    lose all its heads; it then adds the bias of its output projection, and has no site any more
    (a norm before it has then no effect, and no gradient).

    Attention of which Headwise does not know what belongs to which head is refused, see
    `docs/prune.md` for what is known.

    Args:
        model: one of Headwise's, or a Hugging Face model, which must be adopted before.
        keep: {site name: numbers of the heads to keep}; other sites keep all of theirs. Or the
            gates of this model, which are undone; outputs stay those of eval mode with them.
        scale: {site name: a factor for each head of `keep`, in its order}, which become a part of
            the output projection. Gates bring their own, for those that ended between 0 and 1.

    >>> from headwise_papers.models import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig(9, 9, width=8, heads=4))
    >>> model = prune(model, {"encoder.0.self": [1, 3], "encoder.1.self": []})
    >>> model.encoder[0].attention.query.weight.shape
    torch.Size([4, 8])
    >>> print(record_of(model))
    18 of 24 heads left
    """
    _check_here(model)
    return _prune(model, keep, scale=scale)


def _prune(
    model: Model,
    keep: Mapping[str, Sequence[int]] | Gates,
    *,
    scale: Mapping[str, Tensor | Sequence[float]] | None = None,
) -> Model:
    """`prune` without asking where the weights are: on the meta device shapes alone are cut."""
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
        take_sites_away(inner)  # nothing is left to adopt
    return model


def rebuild(model: Model, record: PruningRecord) -> Model:
    """Give a fresh, unpruned model the shape of a pruned one, in place, to load its weights into.

    Args:
        model: of the same configuration as the one that was pruned, adopted or not.
        record: of what was pruned.
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
    """Refuse weights that lie elsewhere: what stands in their place would be cut instead."""
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
    """Refuse sites that are not called as in the record, which would then be of other layers."""
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
    """Site names and heads, or one sentence if that is not what they are."""
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
    """The heads to keep in order, or one sentence on what is wrong with them."""
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
    """A factor for each head kept, in the order of their numbers; those of ones are left out."""
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
    """The sets of keys and values that are still asked."""
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
    """Refuse what else is in effect on the sites; `gates` are about to be undone."""
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
    if isinstance(found.holder, Seq2Seq):
        _keep_output_biases(found.holder, keep)
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
    if not keep and not isinstance(found.holder, Seq2Seq):
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
    """How many things attention returns: usually output and weights."""
    if shares_bias(holder):
        return 3  # T5 hands its biases on
    forward = interface_forward(type(holder))
    assert forward is not None
    last = inspect.getsource(forward).rpartition("return ")[2]
    return 2 if "," in last else 1  # the image encoders of Qwen-VL return no weights


def _tell_counts(found: Anatomy, now: Heads) -> None:
    """Let what an attention module says of its heads be true again."""
    told = found.holder.__dict__
    if "site" not in told or "config" not in told or isinstance(found.holder, Seq2Seq):
        return
    for name in [name for name in COUNTS if name in told] or [COUNTS[0]]:
        told[name] = now.queries
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


def _keep_output_biases(model: Seq2Seq, keep: list[int]) -> None:
    """What removed heads add to every context stays: it moves into the bias of the next layer."""
    heads = model.heads.output_bias.shape[0]
    gone = [head for head in range(heads) if head not in keep]
    constant_D = model.heads.output_bias[gone].sum(0)
    if model.config.sum_heads == "mean":
        constant_D = constant_D / model.config.heads
    if model.mix is None:
        model.output.bias.add_(model.output.weight @ constant_D)
    else:
        model.mix.bias.add_(model.mix.weight[:, model.config.hidden :] @ constant_D)
