"""What `inspect` looks at: a model, and how lines of text become its forward passes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headwise.data.vocabulary import EOS, PAD
from headwise.journeys.translator import Translator

MAX_TOKENS = 512  # of a line, where neither model nor tokenizer names a limit
LARGEST_LENGTH = 10**9  # a tokenizer that names more names no limit: transformers writes 10^30
MAX_GENERATED = 64  # words of a translation that the decoder is looked at with


@dataclass(frozen=True, eq=False)
class Prepared:
    """Some lines, ready for a forward pass."""

    inputs: Mapping[str, Tensor]
    words: Mapping[str, Tensor]  # stack -> (B, T), True at real words
    tokens: Sequence[Mapping[str, Sequence[str]]]  # of each line, by stack
    truncated: int  # lines that were cut to fit the model


@dataclass(frozen=True, eq=False)
class Output:
    """What a forward pass gave."""

    values: Tensor  # (B, T, V) scores of words, (B, C) of classes, or (B, T, M) hidden states
    are_scores: bool  # so that the largest is a prediction


@runtime_checkable
class Subject(Protocol):
    """A model and how to read lines with it."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def room(self) -> int:
        """Most tokens of a line that the model reads; longer lines are cut."""
        ...

    def prepare(self, lines: Sequence[str]) -> Prepared:
        """Turn lines into inputs. A translator translates them, so that its decoder has words."""
        ...

    def forward(self, prepared: Prepared) -> Output:
        """One pass."""
        ...


@dataclass(frozen=True, eq=False)
class TranslatorSubject:
    """A translator trained by Headwise. Lines are cut as its codec does, in words or pieces."""

    translator: Translator

    @property
    def model(self) -> nn.Module:
        return self.translator.model

    @property
    def room(self) -> int:
        return self.translator.room

    def prepare(self, lines: Sequence[str]) -> Prepared:
        translator, room = self.translator, self.room
        sources = [translator.source.encode(line) for line in lines]
        cut = [ids[:room] for ids in sources]
        targets = translator.translate_ids(cut)
        batch = translator.batch(cut, targets)
        return Prepared(
            inputs={
                "source": batch.source,
                "source_lengths": batch.source_lengths,
                "target": batch.target_in,
            },
            words={
                "encoder": (batch.source != PAD) & (batch.source != EOS),
                "decoder": batch.target_in != PAD,
            },
            tokens=[
                {
                    "encoder": [*translator.source.tokens(line)[:room], "<eos>"],
                    "decoder": ["<bos>", *translator.target.names(ids)],
                }
                for line, ids in zip(lines, targets, strict=True)
            ],
            truncated=sum(len(ids) > room for ids in sources),
        )

    def forward(self, prepared: Prepared) -> Output:
        return Output(self.model(**prepared.inputs), are_scores=True)


