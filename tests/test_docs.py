"""The documents tell the truth: their code runs, their output is right, their names exist."""

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import headwise

ROOT = Path(__file__).parent.parent
PACKAGE = Path(headwise.__file__).parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
DOTTED = re.compile(r"(?<![-\w/])headwise(?:\.[A-Za-z_]\w*)+")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "dog", "cat", "saw", "ran", ".")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fenced block of a document."""

    language: str
    code: str
    line: int  # of its first line, counted from 0


def _blocks(document: Path) -> list[Block]:
    text = document.read_text()
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start(2)))
        for match in FENCE.finditer(text)
    ]


def _python(document: Path) -> list[Block]:
    return [block for block in _blocks(document) if block.language == "python"]


def _run(block: Block, names: dict[str, Any], document: Path) -> None:
    """Run a block; lines after >>> are a doctest, whose output counts."""
    if ">>>" not in block.code:
        # blank lines in front, so that an error names the line of the document
        exec(compile("\n" * block.line + block.code, str(document), "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(
        block.code, {}, document.name, str(document), block.line
    )
    _check(test, names)


def _check(test: doctest.DocTest, names: dict[str, Any]) -> None:
    said: list[str] = []
    test.globs = names
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    failed = runner.run(test, out=said.append, clear_globs=False).failed
    assert not failed, "".join(said)


def _save_text_model(folder: Path) -> None:
    """A small random BERT and its tokenizer: the `my-model` that documents open."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    settings = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertForMaskedLM(settings).save_pretrained(folder)
    BertTokenizer(vocab={word: place for place, word in enumerate(WORDS)}).save_pretrained(folder)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if _python(d)], ids=lambda d: d.name)
def test_the_code_of_a_document_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _save_text_model(tmp_path / "my-model")
    names: dict[str, Any] = {"__name__": "document"}
    for block in _python(document):
        _run(block, names, document)


class Example(NamedTuple):
    """The examples in one docstring."""

    module: str
    docstring: str
    path: Path
    line: int


def _examples() -> Iterator[Example]:
    """From the source, because checking wraps functions and hides them from doctest's finder."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            docstring = ast.get_docstring(node) if isinstance(node, documented) else None
            if docstring and ">>>" in docstring:
                yield Example(module, docstring, path, getattr(node, "lineno", 1))


@pytest.mark.parametrize("example", list(_examples()), ids=lambda e: f"{e.module}:{e.line}")
def test_the_example_in_a_docstring_gives_what_it_says(example):
    names = {"torch": torch, **vars(importlib.import_module(example.module))}
    test = doctest.DocTestParser().get_doctest(
        example.docstring, {}, example.module, str(example.path), example.line
    )
    _check(test, names)


def test_a_wrong_output_is_noticed():
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    with pytest.raises(AssertionError, match="Expected"):
        _check(test, {})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_between_documents_lead_somewhere(document):
    links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert not [link for link in links if not (document.parent / link).exists()]


def _exists(dotted: str) -> bool:
    """Whether a name like headwise.ops.topk can be reached by imports and attributes."""
    found: Any = headwise
    for depth, part in enumerate(dotted.split(".")[1:], start=2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(dotted.split(".")[:depth]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_names_in_documents_exist(document):
    assert not [name for name in DOTTED.findall(document.read_text()) if not _exists(name)]


def test_every_public_name_is_explained():
    text = (ROOT / "docs" / "all-of-headwise.md").read_text()
    assert not [name for name in headwise.__all__ if not re.search(rf"\b{name}\b", text)]
