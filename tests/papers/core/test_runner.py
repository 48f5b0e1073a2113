"""Experiments are found by name, trained in parallel, run, drawn and recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwise_papers.core import Job, Result, find_or_train, trained_in_parallel, using_cache
from headwise_papers.core.record import Record, changes_since, recorded
from headwise_papers.core.runner import (
    docstring_of,
    experiment_names,
    load_experiment,
    reproduce,
    summary_of,
    train_missing,
)
from tests.papers.core.conftest import NAME
from tests.papers.core.recipe import LineConfig, train_line

pytestmark = pytest.mark.usefixtures("registry")


def test_experiments_are_listed_and_described_without_importing_them() -> None:
    sys.modules.pop("headwise_papers.small_paper.fitted_line", None)
    assert experiment_names() == [NAME]
    assert summary_of(NAME).startswith("Small paper, Table 1")
    assert "Deviations" in docstring_of(NAME)
    assert "headwise_papers.small_paper.fitted_line" not in sys.modules


def test_a_slip_in_a_name_gets_the_nearest_one() -> None:
    with pytest.raises(ValueError, match="Did you mean 'small_paper/fitted-line'"):
        load_experiment("small_paper/fited-line")


def test_a_run_leaves_results_figures_and_a_record(tmp_path: Path) -> None:
    experiment = load_experiment(NAME)
    results = reproduce(NAME, experiment.config, tmp_path / "run", save=True)
    assert results["8 steps - 2 steps"].kind == "difference"
    record = recorded(NAME)[""]
    assert record.results == results
    assert record.command == f"headwise reproduce {NAME}"
    assert "command" not in record.environment
    assert (tmp_path / "papers/small_paper/figures/fitted-line/slopes.png").is_file()
    assert Record.from_json(json.loads((tmp_path / "run/result.json").read_text())) == record


def test_models_trained_in_parallel_give_the_same_results(tmp_path: Path) -> None:
    experiment = load_experiment(NAME)
    one = reproduce(NAME, experiment.smoke, tmp_path / "one")
    with using_cache(tmp_path / "parallel"):
        two = reproduce(NAME, experiment.smoke, tmp_path / "two", jobs=2)
        runs = [find_or_train(*job) for job in experiment.models(experiment.smoke)]
    assert one == two
    assert trained_in_parallel(runs)
    assert list((tmp_path / "two/logs").glob("*.log"))


def test_a_part_is_recorded_beside_the_others_with_the_settings_that_differ(tmp_path: Path) -> None:
    config = load_experiment(NAME).config
    changed = replace(config, seeds=4, line=replace(config.line, slope=3.0))
    reproduce(NAME, changed, tmp_path / "run", save=True, part="16-seeds")
    reproduce(NAME, replace(config, seeds=5), tmp_path / "other", save=True, part="8-seeds")
    assert list(recorded(NAME)) == ["8-seeds", "16-seeds"]
    command = recorded(NAME)["16-seeds"].command
    assert command == f"headwise reproduce {NAME} --set seeds=4 --set line.slope=3.0"
    assert (tmp_path / "papers/small_paper/figures/fitted-line-16-seeds/slopes.png").is_file()
    with pytest.raises(ValueError, match="small letters"):
        reproduce(NAME, config, tmp_path / "run", part="../up")


def test_fault_9_a_smoke_run_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="smoke run say nothing"):
        reproduce(NAME, load_experiment(NAME).smoke, tmp_path / "run", save=True)
    assert not recorded(NAME)


def test_refuses_no_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--jobs must be at least 1"):
        reproduce(NAME, load_experiment(NAME).config, tmp_path / "run", jobs=0)


def missing_recipe(config: LineConfig, folder: Path):
    """Fail as a recipe does whose data are not there."""
    raise ValueError(f"no data for seed {config.seed}")


def test_an_error_of_a_training_is_raised(tmp_path: Path) -> None:
    jobs = [Job(train_line, LineConfig()), Job(missing_recipe, LineConfig(seed=1))]
    with pytest.raises(ValueError, match="no data for seed 1"):
        train_missing(jobs, jobs=2, logs=tmp_path / "logs")


@pytest.mark.slow
def test_models_that_run_out_of_memory_are_trained_with_fewer_jobs(tmp_path: Path) -> None:
    later = Job(train_line, LineConfig(out_of_memory=1))
    never = Job(train_line, LineConfig(out_of_memory=9))
    with pytest.raises(ValueError, match=r"out_of_memory=9.* even alone"):
        train_missing([later, never], jobs=2, logs=tmp_path / "logs")
    assert len(find_or_train(*later).names("started/*")) == 2


LASTING = """
from pathlib import Path
from headwise_papers.core import Job, using_cache
from headwise_papers.core.runner import train_missing
from tests.papers.core.recipe import LineConfig, train_line

if __name__ == "__main__":
    models = [Job(train_line, LineConfig(seed=seed, seconds=300)) for seed in range(2)]
    with using_cache(Path("models")):
        train_missing(models, jobs=2, logs=Path("logs"))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux for processes")
def test_processes_end_with_the_command_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "lasting.py").write_text(LASTING)
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    command = subprocess.Popen([sys.executable, "lasting.py"], cwd=tmp_path, env=environment)

    def started() -> list[str]:
        return [file.read_text() for file in tmp_path.glob("models/*/started/0")]

    try:
        wait_until(lambda: len(started()) == 2)
    finally:
        command.kill()
        command.wait()
    try:
        wait_until(lambda: not any(map(is_running, started())))
    finally:
        for process in filter(is_running, started()):
            os.kill(int(process), signal.SIGKILL)


def is_running(process: str) -> bool:
    """Return whether a process is there and no zombie."""
    state = Path("/proc", process, "stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for two minutes at most."""
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until
        time.sleep(0.1)


def record(**results: Result) -> Record:
    return Record(NAME, "", {}, {}, 1.0, results, ())


@pytest.mark.parametrize(
    ("values", "changed"),
    [([0.85, 0.95], False), ([0.91, 0.91], False), ([0.95, 0.95], True)],
)
def test_a_result_is_unchanged_where_intervals_overlap_or_means_are_near(
    values: list[float], changed: bool
) -> None:
    before = {"": record(a=Result([0.9, 0.9]))}
    assert changes_since(before, {"a": Result(values)}) == (["a"] if changed else [])


def test_results_are_compared_with_the_parts_of_the_record_that_have_them() -> None:
    one, two = Result([1.0, 1.0]), Result([2.0, 2.0])
    parts = {"": record(english=one), "oromo": record(oromo=one, words=one)}
    assert changes_since(parts, {"oromo": one, "words": one}) == []
    assert changes_since(parts, {"oromo": two, "words": one}) == ["oromo"]
    assert changes_since(parts, {"oromo": one, "english": one}) == ["words"]
    assert changes_since(parts, {"renamed": one}) == ["english"]
    assert changes_since(parts, {"english": one}, part="oromo") == ["oromo", "words"]
    assert changes_since(parts, {"english": one}, part="filipino") == []
    both = parts | {"again": record(oromo=two)}
    assert changes_since(both, {"oromo": two, "words": one}) == []
