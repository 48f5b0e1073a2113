"""A registry with one small experiment, and a temporary folder for its cache and papers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwise_papers
from headwise_papers.core import runner, using_cache

REGISTRY = Path(__file__).parent / "registry"
NAME = "small_paper/fitted-line"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Only the small experiment is known, and everything is written below a temporary folder."""
    monkeypatch.setattr(headwise_papers, "__path__", [*headwise_papers.__path__, str(REGISTRY)])
    monkeypatch.setattr(runner, "PAPERS", ("small_paper",))
    monkeypatch.chdir(tmp_path)
    with using_cache(tmp_path / "models"):
        yield
