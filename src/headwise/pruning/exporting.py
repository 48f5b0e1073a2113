"""Export pruned models to other programs: ONNX, or PyTorch's exported graphs.

    pruning.export("small/", "onnx")  # small/model.onnx

Batch size and lengths are dynamic. The result is checked against the model on inputs of other sizes
than those it was traced with. The graph is one forward pass: ids and mask in, logits out. Models
that tell the two texts of a pair apart take `token_type_ids` too.
"""

import inspect
import logging
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.pruning.saving import load
from headwise.recording.files import replacing

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
LARGEST = 1_900_000_000  # bytes; an ONNX file is a protocol buffer, which ends at 2 GiB
REGISTRATION = "torch.onnx._internal.exporter._registration"  # the logger of its operators
TOLERANCE = 1e-3  # of the largest logit, as other kernels round differently
TRACED, CHECKED = (2, 7, 5), ((1, 4, 9), (5, 11, 3), (3, 6, 6))  # items, source, target
PADDING = 2  # tokens at the end of the last row


@dataclass(frozen=True)
class Exported:
    """The result of `export`: the file, and how much it differs from the model."""

    path: Path
    largest_difference: float  # of logits, over all inputs tried
    inputs: tuple[str, ...]  # names


def export(folder: Path | str, form: str = "onnx") -> Exported:
    """Write the model in a folder as `model.onnx` or `model.pt2` into the folder, and check it.

    ONNX gets half-precision weights in float32, because runtimes lack operators for them.

    Args:
        folder: a folder that `save` wrote.
        form: "onnx", which needs headwise[export], or "torch", for `torch.export.load`.
    """
    if form not in FILES:
        raise ValueError(f"form must be 'onnx' or 'torch', got {form!r}.")
    if form == "onnx":
        _check_installed()
    folder = Path(folder)
    model = load(folder).float() if form == "onnx" else load(folder)
    forward = _Forward(model, _input_names(model))
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if form == "onnx" and size > LARGEST:
        raise ValueError(f"A model of {size / 1e9:.1f} GB does not fit an ONNX file; use 'torch'.")
    path = folder / FILES[form]
    with replacing(path) as temporary, torch.no_grad(), _quietly():
        program = _exported(forward)
        if form == "onnx":
            run = _write_onnx(program, temporary, forward.names)
        else:
            run = _write_torch(program, temporary)
        gap = _largest_gap(forward, run)
    return Exported(path, gap, forward.names)


