"""Coreference sets: GAP, WinoBias, Winogender and LitBank, as passages with mentions to resolve.

A mention comes with every word that counts as a right answer, those of the other mentions of the
same entity before it (in GAP also after it), and with those of other entities that could mislead.

| set | passages | mentions | files below the data folder |
| --- | --- | --- | --- |
| GAP (Webster et al., 2018) | some sentences of Wikipedia | a pronoun | `gap/gap-*.tsv` |
| WinoBias (Zhao et al., 2018) | a sentence | one or two pronouns | `winobias/*_stereotyped_*` |
| Winogender (Rudinger et al., 2018) | a sentence | a pronoun | `winogender/all_sentences.tsv` |
| LitBank (Bamman et al., 2020) | of novels, whole sentences | all | `litbank/litbank_coref.conll` |
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headwise.config import suggestion
from headwise.text.coreference_files import COREFERENCE, coreference_file
from headwise.text.mentions import PRONOUNS, Mention, Passage, Span, make_mention, mention_kind
from headwise.text.source import DataFile, data_folder
from headwise.text.words import words_in

__all__ = ["read_coreference"]

_THIRD_PERSON = frozenset(words_in("he him his she her hers they them their theirs"))
_ARTICLES = ("the", "a", "an")
_BRACKETED = re.compile(r"\[\s*([^\]]*?)\s*\]")
_CORNERS = re.compile(r"(\()?(\d+)(\))?")


class _Marked(NamedTuple):
    """A mention as annotated."""

    entity: str
    span: Span


def read_coreference(
    name: str,
    part: str = "",
    *,
    folder: Path | None = None,
    verify: bool = True,
    most_words: int = 128,
) -> Iterator[Passage]:
    """The passages of a set that have a mention to resolve.

    GAP: pronouns that refer to neither name are left out; the annotated occurrence of the right
    name counts, other occurrences of it do not. WinoBias: an occupation in the sentence that is not
    marked is a distractor. Winogender: of occupation and participant one is right. LitBank: a
    document is cut into passages of whole sentences; a mention counts when its entity was mentioned
    before in the passage, and words inside the mention itself are neither right nor wrong.

    Args:
        name: "gap", "winobias", "winogender" or "litbank".
        part: "development", "validation" or "test" of GAP, "pro_stereotyped_type1.dev" and the like
            of WinoBias; the others have one part.
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse files that are not the known ones.
        most_words: of a passage of LitBank; a longer sentence is a passage of its own.
    """
    if name not in COREFERENCE:
        raise ValueError(f"There is no coreference set {name!r}. {suggestion(name, COREFERENCE)}")
    file = coreference_file(name, part)
    found = data_folder(folder, wanted=name, origin=file.origin)
    lines = file.lines(found, verify=verify)
    match name:
        case "gap":
            return _gap(lines, file)
        case "winobias":
            return _winobias(lines, file)
        case "winogender":
            return _winogender(lines, file)
        case _:
            return _litbank(lines, file, most_words=most_words)


def _cut(text: str, marked: Sequence[Span]) -> tuple[tuple[str, ...], list[Span]]:
    """Words of a text, cut also where marked characters begin and end, and the marked words."""
    edges = sorted({0, len(text), *(edge for span in marked for edge in span)})
    words: list[str] = []
    begins: dict[int, int] = {}  # edge -> words before it
    for start, end in zip(edges, [*edges[1:], len(text)], strict=True):
        begins[start] = len(words)
        words += words_in(text[start:end])
    return tuple(words), [(begins[start], begins[end]) for start, end in marked]


def _fields(line: str, count: int, *, number: int, file: DataFile) -> list[str]:
    fields = line.split("\t")
    if len(fields) != count:
        raise ValueError(
            f"{file.name}, line {number}: {count} columns between tabs were wanted, got "
            f"{len(fields)}; take it from {file.origin}."
        )
    return fields


def _gap(lines: Sequence[str], file: DataFile) -> Iterator[Passage]:
    for number, line in enumerate(lines[1:], start=2):
        fields = _fields(line, 11, number=number, file=file)
        text = fields[1]
        marked: list[Span] = []
        for name, offset in (
            (fields[2], fields[3]),
            (fields[4], fields[5]),
            (fields[7], fields[8]),
        ):
            if not offset.isdecimal() or not text.startswith(name, int(offset)):
                raise ValueError(
                    f"{file.name}, line {number}: {name!r} was wanted at character {offset!r} of "
                    f"its text; take the file from {file.origin}."
                )
            marked.append((int(offset), int(offset) + len(name)))
        words, (pronoun, *names) = _cut(text, marked)
        true = [fields[6] == "TRUE", fields[9] == "TRUE"]
        right = [name for name, is_right in zip(names, true, strict=True) if is_right]
        wrong = [name for name, is_right in zip(names, true, strict=True) if not is_right]
        if right:
            yield Passage(words, text, (make_mention(words, pronoun, right=right, wrong=wrong),))


def _winobias(lines: Sequence[str], file: DataFile) -> Iterator[Passage]:
    named = {
        _bare(found[1]) for line in lines for found in _BRACKETED.finditer(line)
    } - PRONOUNS  # every occupation is marked somewhere
    for number, line in enumerate(lines, start=1):
        text, marked = _without_brackets(line.partition(" ")[2])
        words, spans = _cut(text, marked)
        pronouns = [span for span in spans if mention_kind(words, span) == "pronoun"]
        entity = [span for span in spans if span not in pronouns]
        if len(entity) != 1 or not pronouns:
            raise ValueError(
                f"{file.name}, line {number}: a person and a pronoun in square brackets were "
                f"wanted, got {line[:60]!r}; take it from {file.origin}."
            )
        others = [
            span
            for span in _phrases(words, named)
            if not set(range(*span)) & set(range(*entity[0]))
        ]
        mentions = tuple(
            make_mention(words, span, right=[*entity, *pronouns[:place]], wrong=others)
            for place, span in enumerate(pronouns)
        )
        yield Passage(words, text, mentions)


def _bare(phrase: str) -> str:
    """A person without article."""
    words = phrase.lower().split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in _ARTICLES else words)


def _without_brackets(marked: str) -> tuple[str, list[Span]]:
    text, spans, end = "", list[Span](), 0
    for found in _BRACKETED.finditer(marked):
        text += marked[end : found.start()]
        spans.append((len(text), len(text) + len(found[1])))
        text += found[1]
        end = found.end()
    return text + marked[end:], spans


def _phrases(words: Sequence[str], phrases: Iterable[str]) -> list[Span]:
    """Where phrases stand among words, case aside, each with the article before it."""
    lowered, found = [word.lower() for word in words], list[Span]()
    for phrase in phrases:
        wanted = words_in(phrase)
        for start in range(len(words) - len(wanted) + 1):
            if lowered[start : start + len(wanted)] == wanted:
                article = start > 0 and lowered[start - 1] in _ARTICLES
                found.append((start - article, start + len(wanted)))
    return sorted(found)


def _winogender(lines: Sequence[str], file: DataFile) -> Iterator[Passage]:
    for number, line in enumerate(lines[1:], start=2):
        name, text = _fields(line, 2, number=number, file=file)
        people, words = name.split(".")[:2], words_in(text)
        answer = name.split(".")[2:3]
        places = [_phrases(words, [person.lower()]) for person in people]
        pronouns = [
            (place, place + 1) for place, word in enumerate(words) if word.lower() in _THIRD_PERSON
        ]
        if answer not in (["0"], ["1"]) or not all(places) or len(pronouns) != 1:
            raise ValueError(
                f"{file.name}, line {number}: OCCUPATION.PARTICIPANT.ANSWER and a sentence with "
                f"both and one pronoun were wanted, got {line[:60]!r}; take it from {file.origin}."
            )
        right = int(answer[0])
        mention = make_mention(words, pronouns[0], right=places[right], wrong=places[1 - right])
        yield Passage(tuple(words), text, (mention,))


def _litbank(lines: Sequence[str], file: DataFile, *, most_words: int) -> Iterator[Passage]:
    words: list[str] = []
    marked: list[_Marked] = []
    for sentence in _sentences(lines, file):
        if sentence is None or len(words) + len(sentence[0]) > most_words:
            yield from _passage(words, marked)
            words, marked = [], []
        if sentence:
            marked += [
                _Marked(entity, (first + len(words), end + len(words)))
                for entity, (first, end) in sentence[1]
            ]
            words += sentence[0]
    yield from _passage(words, marked)


def _sentences(
    lines: Sequence[str], file: DataFile
) -> Iterator[tuple[list[str], list[_Marked]] | None]:
    """Words and mentions of each sentence; None at the end of a document."""
    words: list[str] = []
    marked: list[_Marked] = []
    begun: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines, start=1):
        if line.startswith("#") or not line.strip():
            if words:
                yield words, marked
                words, marked, begun = [], [], defaultdict(list)
            if line.startswith("#end"):
                yield None
            continue
        fields = _fields(line, 13, number=number, file=file)
        for opens, entity, closes in _CORNERS.findall(fields[12]):
            if opens:
                begun[entity].append(len(words))
            if closes and not begun[entity]:
                raise ValueError(
                    f"{file.name}, line {number}: a mention of entity {entity} ends that did not "
                    f"begin in its sentence; take it from {file.origin}."
                )
            if closes:
                marked.append(_Marked(entity, (begun[entity].pop(), len(words) + 1)))
        words.append(fields[3])
    if words:
        yield words, marked


def _passage(words: Sequence[str], marked: Sequence[_Marked]) -> Iterator[Passage]:
    """A passage with those mentions whose entity was mentioned before, if there are any."""
    mentions: list[Mention] = []
    ordered = sorted(marked, key=lambda mention: mention.span)
    for place, (entity, span) in enumerate(ordered):
        before = [other for other in ordered[:place] if other.span[1] <= span[0]]
        right = [other.span for other in before if other.entity == entity]
        wrong = [other.span for other in before if other.entity != entity]
        if right:
            mentions.append(make_mention(words, span, right=right, wrong=wrong))
    if mentions:
        yield Passage(tuple(words), " ".join(words), tuple(mentions))
