"""Losses of pretrained Hugging Face models, computed with other attention.

A masked language model is measured at hidden words, a causal one at the next word, and an encoder
without a head, such as a MiniLM for sentences, at finding the other half of a paragraph.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from headwise.workflows.inspect import HuggingFaceSubject, open_subject
from headwise_papers.data.characters import as_text, read_characters
from headwise_papers.sparse_transformer._translators import attending

__all__ = ["Kind", "kind_of", "long_paragraphs", "open_pretrained"]

BATCH = 64  # texts in a forward pass
HIDDEN = 0.15  # share of words that a masked language model has to guess
LEAST_WORDS = 80  # of a paragraph, so that there is something to choose from
SCALE = 20.0  # of cosines, sentence-transformers' own
IGNORED = -100  # a label that does not count


class Kind(NamedTuple):
    """Loss that a model is measured by."""

    name: str
    losses: Callable[..., Tensor]  # (subject, texts, tokens=..., attention=...) -> one per text


def open_pretrained(folder: Path) -> HuggingFaceSubject:
    """Open a Hugging Face model of one stack, with its tokenizer."""
    subject = open_subject(folder)
    if not isinstance(subject, HuggingFaceSubject) or subject.model.config.is_encoder_decoder:
        raise ValueError(
            f"{folder} must hold a Hugging Face encoder or language model; translators are those "
            "of sparse_transformer/translation."
        )
    if subject.tokenizer.pad_token is None:  # GPT-2 has none; what is padded never counts
        subject.tokenizer.pad_token = subject.tokenizer.eos_token
    return subject


def kind_of(subject: HuggingFaceSubject) -> Kind:
    """Choose what a model can be measured by, from the name of its class."""
    name = type(subject.model).__name__
    if name.endswith("ForMaskedLM"):
        return Kind("loss at hidden words", masked_losses)
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return Kind("loss at next words", next_losses)
    if name.endswith("Model"):
        return Kind("loss at finding the other half", half_losses)
    raise ValueError(f"A language model or an encoder without a head was wanted, got {name}.")


def long_paragraphs(count: int, *, text: str = "wikitext-2") -> list[str]:
    """Return the first paragraphs of a test part with 80 words or more, without `<unk>`."""
    lines = as_text(read_characters(text).test).replace("<unk>", "").split("\n")
    found = [" ".join(line.split()) for line in lines if len(line.split()) >= LEAST_WORDS]
    if len(found) < count:
        raise ValueError(f"{text} has {len(found)} long paragraphs, {count} were asked for.")
    return found[:count]


@torch.no_grad()
def masked_losses(
    subject: HuggingFaceSubject, texts: Sequence[str], *, tokens: int, attention: str = ""
) -> Tensor:
    """Return each text's mean loss at the words that were hidden, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    found: list[Tensor] = []
    for inputs, words_BT in _encoded(subject, texts, tokens=tokens):
        hidden_BT = (torch.rand(words_BT.shape, generator=generator) < HIDDEN).to(words_BT.device)
        hidden_BT[:, 1] = True  # at least one in each text
        chosen_BT = hidden_BT & words_BT
        labels_BT = inputs["input_ids"].masked_fill(~chosen_BT, IGNORED)
        ids_BT = inputs["input_ids"].masked_fill(chosen_BT, subject.tokenizer.mask_token_id)
        with attending(subject.model, attention):
            logits_BTV = subject.model(**{**inputs, "input_ids": ids_BT}).logits
        found.append(_means(logits_BTV, labels_BT))
    return torch.cat(found)


@torch.no_grad()
def next_losses(
    subject: HuggingFaceSubject, texts: Sequence[str], *, tokens: int, attention: str = ""
) -> Tensor:
    """Return each text's mean loss of its next words."""
    found: list[Tensor] = []
    for inputs, _ in _encoded(subject, texts, tokens=tokens):
        real_BT = inputs["attention_mask"].bool()
        labels_BT = inputs["input_ids"].masked_fill(~real_BT, IGNORED)
        with attending(subject.model, attention):
            logits_BTV = subject.model(**inputs).logits
        found.append(_means(logits_BTV[:, :-1], labels_BT[:, 1:]))
    return torch.cat(found)


def half_losses(
    subject: HuggingFaceSubject, texts: Sequence[str], *, tokens: int, attention: str = ""
) -> Tensor:
    """Return each text's loss of choosing its second half by 20 cosines with its first.

    The loss that sentence-transformers trains with (MultipleNegativesRankingLoss), on halves.
    """
    halves = zip(*(_halves(text) for text in texts), strict=True)
    first_NM, second_NM = (
        embeddings(subject, side, tokens=tokens, attention=attention) for side in halves
    )
    scores_NN = SCALE * first_NM @ second_NM.T
    return cross_entropy(scores_NN, torch.arange(len(texts)), reduction="none")


@torch.no_grad()
def embeddings(
    subject: HuggingFaceSubject, texts: Sequence[str], *, tokens: int, attention: str = ""
) -> Tensor:
    """Return the mean of a text's hidden states, of length 1, as sentence-transformers does."""
    found: list[Tensor] = []
    for inputs, _ in _encoded(subject, texts, tokens=tokens):
        with attending(subject.model, attention):
            hidden_BTM = subject.model(**inputs).last_hidden_state
        real_BT1 = inputs["attention_mask"][..., None]
        found.append((hidden_BTM * real_BT1).sum(1) / real_BT1.sum(1))
    return normalize(torch.cat(found).double().cpu(), dim=-1)


def _encoded(
    subject: HuggingFaceSubject, texts: Sequence[str], *, tokens: int
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Yield inputs of some texts at a time, and which of their tokens are words and no marks."""
    device = next(subject.model.parameters()).device
    for start in range(0, len(texts), BATCH):
        encoded = subject.tokenizer(
            list(texts[start : start + BATCH]),
            padding=True,
            truncation=True,
            max_length=min(tokens, subject.max_tokens),
            return_special_tokens_mask=True,
            return_tensors="pt",
        )
        special_BT = encoded.pop("special_tokens_mask").bool()
        inputs = {name: tensor.to(device) for name, tensor in encoded.items()}
        yield inputs, inputs["attention_mask"].bool() & ~special_BT.to(device)


def _means(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the mean loss of each row over the labels that count."""
    loss_BT = cross_entropy(
        logits_BTV.transpose(1, 2).float(), labels_BT, ignore_index=IGNORED, reduction="none"
    )
    counts_B = (labels_BT != IGNORED).sum(-1)
    return (loss_BT.sum(-1) / counts_B).double().cpu()


def _halves(text: str) -> tuple[str, str]:
    words = text.split()
    return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])
