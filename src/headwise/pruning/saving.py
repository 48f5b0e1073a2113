"""Save and load pruned models: safetensors and JSON, without the unpruned weights.

    pruning.save(model, "small/", tokenizer)
    model = pruning.load("small/")

A folder holds `model.safetensors`, `config.json` of the original class, and `pruning.json` with
record, attention backends, versions and checksums. Checksums find files that were damaged or
changed by mistake. They do not stop somebody who changes both file and checksum; but nothing is
ever unpickled, and no code of a folder is run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from headwise.hf.adoption import innermost
from headwise.json_files import read_json
from headwise.kinds import find_kind
from headwise.pruning.configuration import backends_of, layers_in_config, set_backends
from headwise.pruning.cutting import rebuild
from headwise.pruning.record import (
    RECIPE,
    PruningRecord,
    Recipe,
    files_named,
    record_of,
    unnamed,
)
from headwise.pruning.stand_ins import Headless
from headwise.recording.checksums import digests
from headwise.recording.environment import PACKAGES, versions
from headwise.recording.files import recover, replacing_folder
from headwise.sites import Site, what_is_changed

UNSEALED = "environment.json"  # of a run: it holds the time, so its checksum always differs
WEIGHTS, SETTINGS = "model.safetensors", "config.json"
OF_RUN = "model.json"  # the settings of a run's model; config.json has those of the run
EXPORTED = frozenset({"model.onnx", "model.pt2"})
TRANSFORMERS = "transformers"  # the kind of Hugging Face models
TOLD = "headwise_pruning"  # the key of config.json that tells other programs what was pruned


@runtime_checkable
class SavesItself(Protocol):
    """A tokenizer or image processor of transformers."""

    def save_pretrained(self, save_directory: Path) -> object:
        """Write the files into a folder."""
        ...


def save(model: nn.Module, folder: Path | str, tokenizer: SavesItself | None = None) -> None:
    """Write a pruned model into a folder, whole or not at all.

    A folder that `save` wrote before is replaced; any other folder with files is refused. If
    writing fails, as on a full disk, the old folder stays.

    Before the new folder replaces the old one it is checked: files are read again for their
    checksums, and a model without weights is built, pruned and compared with the names and shapes
    in the file.

    Args:
        model: a model that `prune` has pruned; adopted or not.
        folder: made or replaced.
        tokenizer: saved in the same folder, with its own `save_pretrained`.
    """
    folder, inner = Path(folder), innermost(model)
    record = record_of(inner)
    if record is None:
        raise ValueError(
            f"Nothing was pruned from this {type(inner).__name__}; save it as you save any model."
        )
    _check_known(inner)
    _check_unchanged(inner)
    recover(folder)
    check_replaceable(folder, as_run=False)
    tensors = _tensors(inner)
    try:
        with replacing_folder(folder) as new:
            safetensors.torch.save_file(tensors, new / WEIGHTS, metadata={"format": "pt"})
            record = _write_settings(inner, record, new)
            if tokenizer is not None:
                _save_tokenizer(tokenizer, new)
            seal(new, inner, record)
            _check_opens(new, folder, type(inner))
    except (SafetensorError, OSError) as problem:  # a full disk, by either name
        reason = getattr(problem, "strerror", None) or problem
        raise OSError(f"{folder} could not be written ({reason}); it is as it was.") from problem


def seal(folder: Path, model: nn.Module, record: PruningRecord) -> None:
    """Write `pruning.json` with the checksums of all files of a folder, as its last file.

    Args:
        folder: with the weights and settings of the model.
        model: the model in the folder.
        record: what was pruned.
    """
    Recipe(
        kind=_rebuilt_from(model)[0],
        class_name=type(model).__name__,
        record=record,
        files=digests(folder, without=(UNSEALED,)),
        tied=_tied(model.state_dict()),
        buffers=_buffers(model),
        versions=versions(*PACKAGES, "safetensors"),
        attention=backends_of(model),
    ).write(folder)


def load(folder: Path | str, *, attn_implementation: str | None = None) -> Any:
    """Load the model that `save` wrote, on the CPU and in eval mode; it is not adopted.

    From a pruned run of a translator it loads the model alone; `headwise translate` opens the run.
    Only JSON and safetensors are read, never a pickle. A folder that is not whole, or was changed,
    is refused.

    Args:
        folder: a folder that `save` wrote.
        attn_implementation: the attention backend of a Hugging Face model. By default the one it
            was saved with, if that was eager, sdpa or flex_attention; else transformers chooses.
    """
    folder = Path(folder)
    recover(folder)
    recipe = Recipe.read(folder)
    recipe.check_files(folder)
    tensors = _read_tensors(folder)
    model = rebuild(_built(folder, recipe, attn_implementation), recipe.record)
    _fill(model, tensors, recipe, folder)
    set_backends(model, recipe.attention, attn_implementation)
    return model.eval()


def _check_opens(new: Path, folder: Path, wanted: type[nn.Module]) -> None:
    """Open a folder as `load` does, with the shapes of its tensors instead of weights."""
    try:
        recipe = Recipe.read(new)
        recipe.check_files(new)
        with safe_open(new / WEIGHTS, framework="pt") as held, torch.device("meta"):
            names: list[str] = held.keys()
            shapes = {name: torch.empty(held.get_slice(name).get_shape()) for name in names}
            made = _built(new, recipe)
            if type(made) is not wanted:
                raise ValueError(f"kind {recipe.kind!r} makes another {type(made).__name__}.")
            _fill(rebuild(made, recipe.record), shapes, recipe, new)
    except ValueError as problem:
        said = str(problem).replace(str(new), str(folder))
        raise ValueError(
            f"{folder} was not written, as pruning.load could not open it: {said}"
        ) from problem


def _rebuilt_from(model: nn.Module) -> tuple[str, dict[str, Any] | None]:
    """Return the kind that rebuilds a model, and its settings; None for Hugging Face models."""
    describe: Any = getattr(model, "headwise_rebuild", None)
    if describe is None:
        return TRANSFORMERS, None
    kind, _, settings = describe()
    return kind, settings


def _check_known(model: nn.Module) -> None:
    """Raise if `load` could not find the class of a model."""
    import transformers

    kind = type(model)
    known = _rebuilt_from(model)[0] != TRANSFORMERS
    if not known and getattr(transformers, kind.__name__, None) is not kind:
        raise ValueError(
            f"{kind.__module__}.{kind.__qualname__} is not a model of transformers and has no "
            "method headwise_rebuild (see headwise.pruning.prune), so load could not build it; "
            "define that, or save its state_dict() and record_of(model) yourself, and use rebuild."
        )


def _check_unchanged(model: nn.Module) -> None:
    held = [module.__dict__.get("site") for module in model.modules()]
    if changed := what_is_changed(site for site in held if isinstance(site, Site)):
        raise ValueError(f"{changed}, which a folder cannot hold; undo that before save().")


def check_replaceable(folder: Path, *, as_run: bool | None = None) -> None:
    """Raise if a folder holds anything but a pruned model, as saving there would delete it.

    Args:
        folder: where a model is to be saved; it need not exist.
        as_run: whether that is saved as a run, which replaces runs alone; None is either.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"A model is saved in a folder, but {folder} is a file.")
    written = set[str]()
    if (folder / RECIPE).is_file() and as_run in (None, (folder / UNSEALED).is_file()):
        written = {RECIPE, UNSEALED, *EXPORTED, *files_named(folder)}
    if foreign := unnamed(folder, written):
        raise ValueError(
            f"{folder} holds {foreign[0]}, which is no part of a pruned model of this kind and "
            "would be deleted; choose another folder."
        )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return each tensor once, and an empty one for each that a layer without heads has lost."""
    state, contiguous = model.state_dict(), torch.contiguous_format
    tied = _tied(state)
    kept = {
        name: tensor.detach().cpu().clone(memory_format=contiguous)
        for name, tensor in state.items()
        if name not in tied
    }
    # transformers gives missing tensors random weights, but refuses those of another shape
    return kept | {name: torch.empty(0) for name in _lost(model)}


def _lost(model: nn.Module) -> list[str]:
    return [
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, Headless)
        for name in module.lost
    ]


def _tied(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names of tensors that are saved under another name."""
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(place, name) != name:
            tied[name] = first[place]
    return tied


