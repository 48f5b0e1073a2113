"""Dependency trees: read from CoNLL-U (universaldependencies.org/format), or parsed by a library.

Words are those of the running text, so that a model can read the text as written. A multiword token
whose words spell it out ("don't" = "do" + "n't") is split into them. Any other ("im" = "in dem",
German) stays one word, with the head of the first of its words that depends on a word outside.
Empty nodes, of ellipsis, are left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from headwise.text.corpus import numbered_lines
from headwise.text.words import word_spans

COLUMNS = 10
# relations of spaCy's English pipelines (ClearNLP) that have other names in Universal Dependencies
_UNIVERSAL = {
    "dobj": "obj",
    "dative": "iobj",
    "nsubjpass": "nsubj:pass",
    "csubjpass": "csubj:pass",
    "auxpass": "aux:pass",
    "ROOT": "root",
}


@dataclass(frozen=True)
class Tree:
    """Sentence with its dependencies."""

    words: tuple[str, ...]
    heads: tuple[int, ...]  # index of the head of each word; -1: a root
    relations: tuple[str, ...]  # of each word to its head, e.g. "nsubj" or "nsubj:pass"
    tags: tuple[str, ...]  # universal parts of speech, e.g. "NOUN"
    text: str  # as written

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Character span of each word in the text."""
        return word_spans(self.words, self.text)


class _Row(NamedTuple):
    """Line of a file: a word, or a multiword token; numbers as in the file, from 1 on."""

    line: int
    first: int
    last: int
    form: str
    tag: str
    head: int
    relation: str
    spaced: bool  # white space follows


def read_treebank(path: Path) -> Iterator[Tree]:
    """Read the sentences of a CoNLL-U file, one at a time.

    A missing file raises at once; a malformed line, with its number, when it is read.

    Args:
        path: a `.conllu` file, or one packed as `.xz` or `.gz`.
    """
    if not path.is_file():
        raise ValueError(f"There is no treebank {path}; check the path.")
    return _trees(numbered_lines(path), place=str(path))


def trees_in(lines: Iterable[str], *, place: str) -> Iterator[Tree]:
    """Read the sentences in lines of CoNLL-U; `place` names them in error messages."""
    return _trees(enumerate(lines, start=1), place=place)


def parse_lines(lines: Iterable[str], *, parser: str = "spacy:en_core_web_sm") -> Iterator[Tree]:
    """Parse lines with spaCy or Stanza: one tree per line, with one root per sentence.

    Relations are those of Universal Dependencies; "dobj" of spaCy's English becomes "obj".

    Args:
        lines: of text.
        parser: "spacy:PIPELINE" or "stanza:LANGUAGE", e.g. "spacy:en_core_web_sm", "stanza:ru".
    """
    kind, _, name = parser.partition(":")
    if kind not in ("spacy", "stanza") or not name:
        raise ValueError(
            f"A parser spacy:PIPELINE or stanza:LANGUAGE was wanted, got {parser!r}; "
            "spacy:en_core_web_sm is one."
        )
    try:
        library: Any = import_module(kind)
    except ImportError:
        raise ValueError(
            f"{parser} wants the package {kind}, which is not installed; pip install {kind}, or "
            "give a treebank in CoNLL-U."
        ) from None
    return _by_spacy(lines, library, name) if kind == "spacy" else _by_stanza(lines, library, name)


def _trees(lines: Iterable[tuple[int, str]], *, place: str) -> Iterator[Tree]:
    rows: list[_Row] = []
    empty = True
    for number, line in lines:
        if not line.strip():
            if rows:
                yield _tree(rows, place=place)
                rows, empty = [], False
        elif not line.startswith("#"):
            row = _row(line, number=number, place=place)
            rows += [row] if row else []
    if rows:
        yield _tree(rows, place=place)
    elif empty:
        raise ValueError(f"{place} holds no sentence; give a CoNLL-U file.")


def _row(line: str, *, number: int, place: str) -> _Row | None:
    """Read a word or multiword token; return None for an empty node."""
    fields = line.split("\t")
    if len(fields) != COLUMNS:
        raise ValueError(
            f"{place}, line {number}: {COLUMNS} columns between tabs were wanted, got "
            f"{len(fields)}; a treebank has one word per line, as in CoNLL-U."
        )
    ident, form, _, tag, _, _, head, relation, _, remarks = fields
    if "." in ident:
        return None
    first, _, last = ident.partition("-")
    several = bool(last)
    if not first.isdecimal() or not (last or first).isdecimal():
        raise ValueError(
            f"{place}, line {number}: a word's number such as 3, 3-4 or 3.1 was wanted, got "
            f"{ident!r}; mend the file."
        )
    if not several and not head.isdecimal():
        raise ValueError(
            f"{place}, line {number}: the number of the head of {form!r} was wanted, got {head!r}; "
            "the sentence must be parsed."
        )
    spaced = "SpaceAfter=No" not in remarks.split("|")
    ends = int(first), int(last or first)
    return _Row(number, *ends, form, tag, 0 if several else int(head), relation, spaced)


