"""A pass of its own over sentences that come with gold."""

from collections.abc import Sequence

from headwise.recording import Pointing
from headwise.workflows.inspect.corpus import Corpus
from headwise.workflows.inspect.passing import Annotate, Bookmark, Stream, Sums, read_through
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.progress import counting

__all__ = ["pointed_at"]


def pointed_at(
    subject: Subject,
    corpus: Corpus,
    annotate: Annotate,
    *,
    said: str,
    batch_size: int,
    seed: int,
    beside: Sequence[Sums] = (),
    bookmark: Bookmark | None = None,
) -> Pointing:
    """What heads point at in all sentences of a corpus.

    Args:
        subject: what reads.
        corpus: sentences with gold.
        annotate: the gold of a batch.
        said: beside the bar that shows how far it is.
        batch_size: sentences read together.
        seed: of intervals.
        beside: sums that `annotate` fills.
        bookmark: where to go on, and what to leave there.
    """
    total = sum(1 for _ in corpus.read())
    pointing = Pointing(seed=seed)
    with counting(said) as count:
        read_through(
            subject,
            Stream(corpus.read(), total),
            (pointing,),
            annotate,
            batch_size=batch_size,
            beside=beside,
            bookmark=bookmark,
            progress=count,
        )
    return pointing
