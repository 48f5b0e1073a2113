"""Encoders to look at: pre-trained by us, saved by Hugging Face, or as they are before training."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.data.byte_pieces import BytePieces
from headwise.hf import adopt, release
from headwise.journeys.inspecting.hugging_face_subject import HuggingFaceSubject
from headwise.journeys.inspecting.subject import Subject
from headwise.journeys.opening import chosen_device, open_subject, padding_right
from headwise.journeys.pretraining import load_pretrained
from headwise.models.encoder import Encoder, EncoderConfig
from headwise.models.encoder_weights import to_hugging_face
from headwise.recording import Run

__all__ = ["ARMS", "Arm", "encoder_subject", "given_arms", "runs_of", "trained_arms", "untrained"]

# what each arm is called, and how the folders of its pre-training runs begin
ARMS = {"MLM": "mlm", "guided 1/2": "guided", "guided 1": "guided-1"}


@dataclass(frozen=True, eq=False)
class Arm:
    """A model of a row of Table 8, opened when it is asked for."""

    name: str
    seed: int
    open: Callable[[], Subject]
    run: Run | None = None  # of the pre-training, where there was one

    @property
    def folder(self) -> str:
        """Of its results."""
        plain = self.name.replace(", ", "-").replace("/", "-").replace(" ", "-")
        return f"{plain}-seed-{self.seed}"


def encoder_subject(encoder: Encoder, pieces: BytePieces, *, device: str) -> Subject:
    """An encoder of ours as `inspect` reads those of Hugging Face: its outputs are the same."""
    placed = copy.deepcopy(encoder).eval().to(chosen_device(device))
    tokenizer = padding_right(pieces.hugging_face())
    return HuggingFaceSubject(adopt(to_hugging_face(placed)), tokenizer)


def untrained(shape: EncoderConfig, pieces: BytePieces, *, seed: int, device: str) -> Arm:
    """The first weights of an encoder."""

    def opened() -> Subject:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return encoder_subject(Encoder(shape), pieces, device=device)

    return Arm("random", seed, opened)


def runs_of(folders: Sequence[str], arm: str, *, layers: int) -> list[tuple[int, Run]]:
    """Seeds and finished pre-training runs of an arm below some folders, the first folder first.

    Args:
        folders: of experiments, each with runs like `mlm-12-seed-0` below it.
        arm: one of `ARMS`.
        layers: of the encoders.
    """
    found: dict[int, Run] = {}
    for folder in folders:
        if not Path(folder).is_dir():
            raise ValueError(f"There is no folder {folder} with pre-trained encoders; check it.")
        for path in sorted(Path(folder).glob(f"{ARMS[arm]}-{layers}-seed-*")):
            if (path / "figures.json").is_file():
                found.setdefault(int(path.name.rpartition("-")[2]), Run.open(path))
    return sorted(found.items())


def trained_arms(folders: Sequence[str], *, layers: int, device: str) -> Iterator[Arm]:
    """Every pre-trained encoder, and as many that are not trained."""
    for name in ARMS:
        for seed, run in runs_of(folders, name, layers=layers):
            yield Arm(name, seed, lambda run=run: _opened(run, device), run)
            if name == "MLM":
                model, pieces = load_pretrained(run)
                yield untrained(model.encoder.config, pieces, seed=seed, device=device)


def given_arms(models: Sequence[str], *, seed: int, device: str) -> Iterator[Arm]:
    """Models of Hugging Face, written NAME=FOLDER, and the same with weights drawn anew."""
    for given in models:
        name, mark, folder = given.partition("=")
        if not mark or not name or not folder:
            raise ValueError(
                f"A model is given as NAME=FOLDER, e.g. bert=models/bert, got {given!r}."
            )
        yield Arm(name, seed, lambda folder=folder: open_subject(Path(folder), device=device))
        yield Arm(f"{name}, random", seed, lambda folder=folder: _redrawn(folder, seed, device))


def _opened(run: Run, device: str) -> Subject:
    model, pieces = load_pretrained(run)
    return encoder_subject(model.encoder, pieces, device=device)


def _redrawn(folder: str, seed: int, device: str) -> Subject:
    subject = open_subject(Path(folder), device=device)
    assert isinstance(subject, HuggingFaceSubject)
    release(subject.model)
    config = copy.deepcopy(subject.model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = type(subject.model)(config).eval()
    return HuggingFaceSubject(adopt(model.to(chosen_device(device))), subject.tokenizer)
