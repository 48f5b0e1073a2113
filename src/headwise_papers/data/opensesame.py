"""Reflexives of Lin et al. (2019), "Open Sesame": made by a grammar, with somebody else beside.

    our prince will love himself . the people were happy .

The set has nine levels of 2,000 sentences each: in level 0 nobody else is named, from level 1 on
one or two others are ("some husband could accept your wizard by himself"). The one that is meant is
always the sentence's first noun phrase: whoever looks at the first word of a text is always right,
unless the other sentence is put before. Apache-2.0.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from headwise.text.mentions import Passage, Span, make_mention
from headwise.text.source import DataFile, data_folder, github
from headwise.text.words import words_in

__all__ = ["LEVELS", "REFLEXIVES", "Distractor", "Reflexive", "read_reflexives", "with_distractors"]

Distractor = Literal["after", "before", "none"]
LEVELS = tuple(range(9))
KEPT = 2000  # sentences of a level, of the 10,000 published
_REPOSITORY, _COMMIT = "yongjie-lin/bert-opensesame", "4b4d3691"
_FOLDER = "pytorch_pretrained_bert/data_refl"
# Each names somebody in its first two words, and all its words are common.
_OTHER_SENTENCES = tuple(
    map(
        words_in,
        (
            "the people were happy .",
            "the teacher was late .",
            "the children had gone home .",
            "the judge said nothing .",
            "a doctor came back .",
            "the neighbors were not here .",
            "the student is in town .",
            "a friend called again .",
        ),
    )
)


@dataclass(frozen=True)
class Reflexive:
    """A sentence that ends in a reflexive.

    Args:
        words: of the sentence, without a full stop.
        level: how many others there are to mislead, and how they differ; from 0 on.
        place: of the reflexive.
        antecedent: the words that it means.
        others: words of other people; none of them is right.
    """

    words: tuple[str, ...]
    level: int
    place: int
    antecedent: tuple[int, ...]
    others: tuple[int, ...]


def _joined(parts: Sequence[bytes]) -> bytes:
    """The first sentences of each level with the places of their words, as rows of a table."""
    rows: list[str] = []
    for level in LEVELS:
        sentences, places = (part.decode().split("\n") for part in parts[2 * level : 2 * level + 2])
        for sentence, place in zip(sentences[:KEPT], places[:KEPT], strict=True):
            fields = [field.strip() for field in place.split("\t")[1:]]
            rows.append("\t".join([f"refl.{level}", sentence.strip(), *filter(None, fields)]))
    return "".join(f"{row}\n" for row in rows).encode()


REFLEXIVES = DataFile(
    "opensesame/refl.tsv",
    "20bc2afdeebfe941b8435ae8d8efdc35a2685679e6b307e88ef7a484c2f05a7c",
    f"{_FOLDER}/refl.N and refl.N.pos of github.com/{_REPOSITORY} at {_COMMIT}, the first {KEPT} "
    "lines of each joined as columns: name, sentence, place, antecedent, others",
    tuple(
        github(_REPOSITORY, _COMMIT, f"{_FOLDER}/refl.{level}{end}")
        for level in LEVELS
        for end in ("", ".pos")
    ),
    _joined,
)


def read_reflexives(*, folder: Path | None = None, verify: bool = True) -> list[Reflexive]:
    """All sentences of the set, in its order.

    Args:
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse a file that is not the known one.
    """
    found = data_folder(folder, wanted="opensesame", origin=REFLEXIVES.origin)
    return list(_sentences(REFLEXIVES.lines(found, verify=verify)))


def _sentences(lines: Sequence[str]) -> Iterator[Reflexive]:
    for number, line in enumerate(lines, start=1):
        name, *fields = line.split("\t")
        level = name.removeprefix("refl.")
        if len(fields) not in (3, 4) or not level.isdecimal() or not fields[1].isdecimal():
            raise ValueError(
                f"{REFLEXIVES.name}, line {number}: refl.LEVEL, a sentence and the places of its "
                f"words between tabs were wanted, got {line[:60]!r}; take it from "
                f"{REFLEXIVES.origin}."
            )
        words = tuple(fields[0].split())
        antecedent, *others = (tuple(map(int, places.split())) for places in fields[2:])
        yield Reflexive(words, int(level), int(fields[1]), antecedent, *(others or [()]))


def with_distractors(
    sentences: Sequence[Reflexive],
    *,
    where: Distractor = "after",
    count: int = 10_000,
    seed: int = 0,
) -> list[Passage]:
    """Draw sentences, and put one that names somebody else beside each.

    Sentences whose reflexive follows its antecedent directly are left out, so that the word before
    is never right.

    Args:
        sentences: to draw from, none of them twice.
        where: the other sentence comes "after" (the paper) or "before" (the code published with
            it); "none" leaves it out.
        count: how many to draw; all, in another order, where there are fewer.
        seed: of the draw.

    >>> one = Reflexive(("our", "prince", "will", "love", "himself"), 0, 4, (0, 1), ())
    >>> with_distractors([one], where="before", seed=1)[0].text
    'the teacher was late . our prince will love himself .'
    """
    if where not in get_args(Distractor):
        raise ValueError(f"where must be 'after', 'before' or 'none', got {where!r}.")
    chance = random.Random(seed)
    usable = [one for one in sentences if one.place - 1 not in one.antecedent]
    drawn = chance.sample(usable, min(count, len(usable)))
    return [_passage(one, chance.choice(_OTHER_SENTENCES), where) for one in drawn]


def _passage(one: Reflexive, other: Sequence[str], where: Distractor) -> Passage:
    sentence = (*one.words, ".")
    order: dict[Distractor, list[Sequence[str]]] = {
        "after": [sentence, other],
        "before": [other, sentence],
        "none": [sentence],
    }
    words = tuple(word for part in order[where] for word in part)
    start = len(other) if where == "before" else 0
    stranger = 0 if where == "before" else len(sentence)
    wrong = [_span(start + place) for place in one.others]
    if where != "none":
        wrong += [_span(stranger), _span(stranger + 1)]
    right = [_span(start + place) for place in one.antecedent]
    mention = make_mention(words, _span(start + one.place), right=right, wrong=wrong)
    return Passage(words, " ".join(words), (mention,))


def _span(place: int) -> Span:
    return place, place + 1
