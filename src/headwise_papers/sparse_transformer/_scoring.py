"""BLEU and loss of trained translators, as they were trained or with other attention."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headwise.analysis.scores import bleu
from headwise.config import from_json
from headwise.ops.named import attention_op
from headwise.recording.run import Run
from headwise.sites import replace
from headwise_papers.core.at_once import make_at_once
from headwise_papers.data.translation import Lines, read_parallel_texts, read_part
from headwise_papers.data.vocabulary import PAD
from headwise_papers.measures.scores import tokenised_bleu
from headwise_papers.recipes.translation import TOKENISED
from headwise_papers.recipes.translator import Translator, open_translator
from headwise_papers.sparse_transformer._training import (
    Job,
    Training,
    places,
    settings_of,
    task_named,
    translator_run,
)

__all__ = [
    "Scores",
    "Switch",
    "Wanted",
    "attending",
    "score_at_once",
    "scores",
    "teacher_forced_loss",
]

Part = Literal["valid", "test", "tst2012", "tst2013"]
TOGETHER = 256  # sentences translated at the same time
BATCH = 128  # sentence pairs whose loss is computed together


@dataclass(frozen=True)
class Scores:
    """How well some sentences were translated, with how it was computed."""

    bleu: float  # sacreBLEU, cased
    bleu_signature: str
    tokenised_bleu: float  # lower-cased, without smoothing
    tokenised_bleu_signature: str
    loss: float | None = None  # nats a target piece, given those before; not known of all


@dataclass(frozen=True)
class Switch:
    """Attention to compute with instead of that which was trained."""

    attention: str  # as in headwise.ops.named
    where: str = "*"  # pattern of site names

    @property
    def name(self) -> str:
        """For files."""
        where = "" if self.where == "*" else self.where.replace("*", "").strip(".")
        return f"-{self.attention}-{where}".replace(":", "-").replace("..", "-").rstrip("-")


class Wanted(NamedTuple):
    """A translator and what it is to be scored on."""

    job: Job
    parts: tuple[Part, ...]
    switches: tuple[Switch | None, ...] = (None,)


def score_at_once(config: Training, run: Run, wanted: Sequence[Wanted]) -> None:
    """Train and score translators, several at a time if the setting `at_once` says so."""
    make_at_once(partial(_score, config), wanted, run=run, processes=config.at_once)


def _score(config: Training, run: Run, wanted: Wanted) -> None:
    for part in wanted.parts:
        for switch in wanted.switches:
            scores(config, run, wanted.job, part, switch)


def scores(
    config: Training, run: Run, job: Job, part: Part, switch: Switch | None = None
) -> Scores:
    """BLEU of a translator on a part of its corpus, or of IWSLT'15; found or computed now.

    Args:
        config: the settings of the experiment.
        run: of the experiment; scores are kept below `scores`.
        job: which translator; it is trained if that was not done.
        part: the sentences.
        switch: other attention; None takes what was trained.
    """
    if part == "test" and switch is None:
        figures = translator_run(config, run, job).figures()
        known = [name for name in Scores.__annotations__ if name != "loss"]
        return Scores(**{name: figures[name] for name in known})
    file = f"scores/{job.folder}/{part}{switch.name if switch else ''}.json"
    for place in places(config, run):
        if (place / file).is_file():
            return from_json(Scores, Run.open(place).read_json(file))
    # a sub-run that is there is checked against the settings before its model is used
    translator = open_translator(translator_run(config, run, job).folder)
    with attending(translator.model, switch):
        found = _scored(config, job, part, translator)
    run.write_json(file, asdict(found))
    return found


@contextmanager
def attending(model: nn.Module, switch: Switch | None) -> Generator[None]:
    """Compute with other attention inside a `with` block."""
    change = (
        replace(model, attention_op(switch.attention), where=switch.where)
        if switch
        else nullcontext()
    )
    with change:
        yield


def _scored(config: Training, job: Job, part: Part, translator: Translator) -> Scores:
    settings, lines = settings_of(config, job), lines_of(config, job, part)
    found = translator.translate(
        lines.source,
        beams=settings.beams,
        length_penalty=settings.length_penalty,
        batch=TOGETHER,
    )
    # texts of IWSLT'15 are made plain for models of raw text
    as_it_is = settings.corpus in TOKENISED and part in ("valid", "test")
    cased = bleu(found, lines.target)
    lowered = tokenised_bleu(found, lines.target, tokenize="none" if as_it_is else "13a")
    loss = teacher_forced_loss(translator, lines)
    return Scores(cased.value, cased.signature, lowered.value, lowered.signature, loss)


def lines_of(config: Training, job: Job, part: Part) -> Lines:
    """The sentences of a part and their translations."""
    settings = settings_of(config, job)
    if part in task_named(job.corpus).further:
        lines = read_part("iwslt15", part, settings.source, settings.target, plain=True)
        return _first(lines, settings.test_pairs)
    texts = read_parallel_texts(settings.corpus, settings.source, settings.target)
    if part == "valid":
        return _first(texts.valid, settings.valid_pairs)
    return _first(texts.test, settings.test_pairs)


def _first(lines: Lines, count: int) -> Lines:
    return Lines(lines.source[:count], lines.target[:count]) if count else lines


@torch.no_grad()
def teacher_forced_loss(translator: Translator, lines: Lines) -> float:
    """Nats a target piece, the end mark included, given the right pieces before it.

    Pairs too long for the model are left out.
    """
    room = translator.max_tokens
    encoded = [
        (translator.source.encode(source), translator.target.encode(target))
        for source, target in zip(*lines, strict=True)
    ]
    fitting = sorted((pair for pair in encoded if max(map(len, pair)) <= room), key=_longest)
    total, count = 0.0, 0
    translator.model.eval()
    for start in range(0, len(fitting), BATCH):
        sources, targets = zip(*fitting[start : start + BATCH], strict=True)
        batch = translator.batch(sources, targets)
        logits_BTV = translator.model(batch.source, batch.source_lengths, batch.target_in)
        flat = logits_BTV.flatten(0, 1).float(), batch.target_out.flatten()
        total += cross_entropy(*flat, ignore_index=PAD, reduction="sum").item()
        count += int(batch.target_lengths.sum())
    return total / count


def _longest(pair: tuple[list[int], list[int]]) -> int:
    return max(map(len, pair))
