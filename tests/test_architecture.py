"""The dependency arrows of ARCHITECTURE.md, and the size of things, enforced."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwise

PACKAGE = Path(headwise.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = [  # a module may import from lower lines only, or from its own package
    {"__main__"},
    {"cli"},
    {"cli_parts"},
    {"workflows"},
    {"reporting"},
    {"training", "guidance", "analysis", "pruning"},
    {"hf", "text"},
    {"recording"},
    {"sites"},
    {"ops", "config", "json_files", "kinds"},
]
HEIGHT = {name: -depth for depth, names in enumerate(LAYERS) for name in names}
MAX_FILE, MAX_FUNCTION, MAX_KERNEL = 600, 60, 120


def _beside(name: str) -> list[Path]:
    """The files of a folder beside the package's, such as the examples."""
    return sorted((Path(__file__).parents[1] / name).rglob("*.py"))


def _imported(path: Path) -> set[str]:
    """Which parts of headwise a file imports, lazily or not."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # `from headwise import ops` imports headwise.ops
            whole = [f"headwise.{alias.name}" for alias in node.names]
            names += whole if module == "headwise" else [module]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("headwise.")}


def _wrong_arrows(path: Path, here: str) -> list[str]:
    wrong = []
    for there in sorted(_imported(path) - {here}):
        if there not in HEIGHT:
            wrong.append(f"{path.name} imports headwise.{there}, which has no place in LAYERS")
        elif HEIGHT[there] >= HEIGHT[here]:
            wrong.append(f"{path.name} of {here} imports headwise.{there}, which is not below it")
    return wrong


def test_imports_point_downwards():
    wrong: list[str] = []
    for path in FILES:
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        assert here in HEIGHT, f"{here} has no place in LAYERS"
        wrong += _wrong_arrows(path, here)
    assert not wrong, "\n".join(wrong)


def _papers_imported(path: Path) -> list[str]:
    """The lines of a file that import the papers' package."""
    return [
        f"{path.name}:{node.lineno} imports {name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
        if name.split(".")[0] == "headwise_papers"
    ]


def test_the_library_never_imports_the_papers(tmp_path):
    wrong = [line for path in FILES for line in _papers_imported(path)]
    assert not wrong, "\n".join(wrong)
    planted = tmp_path / "planted.py"
    planted.write_text("def lazily():\n    from headwise_papers.models import Transformer\n")
    assert _papers_imported(planted) == ["planted.py:2 imports headwise_papers.models"]


@pytest.mark.parametrize(
    ("line", "here", "is_wrong"),
    [
        ("import headwise.sites", "ops", True),
        ("from headwise.config import override", "ops", True),  # sideways
        ("from headwise import hf", "sites", True),
        ("from headwise.sites import Site", "hf", False),
        ("from headwise.ops.softmax import softmax_attention", "sites", False),
    ],
)
def test_a_planted_import_is_judged_rightly(line, here, is_wrong, tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text(f"def lazily():\n    {line}\n")
    assert bool(_wrong_arrows(planted, here)) == is_wrong


def _modules_after(code: str) -> set[str]:
    """Top-level modules loaded in a fresh Python that ran the code."""
    script = f"{code}\nimport sys\nprint('MODULES', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("MODULES")
    return {name.split(".")[0] for name in last.split()[1:]}


def test_importing_headwise_imports_nothing_heavy():
    heavy = {"transformers", "matplotlib", "triton", "torch"}
    assert not _modules_after("import headwise") & heavy


@pytest.mark.skipif(not (PACKAGE / "cli.py").exists(), reason="there is no command line yet")
def test_help_imports_no_torch():
    code = """
import sys
from headwise.cli import main
sys.argv = ["headwise", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    assert not _modules_after(code) & {"torch", "transformers", "matplotlib"}


def _public_names(path: Path) -> set[str]:
    """Names a module defines or imports for others, private ones and modules left out."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headwise"):
            names |= {alias.asname or alias.name for alias in node.names}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name == "__init__.py" and _public_names(path)],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)  # fmt: skip
def test_packages_with_public_names_list_them(path):
    assigned = {
        target.id
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert "__all__" in assigned


def test_no_module_is_named_after_nothing():
    vague = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert not [path for path in FILES if path.name in vague]


def _functions(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Name, lines without docstring, and whether it is a kernel, of each function of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                docstring = node.body[0]
                assert docstring.end_lineno is not None
                length -= docstring.end_lineno - docstring.lineno + 1
            kernel = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            yield node.name, length, kernel


def test_functions_fit_a_screen():
    long = [
        f"{path.relative_to(PACKAGE)}: {name} has {length} lines"
        for path in FILES
        for name, length, kernel in _functions(path)
        if length > (MAX_KERNEL if kernel else MAX_FUNCTION)
    ]
    assert not long, "\n".join(long)


def test_files_are_short():
    long = [path for path in FILES if len(path.read_text().splitlines()) > MAX_FILE]
    assert not long, "\n".join(map(str, long))


LOADERS = {"from_pretrained", "from_config"}
NO_CODE = {"GenerationConfig", "Embedding"}  # their `from_pretrained` knows no code of others
OPENING = [*FILES, *(file for name in ("benchmarks", "examples") for file in _beside(name))]


def _trusting(path: Path) -> list[str]:
    """Calls that load a Hugging Face model or tokenizer and could run code that comes with it."""
    return [
        f"{path.name}:{node.lineno} {ast.unparse(node.func)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LOADERS
        and ast.unparse(node.func.value).split(".")[-1] not in NO_CODE
        and not any(ast.unparse(word) == "trust_remote_code=False" for word in node.keywords)
    ]


def test_no_code_of_a_model_folder_is_trusted():
    found = [line for path in OPENING for line in _trusting(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("call", "is_trusting"),
    [
        ("AutoModel.from_pretrained(folder)", True),
        ("AutoModel.from_pretrained(folder, trust_remote_code=None)", True),
        ("kind.from_config(shape, **options)", True),
        ("kind.from_config(shape, trust_remote_code=False)", False),
        ("transformers.GenerationConfig.from_pretrained(folder)", False),
    ],
)
def test_a_planted_load_is_judged_rightly(call, is_trusting, tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text(f"def load():\n    return {call}\n")
    assert bool(_trusting(planted)) == is_trusting
