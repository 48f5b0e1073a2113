"""Translators of the experiments: recipes by corpus, BLEU and loss on any sentences, and plots.

A score is cached as a trained model is, by its settings, so experiments share it.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headwise import sites
from headwise.analysis import bleu
from headwise.config import changed, override, suggestion
from headwise.recording import Run
from headwise.training import FitConfig
from headwise_papers.core import Job, Result, find_or_train, minus, panels
from headwise_papers.data.translation import Lines, read_parallel_texts, read_part
from headwise_papers.data.vocabulary import PAD
from headwise_papers.measures.scores import tokenised_bleu
from headwise_papers.ops.named import attention_op
from headwise_papers.recipes.translation import (
    SIZES,
    TOKENISED,
    TranslationConfig,
    train_translation,
)
from headwise_papers.recipes.translator import Translator, load_codecs, open_translator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ATTENTIONS",
    "MAIN",
    "TASKS",
    "TINY",
    "Part",
    "ScoreConfig",
    "Task",
    "attending",
    "bleu_figure",
    "long_rows",
    "score_job",
    "scores",
    "share_of_long_rows",
    "subtract",
    "task_named",
    "teacher_forced_loss",
    "translator",
]

Part = Literal["valid", "test", "tst2012", "tst2013"]
Kind = Literal["bleu", "tokenised_bleu"]

MAIN = "multi30k-en-de"
ATTENTIONS = ("softmax", "topk:8", "sparsemax", "entmax:1.5", "entmax:learned")  # as in Table 4
KINDS: dict[Kind, str] = {"bleu": "BLEU", "tokenised_bleu": "tokenised BLEU"}
TOGETHER = 256  # sentences translated in parallel
BATCH = 128  # sentence pairs whose loss is computed together
TINY = (  # changes of a recipe for smoke runs
    "fit.steps=24",
    "fit.warmup=6",
    "fit.learning_rate=0.01",
    "fit.evaluate_every=6",
    "fit.checkpoint_every=12",
    "fit.average=2",
    "batch_tokens=512",
    "vocab_size=600",
    "model.max_length=32",
    "model.width=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.feed_forward=64",
    "model.dropout=0",
    "beams=1",
    "train_pairs=300",
    "valid_pairs=12",
    "test_pairs=6",
)


class Task(NamedTuple):
    """A corpus, how it is trained on, and how it is scored."""

    recipe: TranslationConfig
    judged: Kind  # the kind of BLEU that the paper has there
    attentions: tuple[str, ...] = ATTENTIONS[:2]
    parts: tuple[Part, ...] = ()  # that are translated beside the test part


def _recipe(corpus: str, source: str, target: str) -> TranslationConfig:
    """Return settings of 3 + 3 layers of width 256 and batches of 8,192 subwords."""
    fit = FitConfig(
        steps=1500, warmup=200, learning_rate=2e-3, evaluate_every=100, checkpoint_every=100
    )
    return TranslationConfig(
        corpus=corpus, source=source, target=target, subwords="bpe", batch_tokens=8192, fit=fit
    )


_MULTI30K = _recipe("multi30k", "en", "de")
_LONGER = changed(_MULTI30K, {"fit.steps": 3000, "fit.learning_rate": 1e-3})
_TATOEBA = replace(
    _recipe("tatoeba", "en", "de"),
    vocab_size=10_000,
    model=SIZES["iwslt"],
    fit=FitConfig(steps=3000, warmup=1000, evaluate_every=500, checkpoint_every=500),
)
TASKS = {
    MAIN: Task(_MULTI30K, "bleu", ATTENTIONS, ("valid",)),
    "multi30k-de-en": Task(_recipe("multi30k", "de", "en"), "tokenised_bleu"),
    "tatoeba-en-de": Task(_TATOEBA, "bleu", ("softmax", "topk:8", "entmax:1.5")),
    "iwslt14-de-en": Task(_recipe("iwslt14", "de", "en"), "tokenised_bleu"),
    "help-en-vi": Task(
        _recipe("libreoffice-help", "en", "vi"),
        "tokenised_bleu",
        ("softmax", "topk:8", "entmax:1.5"),
        ("tst2012", "tst2013"),
    ),
    f"{MAIN}-longer": Task(_LONGER, "bleu", ATTENTIONS, ("valid",)),
}


def task_named(corpus: str) -> Task:
    """Return a task of `TASKS`; other names raise with a suggestion."""
    if corpus not in TASKS:
        raise ValueError(f"There is no recipe for {corpus!r}. {suggestion(corpus, TASKS)}")
    return TASKS[corpus]


def translator(
    corpus: str,
    attention: str,
    seed: int,
    changes: Iterable[str] = (),
    *,
    sparse_in: Literal["both", "training"] = "both",
) -> TranslationConfig:
    """Return the settings of one translator.

    Args:
        corpus: of `TASKS`.
        attention: in encoder, decoder and between them.
        seed: of weights and batches.
        changes: NAME=VALUE each, of the recipe.
        sparse_in: whether prediction uses that attention too, or softmax.
    """
    places = ("encoder", "decoder", "cross")
    fixed: dict[str, Any] = {f"model.{place}_attention": attention for place in places}
    fixed |= {"model.sparse_in": sparse_in, "fit.seed": seed}
    return changed(override(task_named(corpus).recipe, [*changes]), fixed)


@dataclass(frozen=True)
class ScoreConfig:
    """Sentences that a translator translates, and other attention it may compute with."""

    model: TranslationConfig
    part: Part
    attention: str = ""  # instead of the trained one
    where: str = "*"  # at the sites that match


def score_job(model: TranslationConfig, part: Part, attention: str = "", where: str = "*") -> Job:
    """Return the job that scores a translator; training itself scores the test part."""
    if part == "test" and not attention:
        return Job(train_translation, model)
    return Job(score, ScoreConfig(model, part, attention, where))


def scores(
    model: TranslationConfig, part: Part, attention: str = "", where: str = "*"
) -> dict[str, Any]:
    """Return `bleu` and `tokenised_bleu` with their signatures, and where it was scored `loss`."""
    return find_or_train(*score_job(model, part, attention, where)).figures()


def score(config: ScoreConfig, folder: Path) -> Run:
    """Translate sentences with a translator, found or trained, and compute BLEU and loss."""
    opened = open_translator(find_or_train(train_translation, config.model).folder)
    lines, model = lines_of(config.model, config.part), config.model
    with attending(opened.model, config.attention, config.where):
        found = opened.translate(
            lines.source, beams=model.beams, length_penalty=model.length_penalty, batch=TOGETHER
        )
        loss = teacher_forced_loss(opened, lines)
    cased = bleu(found, lines.target)
    # texts of IWSLT'15 are made plain for models of raw text
    are_tokens = model.corpus in TOKENISED and config.part in ("valid", "test")
    lowered = tokenised_bleu(found, lines.target, tokenize="none" if are_tokens else "13a")
    with Run.create(folder, config) as run:
        run.save_figures(
            {
                "bleu": cased.value,
                "bleu_signature": cased.signature,
                "tokenised_bleu": lowered.value,
                "tokenised_bleu_signature": lowered.signature,
                "loss": loss,
            }
        )
    return run


@contextmanager
def attending(model: nn.Module, attention: str, where: str = "*") -> Generator[None]:
    """Compute with other attention inside a `with` block, unless it is ""."""
    if not attention:
        yield
        return
    with sites.replace(model, attention_op(attention), where=where):
        yield


def lines_of(model: TranslationConfig, part: Part) -> Lines:
    """Return the sentences of a part and their translations."""
    if part in ("tst2012", "tst2013"):
        lines = read_part("iwslt15", part, model.source, model.target, plain=True)
    else:
        texts = read_parallel_texts(model.corpus, model.source, model.target)
        lines = texts.valid if part == "valid" else texts.test
    count = model.valid_pairs if part == "valid" else model.test_pairs
    return Lines(lines.source[:count], lines.target[:count]) if count else lines


@torch.no_grad()
def teacher_forced_loss(opened: Translator, lines: Lines) -> float:
    """Return nats per target subword, the end mark included, given the right ones before it.

    Pairs too long for the model are left out.
    """
    encoded = (
        (opened.source.encode(source), opened.target.encode(target))
        for source, target in zip(*lines, strict=True)
    )
    fitting = [pair for pair in encoded if max(map(len, pair)) <= opened.max_tokens]
    fitting.sort(key=lambda pair: max(map(len, pair)))
    total, count = 0.0, 0
    opened.model.eval()
    for start in range(0, len(fitting), BATCH):
        batch = opened.batch(*zip(*fitting[start : start + BATCH], strict=True))
        logits_BTV = opened.model(batch.source, batch.source_lengths, batch.target_in)
        flat = logits_BTV.flatten(0, 1).float(), batch.target_out.flatten()
        total += cross_entropy(*flat, ignore_index=PAD, reduction="sum").item()
        count += int(batch.target_lengths.sum())
    return total / count


def long_rows(model: TranslationConfig, keep: int) -> Result:
    """Return the share of rows with more than `keep` keys, on the test part, in its subwords."""
    codecs = load_codecs(find_or_train(train_translation, model))
    sides = zip(codecs, lines_of(model, "test"), strict=True)
    sources, targets = ([len(codec.encode(text)) + 1 for text in side] for codec, side in sides)
    return Result([share_of_long_rows(list(zip(sources, targets, strict=True)), keep)])


def share_of_long_rows(lengths: list[tuple[int, int]], keep: int) -> float:
    """Return the same from lengths of sources and targets, their marks included.

    A layer of the encoder has `source` rows of as many keys, and one of the decoder `target` rows
    with 1, 2, ..., `target` keys and as many with `source` keys; the three count alike.

    >>> share_of_long_rows([(4, 2)], 3), share_of_long_rows([(4, 5)], 3)
    (0.75, 0.7857142857142857)
    """
    rows = sum(source + 2 * target for source, target in lengths)
    long = sum(
        (source + target) * (source > keep) + max(target - keep, 0) for source, target in lengths
    )
    return long / rows


def subtract(
    name: str, values: Mapping[str, Result], pairs: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, Result]]:
    """Yield the differences of pairs of which both were measured, as `NAME: A - B`."""
    for first, second in pairs:
        if first in values and second in values:
            yield f"{name}: {first} - {second}", minus(values[first], values[second])


def bleu_figure(found: Mapping[str, Mapping[str, Result]]) -> "Figure":
    """Draw a column per title: BLEU by method, and below how far it is from the first one's."""
    figure, axes = panels(len(found), 2, width=3.6, height=2.6)
    for (upper, lower), (title, values) in zip(zip(*axes, strict=True), found.items(), strict=True):
        base, *others = values
        _draw_points(upper, values, ylabel="BLEU")
        upper.set_title(title, fontsize=9)
        apart = {name: minus(values[name], values[base]) for name in others}
        _draw_points(lower, apart, ylabel=f"BLEU - that of {base}")
        lower.axhline(0, color="black", linewidth=0.8)
    return figure


def _draw_points(axes: "Axes", values: Mapping[str, Result], *, ylabel: str) -> None:
    """Draw means with 95 % intervals, and each seed as a dot."""
    for place, result in enumerate(values.values()):
        ends = [[result.mean - result.low], [result.high - result.mean]]
        axes.errorbar(place, result.mean, ends, fmt="_", color="C0", markersize=14)
        axes.plot([place] * len(result.values), result.values, ".", color="black", markersize=4)
    axes.set_xticks(range(len(values)), list(values), rotation=20, ha="right", fontsize=8)
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_ylabel(ylabel, fontsize=8)
