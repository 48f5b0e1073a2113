"""How often top-k attention has anything to leave out."""

from headwise.recording.run import Run
from headwise_papers.recipes.translator import load_codecs
from headwise_papers.sparse_transformer._scoring import lines_of
from headwise_papers.sparse_transformer._training import Job, Training

__all__ = ["long_rows", "share_of_long_rows"]


def long_rows(config: Training, trained: Run, corpus: str, keep: int) -> float:
    """The share of rows with more than `keep` keys, on the test part, in a translator's pieces.

    Args:
        config: the settings of the experiment.
        trained: the run of any translator of the corpus, whose pieces are counted.
        corpus: of TASKS.
        keep: how many keys top-k attention keeps.
    """
    codecs = load_codecs(trained)
    sides = zip(codecs, lines_of(config, Job(corpus, "softmax", 0), "test"), strict=True)
    sources, targets = ([len(codec.encode(text)) + 1 for text in side] for codec, side in sides)
    lengths = list(zip(sources, targets, strict=True))
    return share_of_long_rows(lengths, keep)


def share_of_long_rows(lengths: list[tuple[int, int]], keep: int) -> float:
    """The same from lengths of sources and targets, their marks included.

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
