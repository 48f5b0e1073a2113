"""What Hugging Face models are pruned for: found from their class, fed from text files."""

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
from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.task import IGNORED, Batch, Data, Predicted, Task, nothing_more
from headwise.workflows.prune.texts import (
    Labelled,
    first,
    first_labelled,
    read_labelled,
    read_pairs,
    read_sentences,
)

__all__ = ["check_task", "hugging_face_task", "task_of"]

Kind = Literal["classification", "masked", "causal", "translation"]
Ids = list[list[int]]


def hugging_face_task(config: PruneConfig, subject: HuggingFaceSubject) -> Task:
    """The task of a Hugging Face model on the files of the settings."""
    kind = check_task(config, subject)
    makers: dict[str, Callable[[PruneConfig, HuggingFaceSubject], Task]] = {
        "classification": _classification,
        "masked": _masked,
        "causal": _causal,
        "translation": _translation,
    }
    # reading leaves lengths to cut and pad to in a tokenizer, which are not to be saved with it
    reading = replace(subject, tokenizer=copy.deepcopy(subject.tokenizer))
    return replace(makers[kind](config, reading), save=partial(_save, subject))


def check_task(config: PruneConfig, subject: HuggingFaceSubject) -> Kind:
    """What a model is pruned for; settings that are for something else are refused."""
    kind = _kind(subject.model)
    if config.task not in ("auto", kind):
        raise ValueError(
            f"{type(subject.model).__name__} is pruned for {kind}, so task={config.task!r} is none "
            "of its own; leave it out."
        )
    if config.tokens:
        raise ValueError("tokens is for runs that translate; give batch_size instead.")
    return kind


def _save(subject: HuggingFaceSubject, folder: Path) -> None:
    save(subject.model, folder, subject.tokenizer)


def _kind(model: Any) -> Kind:
    """What a model's class is for."""
    name = type(model).__name__
    if name.endswith("ForSequenceClassification"):
        return "classification"
    if name.endswith("ForMaskedLM"):
        return "masked"
    if model.can_generate():
        return "translation" if model.config.is_encoder_decoder else "causal"
    raise ValueError(
        f"{name} is pruned for nothing that `prune` knows: it takes models that classify "
        "sequences, fill masks, go on with a text, or translate. Fine-tune and save such a one."
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
    """The task of a model on data; `texts` are those of the dev set."""
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
        raise ValueError("The model has one class, a regression; `prune` takes two or more.")
    _check_padding(config, subject)
    train, dev = (read_labelled(files, known) for files in (config.data, config.dev))
    dev = first_labelled(dev, config.dev_lines)
    parts = [_labelled(config, subject, part) for part in (train, dev)]
    return task_of("classification", subject, *parts, texts=dev.texts)


def _check_padding(config: PruneConfig, subject: HuggingFaceSubject) -> None:
    """A causal classifier asks the last token, which it finds if it knows the padding behind."""
    settings, tokenizer = subject.model.config, subject.tokenizer
    if not subject.causal or settings.pad_token_id is not None:
        return
    if tokenizer.pad_token_id != tokenizer.eos_token_id:
        settings.pad_token_id = tokenizer.pad_token_id
    elif config.batch_size > 1:  # not set to the end mark, which may belong to the text
        raise ValueError(
            f"{config.model} names no padding token, so that it cannot tell the last word in a "
            "batch of texts. Set pad_token_id in its config.json, often to that of the end mark, "
            f"{tokenizer.eos_token_id}; or give batch_size=1."
        )


def _labelled(config: PruneConfig, subject: HuggingFaceSubject, part: Labelled) -> Data:
    ids = _encoded(config, subject, part.texts)

    def collate(chosen: list[int]) -> Batch:
        labels = torch.tensor([part.labels[place] for place in chosen])
        return {**_padded(subject, [ids[place] for place in chosen]), "labels": labels}

    return Data([len(row) for row in ids], collate)


def _masked(config: PruneConfig, subject: HuggingFaceSubject) -> Task:
    train, dev = read_sentences(config.data), read_sentences(config.dev)
    dev = dev[: config.dev_lines or None]
    parts = [_hidden(config, subject, part) for part in (train, dev)]
    return task_of("masked", subject, *parts, texts=dev)


def _hidden(config: PruneConfig, subject: HuggingFaceSubject, texts: Sequence[str]) -> Data:
    ids = _encoded(config, subject, texts)
    marks = torch.tensor(subject.tokenizer.all_special_ids)
    if subject.mask_id is None:
        raise ValueError("The tokenizer has no mask token, so no words can be hidden; set one.")
    hide = partial(_hide, share=config.dropped, mask=subject.mask_id, marks=marks)

    def collate(chosen: list[int]) -> Batch:
        batch = _padded(subject, [ids[place] for place in chosen])
        # which words are hidden follows from who is in the batch, so that resuming repeats it
        random = torch.Generator().manual_seed(hash(tuple(chosen)) & 0xFFFFFFFF ^ config.seed)
        return {**batch, **hide(batch["input_ids"], random=random)}

    return Data([len(row) for row in ids], collate)


def _hide(
    ids_BT: Tensor, *, share: float, mask: int, marks: Tensor, random: torch.Generator
) -> Batch:
    """A share of the words behind the mask, one of each row at least; they are the labels."""
    draws_BT = torch.rand(ids_BT.shape, generator=random)
    draws_BT[torch.isin(ids_BT, marks)] = 2.0  # no words
    lowest_B1 = draws_BT.min(dim=1, keepdim=True).values
    hidden_BT = (draws_BT < 1) & ((draws_BT < share) | (draws_BT == lowest_B1))
    return {
        "input_ids": ids_BT.masked_fill(hidden_BT, mask),
        "labels": ids_BT.masked_fill(~hidden_BT, IGNORED),
    }


def _causal(config: PruneConfig, subject: HuggingFaceSubject) -> Task:
    train, dev = read_sentences(config.data), read_sentences(config.dev)
    dev = dev[: config.dev_lines or None]
    parts = [_blocks(config, subject, part) for part in (train, dev)]
    return task_of("causal", subject, *parts, texts=dev)


def _blocks(config: PruneConfig, subject: HuggingFaceSubject, texts: Sequence[str]) -> Data:
    """All lines as one text, cut into blocks of equal length; what is left over is not used."""
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
    dev = first(read_pairs(config.dev), config.dev_lines)

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
    """What the decoder reads: its start mark, then the words before each."""
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
    """Ids with the tokenizer's marks, cut to what fits; of the language translated to, if so."""
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
