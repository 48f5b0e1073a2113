"""Finding experiments by name: `training_dynamics/sst` is training_dynamics/sst.py."""

import ast
from importlib import import_module
from pathlib import Path

from headwise.config import suggestion
from headwise_papers.core.base import Experiment

FOLDER = Path(__file__).parents[1]
PAPERS = (
    "output_relevance",
    "attention_guidance",
    "training_dynamics",
    "sparse_transformer",
    "specialized_heads",
)


def experiment_names() -> list[str]:
    """Every experiment there is, like `training_dynamics/synthetic`."""
    files = sorted(file for paper in PAPERS for file in (FOLDER / paper).glob("*.py"))
    found = [file for file in files if not file.name.startswith("_")]
    return [f"{file.parent.name}/{file.stem.replace('_', '-')}" for file in found]


def load_experiment(name: str) -> Experiment:
    """The experiment of that name; a slip gets the nearest one."""
    if name not in experiment_names():
        raise ValueError(
            f"There is no experiment {name!r}. {suggestion(name, experiment_names())} "
            "`headwise reproduce --list` names them all."
        )
    module = import_module(f"headwise_papers.{name.replace('/', '.').replace('-', '_')}")
    return module.experiment


def story_of(name: str) -> str:
    """An experiment's docstring, without importing it."""
    file = FOLDER / f"{name.replace('-', '_')}.py"
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def summary_of(name: str) -> str:
    """The first line of it."""
    return story_of(name).partition("\n")[0]
