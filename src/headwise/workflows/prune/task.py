"""The task that a model is pruned for: its data, its loss and its quality."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from headwise.analysis.scores import bleu
from headwise.pruning.saving import load, save
from headwise.text.batching import Epochs
from headwise.text.corpus import read_lines
from headwise.text.words import characters_for, first_words
from headwise.training import Summed
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.prune.config import PruneConfig

IGNORED = -100  # the label of a position that does not count
Batch = Mapping[str, Tensor]


class Predicted(NamedTuple):
    """Logits and labels, one row per prediction."""

    logits: Tensor  # (..., V)
    labels: Tensor  # (...), IGNORED where there is nothing to predict


@dataclass(frozen=True, eq=False)
class Data:
    """Tokenised sequences, and a function that makes a batch of some of them."""

    lengths: Sequence[int]
    collate: Callable[[list[int]], Batch]
    tokens: int = 0  # maximum ids of a batch, with padding; 0 counts sequences instead
    multiple: int = 1  # widths of batches are multiples of it

    def epochs(self, *, size: int, seed: int) -> Epochs[Batch]:
        """Return batches in an order that the seed decides; `tokens` takes precedence over size."""
        if not self.tokens:
            return Epochs(self.lengths, self.collate, size=size, seed=seed)
        multiple = self.multiple
        return Epochs(self.lengths, self.collate, tokens=self.tokens, multiple=multiple, seed=seed)


@dataclass(frozen=True, eq=False)
class Task:
    """A model with sites, and everything that pruning it needs.

    Args:
        kind: classification, masked, causal or translation.
        model: trained and pruned in place.
        train: training data.
        dev: data to measure on.
        predict: from model and batch to logits and labels.
        quality: the name of the main metric.
        score: metrics of a model that take longer, such as BLEU.
        save: writes the pruned model into a folder, whole or not at all.
        load: reads it again.
        subject: the same model and its tokenizer, to inspect its heads.
        texts: the sentences of the dev set; for translation, the sources.
        smoothing: label smoothing in training.
        replayable: whether steps can be replayed as CUDA graphs; batches then have few shapes.
        as_run: whether `save` writes a run, which the commands of its kind open.
    """

    kind: str
    model: nn.Module
    train: Data
    dev: Data
    predict: Callable[[nn.Module, Batch], Predicted]
    quality: str
    score: Callable[[nn.Module], dict[str, float]]
    save: Callable[[Path], None]
    load: Callable[[Path], nn.Module]
    subject: Subject
    texts: Sequence[str]
    smoothing: float = 0.0
    replayable: bool = False
    as_run: bool = False

    @property
    def watched(self) -> str:
        """The metric that `evaluate` returns first; it is quick, as BLEU is not."""
        return "accuracy" if self.quality == "accuracy" else "perplexity"

    @property
    def better(self) -> Literal["higher", "lower"]:
        """Whether higher or lower values of `watched` are better."""
        return "higher" if self.watched == "accuracy" else "lower"

    def loss(self, model: nn.Module, batch: Batch) -> Summed:
        """Return the cross-entropy as a sum over predictions."""
        logits, labels = self.predict(model, batch)
        total = cross_entropy(
            logits.flatten(0, -2).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        return Summed(total, (labels != IGNORED).sum())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, *, size: int) -> dict[str, float]:
        """Return loss, perplexity and accuracy on the dev set; `watched` first.

        Args:
            model: evaluated as it is.
            size: sequences of a batch.
        """
        device = next(model.parameters()).device
        batches = self.dev.epochs(size=size, seed=0)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        for number in range(len(batches)):
            there = {name: tensor.to(device) for name, tensor in batches(number).items()}
            sums += _sums(self.predict(model, there))
        loss, right, count = sums.tolist()
        if not count:
            raise ValueError("The dev set holds nothing to predict; give more of it.")
        accuracy, mean = right / count, loss / count
        if self.watched == "accuracy":
            return {"accuracy": accuracy, "validation_loss": mean}
        perplexity = math.exp(min(mean, 50.0))
        return {"perplexity": perplexity, "validation_loss": mean, "accuracy": accuracy}

    def measure(self, model: nn.Module, *, size: int) -> dict[str, float]:
        """Return all metrics of a model, in eval mode."""
        model.eval()
        return {**self.evaluate(model, size=size), **self.score(model)}


def _sums(predicted: Predicted) -> Tensor:
    """Return the sum of losses, of right predictions, and of all predictions."""
    logits, labels = predicted.logits.flatten(0, -2).float(), predicted.labels.flatten()
    loss = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    right = ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()
    return torch.stack([loss.double(), right.double(), (labels != IGNORED).sum().double()])


def nothing_more(model: Any) -> dict[str, float]:
    """Return no metrics."""
    return {}


class Pairs(NamedTuple):
    """Sentences and their translations."""

    source: list[str]
    target: list[str]

    def first(self, count: int) -> "Pairs":
        """Return the first pairs; 0 returns all."""
        return Pairs(self.source[:count], self.target[:count]) if count else self


class Labelled(NamedTuple):
    """Texts, their classes, and the second texts of pairs."""

    texts: list[str]
    labels: list[int]
    seconds: list[str | None]

    @property
    def joined(self) -> list[str]:
        """Each text or pair as one line."""
        pairs = zip(self.texts, self.seconds, strict=True)
        return [text if second is None else f"{text} {second}" for text, second in pairs]

    def first(self, count: int) -> "Labelled":
        """Return the first texts; 0 returns all."""
        texts, labels, seconds = self
        return Labelled(texts[:count], labels[:count], seconds[:count]) if count else self


def read_sentences(files: Sequence[str]) -> list[str]:
    """Return the lines of one file."""
    return list(read_lines(Path(_only(files))))


def read_labelled(
    files: Sequence[str], classes: dict[str, int], *, reads: str = "text"
) -> Labelled:
    """Read lines `label TAB text [TAB text]`; labels are numbers or names of the model's classes.

    Args:
        files: one file.
        classes: {name: number} of the model.
        reads: "text", in which further TABs are spaces, "pair" or "either".
    """
    path, found = _only(files), Labelled([], [], [])
    numbers = {str(number): number for number in classes.values()}
    for line in read_lines(Path(path)):
        label, *texts = line.split("\t", maxsplit=1 if reads == "text" else 2)
        number = classes.get(label, numbers.get(label))
        if len(texts) < 1 + (reads == "pair") or number is None:
            wanted = "a TAB, a text, a TAB and a text" if reads == "pair" else "a TAB and a text"
            raise ValueError(
                f"{path} must hold a label, {wanted} in each line, where labels are "
                f"{', '.join(classes)} or {', '.join(numbers)}; got {line[:40]!r}."
            )
        text, *second = (text.replace("\t", " ") for text in texts)
        found.texts.append(text)
        found.labels.append(number)
        found.seconds.append(second[0] if second else None)
    return found


def read_pairs(files: Sequence[str]) -> Pairs:
    """Read sentences and their translations: two files, or one with a TAB in each line."""
    if len(files) == 2:
        both = [list(read_lines(Path(path))) for path in files]
        if len(both[0]) != len(both[1]):
            raise ValueError(
                f"{files[0]} has {len(both[0])} lines with text, but {files[1]} has "
                f"{len(both[1])}; line by line they must be translations of each other."
            )
        return Pairs(both[0], both[1])
    path = _only(files)
    pairs = [line.split("\t") for line in read_lines(Path(path))]
    if wrong := next((pair for pair in pairs if len(pair) < 2), None):
        raise ValueError(
            f"{path} must hold a sentence, a TAB and its translation in each line; got "
            f"{wrong[0][:40]!r}. Two files are given one after the other."
        )
    return Pairs([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _only(files: Sequence[str]) -> str:
    if len(files) != 1:
        raise ValueError(f"Expected one file, got {len(files)}: {', '.join(files)}.")
    return files[0]


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
