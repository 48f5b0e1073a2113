"""A Hugging Face model and its tokenizer, as inspections read them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.sites import find_sites
from headwise.workflows.inspect.identity import tokenizer_rules
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import (
    MAX_TOKENS,
    NO_WORD,
    Output,
    Predicts,
    Prepared,
    check_special,
    no_token,
    without,
    word_numbers,
)

__all__ = ["HuggingFaceSubject"]

LARGEST_LENGTH = 10**9  # a tokenizer that names more names no limit: transformers writes 10^30
MAX_TRANSLATION = 64  # tokens of a translation that the decoder is looked at with
PASSING = ("_name_or_path", "transformers_version")  # settings that change nothing


@dataclass(frozen=True)
class _Row:
    """One sentence in one stack: a token, its word and its name at each real position."""

    numbers: list[int]
    names: list[str]
    texts: Sequence[str]  # what the words are


@dataclass(frozen=True, eq=False)
class HuggingFaceSubject:
    """An adopted Hugging Face model and its tokenizer.

    Pieces belong to words by where they stand in the text, which only fast tokenizers say; with
    another one every piece counts as a word. Special tokens that the tokenizer adds are no words,
    but for the one before a translation, the last where there are several (in mBART the language
    follows the mark that begins): there its first word is predicted.
    """

    model: Any  # a PreTrainedModel; the classes of its kinds share no typed forward or generate
    tokenizer: Any
    special: frozenset[str] = frozenset()  # more tokens that are not to count as words
    max_translation: int = MAX_TRANSLATION  # tokens
    reads_references: bool = False

    def __post_init__(self) -> None:
        if self.special:
            check_special(self.special, self.tokenizer.get_vocab())

    @property
    def description(self) -> bytes:
        settings = self.model.config.to_dict()
        named = {name: value for name, value in settings.items() if name not in PASSING}
        return json.dumps(
            [named, tokenizer_rules(self.tokenizer)], sort_keys=True, default=str
        ).encode()

    @property
    def room(self) -> int:
        """The smaller of what model and tokenizer name; MAX_TOKENS where neither names any."""
        named = self.tokenizer.model_max_length
        limits = [*self._limits, *([named] if named < LARGEST_LENGTH else [])]
        return min(limits, default=MAX_TOKENS)

    @property
    def knows_words(self) -> bool:
        return bool(getattr(self.tokenizer, "is_fast", False))

    @property
    def mask_id(self) -> int | None:
        return getattr(self.tokenizer, "mask_token_id", None)

    def prepare(self, sentences: Sequence[Sentence]) -> Prepared:
        texts = [sentence.text for sentence in sentences]
        encoded = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.room,
            return_special_tokens_mask=True,
            return_overflowing_tokens=False,
            return_offsets_mapping=self.knows_words,
            return_tensors="pt",
        )
        if not encoded["input_ids"].shape[1]:
            raise no_token(texts[0])
        added = encoded.pop("special_tokens_mask").tolist()
        places = encoded.pop("offset_mapping").tolist() if self.knows_words else None
        inputs = {name: tensor.to(self._device) for name, tensor in encoded.items()}
        rows: dict[str, list[_Row]] = {self._first: []}
        for item, sentence in enumerate(sentences):
            real = int(encoded["attention_mask"][item].sum())
            names = self._names(encoded["input_ids"][item, :real].tolist())
            spans = [(a, b) for a, b in places[item][:real]] if places is not None else None
            rows[self._first].append(_read(sentence, names, added[item][:real], spans))
        full = (encoded["attention_mask"].sum(dim=1) >= self.room).tolist()
        pairs = zip(sentences, full, strict=True)
        cut = self._too_long([one.text for one, fills in pairs if fills and not one.cut])
        cut += sum(sentence.cut for sentence in sentences)
        unfinished = 0
        if self._translates:
            inputs["decoder_input_ids"], rows["decoder"], unfinished = self._target(inputs)
        return self._prepared(inputs, rows, truncated=cut, unfinished=unfinished)

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        output = self.model(**inputs)
        if "last_hidden_state" in output:
            return Output(output.last_hidden_state, "nothing")
        # a model with several outputs, such as start and end of an answer, names the main one first
        values: Tensor = output["logits"] if "logits" in output else output[0]
        return Output(values, self._predicts(values))

    def look(self, inputs: Mapping[str, Tensor]) -> None:
        self._body(**inputs)

    @cached_property
    def _body(self) -> Any:
        """The model without its head, whose scores of all words may be larger than all the rest."""
        body = self.model.base_model if isinstance(self.model, PreTrainedModel) else self.model
        holds_all = body is self.model or _site_names(body) == _site_names(self.model)
        return body if holds_all else self.model

    def _prepared(
        self,
        inputs: dict[str, Tensor],
        rows: dict[str, list[_Row]],
        *,
        truncated: int,
        unfinished: int,
    ) -> Prepared:
        widths = {self._first: inputs["input_ids"].shape[1]}
        if self._translates:
            widths["decoder"] = inputs["decoder_input_ids"].shape[1]
        words = {
            stack: word_numbers(
                without([row.numbers for row in of], [row.names for row in of], self.special),
                width=widths[stack],
                device=self._device,
            )
            for stack, of in rows.items()
        }
        tokens = [
            {stack: of[item].names for stack, of in rows.items()}
            for item in range(len(rows[self._first]))
        ]
        texts = {stack: [row.texts for row in of] for stack, of in rows.items()}
        return Prepared(inputs, words, texts, tokens, truncated, unfinished)

    def _predicts(self, values: Tensor) -> Predicts:
        if values.dim() == 2:
            return "class"
        if self.model.get_output_embeddings() is None:
            return "label"
        if self._translates or self.causal:
            return "next"
        return "label" if self.mask_id is None else "masked"

    def _too_long(self, texts: Sequence[str]) -> int:
        """Of texts that fill the room, how many do not fit."""
        if not texts:
            return 0
        room = self.room
        # one token more than fits is enough to know, and draws no warning
        longer = self.tokenizer(list(texts), truncation=True, max_length=room + 1)["input_ids"]
        return sum(len(ids) > room for ids in longer)

    def _target(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[_Row], int]:
        """What the decoder reads, the words that it makes, and how many rows were cut."""
        generates = self.model.can_generate()
        made_BT = self._translated(inputs) if generates else self._shifted(inputs["input_ids"])
        real_BT = ~torch.isin(made_BT, self._end_marks(made_BT.device))
        real_BT[:, 0] = True  # many models begin the target with their padding token
        cut = int(real_BT.all(dim=1).sum()) if generates else 0
        # the end mark is predicted, never looked at: what follows it is padding
        width = max(1, made_BT.shape[1] - generates)
        lengths = real_BT[:, :width].long().cumprod(dim=1).sum(dim=1).tolist()
        rows = zip(made_BT.tolist(), lengths, strict=True)
        return made_BT[:, :width], [self._written(ids[:length]) for ids, length in rows], cut

    def _written(self, ids: list[int]) -> _Row:
        """The words of ids that a model made, after the marks that begin them."""
        names, marks = self._names(ids), set(self.tokenizer.all_special_ids)
        begin = self._begins_at(ids)
        before, rest = [NO_WORD] * begin, ids[begin + 1 :]
        if not self.knows_words:
            return _Row([*before, *range(len(rest) + 1)], names, names[begin:])
        decoded = [
            self.tokenizer.decode(
                rest[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            for end in range(len(rest) + 1)
        ]
        sentence = Sentence.of_text(decoded[-1])
        spans = [(len(a), len(b)) for a, b in pairwise(decoded)]
        known = sentence.words_of(spans) if sentence.words else [NO_WORD] * len(spans)
        pieces = [
            NO_WORD if mark in marks or number == NO_WORD else number + 1
            for mark, number in zip(rest, known, strict=True)
        ]
        return _Row([*before, 0, *pieces], names, [names[begin], *sentence.words])

    def _begins_at(self, ids: list[int]) -> int:
        """The last of the marks before a translation: BART writes a second, mBART a language."""
        words = {self.tokenizer.unk_token_id, self.mask_id}  # of which they stand for one
        marks = set(self.tokenizer.all_special_ids) - words
        forced = getattr(self.model, "generation_config", None)
        marks |= {getattr(forced, "forced_bos_token_id", None)}
        return next(
            (place - 1 for place in range(1, len(ids)) if ids[place] not in marks), len(ids) - 1
        )

    def _translated(self, inputs: Mapping[str, Tensor]) -> Tensor:
        most = min(self.max_translation, self.room - 1)  # the beginning mark
        # BART writes its end mark at the limit, as if it had ended: that is not to be believed
        return self.model.generate(
            **inputs, max_new_tokens=most, do_sample=False, num_beams=1, forced_eos_token_id=None
        )

    def _shifted(self, source_BT: Tensor) -> Tensor:
        """The source one position later, as BART reads it where there is nothing to generate."""
        start = self._setting("decoder_start_token_id")
        start_B1 = torch.full_like(
            source_BT[:, :1], self._setting("pad_token_id") if start is None else start
        )
        return torch.cat([start_B1, source_BT[:, :-1]], dim=1)

    def _end_marks(self, device: torch.device) -> Tensor:
        ends = getattr(self.model, "generation_config", self.model.config).eos_token_id
        listed = ends if isinstance(ends, list) else [ends]
        known = [mark for mark in [*listed, self._setting("pad_token_id")] if mark is not None]
        return torch.tensor(known, dtype=torch.long, device=device)

    def _setting(self, name: str) -> Any:
        """A setting of the model, or of the part that reads text; None if neither has it."""
        config = self.model.config
        found = getattr(config, name, None)
        return getattr(config.get_text_config(), name, None) if found is None else found

    def _names(self, ids: list[int]) -> list[str]:
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        # a model's vocabulary may be larger than its tokenizer's
        return [f"<{i}>" if t is None else t for i, t in zip(ids, tokens, strict=True)]

    @property
    def _first(self) -> str:
        """The stack that reads the text."""
        return "encoder" if self._translates or not self.causal else "decoder"

    @property
    def _translates(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    @cached_property
    def causal(self) -> bool:
        """Whether its positions see only what is before them, somewhere in the model."""
        return any(getattr(module, "is_causal", False) for module in self.model.modules())

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def _limits(self) -> list[int]:
        return list(self._positions())

    def _positions(self) -> Iterator[int]:
        """What the model says of how many positions it has, if it does."""
        if named := getattr(self.model.config, "max_position_embeddings", None):
            yield named
        for name, module in self.model.named_modules():
            # RoBERTa and its kin count positions from the one after that of padding
            if name.split(".")[-1] == "position_embeddings" and isinstance(module, nn.Embedding):
                before = 0 if module.padding_idx is None else module.padding_idx + 1
                yield module.num_embeddings - before


def _site_names(model: nn.Module) -> list[str]:
    return [site.name for site in find_sites(model)]


def _read(
    sentence: Sentence,
    names: list[str],
    added: Sequence[int],
    spans: Sequence[tuple[int, int]] | None,
) -> _Row:
    """The words of a text's tokens; of each token, whether it was added and where it stands."""
    if spans is None:
        counted = accumulate(1 - mark for mark in added)
        numbers = [NO_WORD if mark else c - 1 for c, mark in zip(counted, added, strict=True)]
        return _Row(numbers, names, [n for n, mark in zip(names, added, strict=True) if not mark])
    numbers = [
        NO_WORD if mark else number
        for number, mark in zip(sentence.words_of(spans), added, strict=True)
    ]
    return _Row(numbers, names, sentence.words)
