"""Encoders to look at: pre-trained by us, saved by Hugging Face, or as they are before training."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.config import flat
from headwise.hf import adopt, release
from headwise.recording import Run
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.inspect.opening import chosen_device, open_subject
from headwise.workflows.inspect.subject import Subject
from headwise_papers.attention_guidance._pretraining import ASIDE
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.recipes.encoder_subject import encoder_subject
from headwise_papers.recipes.pretraining import load_pretrained

__all__ = [
    "ARMS",
    "RANDOM",
    "RULE",
    "Arm",
    "check_given",
    "check_layers",
    "given_arms",
    "layers_in",
    "runs_of",
    "trained_arms",
    "untrained",
]

# what each arm is called, and how the folders of its pre-training runs begin
ARMS = {"MLM": "mlm", "guided 1/2": "guided", "guided 1": "guided-1"}
# in what arms and their seeds may differ
GUIDANCE = (*ASIDE, "fit.seed")
RANDOM, RULE = "random", "rule"  # encoders that nobody trained, and what needs none


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
        return f"{_plain(self.name)}-seed-{self.seed}"


def _plain(name: str) -> str:
    """A name as folders have it."""
    return name.replace(", ", "-").replace("/", "-").replace(" ", "-")


def untrained(shape: EncoderConfig, pieces: ByteLevelCodec, *, seed: int, device: str) -> Arm:
    """The first weights of an encoder."""

    def opened() -> Subject:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return encoder_subject(Encoder(shape).to(chosen_device(device)), pieces)

    return Arm(RANDOM, seed, opened)


def runs_of(folders: Sequence[str], arm: str, *, layers: int) -> list[tuple[int, Run]]:
    """Seeds and finished pre-training runs of an arm below some folders, the first folder first.

    Args:
        folders: of experiments, each with runs like `mlm-12-seed-0` below it.
        arm: one of `ARMS`.
        layers: of the encoders.
    """
    found: dict[int, Run] = {}
    for folder in folders:
        for its_arm, its_layers, seed, path in _runs_in(folder):
            if (its_arm, its_layers) == (arm, layers):
                found.setdefault(seed, Run.open(path))
    return sorted(found.items())


def check_layers(folder: str, layers: int) -> None:
    """Refuse a folder without a finished pre-training of so many layers."""
    there = layers_in(folder)
    if layers not in there:
        known = f"some with {' and '.join(map(str, there))}" if there else "none at all"
        names = ", ".join(f"{name}-{layers}-seed-0" for name in ARMS.values())
        raise ValueError(
            f"{folder} was to hold finished pre-trainings with {layers} layers, in folders such as "
            f"{names}, but holds {known}; set layers, or give another folder."
        )


def layers_in(folder: str) -> list[int]:
    """Of how many layers there are finished pre-trainings in a folder."""
    return sorted({layers for _, layers, _, _ in _runs_in(folder)})


def _runs_in(folder: str) -> Iterator[tuple[str, int, int, Path]]:
    """Arm, layers, seed and folder of all finished pre-trainings."""
    if not Path(folder).is_dir():
        raise ValueError(f"There is no folder {folder} with pre-trained encoders; check it.")
    for path in sorted(Path(folder).iterdir()):
        for arm, name in ARMS.items():
            numbers = re.fullmatch(rf"{name}-(\d+)-seed-(\d+)", path.name)
            if numbers and (path / "figures.json").is_file():
                yield arm, int(numbers[1]), int(numbers[2]), path


def trained_arms(folders: Sequence[str], *, layers: int, device: str) -> Iterator[Arm]:
    """Every pre-trained encoder, and as many that are not trained; no folder may be without any.

    All were trained alike but for guidance, or nothing could be said of it.
    """
    for folder in folders:
        check_layers(folder, layers)
    runs = {name: runs_of(folders, name, layers=layers) for name in ARMS}
    _check_alike([run for several in runs.values() for _, run in several])
    for name, several in runs.items():
        for seed, run in several:
            yield Arm(name, seed, lambda run=run: _opened(run, device), run)
            if name == "MLM":
                shape = run.read_settings("model.json", EncoderConfig)
                pieces = ByteLevelCodec.load(run.path("tokenizer.json"))
                yield untrained(shape, pieces, seed=seed, device=device)


def _check_alike(runs: Sequence[Run]) -> None:
    """Refuse pre-trainings that differ in more than guidance and their seeds."""
    known = [flat(run.config()) for run in runs]
    for run, settings in zip(runs, known, strict=True):
        for name, value in settings.items():
            if name not in GUIDANCE and not name.startswith("guide.") and value != known[0][name]:
                raise ValueError(
                    f"{run.folder} was trained with {name}={value!r}, but {runs[0].folder} with "
                    f"{name}={known[0][name]!r}; arms may differ in guidance alone, so give "
                    "folders whose encoders were trained alike."
                )


def given_arms(models: Sequence[str], *, seed: int, device: str) -> Iterator[Arm]:
    """Models of Hugging Face, written NAME=FOLDER, and the same with weights drawn anew."""
    check_given(models)
    for given in models:
        name, _, folder = given.partition("=")
        redrawn = f"{name}, {RANDOM}"
        yield Arm(name, seed, lambda folder=folder: open_subject(Path(folder), device=device))
        yield Arm(redrawn, seed, lambda folder=folder: _redrawn(folder, seed, device))


def check_given(models: Sequence[str]) -> None:
    """Refuse models that are not written NAME=FOLDER, with a name of their own and a folder."""
    taken = {_plain(name) for name in (*ARMS, RANDOM, RULE)}
    for given in models:
        name, mark, folder = given.partition("=")
        if not mark or not name or not folder:
            raise ValueError(
                f"A model is given as NAME=FOLDER, e.g. bert=models/bert, got {given!r}."
            )
        names = {_plain(name), _plain(f"{name}, {RANDOM}")}
        if taken & names:
            raise ValueError(f"Another model has the name {name!r} of {given!r}; choose another.")
        taken |= names
    for given in models:
        folder = given.partition("=")[2]
        if not Path(folder).is_dir():
            raise ValueError(f"There is no folder {folder} with a model; check {given!r}.")


def _opened(run: Run, device: str) -> Subject:
    model, pieces = load_pretrained(run)
    return encoder_subject(model.encoder.to(chosen_device(device)), pieces)


def _redrawn(folder: str, seed: int, device: str) -> Subject:
    subject = open_subject(Path(folder), device=device)
    assert isinstance(subject, HuggingFaceSubject)
    release(subject.model)
    config = copy.deepcopy(subject.model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = type(subject.model)(config).eval()
    return HuggingFaceSubject(adopt(model.to(chosen_device(device))), subject.tokenizer)