def _save_tokenizer(tokenizer: SavesItself, folder: Path) -> None:
    """Save a tokenizer; raise an OSError if its library, whose errors have no class, fails."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as problem:
        if type(problem) is not Exception:
            raise
        raise OSError(str(problem)) from problem


def _write_settings(model: nn.Module, record: PruningRecord, folder: Path) -> PruningRecord:
    """Write config.json and generation settings; return the record with what they replace."""
    settings = _rebuilt_from(model)[1]
    if settings is None:
        config: Any = model.config
        settings = json.loads(config.to_json_string())
        settings["architectures"] = [type(model).__name__]
        settings["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
        settings[TOLD] = {"kept": {name: list(kept) for name, kept in record.kept.items()}}
        record = _tell_layers(model, record, settings)
        generation: Any = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(folder)
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / SETTINGS).write_text(text, encoding="utf-8", newline="\n")
    return record


def _tell_layers(model: Any, record: PruningRecord, settings: dict[str, Any]) -> PruningRecord:
    told = layers_in_config(model, settings) if all(record.kept.values()) else {}
    hidden = {name: settings.get(name) for name in told} | dict(record.settings)
    settings.update(told)
    return PruningRecord(record.heads, record.kept, hidden)


def _buffers(model: nn.Module) -> dict[str, str]:
    saved = model.state_dict().keys()
    return {
        name: str(buffer.dtype).removeprefix("torch.")
        for name, buffer in model.named_buffers()
        if name not in saved and buffer.is_floating_point()
    }


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS}; other formats of weights are not read.")
    try:
        return safetensors.torch.load_file(path)
    except SafetensorError as problem:
        raise ValueError(
            f"{path} is not a safetensors file ({problem}); headwise reads nothing else."
        ) from None


def _built(folder: Path, recipe: Recipe, backend: str | None = None) -> nn.Module:
    """Return an unpruned model of the recipe's class; its weights do not matter."""
    own = recipe.kind != TRANSFORMERS
    path = folder / (OF_RUN if own and OF_RUN in recipe.files else SETTINGS)
    settings: dict[str, Any] = read_json(path, dict)
    if not own:
        return _hugging_face(folder, recipe, settings, backend)
    if backend is not None:
        raise ValueError(
            f"attn_implementation is for Hugging Face models, but {folder} holds a "
            f"{recipe.class_name}; leave it out."
        )
    make = find_kind(recipe.kind).rebuild
    if make is None:
        raise ValueError(f"Models of the kind {recipe.kind!r} cannot be rebuilt.")
    return make(recipe.class_name, settings)


