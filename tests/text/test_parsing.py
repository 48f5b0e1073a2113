import sys
from types import SimpleNamespace as Thing

import pytest

from headwise.text.treebank import parse_lines


@pytest.mark.parametrize("kind", ["spacy", "stanza"])
def test_a_parser_that_is_not_installed_is_said(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ValueError, match=f"wants the package {kind}, which is not installed"):
        parse_lines(["Tom sleeps."], parser=f"{kind}:en")


@pytest.mark.parametrize("parser", ["corenlp:en", "spacy", "stanza:"])
def test_other_parsers_are_refused(parser):
    with pytest.raises(ValueError, match="spacy:PIPELINE or stanza:LANGUAGE was wanted"):
        parse_lines(["Tom sleeps."], parser=parser)


def _spacy(name):
    if name != "small":
        raise OSError("no such pipeline")

    def pipe(lines):
        for line in lines:
            words = [
                Thing(i=i, text=word, dep_=dep, pos_="X", is_space=word == " ")
                for i, (word, dep) in enumerate(
                    [("Tom", "nsubjpass"), (" ", ""), ("sees", "ROOT"), ("it", "dobj")]
                )
            ]
            for word in words:
                word.head = words[2]

            class Document(list):
                text = line

            yield Document(words)

    return Thing(pipe=pipe)


def test_trees_of_spacy_have_universal_names_and_no_white_space(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", Thing(load=_spacy))
    (tree,) = parse_lines(["Tom  sees it"], parser="spacy:small")
    assert tree.words == ("Tom", "sees", "it") and tree.heads == (1, -1, 1)
    assert tree.relations == ("nsubj:pass", "root", "obj") and tree.text == "Tom  sees it"
    with pytest.raises(ValueError, match="spaCy has no pipeline 'big'"):
        list(parse_lines(["Tom"], parser="spacy:big"))


def _stanza(name, **options):
    def token(text, *words):
        return Thing(
            text=text,
            words=[
                Thing(id=i, text=word, head=head, deprel=relation, upos="X")
                for i, word, head, relation in words
            ],
        )

    sentence = Thing(
        tokens=[
            token("im", (1, "in", 3, "case"), (2, "dem", 3, "det")),
            token("Haus", (3, "Haus", 0, "root")),
        ]
    )
    return lambda line: Thing(sentences=[sentence, sentence])


def test_sentences_of_stanza_in_one_line_make_one_tree(monkeypatch):
    monkeypatch.setitem(sys.modules, "stanza", Thing(Pipeline=_stanza))
    (tree,) = parse_lines(["im Haus im Haus"], parser="stanza:de")
    assert tree.words == ("im", "Haus", "im", "Haus")
    assert tree.heads == (1, -1, 3, -1) and tree.relations[::2] == ("case", "case")