def _tree(rows: Sequence[_Row], *, place: str) -> Tree:
    words = [row for row in rows if row.first == row.last]
    _check(words, rows, place=place)
    tokens = _tokens(words, [row for row in rows if row.first < row.last])
    token_of = {
        number: place
        for place, token in enumerate(tokens)
        for number in range(token.first, token.last + 1)
    }
    token_of[0] = -1
    text = "".join(token.form + " " * token.spaced for token in tokens).rstrip(" ")
    return Tree(
        tuple(token.form for token in tokens),
        tuple(token_of[token.head] for token in tokens),
        tuple(token.relation for token in tokens),
        tuple(token.tag for token in tokens),
        text,
    )


def _check(words: Sequence[_Row], rows: Sequence[_Row], *, place: str) -> None:
    for wanted, word in enumerate(words, start=1):
        if word.first != wanted:
            raise ValueError(
                f"{place}, line {word.line}: word {wanted} of its sentence was wanted, got word "
                f"{word.first}; sentences are separated by an empty line."
            )
        if word.head > len(words) or word.head == word.first:
            raise ValueError(
                f"{place}, line {word.line}: the head of word {word.first} must be another of "
                f"{len(words)} words or 0, got {word.head}; mend the file."
            )
    end = 0
    for row in rows:
        if row.first == row.last:
            continue
        if not end < row.first < row.last <= len(words):
            raise ValueError(
                f"{place}, line {row.line}: the multiword token {row.first}-{row.last} does not "
                f"lie within {len(words)} words, after those before it; mend the file."
            )
        end = row.last


def _tokens(words: Sequence[_Row], several: Sequence[_Row]) -> list[_Row]:
    """Return the words of the running text, see the module's docstring."""
    tokens = {word.first: word for word in words}
    for token in several:
        inside = words[token.first - 1 : token.last]
        if "".join(word.form for word in inside) == token.form:
            for word in inside:
                last = word.first == token.last
                tokens[word.first] = word._replace(spaced=last and token.spaced)
            continue
        outward = (w for w in inside if not token.first <= w.head <= token.last)
        chief = next(outward, inside[0])
        tokens[token.first] = token._replace(
            tag=chief.tag, head=chief.head, relation=chief.relation
        )
        for word in inside[1:]:
            del tokens[word.first]
    return [tokens[number] for number in sorted(tokens)]


def _by_spacy(lines: Iterable[str], spacy: Any, name: str) -> Iterator[Tree]:
    try:
        pipeline = spacy.load(name)
    except OSError:
        raise ValueError(
            f"spaCy has no pipeline {name!r}; python -m spacy download {name}, or name another."
        ) from None
    for document in pipeline.pipe(lines):
        words = [token for token in document if not token.is_space]
        place = {token.i: number for number, token in enumerate(words)}
        yield Tree(
            tuple(token.text for token in words),
            tuple(
                -1 if token.head.i == token.i else place.get(token.head.i, -1) for token in words
            ),
            tuple(_UNIVERSAL.get(token.dep_) or str(token.dep_) for token in words),
            tuple(token.pos_ for token in words),
            document.text,
        )


def _by_stanza(lines: Iterable[str], stanza: Any, name: str) -> Iterator[Tree]:
    pipeline = stanza.Pipeline(name, processors="tokenize,mwt,pos,lemma,depparse", verbose=False)
    for line in lines:
        rows = [row for sentence in pipeline(line).sentences for row in _rows(sentence)]
        yield _joined(list(trees_in(rows, place=line)), line)


def _rows(sentence: Any) -> Iterator[str]:
    """Write a sentence of Stanza as lines of CoNLL-U."""
    for token in sentence.tokens:
        if len(token.words) > 1:
            first, last = token.words[0].id, token.words[-1].id
            yield "\t".join([f"{first}-{last}", token.text, *"________"])
        for word in token.words:
            head = (str(word.head), word.deprel)
            yield "\t".join([str(word.id), word.text, "_", word.upos, *"__", *head, *"__"])
    yield ""


def _joined(trees: Sequence[Tree], text: str) -> Tree:
    """Join the sentences of one line into one tree with several roots."""
    heads: list[int] = []
    for tree in trees:
        before = len(heads)
        heads += [head if head < 0 else head + before for head in tree.heads]
    return Tree(
        tuple(word for tree in trees for word in tree.words),
        tuple(heads),
        tuple(relation for tree in trees for relation in tree.relations),
        tuple(tag for tree in trees for tag in tree.tags),
        text,
    )
