"""Models are found by their settings, resumed, or trained; never twice."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from headwise_papers.core import find_or_train, is_trained, trained_in_parallel, using_cache
from headwise_papers.core.cache import model_folder
from tests.papers.core.recipe import LineConfig, train_line

CONFIG = LineConfig()


def starts(folder: Path) -> int:
    """Count the trainings that began in a folder."""
    return len(list(folder.glob("started/*")))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path):
    with using_cache(tmp_path / "models"):
        yield tmp_path / "models"


def test_a_model_is_trained_once_and_then_found(cache: Path) -> None:
    assert not is_trained(train_line, CONFIG)
    trained = find_or_train(train_line, CONFIG)
    assert is_trained(train_line, CONFIG)
    found = find_or_train(train_line, LineConfig())
    assert found.folder == trained.folder and found.folder.parent == cache
    assert len(found.folder.name) == 16 and starts(found.folder) == 1


def test_other_settings_and_other_recipes_are_other_models() -> None:
    first = find_or_train(train_line, CONFIG)
    other = find_or_train(train_line, replace(CONFIG, slope=3.0))
    assert other.folder != first.folder
    assert other.figures()["slope"] > first.figures()["slope"]
    assert model_folder(other_recipe, CONFIG) != first.folder


def other_recipe(config: LineConfig, folder: Path):
    """Differ from `train_line` in name alone."""
    return train_line(config, folder)


def test_an_unfinished_training_is_resumed_and_ends_as_an_uninterrupted_one() -> None:
    stopped = replace(CONFIG, stop_at=2)
    with pytest.raises(KeyboardInterrupt):
        find_or_train(train_line, stopped)
    assert not is_trained(train_line, stopped)
    resumed = find_or_train(train_line, stopped)
    assert resumed.figures()["first_step"] == 2
    assert resumed.figures()["slope"] == find_or_train(train_line, CONFIG).figures()["slope"]


def test_checkpoints_are_deleted_and_the_model_is_kept() -> None:
    done = find_or_train(train_line, CONFIG)
    assert done.names("*.safetensors") == ["model.safetensors"]


def test_a_folder_whose_settings_were_changed_is_refused() -> None:
    done = find_or_train(train_line, CONFIG)
    settings = {**done.config(), "slope": 5.0}
    done.write_json("config.json", {"kind": done.kind, "settings": settings})
    with pytest.raises(ValueError, match=r"trained with slope=5\.0, but slope=2\.0 is asked for"):
        find_or_train(train_line, CONFIG)


def test_a_model_keeps_that_it_was_trained_in_parallel() -> None:
    alone = find_or_train(train_line, CONFIG)
    with using_cache(jobs=2):
        beside = find_or_train(train_line, replace(CONFIG, seed=1))
        assert find_or_train(train_line, CONFIG).folder == alone.folder
    assert not trained_in_parallel([alone])
    assert trained_in_parallel([alone, beside])


def test_a_model_begun_in_parallel_and_resumed_alone_was_trained_in_parallel() -> None:
    stopped = replace(CONFIG, stop_at=2)
    with using_cache(jobs=2), pytest.raises(KeyboardInterrupt):
        find_or_train(train_line, stopped)
    assert trained_in_parallel([find_or_train(train_line, stopped)])


def train_in(folder: Path) -> int:
    """Find or train one slow model, and return how many trainings began."""
    with using_cache(folder):
        return starts(find_or_train(train_line, replace(CONFIG, seconds=1.0)).folder)


def test_two_processes_train_a_model_once(cache: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        assert list(pool.map(train_in, [cache, cache])) == [1, 1]
