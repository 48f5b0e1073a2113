"""Documents: their code runs, their output is right, their names exist, and they are short."""

import ast
import doctest
import importlib
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

import headwise
from headwise.cli import app
from headwise_papers.cli import add_commands

ROOT = Path(__file__).parent.parent
PACKAGE = Path(headwise.__file__).parent
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "papers/README.md"]
DOCUMENTS = [*GUIDES, *(path for path in sorted(ROOT.glob("*.md")) if path not in GUIDES)]
LIMITS = {"README.md": 900, "docs/log.md": 2500, "docs/speed.md": 2500, "papers/README.md": 1200}
LIMITS |= {"ARCHITECTURE.md": 1200, "CONTRIBUTING.md": 800}
ALL_WORDS = 15_000  # of README.md, docs and papers/README.md
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
DOTTED = re.compile(r"(?<![-\w/])headwise(?:\.[A-Za-z_]\w*)+")
ENTRY_POINTS = {"headwise.commands", "headwise.kinds"}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "dog", "cat", "saw", "ran", ".")
SENTENCES = ("the dog saw a cat .", "a cat ran .", "the cat saw the dog .", "a dog ran .") * 10
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


def _code(document: Path) -> list[Block]:
    return [block for block in _blocks(document) if block.language in ("python", "console")]


def _run(block: Block, names: dict[str, Any], document: Path) -> None:
    """Run a block; lines after >>> are a doctest, whose output counts, those after $ commands."""
    if block.language == "console":
        for line in block.code.splitlines():
            if line.startswith("$ headwise "):
                _command(shlex.split(line.removeprefix("$ headwise "), comments=True))
        return
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


def _command(arguments: list[str]) -> None:
    commands = Typer()
    commands.registered_commands = list(app.registered_commands)
    add_commands(commands)
    said = CliRunner().invoke(commands, arguments)
    assert said.exit_code == 0, said.output + str(said.exception)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Return a folder with what documents open: `my-model`, a small BERT with two guided heads in
    each layer, and `sentences.txt`."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": len(WORDS)}
    model = headwise.adopt(BertForMaskedLM(BertConfig(**sizes)))
    tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(WORDS)})
    batch = tokenizer(list(SENTENCES[:4]), padding=True, return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with headwise.guide(model, "next=1,prev=1", alpha=30.0, schedule="constant") as guidance:
        for _ in range(100):
            (model(**batch, labels=batch["input_ids"]).loss + guidance.loss()).backward()
            optimizer.step()
            optimizer.zero_grad()
    headwise.release(model)
    model.save_pretrained(folder / "my-model")
    tokenizer.save_pretrained(folder / "my-model")
    (folder / "sentences.txt").write_text("\n".join(SENTENCES))
    return folder


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if _code(d)], ids=lambda d: d.stem)
def test_the_code_of_a_document_runs(document, files, tmp_path, monkeypatch):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "document"}
    for block in _code(document):
        _run(block, names, document)
    if document.name == "README.md" and document.parent == ROOT:
        assert {"next", "previous"} <= set(names["table"]["role"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: f"{d.parent.name}-{d.stem}")
def test_documents_are_short_and_their_lines_wrap(document):
    text = document.read_text()
    words = len(text.split())
    assert words <= LIMITS.get(str(document.relative_to(ROOT)), words), words
    long = [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")]
    assert not [line for line in long if "](" not in line]


def test_all_documents_together_are_short():
    assert sum(len(document.read_text().split()) for document in GUIDES) <= ALL_WORDS


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
    names = set(DOTTED.findall(document.read_text())) - ENTRY_POINTS
    assert not [name for name in names if not _exists(name)]


def test_every_public_name_is_explained():
    text = (ROOT / "docs" / "overview.md").read_text()
    assert not [name for name in headwise.__all__ if not re.search(rf"\b{name}\b", text)]
