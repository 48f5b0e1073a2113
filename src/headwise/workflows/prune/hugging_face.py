"""Tasks of Hugging Face models: the class decides which, and text files are the data."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from headwise.analysis.scores import bleu
from headwise.pruning.saving import load, save
from headwise.text.words import characters_for, first_words
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.task import (
    IGNORED,
    Batch,
    Data,
    Labelled,
    Predicted,
    Task,
    nothing_more,
    read_labelled,
    read_pairs,
    read_sentences,
)

Kind = Literal["classification", "masked", "causal", "translation"]
Ids = list[list[int]]
MakeData = Callable[[PruneConfig, HuggingFaceSubject, Sequence[str]], Data]


def hugging_face_task(config: PruneConfig, subject: Subject) -> Task:
    """Return the task of a Hugging Face model on the files of the settings."""
    subject = as_hugging_face(config, subject)
    makers: dict[str, Callable[[PruneConfig, HuggingFaceSubject], Task]] = {
        "classification": _classification,
        "masked": partial(_of_lines, "masked", _masked_data),
        "causal": partial(_of_lines, "causal", _blocks),
        "translation": _translation,
    }
    # a call leaves truncation and padding in a tokenizer, which must not be saved with it
    reading = replace(subject, tokenizer=copy.deepcopy(subject.tokenizer))
    return replace(makers[_kind(subject.model)](config, reading), save=partial(_save, subject))


def as_hugging_face(config: PruneConfig, subject: Subject) -> HuggingFaceSubject:
    """Return a Hugging Face model; raise if it is another one, or settings do not fit its task."""
    if not isinstance(subject, HuggingFaceSubject):
        raise ValueError(
            f"{config.model} attends with something else than softmax, so that Hugging Face has no "
            "model like it to prune. From Python, headwise.masked(model, heads) masks heads."
        )
    kind = _kind(subject.model)
    if config.task not in ("auto", kind):
        raise ValueError(
            f"{type(subject.model).__name__} is pruned for {kind}, not for task={config.task!r}; "
            "leave it out."
        )
    if config.tokens:
        raise ValueError("tokens is for runs that translate; give batch_size instead.")
    return subject


def _save(subject: HuggingFaceSubject, folder: Path) -> None:
    save(subject.model, folder, subject.tokenizer)


def _kind(model: Any) -> Kind:
    """Return the task of a model's class."""
    name = type(model).__name__
    if name.endswith("ForSequenceClassification"):
        return "classification"
    if name.endswith("ForMaskedLM"):
        return "masked"
    if model.can_generate():
        return "translation" if model.config.is_encoder_decoder else "causal"
    raise ValueError(
        f"`prune` has no task for a {name}: it takes models that classify sequences, fill masks, "
        "continue a text, or translate. Fine-tune and save such a model."
    )


def task_of(
    kind: Kind,
    subject: HuggingFaceSubject,
    train: Data,
    dev: Data,
    texts: Sequence[str],
    *,
    score: Callable[[nn.Module], dict[str, float]] = nothing_more,
) -> Task:
    """Return the task of a model on data; `texts` are those of the dev set."""
    qualities = {"classification": "accuracy", "translation": "bleu"}
    return Task(
        kind=kind,
        model=subject.model,
        train=train,
        dev=dev,
        predict=_predict,
        quality=qualities.get(kind, "perplexity"),
        score=score,
        save=partial(_save, subject),
        load=load,
        subject=subject,
        texts=texts,
    )


def _predict(model: nn.Module, batch: Batch) -> Predicted:
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    return Predicted(model(**inputs).logits, batch["labels"])


def _classification(config: PruneConfig, subject: HuggingFaceSubject) -> Task:
    known: dict[str, int] = subject.model.config.label2id
    if len(known) < 2:
        raise ValueError("The model has one class, a regression; `prune` needs two or more.")
    _check_padding(config, subject)
    train, dev = (read_labelled(files, known) for files in (config.data, config.dev))
    dev = dev.first(config.dev_lines)
    parts = [_labelled(config, subject, part) for part in (train, dev)]
    return task_of("classification", subject, *parts, texts=dev.texts)