class _Forward(nn.Module):
    """A model as a function from tensors in a fixed order to logits."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.options = {"use_cache": False} if _takes(model, "use_cache") else {}

    def forward(self, *values: Tensor) -> Tensor:
        """Return the logits, or the last hidden states of a model without logits."""
        out: Any = self.model(**dict(zip(self.names, values, strict=True)), **self.options)
        if isinstance(out, Tensor):
            return out
        return out.logits if "logits" in out else out[0]


def _takes(model: nn.Module, name: str) -> bool:
    told = inspect.signature(model.forward).parameters
    return name in told and hasattr(getattr(model, "config", None), name)


def _input_names(model: Any) -> tuple[str, ...]:
    if hasattr(model, "example_inputs"):
        return tuple(model.example_inputs(1, 1))
    first: Any = getattr(model, "main_input_name", None)
    config: Any = getattr(model, "config", None)
    if first == "pixel_values":
        return ("pixel_values",)
    if first == "input_ids":
        segments = ("token_type_ids",) if _tells_segments_apart(model) else ()
        more = ("decoder_input_ids",) if config.is_encoder_decoder else ()
        return ("input_ids", "attention_mask", *segments, *more)
    raise ValueError(
        f"{type(model).__name__} cannot be exported; Hugging Face models that read ids or images, "
        "and models with a method example_inputs (see headwise.pruning.prune), can."
    )


def _tells_segments_apart(model: nn.Module) -> bool:
    told = inspect.signature(model.forward).parameters
    return "token_type_ids" in told and (getattr(model.config, "type_vocab_size", 0) or 0) > 1


def _inputs(forward: _Forward, items: int, source: int, target: int) -> tuple[Tensor, ...]:
    """Return random inputs of a size, with padding and two segments where there are such inputs."""
    model: Any = forward.model
    if hasattr(model, "example_inputs"):
        return tuple(model.example_inputs(items, source, target, padding=PADDING).values())
    config = model.config
    rng = torch.Generator().manual_seed(items)
    if forward.names == ("pixel_values",):
        shape = (items, config.num_channels, config.image_size, config.image_size)
        return (torch.randn(shape, generator=rng),)
    ids, target_ids = (
        torch.randint(3, config.vocab_size, (items, length), generator=rng)
        for length in (source, target)
    )
    lengths = torch.full((items,), source)
    lengths[-1] = max(1, source - PADDING)
    place, end = torch.arange(source), lengths[:, None]
    known = {
        "input_ids": ids,
        "attention_mask": (place < end).long(),
        "token_type_ids": (place >= end // 2).long(),  # the second half is the second text
        "decoder_input_ids": target_ids,
    }
    return tuple(known[name] for name in forward.names)


def _dynamic_axes(forward: _Forward) -> tuple[dict[int, Any], ...]:
    """Return the axes of each input that differ between inputs of two sizes: batch and length."""
    pairs = zip(*(_inputs(forward, *sizes) for sizes in (TRACED, CHECKED[0])), strict=True)
    return tuple(
        {
            axis: torch.export.Dim.DYNAMIC
            for axis in range(one.dim())
            if one.shape[axis] != other.shape[axis]
        }
        for one, other in pairs
    )


def _exported(forward: _Forward) -> torch.export.ExportedProgram:
    inputs, axes = _inputs(forward, *TRACED), {"values": _dynamic_axes(forward)}
    try:
        return torch.export.export(forward, inputs, dynamic_shapes=axes, strict=False)
    except RuntimeError as problem:  # the base of all of torch's tracing errors
        raise ValueError(
            f"PyTorch cannot trace this {type(forward.model).__name__}: "
            f"{str(problem).strip().splitlines()[0]}"
        ) from problem


Run = Callable[..., Tensor]


def _write_torch(program: torch.export.ExportedProgram, path: Path) -> Run:
    with path.open("wb") as file:
        torch.export.save(program, file)  # pyright: ignore[reportArgumentType]
    with path.open("rb") as file:
        return torch.export.load(file).module()  # pyright: ignore[reportArgumentType]


def _write_onnx(program: torch.export.ExportedProgram, path: Path, names: tuple[str, ...]) -> Run:
    import onnxruntime

    written: Any = torch.onnx.export(program, input_names=names, dynamo=True, verbose=False)
    written.save(path, external_data=False)
    providers = ["CPUExecutionProvider"]
    session: Any = onnxruntime.InferenceSession(path.read_bytes(), providers=providers)

    def run(*values: Tensor) -> Tensor:
        given = zip(names, values, strict=True)
        (out,) = session.run(None, {name: value.numpy() for name, value in given})
        return torch.from_numpy(out)

    return run


def _largest_gap(forward: _Forward, run: Run) -> float:
    gaps: list[float] = []
    for sizes in (TRACED, *CHECKED):
        inputs = _inputs(forward, *sizes)
        wanted, got = forward(*inputs), run(*inputs)
        gaps.append((wanted - got).abs().max().item())
        if not gaps[-1] <= TOLERANCE * max(1.0, wanted.abs().max().item()):
            shapes = [tuple(tensor.shape) for tensor in inputs]
            raise ValueError(
                f"The exported {type(forward.model).__name__} differs from the model by "
                f"{gaps[-1]:.2g} on {dict(zip(forward.names, shapes, strict=True))}; "
                "nothing was written."
            )
    return max(gaps)


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"Exporting to ONNX needs {', '.join(missing)}; run pip install 'headwise[export]'."
        )


@contextmanager
def _quietly() -> Generator[None]:
    """Hide warnings of tracing about transformers and torch themselves."""
    logger = logging.getLogger(REGISTRATION)
    logger.addFilter(_not_of_torchvision)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(_not_of_torchvision)


def _not_of_torchvision(record: logging.LogRecord) -> bool:
    """Return False for messages about operators of a torchvision that is not installed."""
    return not record.getMessage().startswith("torchvision is not installed")
