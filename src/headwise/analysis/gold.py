"""Gold: the words that heads should attend to, from annotation or from the words themselves.

Every function takes a batch and returns a list of `Gold`, one per label that occurs in it. A word
in "decoder.self" sees only itself and words before it, so later keys are left out there, and with
them queries that have no other key.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from headwise.recording.reading import Gold
from headwise.text.mentions import Passage
from headwise.text.treebank import Tree
from headwise.text.words import is_punctuation

# Voita et al. (2019), section 5.2; "dobj" is "obj" in UD 2
RELATIONS = ("nsubj", "obj", "amod", "advmod")
COMMON = 500  # rank below which a word is common, section 5.3
CAUSAL = "decoder.self"
Row = tuple[int, int, int]  # batch item, query, right key
Sentences = Sequence[Sequence[str]]


def syntax_gold(
    trees: Sequence[Tree],
    kind: str = "encoder.self",
    *,
    relations: Sequence[str] | None = RELATIONS,
    subtypes: bool = False,
) -> list[Gold]:
    """Return gold for relations in both directions: `nsubj_to_head`, `nsubj_to_dependent`, …

    Queries of `_to_head` are dependents, queries of `_to_dependent` are heads; any of several
    dependents is right.

    Args:
        trees: of the batch, in its order.
        kind: of the sites, e.g. "encoder.self".
        relations: names as in the treebank; None takes all but "root" and "punct".
        subtypes: "nsubj:pass" counts as "nsubj"; else it is a relation of its own, as "nsubjpass"
            was for the parser of Voita et al. (2019).
    """
    rows: dict[str, list[Row]] = {}
    for item, tree in enumerate(trees):
        for relation, dependent, head in _arcs(tree, relations, subtypes=subtypes):
            rows.setdefault(f"{relation}_to_head", []).append((item, dependent, head))
            rows.setdefault(f"{relation}_to_dependent", []).append((item, head, dependent))
    return _golds(rows, kind)


def relative_positions(
    trees: Iterable[Tree],
    *,
    relations: Sequence[str] | None = RELATIONS,
    subtypes: bool = False,
) -> dict[str, Counter[int]]:
    """Count positions of dependents relative to their heads: {relation: {offset: count}}.

    -1 is the word before the head. Counters of parts of a corpus can be added up.

    Args:
        trees: read once.
        relations: see `syntax_gold`.
        subtypes: "nsubj:pass" counts as "nsubj".
    """
    counts: dict[str, Counter[int]] = {relation: Counter() for relation in relations or ()}
    for tree in trees:
        for relation, dependent, head in _arcs(tree, relations, subtypes=subtypes):
            counts.setdefault(relation, Counter())[dependent - head] += 1
    return counts


def rare_gold(
    sentences: Sentences,
    rank: Callable[[str], int],
    kind: str = "encoder.self",
    *,
    common: int = COMMON,
) -> list[Gold]:
    """Return gold `rarest` and `two_rarest`: the rarest words of a sentence, for every query.

    Sentences whose rarest word is common are left out. All equally rare words are right, so
    `two_rarest` may be more than two. A rare word may attend to itself, except in "decoder.self",
    where idle heads attend to the word itself.

    Args:
        sentences: the words of each.
        rank: of a word, 0 for the most common, e.g. `WordRanks.rank`.
        kind: of the sites.
        common: words of a lower rank are too common.
    """
    keys: dict[str, list[tuple[int, int]]] = {"rarest": [], "two_rarest": []}
    for item, words in enumerate(sentences):
        ranks = list(map(rank, words))
        rarest = sorted(ranks)[-2:]
        if rarest and rarest[-1] >= common:
            keys["rarest"] += ((item, at) for at, has in enumerate(ranks) if has == rarest[-1])
            keys["two_rarest"] += ((item, at) for at, has in enumerate(ranks) if has >= rarest[0])
    rows = {label: _from_everywhere(at, sentences) for label, at in keys.items()}
    if kind == CAUSAL:
        rows = {label: _of_others(rows_N3) for label, rows_N3 in rows.items()}
    return _golds(rows, kind)


def punctuation_gold(sentences: Sentences, kind: str = "encoder.self") -> list[Gold]:
    """Return gold `punctuation`: any punctuation but the query itself.

    Counting the query itself would give the role to heads that attend to their own word: many
    sentences have one full stop, which only the full stop itself sees in "decoder.self".

    Args:
        sentences: the words of each.
        kind: of the sites.
    """
    keys = [
        (item, place)
        for item, words in enumerate(sentences)
        for place, word in enumerate(words)
        if is_punctuation(word)
    ]
    return _golds({"punctuation": _of_others(_from_everywhere(keys, sentences))}, kind)


def first_gold(sentences: Sentences, kind: str = "encoder.self") -> list[Gold]:
    """Return gold `first_word`: the first word, for every other word; idle heads attend there."""
    keys = [(item, 0) for item, words in enumerate(sentences) if len(words) > 1]
    rows_N3 = _from_everywhere(keys, sentences)
    return _golds({"first_word": rows_N3[rows_N3[:, 1] > 0]}, kind)


def neighbour_gold(sentences: Sentences, kind: str = "encoder.self") -> list[Gold]:
    """Return gold `previous` and `next`: the neighbour of each word that has one."""
    pairs = [
        (item, place) for item, words in enumerate(sentences) for place in range(1, len(words))
    ]
    previous = [(item, place, place - 1) for item, place in pairs]
    following = [(item, place - 1, place) for item, place in pairs]
    return _golds({"previous": previous, "next": following}, kind)


def duplicate_gold(sentences: Sentences, kind: str = "decoder.self") -> list[Gold]:
    """Return gold `duplicate`: any earlier occurrence of the same word."""
    rows = [
        (item, query, key)
        for item, words in enumerate(sentences)
        for query, key in _earlier_same(words)
    ]
    return _golds({"duplicate": rows}, kind)


def induction_gold(sentences: Sentences, kind: str = "decoder.self") -> list[Gold]:
    """Return gold `induction`: the word after an earlier occurrence of the same word.

    In "a b … a" it is b for the second a (Olsson et al., 2022), and never the word itself.
    """
    rows = [
        (item, query, key + 1)
        for item, words in enumerate(sentences)
        for query, key in _earlier_same(words)
        if key + 1 < query
    ]
    return _golds({"induction": rows}, kind)


def alignment_gold(
    links: Sequence[Iterable[tuple[int, int]]], kind: str = "decoder.cross"
) -> list[Gold]:
    """Return gold `alignment`: the source words that a target word is linked with.

    Args:
        links: of each pair of sentences, (target word, source word).
        kind: of the sites.
    """
    rows = [
        (item, target, source)
        for item, linked in enumerate(links)
        for target, source in sorted(set(linked))
    ]
    return _golds({"alignment": rows}, kind)


def links_in(line: str) -> list[tuple[int, int]]:
    """Parse a line such as "0-0 1-2" (source-target, from 0 on) into (target, source) pairs.

    >>> links_in("0-0 2-1")
    [(0, 0), (1, 2)]
    """
    links: list[tuple[int, int]] = []
    for link in line.split():
        source, dash, target = link.partition("-")
        if not dash or not source.isdecimal() or not target.isdecimal():
            raise ValueError(
                f"A link SOURCE-TARGET such as 0-2 was wanted, got {link!r}; give alignments in "
                "the Pharaoh format, counted from 0."
            )
        links.append((int(target), int(source)))
    return links


def coreference_gold(passages: Sequence[Passage], kind: str = "encoder.self") -> list[Gold]:
    """Return gold `coreference`, and by kind of mention: `_pronoun`, `_proper`, `_nominal`.

    The query is the head word of a mention; any word of its antecedents is right, as in Clark et
    al. (2019).

    Args:
        passages: of the batch, in its order.
        kind: of the sites.
    """
    rows: dict[str, list[Row]] = {}
    for item, passage in enumerate(passages):
        for mention in passage.mentions:
            right = [(item, mention.head, key) for key in mention.antecedents]
            for label in ("coreference", f"coreference_{mention.kind}"):
                rows.setdefault(label, []).extend(right)
    return _golds(rows, kind)


def _arcs(
    tree: Tree, relations: Sequence[str] | None, *, subtypes: bool
) -> Iterable[tuple[str, int, int]]:
    """Yield (relation, dependent, head) of the wanted relations."""
    for dependent, (head, name) in enumerate(zip(tree.heads, tree.relations, strict=True)):
        relation = name.partition(":")[0] if subtypes else name
        wanted = relation in relations if relations is not None else relation != "punct"
        if wanted and head >= 0:
            yield relation, dependent, head


def _earlier_same(words: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Yield (position, earlier position) of equal words."""
    seen: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        before = seen.setdefault(word, [])
        for earlier in before:
            yield place, earlier
        before.append(place)


