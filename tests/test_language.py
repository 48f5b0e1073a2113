"""Docstrings stand alone: a function's begins with a verb, a class's and a module's with a noun."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PAPERS = (
    "attention_guidance",
    "output_relevance",
    "sparse_transformer",
    "specialized_heads",
    "training_dynamics",
)
DEPENDENT = r"The same|Of|As|What|Those|So|Where"
NO_VERB = (
    r"The|A|An|Whether|How|Which|Who|Whose|Why|When|While|If|That|These|This|Its|It|All|Any|Each|"
    r"Every|Some|One|Two|No|Not|None|Only|By|In|On|At|With|Without|From|To|For|True|False"
)
NO_NOUN = r"How|Which|Whether|Who|Whose|Why|When|If|By|In|On|At|From|To|For|Over|Some|Any"
COMMON_NOUNS = r"Scores|Logits|Settings|Gradients|Embeddings|Steps|Beam|Hidden|Memory|Both|Nothing"
ANY_DOCSTRING = re.compile(rf"({DEPENDENT})\b")
OF_CLASS = re.compile(rf"({DEPENDENT}|{NO_NOUN})\b|[^A-Z`]")
OF_FUNCTION = re.compile(rf"({DEPENDENT}|{NO_VERB}|{COMMON_NOUNS})\b|[^A-Z]")
PROPERTIES = {"property", "cached_property"}  # read as nouns

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _rule(node: Documented) -> re.Pattern[str]:
    """Return the pattern of beginnings that a docstring must not have."""
    if isinstance(node, ast.Module):
        return ANY_DOCSTRING
    if isinstance(node, ast.ClassDef):
        return OF_CLASS
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    return ANY_DOCSTRING if decorators & PROPERTIES else OF_FUNCTION


def _wrong(text: str, *, is_experiment: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and beginning of the docstrings of a file that break the rule."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented):
            written = ast.get_docstring(node) or ""
            first = written.partition("\n")[0]
            is_question = is_experiment and isinstance(node, ast.Module) and first.endswith("?")
            if written and not is_question and _rule(node).match(written):
                yield getattr(node, "lineno", 1), first


def _is_experiment(path: Path) -> bool:
    """Tell whether a module lies directly inside a paper's package."""
    return path.parent.parent == SOURCE / "headwise_papers" and path.parent.name in PAPERS


def test_docstrings_stand_alone():
    files = sorted(SOURCE.rglob("*.py"))
    assert {path.parent.name for path in files if _is_experiment(path)} == set(PAPERS)
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} {beginning}"
        for path in files
        for line, beginning in _wrong(path.read_text(), is_experiment=_is_experiment(path))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [
        ('"""What a head does."""', True),
        ('"""Roles of heads."""', False),
        ('class Head:\n    """As it is now."""', True),
        ('class Head:\n    """Which heads are left."""', True),
        ('class Head:\n    """Head of a site."""', False),
        ('def width():\n    """The width of a model."""', True),
        ('def width():\n    """(B, T) of a batch."""', True),
        ('def scores():\n    """Scores of each class."""', True),
        ('def width():\n    """Return the width of a model."""', False),
        ('@property\ndef width():\n    """Width of a model."""', False),
        ('@property\ndef width():\n    """The same, rounded."""', True),
    ],
)
def test_a_planted_docstring_is_judged_rightly(code, is_wrong):
    assert bool(list(_wrong(code))) == is_wrong


def test_only_the_module_docstring_of_an_experiment_may_be_a_question():
    module = '"""What does a head do?"""'
    function = 'def role():\n    """What does a head do?"""'
    assert not list(_wrong(module, is_experiment=True))
    assert list(_wrong(module))
    assert list(_wrong(function, is_experiment=True))
