"""Pruned models on disk: safetensors and JSON, loaded without the unpruned weights.

    pruning.save(model, "small/", tokenizer)
    model = pruning.load("small/")

A folder holds `model.safetensors`, `config.json` of the original class, and `pruning.json` with the
record, attention backends, versions and checksums, which the pruned run of a translator holds too.
Checksums find what was damaged or changed by mistake; against somebody who changes both file and
checksum there is only that nothing is ever unpickled or run.
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
from headwise.pruning.backends import backends_of, set_backends
from headwise.pruning.configuring import layers_in_config
from headwise.pruning.cutting import rebuild
from headwise.pruning.folders import recover, replacing_folder
from headwise.pruning.headless import Headless
from headwise.pruning.recipe import RECIPE, Recipe, files_named, unnamed, versions
from headwise.pruning.record import PruningRecord, record_of
from headwise.recording.checksums import digest
from headwise.sites import Site, what_is_changed

UNSEALED = ("environment.json",)  # its checksum would differ always, as it tells the time
WEIGHTS, SETTINGS = "model.safetensors", "config.json"
OF_RUN = "model.json"  # the settings of a run's model, as its config.json is that of the run
EXPORTED = frozenset({"model.onnx", "model.pt2"})
TRANSFORMERS = "transformers"  # the kind of Hugging Face models
TOLD = "headwise_pruning"  # where config.json tells other programs what was pruned


@runtime_checkable
class SavesItself(Protocol):
    """A tokenizer or image processor of transformers."""

    def save_pretrained(self, save_directory: Path) -> object:
        """Write all its files into a folder."""
        ...


def save(model: nn.Module, folder: Path | str, tokenizer: SavesItself | None = None) -> None:
    """Write a pruned model into a folder, all of it or nothing.

    A folder that `save` made before is replaced; any other that holds files is refused. If writing
    fails, as on a full disk, what was there stays.

    Before it is put in place the new folder is opened as `load` opens it: files are read again for
    their checksums, and a model without memory for weights is built, pruned and compared with the
    names and shapes in the file.

    Args:
        model: one that `prune` has pruned; adopted or not.
        folder: to make or replace.
        tokenizer: saved beside it, with its own `save_pretrained`.
    """
    folder, inner = Path(folder), innermost(model)
    record = record_of(inner)
    if record is None:
        raise ValueError(
            f"Nothing was pruned of this {type(inner).__name__}; save it as you save any model."
        )
    _check_known(inner)
    _check_unchanged(inner)
    recover(folder)
    _check_free(folder)
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
    """Write `pruning.json` of the files that are in a folder, the last one of it.

    Args:
        folder: with the weights and settings of the model.
        model: that is in it.
        record: of what was pruned.
    """
    Recipe(
        kind=_rebuilt_from(model)[0],
        class_name=type(model).__name__,
        record=record,
        files={
            path.relative_to(folder).as_posix(): digest(path)
            for path in sorted(folder.rglob("*"))  # a tokenizer may have folders
            if path.is_file() and path.name not in UNSEALED
        },
        tied=_tied(model.state_dict()),
        buffers=_buffers(model),
        versions=versions(),
        attention=backends_of(model),
    ).write(folder)


def load(folder: Path | str, *, attn_implementation: str | None = None) -> Any:
    """The model that `save` wrote, on the CPU and in eval mode; a Hugging Face one not adopted.

    Of a pruned run of a translator it is the Transformer; `headwise translate` opens all of it.
    Only JSON and safetensors are read, never a pickle, whatever else lies in the folder. A folder
    that is not whole, or was changed since, is refused with one sentence.

    Args:
        folder: that `save` wrote.
        attn_implementation: the attention backend of a Hugging Face model, by transformers' name.
            By default it is the one the model was saved with, if that was eager, sdpa or
            flex_attention; else transformers chooses.
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
    """Open a folder as `load` does, with the shapes of its tensors in the place of weights."""
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
    """Return the kind that makes a model again, and its settings; a config has those of others."""
    describe = getattr(model, "headwise_rebuild", None)
    if not callable(describe):
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


def _check_free(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"A model is saved in a folder, but {folder} is a file.")
    ours = {RECIPE, *EXPORTED}
    if (folder / RECIPE).exists() and not (folder / OF_RUN).exists():  # else words would be lost
        ours |= files_named(folder)
    if foreign := unnamed(folder, ours):
        raise ValueError(
            f"{folder} holds {foreign[0]}, which headwise.pruning.save did not write and would "
            "delete; choose another folder."
        )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Each tensor once, and an empty one for each that went with the last head of a layer."""
    state, contiguous = model.state_dict(), torch.contiguous_format
    tied = _tied(state)
    kept = {
        name: tensor.detach().cpu().clone(memory_format=contiguous)
        for name, tensor in state.items()
        if name not in tied
    }
    # transformers fills what is missing with random weights, but refuses what has another shape
    return kept | {name: torch.empty(0) for name in _lost(model)}


def _lost(model: nn.Module) -> list[str]:
    return [
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, Headless)
        for name in module.lost
    ]


def _tied(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Which names are another's."""
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(place, name) != name:
            tied[name] = first[place]
    return tied


def _save_tokenizer(tokenizer: SavesItself, folder: Path) -> None:
    """Its files; trouble of the tokenizers library, whose errors have no class, is an OSError."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as problem:
        if type(problem) is not Exception:
            raise
        raise OSError(str(problem)) from problem


def _write_settings(model: nn.Module, record: PruningRecord, folder: Path) -> PruningRecord:
    """config.json and, of a model that generates, its settings; the record, with what they hide."""
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
    """An unpruned model of the recipe's class; its weights do not matter."""
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
    """Build a model; some classes choose now what they attend with, so they are told."""
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
    """Settings without those that name code of others to compute with, fetched from the hub.

    Numbers that JSON does not have are turned back, {"__float__": "Infinity"} as transformers
    writes them.
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
    """Give the model its weights, each of them, in the precision they were saved in."""
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
            raise ValueError(f"{folder / RECIPE} speaks of {name} in {dtype}, which there is not.")
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, buffers[name].to(wanted))


def _tie(model: nn.Module, tied: Mapping[str, str], folder: Path) -> None:
    """Let parameters that are another one's be that one again."""
    known = model.state_dict().keys()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, first in tied.items():
        if not {name, first} <= known:
            raise ValueError(f"{folder / RECIPE} ties {name} to {first}, which there is not.")
        if name in parameters and first in parameters:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, parameters[first])