def _check_padding(config: PruneConfig, subject: HuggingFaceSubject) -> None:
    """Raise if a causal classifier cannot find the last token, as it knows no padding token."""
    settings, tokenizer = subject.model.config, subject.tokenizer
    if not subject.causal or settings.pad_token_id is not None:
        return
    if tokenizer.pad_token_id != tokenizer.eos_token_id:
        settings.pad_token_id = tokenizer.pad_token_id
    elif config.batch_size > 1:  # the end token, which may be part of a text, is not used instead
        raise ValueError(
            f"{config.model} names no padding token, so it cannot find the last token of texts in "
            "a batch. Set pad_token_id in its config.json, often to that of the end token, "
            f"{tokenizer.eos_token_id}; or give batch_size=1."
        )


def _labelled(config: PruneConfig, subject: HuggingFaceSubject, part: Labelled) -> Data:
    ids = _encoded(config, subject, part.texts)

    def collate(chosen: list[int]) -> Batch:
        labels = torch.tensor([part.labels[place] for place in chosen])
        return {**_padded(subject, [ids[place] for place in chosen]), "labels": labels}

    return Data([len(row) for row in ids], collate)


def _of_lines(kind: Kind, make: MakeData, config: PruneConfig, subject: HuggingFaceSubject) -> Task:
    """Return the task of a language model, whose data are lines of text."""
    train, dev = read_sentences(config.data), read_sentences(config.dev)
    dev = dev[: config.dev_lines or None]
    parts = [make(config, subject, part) for part in (train, dev)]
    return task_of(kind, subject, *parts, texts=dev)


def _masked_data(config: PruneConfig, subject: HuggingFaceSubject, texts: Sequence[str]) -> Data:
    ids = _encoded(config, subject, texts)
    special = torch.tensor(subject.tokenizer.all_special_ids)
    if subject.mask_id is None:
        raise ValueError("The tokenizer has no mask token; set one.")
    mask = partial(_mask, share=config.dropped, mask=subject.mask_id, special=special)

    def collate(chosen: list[int]) -> Batch:
        batch = _padded(subject, [ids[place] for place in chosen])
        # the batch decides which tokens are masked, so that a resumed training repeats it
        random = torch.Generator().manual_seed(hash(tuple(chosen)) & 0xFFFFFFFF ^ config.seed)
        return {**batch, **mask(batch["input_ids"], random=random)}

    return Data([len(row) for row in ids], collate)


def _mask(
    ids_BT: Tensor, *, share: float, mask: int, special: Tensor, random: torch.Generator
) -> Batch:
    """Mask a share of the tokens, at least one in each row; they become the labels."""
    draws_BT = torch.rand(ids_BT.shape, generator=random)
    draws_BT[torch.isin(ids_BT, special)] = 2.0  # never masked
    lowest_B1 = draws_BT.min(dim=1, keepdim=True).values
    masked_BT = (draws_BT < 1) & ((draws_BT < share) | (draws_BT == lowest_B1))
    return {
        "input_ids": ids_BT.masked_fill(masked_BT, mask),
        "labels": ids_BT.masked_fill(~masked_BT, IGNORED),
    }


