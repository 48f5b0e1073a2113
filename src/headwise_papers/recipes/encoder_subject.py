"""Pre-trained encoders and fine-tuned classifiers, as inspections read them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.config import to_json
from headwise.hf import adopt
from headwise.recording import Run
from headwise.workflows.inspect import (
    NO_WORD,
    HuggingFaceSubject,
    Output,
    Prepared,
    Sentence,
    Subject,
    check_finite,
    check_special,
    no_token,
    padding_right,
    without,
    word_numbers,
)
from headwise_papers.data.batches import pad
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.models.encoder import Encoder
from headwise_papers.models.encoder_heads import (
    MaskedLM,
    MaskedLMWithNextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
)
from headwise_papers.recipes.classifier import Classifier
from headwise_papers.recipes.pretraining import load_pretrained
from headwise_papers.recipes.pretraining_data import PretrainingModel


@dataclass(frozen=True, eq=False)
class EncoderSubject:
    """An encoder with or without its pre-training head; its special tokens are no words.

    Any attention is possible, while Hugging Face's encoders have only softmax. Predictions of
    replaced tokens are not used.
    """

    model: Encoder | MaskedLM | MaskedLMWithNextSentence | ReplacedToken
    pieces: ByteLevelCodec
    special: frozenset[str] = frozenset()  # more tokens that are not to count as words
    knows_words: bool = True
    reads_references: bool = False

    def __post_init__(self) -> None:
        if self.special:
            check_special(self.special, self.pieces.tokenizer.get_vocab())

    @property
    def description(self) -> bytes:
        parts = [type(self.model).__name__, to_json(self._encoder.config), self.pieces.definition]
        return json.dumps(parts, sort_keys=True).encode()

    @property
    def max_tokens(self) -> int:
        return self._encoder.config.max_length - 2  # the special tokens

    @property
    def mask_id(self) -> int | None:
        return self.pieces.mask if self._guesses else None

    def prepare(self, sentences: Sequence[Sentence]) -> Prepared:
        most, ends = self.max_tokens, (self.pieces.begin, self.pieces.end)
        device = self._encoder.embed.words.weight.device
        found = [self._encoded(sentence.text) for sentence in sentences]
        padded = pad([[ends[0], *one.ids[:most], ends[1]] for one in found], value=self.pieces.pad)
        numbers = [
            [NO_WORD, *sentence.words_of(one.offsets[:most]), NO_WORD]
            for sentence, one in zip(sentences, found, strict=True)
        ]
        first, last = map(self.pieces.piece, ends)
        names = [[first, *one.tokens[:most], last] for one in found]
        width = padded.ids.shape[1]
        words = word_numbers(without(numbers, names, self.special), width=width, device=device)
        return Prepared(
            inputs={"input_ids": padded.ids.to(device), "lengths": padded.lengths.to(device)},
            words={"encoder": words},
            texts={"encoder": [sentence.words for sentence in sentences]},
            tokens=[{"encoder": row} for row in names],
            truncated=sum(
                sentence.cut or len(one.ids) > most
                for sentence, one in zip(sentences, found, strict=True)
            ),
        )

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        ids_BT, lengths_B = inputs["input_ids"], inputs["lengths"]
        if not isinstance(self.model, MaskedLM | MaskedLMWithNextSentence):
            return Output(self._encoder(ids_BT, lengths=lengths_B), "nothing")
        everywhere_N = torch.arange(ids_BT.numel(), device=ids_BT.device)
        found = self.model(ids_BT, everywhere_N, lengths=lengths_B)
        scores_NV = found if isinstance(found, Tensor) else found.words
        return Output(scores_NV.view(*ids_BT.shape, -1), "masked")

    def attend(self, inputs: Mapping[str, Tensor]) -> None:
        self._encoder(inputs["input_ids"], lengths=inputs["lengths"])

    @property
    def _encoder(self) -> Encoder:
        return self.model if isinstance(self.model, Encoder) else self.model.encoder

    @property
    def _guesses(self) -> bool:
        return isinstance(self.model, MaskedLM | MaskedLMWithNextSentence)

    def _encoded(self, text: str) -> Any:
        found = self.pieces.tokenizer.encode(text, add_special_tokens=False)
        if not found.ids:
            raise no_token(text)
        return found


def encoder_subject(
    model: PretrainingModel | Encoder, pieces: ByteLevelCodec, *, special: Sequence[str] = ()
) -> Subject:
    """Make the subject of an encoder, as a Hugging Face model where there is one like it.

    Args:
        model: on the device where it is to be.
        pieces: its tokenizer.
        special: more tokens that are not to count as words.
    """
    from headwise_papers.models.encoder_weights import to_hugging_face  # lazy: takes seconds

    config = model.config if isinstance(model, Encoder) else model.encoder.config
    if config.attention != "softmax":
        return EncoderSubject(model.eval(), pieces, frozenset(special))
    if isinstance(model, MaskedLMWithNextSentence):  # what reads one text has no use for pairs
        both, model = model, MaskedLM(model.encoder)
        model.words = both.words
    tokenizer = padding_right(pieces.hugging_face(max_length=config.max_length))
    tokenizer.split_special_tokens = True  # what a text says is text, as when it was pre-trained
    return HuggingFaceSubject(adopt(to_hugging_face(model).eval()), tokenizer, frozenset(special))


def classifier_subject(classifier: Classifier, *, special: Sequence[str] = ()) -> Subject:
    """Make the subject of a classifier, as a Hugging Face model, or of its encoder.

    Args:
        classifier: on the device where it is to be.
        special: more tokens that are not to count as words.
    """
    from headwise_papers.models.encoder_weights import to_hugging_face  # lazy: takes seconds

    model, tokenizer = classifier.model, classifier.tokenizer()
    check_finite(model)
    if isinstance(model, SequenceClassifier | TokenClassifier):
        if model.encoder.config.attention != "softmax":
            pieces = ByteLevelCodec(classifier.pieces.definition)
            return EncoderSubject(model.encoder.eval(), pieces, frozenset(special))
        model = to_hugging_face(model)
        names = dict(enumerate(classifier.classes))
        model.config.id2label = names
        model.config.label2id = {name: number for number, name in names.items()}
    return HuggingFaceSubject(adopt(model.eval()), tokenizer, frozenset(special))


def open_pretraining(folder: Path, *, special: Sequence[str], device: torch.device) -> Subject:
    """Open a run of `headwise train mlm` or `electra` for an inspection."""
    trained = load_pretrained(Run.open(folder))
    check_finite(trained.model)
    return encoder_subject(trained.model.to(device), trained.pieces, special=special)


def open_classifier(folder: Path, *, special: Sequence[str], device: torch.device) -> Subject:
    """Open one training of `headwise train classifier` for an inspection."""
    classifier = Classifier.load(Run.open(folder))
    classifier.model.to(device)
    return classifier_subject(classifier, special=special)
