"""Coreference sets: GAP, WinoBias, Winogender and LitBank, as passages with mentions to resolve.

A mention comes with its right answers, all words of earlier mentions of the same entity (in GAP
also later ones), and with its distractors, the words of mentions of other entities.

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
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headwise.config import suggestion
from headwise.text.mentions import (
    PRONOUNS,
    CoreferenceSet,
    Mention,
    Passage,
    Span,
    make_mention,
    mention_kind,
)
from headwise.text.words import words_in
from headwise_papers.data.source import DataFile, data_folder, github

_THIRD_PERSON = frozenset(words_in("he him his she her hers they them their theirs"))
_ARTICLES = ("the", "a", "an")
_BRACKETED = re.compile(r"\[\s*([^\]]*?)\s*\]")
_CORNERS = re.compile(r"(\()?(\d+)(\))?")


class _Set(NamedTuple):
    path: str  # with {part}
    origin: str
    repository: str
    commit: str
    source: str  # in the repository, with {part}, or {kind} and {split}; "": made of many files
    checksums: dict[str, str]  # of the unpacked file, by part


COREFERENCE = {
    "gap": _Set(
        "gap/gap-{part}.tsv",
        "gap-{part}.tsv of github.com/google-research-datasets/gap-coreference at 83135f26",
        "google-research-datasets/gap-coreference",
        "83135f26",
        "gap-{part}.tsv",
        {
            "development": "b9a01434fcf58d8c2f9bc762480c27e58ce466cf1ffe8b09cfecbc7a20d2d634",
            "validation": "2d784f66b390404f554704b9aef6dcde8845e79dda9886b8391cf7e9a24fdb98",
            "test": "1c35e36d5b14f6313ec3f6cd67b275de282595dd59e59390e00cfff9897a6819",
        },
    ),
    "winobias": _Set(
        "winobias/{part}.txt",
        "WinoBias/wino/data/{kind}.txt.{split} of github.com/uclanlp/corefBias at 0bce984d",
        "uclanlp/corefBias",
        "0bce984d",
        "WinoBias/wino/data/{kind}.txt.{split}",
        {
            "pro_stereotyped_type1.dev": (
                "dd55a0d220fe4c0ceb63dd4648223fb4fe1a58d5ad95c116a002ad24b0e292a5"
            ),
            "pro_stereotyped_type1.test": (
                "db7838907238a758eeb5779e48f38c013b892910d6fe864456c59f04245c6689"
            ),
            "pro_stereotyped_type2.dev": (
                "8f0250de723cea9328e3eaf7169e07936f01aa5909ce7aa580db66eb803f4e86"
            ),
            "pro_stereotyped_type2.test": (
                "ea1c1fd94fa612e3cc44d7fa3cc4cb76021bb63fdf94f9826f430051e9052438"
            ),
            "anti_stereotyped_type1.dev": (
                "a4e0ebae344e78b56f657a42e8ae684b9db7747d177c5e7149c0907ebb7f3bf6"
            ),
            "anti_stereotyped_type1.test": (
                "331db5bd74bfefebf146a60b67645152a4a1991570d2a56f57154103ac361dd2"
            ),
            "anti_stereotyped_type2.dev": (
                "763ad829ad724f9a85ead689ba8ca69072020cb1238def6210f0fc6a47b97e59"
            ),
            "anti_stereotyped_type2.test": (
                "336571ac1ea8c06cd2aba8e5dd2bd98e00acc0c48da3e4ec5ec7e54eb2633a8f"
            ),
        },
    ),
    "winogender": _Set(
        "winogender/all_sentences.tsv",
        "data/all_sentences.tsv of github.com/rudinger/winogender-schemas at 1c7f8b48",
        "rudinger/winogender-schemas",
        "1c7f8b48",
        "data/all_sentences.tsv",
        {"": "bd69da16bf228cb8df63fd0843aec2d8b5c36a7f21bf8c7b168bcc83932556c8"},
    ),
    "litbank": _Set(
        "litbank/litbank_coref.conll",
        "coref/conll/*.conll of github.com/dbamman/litbank at 3e50db0f, joined in the order of "
        "their names",
        "dbamman/litbank",
        "3e50db0f",
        "",
        {"": "0377fbb23e6af2d6b76336970257317534ef17d1409318e550e92f1131ffcecf"},
    ),
}


class _Marked(NamedTuple):
    """Annotated mention."""

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
    """Read the passages of a set that have a mention to resolve.

    - GAP: pronouns that refer to neither name are left out; only the annotated occurrence of the
      right name counts.
    - WinoBias: an unmarked occupation in the sentence is a distractor.
    - Winogender: either the occupation or the participant is right.
    - LitBank: documents are split into passages of whole sentences. A mention counts if the passage
      mentions its entity before; words inside the mention are neither right nor wrong.

    Args:
        name: "gap", "winobias", "winogender" or "litbank".
        part: "development", "validation" or "test" of GAP, "pro_stereotyped_type1.dev" and the like
            of WinoBias; the others have one part.
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown.
        most_words: per passage of LitBank; a longer sentence is a passage of its own.
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


def coreference_parts(name: str) -> tuple[str, ...]:
    """Return the parts of a set; an undivided set has one part named ""."""
    return tuple(COREFERENCE[name].checksums)


def coreference_file(name: str, part: str = "") -> DataFile:
    """Return the file of a part of a set.

    >>> coreference_file("gap", "test").name
    'gap/gap-test.tsv'
    """
    known = COREFERENCE[name]
    if part not in known.checksums:
        parts = coreference_parts(name)
        raise ValueError(f"{name} has no part {part!r}. {suggestion(part, parts)}")
    kind, _, split = part.partition(".")
    names = {"part": part, "kind": kind, "split": split}
    source = known.source.format(**names)
    return DataFile(
        known.path.format(**names),
        known.checksums[part],
        known.origin.format(**names),
        (github(known.repository, known.commit, source),) if source else (),
    )


def _cut(text: str, marked: Sequence[Span]) -> tuple[tuple[str, ...], list[Span]]:
    """Split a text into words, also at marked characters; return words and marked words."""
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
    """Return a phrase without its article."""
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
    """Find phrases among words, ignoring case; spans include the article before."""
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
    """Yield words and mentions of each sentence; None at the end of a document."""
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
    """Yield a passage with the mentions whose entity was mentioned before, if any."""
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


def _set(name: str) -> CoreferenceSet:
    return CoreferenceSet(coreference_parts(name), partial(read_coreference, name))


GAP, WINOBIAS, WINOGENDER, LITBANK = map(_set, COREFERENCE)