def _from_everywhere(keys: Sequence[tuple[int, int]], sentences: Sentences) -> Tensor:
    """Return rows in which every word of a sentence is a query of each (item, key)."""
    if not keys:
        return torch.empty(0, 3, dtype=torch.long)
    item_K, key_K = torch.tensor(keys).unbind(dim=1)
    words_K = torch.tensor([len(words) for words in sentences])[item_K]
    row_N = torch.arange(len(keys)).repeat_interleave(words_K)
    query_N = torch.arange(len(row_N)) - (words_K.cumsum(dim=0) - words_K)[row_N]
    return torch.stack([item_K[row_N], query_N, key_K[row_N]], dim=1)


def _of_others(rows_N3: Tensor) -> Tensor:
    """Drop the rows in which query and key are the same word."""
    return rows_N3[rows_N3[:, 1] != rows_N3[:, 2]]


def _golds(rows: Mapping[str, Sequence[Row] | Tensor], kind: str) -> list[Gold]:
    golds: list[Gold] = []
    for label, found in sorted(rows.items(), key=lambda item: item[0]):
        right_N3 = torch.as_tensor(found, dtype=torch.long).reshape(-1, 3)
        if kind == CAUSAL:
            right_N3 = right_N3[right_N3[:, 2] <= right_N3[:, 1]]
        if len(right_N3):
            golds.append(Gold(label, kind, right_N3))
    return golds
