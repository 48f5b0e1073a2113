"""Size of the code base: `python -m benchmarks.stats` or `make stats` prints one table.

- lines of code: without blank lines, comments and docstrings; run `ruff format` first.
- settings: frozen dataclasses whose name ends in Config or Settings, or that an experiment takes as
  its config; a field counts in the class that declares it.
- modules loaded: in a fresh Python that calls the function on a tiny BERT.
- an experiment's files: its own, and those of its paper's folder that it imports, transitively.
"""

import ast
import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LIBRARY, PAPERS = SOURCE / "headwise", SOURCE / "headwise_papers"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

TINY_MODEL = """
import sys
import headwise as hw
from transformers import BertConfig, BertForMaskedLM, BertTokenizer
words = "[PAD] [UNK] [CLS] [SEP] [MASK] the a dog cat saw ran .".split()
config = BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2,
                    num_attention_heads=4, intermediate_size=64, max_position_embeddings=64)
tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
model = hw.adopt(BertForMaskedLM(config).eval())
"""
CALLS = {
    "hw.adopt and hw.topk_attention": """
with hw.replace(model, hw.topk_attention):
    model(**tokenizer("the dog saw a cat .", return_tensors="pt"))
""",
    "hw.prune": 'hw.prune(model, {"encoder.1.self": [1, 2]})',
    "hw.inspect": 'hw.inspect(model, tokenizer, ["the dog saw a cat .", "a cat ran ."], sample=2)',
}
COUNT = """
loaded = [name for name in sys.modules if name.split(".")[0] in ("headwise", "headwise_papers")]
print("MODULES", len(loaded), sum(name.startswith("headwise_papers") for name in loaded))
"""


def code_lines(text: str) -> int:
    """Count the lines of a file that are no blank lines, comments or docstrings.

    >>> code_lines('def f():\\n    "What it does."\\n\\n    return 1  # always\\n')
    2
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            assert docstring.end_lineno is not None
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def files_of(folder: Path, suffix: str = ".py") -> list[Path]:
    """Return all files below a folder with a suffix."""
    return sorted(folder.rglob(f"*{suffix}"))


def settings() -> tuple[int, int]:
    """Count the settings dataclasses of both packages, and their fields."""
    trees = [ast.parse(path.read_text()) for path in files_of(SOURCE)]
    configs = {name for tree in trees for name in _experiment_configs(tree)}
    found = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and (node.name in configs or re.search(r"(Config|Settings)$", node.name))
        and any(_is_frozen(decorator) for decorator in node.decorator_list)
    ]
    fields = [
        line
        for node in found
        for line in node.body
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation)
    ]
    return len(found), len(fields)


def _is_frozen(decorator: ast.expr) -> bool:
    return re.match(r"dataclass\(.*\bfrozen=True", ast.unparse(decorator)) is not None


def _experiment_configs(tree: ast.Module) -> Iterator[str]:
    """Yield the classes that are given as `config=` to an `Experiment`."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Experiment":
            for word in call.keywords:
                if word.arg == "config" and isinstance(word.value, ast.Call):
                    yield ast.unparse(word.value.func).split(".")[-1]


def modules_loaded(call: str) -> str:
    """Return the number of headwise modules that a call loads, and how many are of the papers."""
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", TINY_MODEL + CALLS[call] + COUNT],
            capture_output=True, text=True, cwd=folder, env=environment,
        )  # fmt: skip
    counted = re.search(r"MODULES (\d+) (\d+)", done.stdout)
    if counted is None:
        return f"failed: {done.stderr.strip().splitlines()[-1][:60]}"
    return counted[1] if counted[2] == "0" else f"{counted[1]} ({counted[2]} of the papers)"


def experiments() -> dict[str, list[Path]]:
    """Return the files behind each experiment: its own and those of its paper that it imports."""
    return {
        str(path.relative_to(PAPERS).with_suffix("")): sorted(_own_imports(path, {path}))
        for path in files_of(PAPERS)
        if re.search(r"^experiment\b.*=", path.read_text(), re.MULTILINE)
    }


def _own_imports(path: Path, seen: set[Path]) -> set[Path]:
    """Return a file and what it imports from its own folder, transitively."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    for name in names:
        other = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
        if other.parent == path.parent and other.is_file() and other not in seen:
            seen.add(other)
            _own_imports(other, seen)
    return seen


def words_of_pages() -> int:
    """Count the words of the README, the docs and the pages of the papers."""
    pages = [ROOT / "README.md", *files_of(ROOT / "docs", ".md"), *files_of(ROOT / "papers", ".md")]
    return sum(len(page.read_text().split()) for page in pages)


def rows() -> Iterator[tuple[str, str]]:
    """Yield names and values of all numbers."""
    with ThreadPoolExecutor() as pool:
        loaded = list(pool.map(modules_loaded, CALLS))
    sizes = {
        folder: sum(code_lines(path.read_text()) for path in files_of(folder))
        for folder in (LIBRARY, PAPERS, ROOT / "tests")
    }
    library, papers, tests = sizes.values()
    yield "lines of code, headwise / headwise_papers", f"{library:,} / {papers:,}"
    counts = [len(files_of(folder)) for folder in (LIBRARY, PAPERS)]
    yield "modules, headwise / headwise_papers", f"{counts[0]} / {counts[1]} ({sum(counts)})"
    classes, fields = settings()
    yield "settings dataclasses / fields", f"{classes} / {fields}"
    for call, number in zip(CALLS, loaded, strict=True):
        yield f"headwise modules loaded by {call}", number
    found = experiments()
    lines = [sum(len(path.read_text().splitlines()) for path in own) for own in found.values()]
    files = statistics.median(len(own) for own in found.values())
    behind = f"{files:g} / {statistics.median(lines):,.0f} ({len(found)} experiments)"
    yield "files / lines behind one experiment, median", behind
    yield "words in README, docs, papers", f"{words_of_pages():,}"
    yield "lines of code in tests / ratio to src", f"{tests:,} / {tests / (library + papers):.2f}"


def main() -> None:
    """Print the table."""
    table = Table("", "now", title="Headwise in numbers")
    table.columns[1].justify = "right"
    for row in rows():
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
