"""GGUF files, in which llama.cpp keeps models: read, and saved as Hugging Face saves models."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwise.recording.checksums import write_checksums

__all__ = ["converted"]


def converted(path: Path, folder: Path) -> Path:
    """A folder that holds the model: `path` itself if it is one, or `folder`, filled from a GGUF.

    Args:
        path: a folder, or a file whose name ends in `.gguf`.
        folder: where the model goes; one that is there is taken as it is.
    """
    if path.is_dir():
        return path
    if path.suffix != ".gguf" or not path.is_file():
        raise ValueError(f"A model folder or a .gguf file was wanted, got {path}; check the path.")
    if (folder / "config.json").is_file():
        return folder
    if find_spec("gguf") is None:
        raise ValueError(
            f"Reading {path.name} needs the package gguf; install it, or give the model's folder."
        )
    import transformers  # lazy: takes seconds

    loaders: Any = transformers
    given = {"gguf_file": path.name, "local_files_only": True}
    tokenizer = loaders.AutoTokenizer.from_pretrained(path.parent, trust_remote_code=False, **given)
    model = loaders.AutoModelForCausalLM.from_pretrained(
        path.parent, trust_remote_code=False, **given
    )
    half = folder.with_name(f"{folder.name}.part")  # renamed when whole
    tokenizer.save_pretrained(half)
    _plain(model).save_pretrained(half)
    write_checksums(half)
    return half.rename(folder)


def _plain(model: Any) -> Any:
    """The same model, but for the note that it was quantised, with which none can be saved."""
    config = type(model.config)(**model.config.to_diff_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    return plain
