"""Folders of models that others trained, of Hugging Face or converted from GGUF."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwise.recording import Run, write_checksums
from headwise_papers.core import find_or_train


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
