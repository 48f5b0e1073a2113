"""Smoke runs of the paper's experiments, whose models are trained once for all tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwise.recording.run import Run
from headwise_papers.core import Result, using_cache
from headwise_papers.core.runner import load_experiment, reproduce


@dataclass(frozen=True)
class Smoke:
    """A finished smoke run."""

    results: dict[str, Result]
    run: Run

    def __getitem__(self, name: str) -> Result:
        return self.results[name]

    def has_figures(self, *names: str) -> bool:
        """Return whether all figures were drawn."""
        found = {Path(name).stem for name in self.run.names("figures/*.png")}
        return found == set(names)


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with using_cache(tmp_path_factory.mktemp("models")):
        yield


@pytest.fixture
def smoke(tmp_path: Path) -> Callable[..., Smoke]:
    """Run an experiment of the paper with smoke or given settings."""

    def run(name: str, config: Any = None) -> Smoke:
        full = f"output_relevance/{name}"
        settings = load_experiment(full).smoke if config is None else config
        return Smoke(reproduce(full, settings, tmp_path / name), Run.open(tmp_path / name))

    return run


def missing(name: str, results: dict[str, Result], *prefixes: str) -> list[str]:
    """Return the claims of an experiment, of some parts, that no result of a run decides."""
    claims = load_experiment(f"output_relevance/{name}").claims
    return [x.result for x in claims if x.result.startswith(prefixes) and x.result not in results]
