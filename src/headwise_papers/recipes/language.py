"""Language models: train a Transformer-XL on characters, and measure bits per character.

    headwise train lm --corpus enwiki-xml-6mb --attention topk:8

Characters are bytes. Everything is written to a run folder; an interrupted training resumes.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.config import to_json
from headwise.recording import Run
from headwise.training import FitConfig, check_at_least, fit
from headwise_papers.data.characters import BYTES, CharacterData, CharacterStream, read_characters
from headwise_papers.measures.scores import bits_per_character
from headwise_papers.models.xl import TransformerXL, XLConfig, segment_loss
from headwise_papers.recipes.training_run import (
    Clock,
    checksum_of,
    choose_weights,
    complete_report,
    fit_here,
    process_count,
    shared_run,
    training_bar,
    training_figures,
)
from headwise_papers.recipes.translator import check_trained, load_weights

SIZES = {
    "small": XLConfig.small(),
    "enwik8": XLConfig.small(width=512, heads=8, layers=12, feed_forward=2048),
}


@dataclass(frozen=True)
class LanguageConfig:
    """Settings of `train_language`."""

    corpus: str = "enwiki-xml-6mb"  # see headwise_papers.data.characters; "file" takes the next
    file: str = ""  # your own text; its last tenth is held out, half of that for the test
    train_symbols: int = 0  # number of characters of a part, the first ones; 0: all
    valid_symbols: int = 0
    test_symbols: int = 0
    model: XLConfig = SIZES["small"]
    segment: int = 256  # characters read at a time
    batch_size: int = 32  # positions of the text read in parallel
    evaluation_rows: int = 10  # the same when evaluating; fewer are fairer and slower
    fit: FitConfig = FitConfig()

    def __post_init__(self) -> None:
        check_at_least(1, self, "segment", "batch_size", "evaluation_rows")
        check_at_least(0, self, "train_symbols", "valid_symbols", "test_symbols")
        if (self.corpus == "file") != bool(self.file):
            raise ValueError("Your own text is given with corpus='file', and only then.")
        if self.model.vocab != BYTES:
            raise ValueError(f"Characters are bytes; leave model.vocab={BYTES}.")


class Reading(nn.Module):
    """A Transformer-XL with its memory of the text so far, which checkpoints keep as a buffer."""

    memory: Tensor

    def __init__(self, model: TransformerXL, *, rows: int) -> None:
        super().__init__()
        self.model = model
        shape = model.config.layers, rows, model.config.memory, model.config.width
        self.register_buffer("memory", torch.zeros(shape))

    def forward(self, ids: Tensor, known: int) -> Tensor:
        """Return scores of the next character at each position, given `known` remembered ones."""
        size = self.memory.shape[2]
        logits_BTV, new_LBKM = self.model(ids, self.memory[:, :, size - known :].clone())
        if kept := new_LBKM.shape[2]:
            self.memory[:, :, size - kept :] = new_LBKM
        return logits_BTV


class Read(NamedTuple):
    """A segment of a text, and the number of remembered characters before it."""

    inputs: Tensor
    targets: Tensor
    known: int


def train_language(config: LanguageConfig, folder: Path) -> Run:
    """Train, and measure on the test part; return the finished run.

    It holds `model.safetensors`, `figures.json` with bits per character of the validation and the
    test part, and `report.html`.

    Args:
        config: the settings.
        folder: of the run; an unfinished one is resumed, if the text has not changed.
    """
    _check_alone()
    data = _data(config)
    _stream(config, data)  # a text too short is refused before there is a folder
    checksum = checksum_of(data.train, data.valid, data.test)
    with shared_run(folder, config, "language", data=checksum) as run:
        if not run.has("figures.json"):
            torch.manual_seed(config.fit.seed)
            reading = Reading(TransformerXL(config.model), rows=config.batch_size)
            note = _train(config, run, reading, data)
            _finish(config, run, reading.model, data, note)
        complete_report(run)
    return run


def load_language_model(run: Run) -> TransformerXL:
    """Return the model of a finished run of `train_language`, in evaluation mode."""
    check_trained(run)
    model = TransformerXL(run.read_settings("model.json", XLConfig))
    load_weights(model, run)
    return model.eval()


def _check_alone() -> None:
    if process_count() > 1:
        raise ValueError(
            "A text is read in order, by one process; start this one without accelerate launch."
        )


def _data(config: LanguageConfig) -> CharacterData:
    data = _file(Path(config.file)) if config.file else read_characters(config.corpus)
    parts = {
        name: getattr(data, name)[: getattr(config, f"{name}_symbols") or None]
        for name in ("train", "valid", "test")
    }
    return dataclasses.replace(data, **parts)


def _file(path: Path) -> CharacterData:
    if not path.is_file():
        raise ValueError(f"There is no text file {path}; check the path.")
    contents = bytearray(path.read_bytes())
    if len(contents) < 100:
        raise ValueError(f"{path} has {len(contents)} bytes, too few to learn from.")
    ids = torch.frombuffer(contents, dtype=torch.uint8)
    ends = [len(ids) * share // 100 for share in (90, 95)]
    train, valid, test = ids.tensor_split(ends)
    return CharacterData(path.name, train, valid, test)


def _stream(config: LanguageConfig, data: CharacterData) -> CharacterStream:
    return CharacterStream(data.train, batch_size=config.batch_size, length=config.segment)


def _train(
    config: LanguageConfig, run: Run, reading: Reading, data: CharacterData
) -> dict[str, Any]:
    """Train in place, load the weights that validate best, and return which they are."""
    stream = _stream(config, data)

    def batch(number: int) -> Read:
        inputs, targets = stream(number)
        passed = number % stream.per_epoch * config.segment
        return Read(inputs, targets, min(config.model.memory, passed))

    def loss(model: nn.Module, batch: Read) -> Tensor:
        logits_BTV = model(batch.inputs, batch.known)
        return cross_entropy(logits_BTV.flatten(0, 1).float(), batch.targets.flatten())

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"valid_bits": _bits(config, cast(Reading, model).model, data.valid)}

    with training_bar(config.fit.steps) as show:
        fit(
            reading,
            loss,
            batch,
            run=run,
            config=fit_here(config.fit, replayable=True),
            tokens=lambda batch: batch.inputs.numel(),
            progress=show,
            evaluate=Clock(run).timed(evaluate),
        )
    return {"weights": choose_weights(run, reading, evaluate)}


@torch.no_grad()
def _bits(config: LanguageConfig, model: TransformerXL, ids: Tensor) -> float:
    """Compute bits per character of a text, read from several positions in parallel."""
    model.eval()
    rows = min(config.evaluation_rows, max(1, len(ids) // (2 * config.segment)))
    length = len(ids) // rows
    side_by_side = ids[: rows * length].view(rows, length).long()
    loss = segment_loss(model, side_by_side, segment=config.segment)
    return bits_per_character(loss.mean).value


def _finish(
    config: LanguageConfig,
    run: Run,
    model: TransformerXL,
    data: CharacterData,
    note: dict[str, Any],
) -> None:
    run.write_json("model.json", to_json(model.config))
    run.save_tensors("model.safetensors", model.state_dict())
    figures = {
        "bits_per_character": _bits(config, model, data.test),
        "valid_bits_per_character": _bits(config, model, data.valid),
    }
    run.save_figures({**figures, **note, **training_figures(run, model)})