def _hugging_face(
    folder: Path, recipe: Recipe, settings: dict[str, Any], backend: str | None
) -> nn.Module:
    import transformers

    kind: Any = getattr(transformers, recipe.class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(
            f"{folder} holds a {recipe.class_name}, which transformers {transformers.__version__} "
            f"does not have; it was saved with {recipe.versions.get('transformers')}."
        )
    settings = _harmless({name: value for name, value in settings.items() if name != TOLD})
    for name, value in recipe.record.settings.items():
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = value
    eager = backend == "eager" or {*recipe.attention.values()} == {"eager"}
    model = _constructed(folder, kind, settings, "eager" if eager else None)
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(
            folder, local_files_only=True
        )
    return model


def _constructed(folder: Path, kind: Any, settings: dict[str, Any], backend: str | None) -> Any:
    """Build a model with a backend, which some classes choose when they are built."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers.initialization import no_init_weights

    problems = (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError)
    try:
        with no_init_weights():
            return kind(kind.config_class.from_dict({**settings, "attn_implementation": backend}))
    except problems as problem:
        raise ValueError(
            f"No {kind.__name__} can be built with {folder / SETTINGS}: "
            f"{(str(problem).strip() or type(problem).__name__).splitlines()[0]}"
        ) from problem


def _harmless(settings: Any) -> Any:
    """Return settings without those that name code to fetch from the hub.

    Infinite numbers, which transformers writes as {"__float__": "Infinity"}, are restored.
    """
    if isinstance(settings, list):
        return [_harmless(each) for each in cast(list[Any], settings)]
    if not isinstance(settings, dict):
        return settings
    if {*cast(dict[str, Any], settings)} == {"__float__"}:
        return float(cast(dict[str, Any], settings)["__float__"])
    return {
        name: _harmless(value)
        for name, value in cast(dict[str, Any], settings).items()
        if not name.endswith(("_implementation", "_implementation_internal", "auto_map"))
    }


def _fill(model: nn.Module, tensors: dict[str, Tensor], recipe: Recipe, folder: Path) -> None:
    """Give the model all its weights, in the precision they were saved in."""
    lost = _lost(model)
    given = {name: tensor for name, tensor in tensors.items() if name not in lost}
    known = {name: given[first] for name, first in recipe.tied.items() if first in given}
    try:
        model.load_state_dict({**given, **known}, strict=True, assign=True)
    except RuntimeError as problem:
        raise ValueError(
            f"The weights in {folder} do not fit a {recipe.class_name} of these versions "
            f"(saved with {recipe.versions}): {str(problem).splitlines()[-1].strip()}"
        ) from None
    _tie(model, recipe.tied, folder)
    buffers = dict(model.named_buffers())
    for name, dtype in recipe.buffers.items():
        wanted = getattr(torch, dtype, None)
        if name not in buffers or not isinstance(wanted, torch.dtype):
            raise ValueError(f"{folder / RECIPE} names a buffer {name} in {dtype}; there is none.")
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, buffers[name].to(wanted))


def _tie(model: nn.Module, tied: Mapping[str, str], folder: Path) -> None:
    """Share parameters again that were shared when the model was saved."""
    known = model.state_dict().keys()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, first in tied.items():
        if not {name, first} <= known:
            raise ValueError(f"{folder / RECIPE} ties {name} to {first}; there is no such tensor.")
        if name in parameters and first in parameters:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, parameters[first])
