"""Hugging Face models as inspections read them: tokenizing, generating, and what is refused."""

import copy
import inspect
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.hf import adopt, release
from headwise.hf.adoption import innermost, is_adopted, positions_of, unwrapped
from headwise.sites import eval_mode, find_sites
from headwise.workflows.inspect.config import MAX_TRANSLATION
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import (
    MAX_TOKENS,
    NO_WORD,
    Output,
    Predicts,
    Prepared,
    Subject,
    check_special,
    no_token,
    without,
    word_numbers,
)

LARGEST_LENGTH = 10**9  # a tokenizer without a limit names 10^30
PASSING = ("_name_or_path", "transformers_version")  # settings that change nothing
OF_TEXT = ("input_ids", "attention_mask")  # inputs that a tokenizer gives every model
OF_OTHERS = ("pixel_values", "input_features", "input_values")  # images and sound
COUNTS = ("num_codebooks", "num_channels")  # tokens that a decoder of sound has at each position
NEEDED = {"udop": "bbox"}  # by type: the signature has it as optional
COMPARES = ("bridgetower", "idefics")  # need images, which neither methods nor signature say


@dataclass(frozen=True)
class _Row:
    """One sentence in one stack: at each position a token, its word and its inputs."""

    numbers: list[int]  # of words
    names: list[str]  # of tokens
    texts: Sequence[str]  # of words
    inputs: Mapping[str, list[int]] = field(default_factory=dict[str, list[int]])
    truncated: bool = False


