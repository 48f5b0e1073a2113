"""Predicted parses of plain lines, through spaCy or Stanza where one of them is installed."""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from headwise.text.treebank import Tree, trees_in

__all__ = ["parse_lines"]

# names of spaCy's English pipelines (ClearNLP) for relations that Universal Dependencies name
# otherwise
_UNIVERSAL = {
    "dobj": "obj",
    "dative": "iobj",
    "nsubjpass": "nsubj:pass",
    "csubjpass": "csubj:pass",
    "auxpass": "aux:pass",
    "ROOT": "root",
}


def parse_lines(lines: Iterable[str], *, parser: str = "spacy:en_core_web_sm") -> Iterator[Tree]:
    """One tree a line, as a parser predicts it; a line of several sentences has several roots.

    Relations are those of Universal Dependencies; "dobj" of spaCy's English becomes "obj".

    Args:
        lines: sentences as written.
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
    """A sentence of Stanza in CoNLL-U."""
    for token in sentence.tokens:
        if len(token.words) > 1:
            first, last = token.words[0].id, token.words[-1].id
            yield "\t".join([f"{first}-{last}", token.text, *"________"])
        for word in token.words:
            head = (str(word.head), word.deprel)
            yield "\t".join([str(word.id), word.text, "_", word.upos, *"__", *head, *"__"])
    yield ""


def _joined(trees: Sequence[Tree], text: str) -> Tree:
    """The sentences of one line as one tree with several roots."""
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
