"""Docstrings stand alone: a function's begins with a verb, a class's and a module's with a noun."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# Packages whose docstrings do not follow the rule yet.
UNCONVERTED = tuple(
    f"headwise_papers.{name}"
    for name in (
        "cli",
        "cli_train",
        "core",
        "data",
        "kinds",
        "measures",
        "models",
        "ops",
        "recipes",
    )
)
DEPENDENT = r"The same|Of|As|What|Those|So|Where"
NO_VERB = (
    r"The|A|An|Whether|How|Which|Who|Whose|Why|When|While|If|That|These|This|Its|It|All|Any|Each|"
    r"Every|Some|One|Two|No|Not|None|Only|By|In|On|At|With|Without|From|To|For|True|False"
)
ANY_DOCSTRING = re.compile(rf"({DEPENDENT})\b")
OF_FUNCTION = re.compile(rf"({DEPENDENT}|{NO_VERB})\b|[^A-Z]")
PROPERTIES = {"property", "cached_property"}  # read as nouns

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _rule(node: Documented) -> re.Pattern[str]:
    """Return the pattern of beginnings that a docstring must not have."""
    if isinstance(node, ast.Module | ast.ClassDef):
        return ANY_DOCSTRING
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    return ANY_DOCSTRING if decorators & PROPERTIES else OF_FUNCTION


def _wrong(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and beginning of the docstrings of a file that break the rule."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented):
            written = ast.get_docstring(node) or ""
            first = written.partition("\n")[0]
            is_question = isinstance(node, ast.Module) and first.endswith("?")  # an experiment's
            if written and not is_question and _rule(node).match(written):
                yield getattr(node, "lineno", 1), first


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def test_docstrings_stand_alone():
    files = [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not f"{_module(path)}.".startswith(tuple(f"{name}." for name in UNCONVERTED))
    ]
    assert files
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} {beginning}"
        for path in files
        for line, beginning in _wrong(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [
        ('"""What a head does."""', True),
        ('"""Roles of heads."""', False),
        ('class Head:\n    """As it is now."""', True),
        ('class Head:\n    """Head of a site."""', False),
        ('def width():\n    """The width of a model."""', True),
        ('def width():\n    """(B, T) of a batch."""', True),
        ('def width():\n    """Return the width of a model."""', False),
        ('@property\ndef width():\n    """Width of a model."""', False),
        ('@property\ndef width():\n    """The same, rounded."""', True),
    ],
)
def test_a_planted_docstring_is_judged_rightly(code, is_wrong):
    assert bool(list(_wrong(code))) == is_wrong


def test_unconverted_packages_exist():
    for name in UNCONVERTED:
        path = SOURCE.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file()
