"""Captioning: train a model that describes images, and describe those of the test part.

    headwise train caption --corpus flickr8k --attention topk:8

Everything is written to a run folder; an interrupted training resumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from headwise.config import to_json
from headwise.recording import Run
from headwise.training import FitConfig, Summed, check_at_least, fit, label_smoothed_sum
from headwise_papers.data.captions import (
    CaptionBatch,
    CaptionData,
    CaptionPart,
    CaptionStream,
    read_captions,
)
from headwise_papers.data.vocabulary import BOS, EOS, PAD, Vocabulary
from headwise_papers.measures.scores import caption_scores
from headwise_papers.models import beam
from headwise_papers.models.caption import CaptionConfig, CaptionModel
from headwise_papers.recipes.training_run import (
    Clock,
    checksum_of,
    choose_weights,
    complete_report,
    fit_here,
    is_first_process,
    shared_run,
    training_bar,
    training_figures,
)
from headwise_papers.recipes.translator import (
    check_trained,
    load_weights,
    mean_loss,
    read_vocabulary,
)


@dataclass(frozen=True)
class CaptioningConfig:
    """Settings of `train_captioning`."""

    corpus: Literal["flickr8k"] = "flickr8k"
    features: str = ""  # safetensors file with one tensor per image name, instead of pixels
    train_images: int = 0  # number of images of a part, the first ones; 0: all
    valid_images: int = 0
    test_images: int = 0
    minimum_count: int = 5  # words seen less often in training are unknown
    model: CaptionConfig = CaptionConfig(encoder="convolution", dropout=0.2)
    label_smoothing: float = 0.1
    batch_size: int = 64  # images
    beams: int = 4  # beam size for the test images
    length_penalty: float = 0.6
    fit: FitConfig = FitConfig()

    def __post_init__(self) -> None:
        check_at_least(1, self, "batch_size", "beams", "minimum_count")
        check_at_least(0, self, "train_images", "valid_images", "test_images", "length_penalty")
        if min(self.model.encoder_layers, self.model.decoder_layers) < 1:
            raise ValueError("The model must have at least 1 layer in encoder and decoder.")
        if self.model.vocab or self.model.encoder == "features":
            raise ValueError(
                "The vocabulary, and the encoder of features, follow from the data; leave them out "
                "of model, and give features=FILE."
            )

    def shape(self, vocab: int, *, feature_width: int = 0) -> CaptionConfig:
        """Return the model's settings with its vocabulary, and the width of features if any."""
        features = {"encoder": "features", "feature_width": feature_width}
        return replace(self.model, vocab=vocab, **(features if feature_width else {}))


@dataclass(frozen=True, eq=False)
class Captioner:
    """A captioning model with its vocabulary: images in, captions out."""

    model: CaptionModel
    vocabulary: Vocabulary

    def describe(
        self, images: Tensor, *, beams: int = 4, length_penalty: float = 0.6, batch: int = 100
    ) -> list[list[str]]:
        """Return the words of a caption for each image.

        Args:
            images: pixels, (N, 3, S, S), or features, (N, R, F).
            beams: beam size.
            length_penalty: more favours longer captions.
            batch: images described together.
        """
        self.model.eval()
        device, most = self.model.read_out.weight.device, self.model.config.max_length - 1
        found: list[list[str]] = []
        for part in images.split(batch):
            there = part.to(device)
            lengths = self.model.source_lengths(there)
            hypotheses = beam(
                self.model,
                there,
                lengths,
                bos=BOS,
                eos=EOS,
                max_length=most,
                beams=beams,
                length_penalty=length_penalty,
            )
            found += [self.vocabulary.decode(hypothesis.ids) for hypothesis in hypotheses]
        return found

    def save(self, run: Run) -> None:
        """Write everything that `load` needs into a run."""
        run.write_json("model.json", to_json(self.model.config))
        run.write_text("vocabulary.json", self.vocabulary.to_json())
        run.save_tensors("model.safetensors", self.model.state_dict())

    @staticmethod
    def load(run: Run) -> "Captioner":
        """Return the captioner of a finished run."""
        check_trained(run)
        model = CaptionModel(run.read_settings("model.json", CaptionConfig))
        load_weights(model, run)
        words = read_vocabulary(run, "vocabulary.json")
        return Captioner(model.eval(), words)


