"""Smoke runs with a cache of their own, and what holds for each of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwise_papers.core import Result, using_cache, verdict
from headwise_papers.core.record import recorded
from headwise_papers.core.runner import load_experiment, reproduce

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="package", autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Share trained models among the tests."""
    with using_cache(tmp_path_factory.mktemp("models")):
        yield


@pytest.fixture
def smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Result]]:
    """Run an experiment small: every claim can be judged, what is recorded is drawn again."""

    def run(name: str) -> dict[str, Result]:
        name = f"training_dynamics/{name}"
        experiment = load_experiment(name)
        results = reproduce(name, experiment.smoke, tmp_path / "run")
        for claim in experiment.claims:
            if claim.result in results:  # small settings may leave a curve too short
                assert verdict(claim, results[claim.result])
        monkeypatch.chdir(ROOT)
        figures = list((tmp_path / "run/figures").iterdir())
        for record in recorded(name).values():  # a new experiment has none
            for claim in experiment.claims:
                if claim.result in record.results:
                    assert record.results[claim.result].kind == results[claim.result].kind
            assert {file.name for file in figures} == set(record.figures)
        assert all(file.stat().st_size > 5000 for file in figures)
        return results

    return run