def _blocks(config: PruneConfig, subject: HuggingFaceSubject, texts: Sequence[str]) -> Data:
    """Return all lines as one text, cut into blocks of equal length; the rest is not used."""
    length = min(config.length, subject.max_tokens)
    lines: Ids = subject.tokenizer([f"{text}\n" for text in texts], verbose=False)["input_ids"]
    flat = [token for line in lines for token in line]
    if len(flat) < length:
        raise ValueError(f"A block has {length} tokens, but the text has {len(flat)}; give more.")
    ids_NT = torch.tensor(flat[: len(flat) // length * length]).view(-1, length)

    def collate(chosen: list[int]) -> Batch:
        ids_BT = ids_NT[torch.tensor(chosen)]
        labels_BT = torch.full_like(ids_BT, IGNORED)
        labels_BT[:, :-1] = ids_BT[:, 1:]
        return {
            "input_ids": ids_BT,
            "attention_mask": torch.ones_like(ids_BT),
            "labels": labels_BT,
        }

    return Data([length] * len(ids_NT), collate)


def _translation(config: PruneConfig, subject: HuggingFaceSubject) -> Task:
    train = read_pairs(config.data)
    dev = read_pairs(config.dev).first(config.dev_lines)

    def score(model: nn.Module) -> dict[str, float]:
        found = _translated(config, subject, model, dev.source)
        return {"bleu": bleu(found, dev.target).value}

    parts = [_pairs(config, subject, part.source, part.target) for part in (train, dev)]
    return task_of("translation", subject, *parts, texts=dev.source, score=score)


def _pairs(
    config: PruneConfig,
    subject: HuggingFaceSubject,
    sources: Sequence[str],
    targets: Sequence[str],
) -> Data:
    source, target = _encoded(config, subject, sources), _encoded(config, subject, targets, to=True)

    def collate(chosen: list[int]) -> Batch:
        batch = _padded(subject, [source[place] for place in chosen])
        rows = [torch.tensor(target[place]) for place in chosen]
        labels_BT = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        return {**batch, "decoder_input_ids": _shifted(subject, labels_BT), "labels": labels_BT}

    return Data([max(map(len, pair)) for pair in zip(source, target, strict=True)], collate)


def _shifted(subject: HuggingFaceSubject, labels_BT: Tensor) -> Tensor:
    """Return the decoder's input: its start token, then the labels shifted right."""
    settings = subject.model.config
    pad = subject.tokenizer.pad_token_id
    start = settings.decoder_start_token_id
    before_BT = labels_BT.masked_fill(labels_BT == IGNORED, pad).roll(1, dims=1)
    before_BT[:, 0] = settings.pad_token_id if start is None else start
    return before_BT


def _translated(
    config: PruneConfig, subject: HuggingFaceSubject, model: Any, sources: Sequence[str]
) -> list[str]:
    device, tokenizer = next(model.parameters()).device, subject.tokenizer
    ids = _encoded(config, subject, sources)
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    found = [""] * len(ids)
    for start in range(0, len(order), config.batch_size):
        chosen = order[start : start + config.batch_size]
        batch = _padded(subject, [ids[place] for place in chosen])
        made = model.generate(
            **{name: tensor.to(device) for name, tensor in batch.items()},
            max_new_tokens=min(config.length, subject.max_tokens - 1),
            num_beams=config.beams,
            do_sample=False,
        )
        texts = tokenizer.batch_decode(made, skip_special_tokens=True)
        for place, text in zip(chosen, texts, strict=True):
            found[place] = text.strip()
    return found


def _encoded(
    config: PruneConfig, subject: HuggingFaceSubject, texts: Sequence[str], *, to: bool = False
) -> Ids:
    """Return ids with special tokens, cut to the maximum length; `to` reads targets."""
    limit = min(config.length, subject.max_tokens)
    read = [first_words(text, characters_for(limit)) for text in texts]
    side: Any = {"text_target": read} if to else {"text": read}
    return subject.tokenizer(**side, truncation=True, max_length=limit)["input_ids"]


def _padded(subject: HuggingFaceSubject, rows: Ids) -> dict[str, Tensor]:
    tensors = [torch.tensor(row) for row in rows]
    ids_BT = pad_sequence(tensors, batch_first=True, padding_value=subject.tokenizer.pad_token_id)
    lengths_B = torch.tensor([len(row) for row in rows])
    real_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
    return {"input_ids": ids_BT, "attention_mask": real_BT.long()}
