"""Splits of sentence pairs that no sentence crosses, the same wherever they are made."""

import hashlib
import re
from collections.abc import Sequence

__all__ = ["bare", "split_pairs"]

_NOT_WORDS = re.compile(r"[\W_]+")
BUCKETS = 10_000


def bare(sentence: str) -> str:
    """A sentence without case and marks, by which two count as the same.

    >>> bare("What's up, Tom?")
    'what s up tom'
    """
    return _NOT_WORDS.sub(" ", sentence.lower()).strip()


def split_pairs(
    pairs: Sequence[tuple[str, str]], *, valid: float = 0.012, test: float = 0.018
) -> dict[str, list[tuple[str, str]]]:
    """Split pairs so that no sentence of either side is in two parts, by hashes alone.

    Pairs that share a sentence, case and marks aside, belong together, and so do those that share
    one with these. Such a group goes where the SHA-256 of its first sentence in alphabetical order
    says; so the parts depend neither on the order of the pairs nor on chance, and a later export
    of the same corpus moves few sentences.

    Args:
        pairs: sentences and their translations; the order is kept within each part.
        valid: share of groups in "valid".
        test: share of groups in "test".

    Returns:
        "train", "valid" and "test".
    """
    if valid < 0 or test < 0 or valid + test >= 1:
        raise ValueError(f"valid and test are shares below 1 together, got {valid} and {test}.")
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for pair, group in zip(pairs, _groups(pairs), strict=True):
        share = int(hashlib.sha256(group.encode()).hexdigest(), 16) % BUCKETS / BUCKETS
        name = "test" if share < test else "valid" if share < test + valid else "train"
        parts[name].append(pair)
    return parts


def _groups(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """For each pair the first sentence, in alphabetical order, of those it is tied to."""
    leader: dict[str, str] = {}

    def find(sentence: str) -> str:
        leader.setdefault(sentence, sentence)
        while leader[sentence] != sentence:
            leader[sentence] = leader[leader[sentence]]  # halve the way for the next one
            sentence = leader[sentence]
        return sentence

    # the side belongs to the key: "Tom" in one language says nothing about "Tom" in the other
    keys = [(f"0 {bare(first)}", f"1 {bare(second)}") for first, second in pairs]
    for first, second in keys:
        low, high = sorted((find(first), find(second)))
        leader[high] = low
    return [find(first) for first, _ in keys]
