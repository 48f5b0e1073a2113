"""How much every head matters, on a sample of sentences: means over them, with intervals.

    relevance            share of the model's top prediction that comes through the head, by layer-
                         wise relevance propagation, normalised over the heads of its site; the mean
                         over all predictions (Voita et al., 2019, section 4)
    gradient_importance  |d loss / d gate| of the head (Michel et al., 2019)
    output_norm          how much it writes into the residual stream, relative to its whole site
    loss_rise            what the loss gains when the head is off
    prediction_change    share of top predictions that are others then
    output_change        how far the outputs move then, relative to their size

There are no labels, so the loss is that of the model's own top prediction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from headwise.analysis.importance import output_norms
from headwise.analysis.propagation import Rule
from headwise.workflows.inspect.asking import ask
from headwise.workflows.inspect.corpus import Numbered
from headwise.workflows.inspect.means import Means
from headwise.workflows.inspect.passing import Bookmark, Seen
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.inspect.worth import by_gradient, by_relevance, by_switching_off
from headwise.workflows.progress import Counted

__all__ = ["Weighing", "weigh"]


@dataclass(frozen=True)
class Weighing:
    """What is measured, and how."""

    steps: int | None = None  # predictions of a sentence that relevance starts from; None: all
    relevance: bool = True
    rule: Rule = "ratio"
    output_norm: bool = True
    ablation_lines: int = 16  # of the sample, the first so many
    batch_size: int = 16
    seed: int = 0


def weigh(
    subject: Subject,
    drawn: Sequence[Numbered],
    settings: Weighing,
    *,
    bookmark: Bookmark | None = None,
    progress: Counted = lambda done, total: None,
) -> Means:
    """Measure importance on some sentences.

    Args:
        subject: whose heads.
        drawn: a random sample, in random order.
        settings: what to measure.
        bookmark: where to go on, and what to leave there.
        progress: called with (sentences done, in all).
    """
    means = Means(seed=settings.seed)
    seen = bookmark.find([means]) if bookmark else Seen()
    for batch, off in list(_batches(drawn, settings))[seen.chunks :]:
        _weigh_batch(subject, batch, settings, means, off=off)
        sentences = seen.sentences + len(batch)
        seen = replace(seen, chunks=seen.chunks + 1, sentences=sentences)
        progress(seen.sentences, len(drawn))
        if bookmark:
            bookmark.put([means], seen)
    return means


def _batches(
    drawn: Sequence[Numbered], settings: Weighing
) -> Iterator[tuple[Sequence[Numbered], bool]]:
    """Sentences of similar length together, and whether heads are switched off for them."""
    parts = drawn[: settings.ablation_lines], drawn[settings.ablation_lines :]
    for part, off in zip(parts, (True, False), strict=True):
        ordered = sorted(part, key=lambda pair: len(pair[1].text))
        for start in range(0, len(ordered), settings.batch_size):
            yield ordered[start : start + settings.batch_size], off


def _weigh_batch(
    subject: Subject, batch: Sequence[Numbered], settings: Weighing, means: Means, *, off: bool
) -> None:
    numbers = [number for number, _ in batch]
    with torch.no_grad():
        prepared = subject.prepare([sentence for _, sentence in batch])
        predicts = subject.forward(prepared.inputs).predicts
    few = ask(
        subject, prepared, predicts, numbers=numbers, steps=settings.steps, seed=settings.seed
    )
    if few is None:
        return
    # all steps of a sentence are one row, unless each needs a mask of its own
    asked = few if predicts == "masked" else ask(subject, prepared, predicts, numbers=numbers)
    assert asked is not None
    counts = [float(steps > 0) for steps in few.steps]
    if predicts != "nothing":
        if settings.relevance:
            found = by_relevance(subject, few, rows=settings.batch_size, rule=settings.rule)
            means.add("relevance", found, numbers, few.steps)
        slopes = by_gradient(subject, asked, rows=settings.batch_size)
        means.add("gradient_importance", slopes, numbers, counts)
    if settings.output_norm:
        counted = {stack: words.of >= 0 for stack, words in prepared.words.items()}
        norms = output_norms(
            subject.model, lambda: subject.forward(prepared.inputs), counted=counted
        )
        means.add("output_norm", norms, numbers, counts)
    if off:
        changes = by_switching_off(subject, asked, rows=settings.batch_size)
        for measure, values in changes.items():
            means.add(measure, values, numbers, counts)