@dataclass(frozen=True, eq=False)
class HuggingFaceSubject:
    """An adopted Hugging Face model and its tokenizer.

    A token belongs to a word by its place in the text, which only fast tokenizers say; with
    another tokenizer every token counts as a word. Special tokens that the tokenizer adds are no
    words. The exception is the last special token before a translation (in mBART the language
    follows the first one): there the first word is predicted.
    """

    model: Any  # a PreTrainedModel; the classes of its kinds share no typed forward or generate
    tokenizer: Any
    special: frozenset[str] = frozenset()  # more tokens that are not to count as words
    max_translation: int = MAX_TRANSLATION  # tokens
    reads_references: bool = False
    # rows live as long as their sentences, so that a sentence is tokenized once
    _rows: WeakKeyDictionary[Sentence, _Row] = field(
        default_factory=WeakKeyDictionary[Sentence, _Row], init=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.special:
            check_special(self.special, self.tokenizer.get_vocab())

    @property
    def description(self) -> bytes:
        settings = self.model.config.to_dict()
        named = {name: value for name, value in settings.items() if name not in PASSING}
        return json.dumps(
            [named, _tokenizer_rules(self.tokenizer)], sort_keys=True, default=str
        ).encode()

    @property
    def max_tokens(self) -> int:
        """The smaller limit of model and tokenizer; MAX_TOKENS where neither has one."""
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
        rows = {self._first: self._tokenized(sentences)}
        inputs = {
            name: self._padded([row.inputs[name] for row in rows[self._first]], name)
            for name in rows[self._first][0].inputs
        }
        if not inputs["input_ids"].shape[1]:
            raise no_token(sentences[0].text)
        pairs = zip(sentences, rows[self._first], strict=True)
        truncated = sum(sentence.cut or row.truncated for sentence, row in pairs)
        unfinished = 0
        if self._translates:
            inputs["decoder_input_ids"], rows["decoder"], unfinished = self._target(inputs)
        return self._prepared(inputs, rows, truncated=truncated, unfinished=unfinished)

    def _tokenized(self, sentences: Sequence[Sentence]) -> list[_Row]:
        """Return the rows of sentences, and tokenize those that have none yet."""
        if new := [one for one in dict.fromkeys(sentences) if one not in self._rows]:
            encoded = self.tokenizer(
                [one.text for one in new],
                truncation=True,
                max_length=self.max_tokens,
                return_special_tokens_mask=True,
                return_offsets_mapping=self.knows_words,
            )
            added = encoded.pop("special_tokens_mask")
            spans = encoded.pop("offset_mapping") if self.knows_words else [None] * len(new)
            truncated = self._truncated(encoded, new)
            for item, one in enumerate(new):
                inputs = {name: values[item] for name, values in encoded.items()}
                names = self._names(inputs["input_ids"])
                row = _read(one, names, added[item], spans[item])
                self._rows[one] = replace(row, inputs=inputs, truncated=truncated[item])
        return [self._rows[one] for one in sentences]

    def _truncated(self, encoded: Any, sentences: Sequence[Sentence]) -> list[bool]:
        """Say of each sentence whether it was longer than `max_tokens`."""
        if encoded.encodings is not None:
            return [bool(one.overflowing) for one in encoded.encodings]
        # slow tokenizers do not say; one token more than fits is enough to know
        most = self.max_tokens
        full = [len(ids) >= most for ids in encoded["input_ids"]]
        texts = [one.text for one, fills in zip(sentences, full, strict=True) if fills]
        more = self.tokenizer(texts, truncation=True, max_length=most + 1) if texts else {}
        longer = iter(more.get("input_ids", ()))
        return [fills and len(next(longer)) > most for fills in full]

    def _padded(self, rows: Sequence[list[int]], name: str) -> Tensor:
        """Stack an input of several sentences, padded on the right."""
        padding = {
            "input_ids": self.tokenizer.pad_token_id,
            "token_type_ids": self.tokenizer.pad_token_type_id,
        }.get(name, 0)
        width = max(map(len, rows))
        filled = [[*row, *[padding] * (width - len(row))] for row in rows]
        return torch.tensor(filled, dtype=torch.long, device=self._device)

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        output = self.model(**inputs)
        if "last_hidden_state" in output:
            return Output(output.last_hidden_state, "nothing")
        # a model with several outputs, such as start and end of an answer, has the main one first
        values: Tensor = output["logits"] if "logits" in output else output[0]
        return Output(values, self._predicts(values))

    def attend(self, inputs: Mapping[str, Tensor]) -> None:
        self._body(**inputs)

    @cached_property
    def _body(self) -> Any:
        """The model without its head, if all sites are there: a head may take the most memory."""
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

    def _target(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[_Row], int]:
        """Return the decoder's inputs, its rows, and how many translations were not finished."""
        generates = self.model.can_generate()
        made_BT = self._translated(inputs) if generates else self._shifted(inputs["input_ids"])
        real_BT = ~torch.isin(made_BT, self._end_tokens(made_BT.device))
        real_BT[:, 0] = True  # many models begin the target with their padding token
        cut = int(real_BT.all(dim=1).sum()) if generates else 0
        # the end token is predicted, and never an input
        width = max(1, made_BT.shape[1] - generates)
        lengths = real_BT[:, :width].long().cumprod(dim=1).sum(dim=1).tolist()
        rows = zip(made_BT.tolist(), lengths, strict=True)
        return made_BT[:, :width], [self._written(ids[:length]) for ids, length in rows], cut

    def _written(self, ids: list[int]) -> _Row:
        """Return the row of generated ids; its words follow the special tokens that begin it."""
        names, special = self._names(ids), set(self.tokenizer.all_special_ids)
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
        numbers = [
            NO_WORD if token in special or number == NO_WORD else number + 1
            for token, number in zip(rest, known, strict=True)
        ]
        return _Row([*before, 0, *numbers], names, [names[begin], *sentence.words])

    def _begins_at(self, ids: list[int]) -> int:
        """Return the last special token before a translation: BART and mBART have two."""
        words = {self.tokenizer.unk_token_id, self.mask_id}  # each stands for a word
        special = set(self.tokenizer.all_special_ids) - words
        forced = getattr(self.model, "generation_config", None)
        special |= {getattr(forced, "forced_bos_token_id", None)}
        return next(
            (place - 1 for place in range(1, len(ids)) if ids[place] not in special), len(ids) - 1
        )

    def _translated(self, inputs: Mapping[str, Tensor]) -> Tensor:
        most = min(self.max_translation, self.max_tokens - 1)  # without the first token
        # BART would force its end token at the limit, as if it had finished
        return self.model.generate(
            **inputs, max_new_tokens=most, do_sample=False, num_beams=1, forced_eos_token_id=None
        )

    def _shifted(self, source_BT: Tensor) -> Tensor:
        """Shift the source by one position, which BART reads where nothing is generated."""
        start = self._setting("decoder_start_token_id")
        start_B1 = torch.full_like(
            source_BT[:, :1], self._setting("pad_token_id") if start is None else start
        )
        return torch.cat([start_B1, source_BT[:, :-1]], dim=1)

    def _end_tokens(self, device: torch.device) -> Tensor:
        ends = getattr(self.model, "generation_config", self.model.config).eos_token_id
        listed = ends if isinstance(ends, list) else [ends]
        known = [end for end in [*listed, self._setting("pad_token_id")] if end is not None]
        return torch.tensor(known, dtype=torch.long, device=device)

    def _setting(self, name: str) -> Any:
        """Return a setting of the model, or of its text part; None if neither has it."""
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
        """Whether any attention of the model is causal."""
        return any(getattr(module, "is_causal", False) for module in self.model.modules())

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def _limits(self) -> list[int]:
        return list(positions_of(innermost(self.model)))


@contextmanager
def evaluated(model: nn.Module) -> Generator[None]:
    """Give a model sites and evaluation mode for the length of the block."""
    host = _host(model)
    if host is not None:
        check_reads_text(host)
    had_sites = host is None or is_adopted(host)
    try:
        if host is not None:
            adopt(model)
        with eval_mode(model):
            yield
    finally:
        if host is not None and not had_sites and is_adopted(host):
            release(model)


def subject_of(
    model: nn.Module, tokenizer: object, special: frozenset[str], *, max_translation: int
) -> Subject:
    """Make the subject of a model with sites.

    Args:
        model: see `inspect`.
        tokenizer: see `inspect`.
        special: more tokens that are not to count as words.
        max_translation: tokens of a translation that a Hugging Face model writes, at most.
    """
    if own := _own_subject(model):
        return own(tokenizer, special)
    padded = padding_right(copy.deepcopy(tokenizer))
    # Sentence Transformers' models take a batch as one argument, and give no tokens' outputs
    reader = unwrapped(model) if isinstance(model, nn.Sequential) else model
    return HuggingFaceSubject(reader, padded, special, max_translation)


def _own_subject(model: nn.Module) -> Callable[[object, frozenset[str]], Subject] | None:
    """Return a model's own method `headwise_subject`; None for Hugging Face models."""
    return getattr(model, "headwise_subject", None)


def _host(model: nn.Module) -> PreTrainedModel | None:
    """Return the Hugging Face model inside; None for a model with a method of its own."""
    if _own_subject(model):
        return None
    try:
        return unwrapped(model)
    except ValueError:
        raise ValueError(
            "inspect() takes a Hugging Face model (a PreTrainedModel) and its tokenizer, or a "
            "model with a method headwise_subject(tokenizer, special), as those of "
            f"headwise_papers.models have, got {type(model).__name__}."
        ) from None


def padding_right(tokenizer: Any) -> Any:
    """Make a tokenizer pad on the right, with its end token where it has no padding token."""
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError(
                f"{type(tokenizer).__name__} has neither a padding token nor an end token; "
                "set tokenizer.pad_token."
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def check_reads_text(model: PreTrainedModel) -> None:
    """Raise if a model needs more than text; vision-language models that can do without pass."""
    name = type(model).__name__
    instead = "From Python, adopt(model) and observe(model, Profile()) work for it."
    if model.main_input_name != "input_ids":
        read: Any = model.main_input_name  # OneFormer has a list
        named = read if isinstance(read, str) else " and ".join(read)
        raise ValueError(f"{name} reads {named}, not text. {instead}")
    if missing := list(dict.fromkeys(_needed_beside_text(model))):
        raise ValueError(
            f"{name} also needs {' and '.join(missing)}, which inspect cannot give it: it reads "
            f"text alone. {instead}"
        )
    if not _takes(model, "input_ids"):
        raise ValueError(f"{name} takes no input_ids, so it does not read text. {instead}")
    if _has_codes_of_sound(model):
        raise ValueError(
            f"{name} reads or writes codes of sound, of which inspect knows no words; it takes "
            f"models of text alone. {instead}"
        )


def _needed_beside_text(model: PreTrainedModel) -> Iterator[str]:
    """Name the inputs without which a forward pass fails."""
    for name, parameter in inspect.signature(model.forward).parameters.items():
        optional = parameter.default is not parameter.empty
        collects = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not optional and not collects and name not in OF_TEXT:
            yield name
    if needed := NEEDED.get(model.config.model_type):
        yield needed
    if _compares(model):
        yield from [name for name in OF_OTHERS if _takes(model, name)][:1]


def _compares(model: PreTrainedModel) -> bool:
    """Return whether a model compares text with images or sound, as CLIP does."""
    config = model.config
    twins = any(hasattr(config, f"{other}_config") for other in ("vision", "audio"))
    return twins and (hasattr(model, "get_text_features") or config.model_type in COMPARES)


def _has_codes_of_sound(model: PreTrainedModel) -> bool:
    """Return whether a model reads or generates codes of sound."""
    decoders = [getattr(model.config, name, None) for name in ("decoder_config", "decoder")]
    codes = [getattr(decoder, count, 1) for decoder in decoders for count in COUNTS]
    codes.append(getattr(model.config, "num_codebooks", 1))
    generates = model.can_generate() and "text" not in getattr(model, "output_modalities", ["text"])
    return generates or any(isinstance(count, int) and count > 1 for count in codes)


def _takes(model: PreTrainedModel, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _tokenizer_rules(tokenizer: Any) -> object:
    """Return all that decides how a tokenizer splits text; padding and truncation do not."""
    marks = tokenizer.special_tokens_map, tokenizer.model_max_length
    if not getattr(tokenizer, "is_fast", False):
        return sorted(tokenizer.get_vocab().items()), marks
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return {
        name: rule for name, rule in rules.items() if name not in ("padding", "truncation")
    }, marks


def _site_names(model: nn.Module) -> list[str]:
    return [site.name for site in find_sites(model)]


def _read(
    sentence: Sentence,
    names: list[str],
    added: Sequence[int],
    spans: Sequence[tuple[int, int]] | None,
) -> _Row:
    """Make the row of a text's tokens.

    Args:
        sentence: the text.
        names: of the tokens.
        added: of each token, 1 if the tokenizer added it.
        spans: of each token, its place in the text; None where the tokenizer does not say.
    """
    if spans is None:
        counted = accumulate(1 - new for new in added)
        numbers = [NO_WORD if new else c - 1 for c, new in zip(counted, added, strict=True)]
        return _Row(numbers, names, [n for n, new in zip(names, added, strict=True) if not new])
    numbers = [
        NO_WORD if new else number
        for number, new in zip(sentence.words_of(spans), added, strict=True)
    ]
    return _Row(numbers, names, sentence.words)