def train_captioning(config: CaptioningConfig, folder: Path) -> Run:
    """Train, and describe the test images; return the finished run.

    It holds `model.safetensors` and `vocabulary.json`, `captions.txt` (one line per test image),
    `figures.json` with BLEU-4, CIDEr and METEOR where `pycocoevalcap` is installed, and
    `report.html`.

    Args:
        config: the settings.
        folder: of the run; an unfinished one is resumed, if the data have not changed.
    """
    data = _data(config)
    parts = (data.train, data.valid, data.test)
    checksum = checksum_of(
        *(some for part in parts for some in (part.names, part.captions, _images(part)))
    )
    with shared_run(folder, config, "captioning", data=checksum) as run:
        if not run.has("figures.json"):
            captioner = _untrained(config, data)
            note = _train(config, run, captioner, data)
            if is_first_process():
                _finish(config, run, captioner, data.test, note)
        complete_report(run)
    return run


def _data(config: CaptioningConfig) -> CaptionData:
    features: dict[str, Tensor] | None = None
    if config.features:
        if not Path(config.features).is_file():
            raise ValueError(f"There is no file of features {config.features}; check the path.")
        features = load_file(config.features)
    data = read_captions(
        size=config.model.image_size, features=features, minimum_count=config.minimum_count
    )
    return replace(
        data,
        train=_first(data.train, config.train_images),
        valid=_first(data.valid, config.valid_images),
        test=_first(data.test, config.test_images),
    )


def _first(part: CaptionPart, count: int) -> CaptionPart:
    if not count:
        return part
    return CaptionPart(part.names[:count], part.captions[:count], _images(part)[:count])


def _images(part: CaptionPart) -> Tensor:
    assert part.images is not None  # left out only where they are not asked for
    return part.images


def _untrained(config: CaptioningConfig, data: CaptionData) -> Captioner:
    width = _images(data.train).shape[-1] if config.features else 0
    torch.manual_seed(config.fit.seed)
    model = CaptionModel(config.shape(len(data.vocabulary), feature_width=width))
    return Captioner(model, data.vocabulary)


def _train(
    config: CaptioningConfig, run: Run, captioner: Captioner, data: CaptionData
) -> dict[str, Any]:
    """Train in place, load the weights that validate best, and return which they are."""
    train, valid = (_stream(config, captioner, part) for part in (data.train, data.valid))
    held_out = [valid(number) for number in range(valid.per_epoch)]
    lengths = captioner.model.source_lengths

    def scores(model: nn.Module, batch: CaptionBatch) -> Tensor:
        return model(batch.images, lengths(batch.images), batch.target_in)

    def loss(model: nn.Module, batch: CaptionBatch) -> Summed:
        logits_BTV, smoothing = scores(model, batch), config.label_smoothing
        return label_smoothed_sum(logits_BTV, batch.target_out, pad=PAD, smoothing=smoothing)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        device = captioner.model.read_out.weight.device
        return {"validation_loss": mean_loss(partial(scores, model), held_out, device)}

    with training_bar(config.fit.steps) as show:
        fit(
            captioner.model,
            loss,
            train,
            run=run,
            config=fit_here(config.fit, replayable=True),
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=show,
            evaluate=Clock(run).timed(evaluate),
        )
    return {"weights": choose_weights(run, captioner.model, evaluate)}


def _stream(config: CaptioningConfig, captioner: Captioner, part: CaptionPart) -> CaptionStream:
    most = config.model.max_length - 1  # one special token is added
    encode = captioner.vocabulary.encode
    captions = [[encode(words)[:most] for words in five] for five in part.words()]
    return CaptionStream(
        _images(part), captions, batch_size=config.batch_size, seed=config.fit.seed
    )


def _finish(
    config: CaptioningConfig,
    run: Run,
    captioner: Captioner,
    test: CaptionPart,
    note: dict[str, Any],
) -> None:
    """Save the captioner, describe the test images and score it."""
    captioner.save(run)
    found = captioner.describe(
        _images(test), beams=config.beams, length_penalty=config.length_penalty
    )
    run.write_text("captions.txt", "".join(f"{' '.join(words)}\n" for words in found))
    figures = _scores(found, test.words())
    run.save_figures({**figures, **note, **training_figures(run, captioner.model)})


def _scores(found: list[list[str]], wanted: list[list[list[str]]]) -> dict[str, float | str]:
    """Return BLEU-4, CIDEr and METEOR with their signatures, or the reason why one is missing."""
    if find_spec("pycocoevalcap") is None:
        return {"not_scored": "Scores of captions need pycocoevalcap: headwise[captions]."}
    scores = caption_scores(found, wanted)
    named = {"bleu_4": scores.bleu_4, "cider": scores.cider, "meteor": scores.meteor}
    figures: dict[str, float | str] = {}
    for name, score in named.items():
        if score is not None:
            figures |= {name: score.value, f"{name}_signature": score.signature}
    return figures | ({"not_scored": scores.skipped} if scores.skipped else {})