@dataclass(frozen=True, eq=False)
class HuggingFaceSubject:
    """An adopted Hugging Face model and its tokenizer."""

    model: Any  # a PreTrainedModel; the classes of its kinds share no typed forward or generate
    tokenizer: Any

    @property
    def room(self) -> int:
        """The smaller of what model and tokenizer name; MAX_TOKENS where neither names any."""
        named = self.tokenizer.model_max_length
        limits = [*self._positions(), *([named] if named < LARGEST_LENGTH else [])]
        return min(limits, default=MAX_TOKENS)

    def prepare(self, lines: Sequence[str]) -> Prepared:
        encoded = self.tokenizer(
            list(lines),
            padding=True,
            truncation=True,
            max_length=self.room,
            return_special_tokens_mask=True,
            return_overflowing_tokens=False,
            return_tensors="pt",
        )
        if not encoded["input_ids"].shape[1]:
            raise ValueError(f"The tokenizer finds no token in {lines[0]!r}; leave such lines out.")
        special_BT = encoded.pop("special_tokens_mask").bool()
        inputs = {name: tensor.to(self._device) for name, tensor in encoded.items()}
        attended_BT = inputs["attention_mask"].bool()
        stack = "encoder" if self._translates or not self._causal else "decoder"
        words = {stack: attended_BT & ~special_BT.to(self._device)}
        tokens = [
            {stack: self._tokens(ids, real)}
            for ids, real in zip(inputs["input_ids"], attended_BT, strict=True)
        ]
        if self._translates:
            self._add_target(inputs, words, tokens)
        return Prepared(inputs, words, tokens, truncated=self._too_long(lines))

    def forward(self, prepared: Prepared) -> Output:
        output = self.model(**prepared.inputs)
        if "last_hidden_state" in output:
            return Output(output.last_hidden_state, are_scores=False)
        # a model with several outputs, such as start and end of an answer, names the main one first
        return Output(output["logits"] if "logits" in output else output[0], are_scores=True)

    def _too_long(self, lines: Sequence[str]) -> int:
        room = self.room
        # one token more than fits is enough to know, and draws no warning
        longer = self.tokenizer(list(lines), truncation=True, max_length=room + 1)["input_ids"]
        return sum(len(ids) > room for ids in longer)

    def _add_target(
        self,
        inputs: dict[str, Tensor],
        words: dict[str, Tensor],
        tokens: list[dict[str, list[str]]],
    ) -> None:
        generates = self.model.can_generate()
        target_BT = self._translated(inputs) if generates else self._shifted(inputs["input_ids"])
        # the end mark is predicted, never looked at: what follows it is padding
        real_BT = ~torch.isin(target_BT, self._end_marks(target_BT.device))
        real_BT[:, 0] = True  # many models begin the target with their padding token
        inputs["decoder_input_ids"], words["decoder"] = target_BT, real_BT
        for row, ids, real in zip(tokens, target_BT, real_BT, strict=True):
            row["decoder"] = self._tokens(ids, real)

    def _translated(self, inputs: Mapping[str, Tensor]) -> Tensor:
        most = min(MAX_GENERATED, self.room - 1)  # the beginning mark
        generated_BT = self.model.generate(
            **inputs, max_new_tokens=most, do_sample=False, num_beams=1
        )
        return generated_BT[:, :-1] if generated_BT.shape[1] > 1 else generated_BT

    def _shifted(self, source_BT: Tensor) -> Tensor:
        """The source one position later, as BART reads it where there is nothing to generate."""
        config = self.model.config
        start = config.decoder_start_token_id
        start_B1 = torch.full_like(
            source_BT[:, :1], config.pad_token_id if start is None else start
        )
        return torch.cat([start_B1, source_BT[:, :-1]], dim=1)

    def _end_marks(self, device: torch.device) -> Tensor:
        config = self.model.config
        ends = getattr(self.model, "generation_config", config).eos_token_id
        listed = ends if isinstance(ends, list) else [ends]
        known = [mark for mark in [*listed, config.pad_token_id] if mark is not None]
        return torch.tensor(known, dtype=torch.long, device=device)

    def _tokens(self, ids_T: Tensor, real_T: Tensor) -> list[str]:
        ids = ids_T[real_T].tolist()
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        # a model's vocabulary may be larger than its tokenizer's
        return [f"<{i}>" if t is None else t for i, t in zip(ids, tokens, strict=True)]

    @property
    def _translates(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    @property
    def _causal(self) -> bool:
        return any(getattr(module, "is_causal", False) for module in self.model.modules())

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _positions(self) -> Iterator[int]:
        """What the model says of how many positions it has, if it does."""
        if named := getattr(self.model.config, "max_position_embeddings", None):
            yield named
        for name, module in self.model.named_modules():
            # RoBERTa and its kin count positions from the one after that of padding
            if name.split(".")[-1] == "position_embeddings" and isinstance(module, nn.Embedding):
                before = 0 if module.padding_idx is None else module.padding_idx + 1
                yield module.num_embeddings - before
