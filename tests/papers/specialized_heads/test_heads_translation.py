"""Translators whose heads are looked at: what is trained, tuned, lent and left out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.analysis.gold import relative_positions
from headwise.recording import Run
from headwise.text.treebank import read_treebank
from headwise_papers.core.base import Estimate
from headwise_papers.core.running import reproduce
from headwise_papers.core.shelf import load_experiment
from headwise_papers.specialized_heads import _training
from headwise_papers.specialized_heads._training import Job, Training, translator_run

Figures = Mapping[str, Estimate]


def quietly(name: str, config: Any, folder: Path) -> Figures:
    """On one thread, which is faster at this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reproduce(name, config, folder)
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def looked(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Figures]:
    """The smoke run of specialized_heads/importance: its folder and figures."""
    folder = tmp_path_factory.mktemp("heads") / "run"
    return folder, quietly(
        "specialized_heads/importance",
        load_experiment("specialized_heads/importance").smoke,
        folder,
    )


def borrowing(name: str, folder: Path) -> Any:
    """The smoke settings of another experiment, with what that run made."""
    return replace(load_experiment(name).smoke, trained=(str(folder),))


def test_heads_of_a_translator_are_weighed_and_the_translator_has_learnt(looked) -> None:
    folder, figures = looked
    losses = [
        row["validation_loss"]
        for row in Run.open(folder / "tatoeba-en-ru" / "seed-0").metrics()
        if "validation_loss" in row
    ]
    assert losses[-1] < losses[0]
    table = Run.open(folder / "inspected" / "tatoeba-en-ru" / "seed-0" / "lines").heads()
    for layer, row in table.layers("relevance")["encoder.self"].items():
        assert len(row) == 4, layer
        # means of relevances whose absolute values sum to 1
        assert 0 < sum(abs(value) for value in row) <= 1 + 1e-6
    signed, plain = (
        figures[f"en-ru: share of the two most relevant heads{end}"].mean
        for end in ("", ", sign aside")
    )
    assert -1 < signed <= plain <= 1
    assert plain >= 0.5  # of four heads
    assert (folder / "pictures" / "importance.png").stat().st_size > 5000


def test_nothing_that_is_done_is_repeated(looked, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, figures = looked
    monkeypatch.setattr("headwise_papers.recipes.translation.fit", None)
    monkeypatch.setattr("headwise_papers.specialized_heads._inspecting.inspect_folder", None)
    again = quietly(
        "specialized_heads/importance",
        load_experiment("specialized_heads/importance").smoke,
        folder,
    )
    assert again == figures


def test_a_translator_below_the_least_bleu_does_not_enter(looked, tmp_path: Path) -> None:
    folder, _ = looked
    config = replace(borrowing("specialized_heads/importance", folder), least_bleu=101.0)
    figures = quietly("specialized_heads/importance", config, tmp_path / "run")
    assert set(figures) == {"en-ru: BLEU", "en-ru: enters"}
    assert figures["en-ru: enters"].mean == 0
    said = Run.open(tmp_path / "run").read_json("skipped-en-ru.json")
    assert "this data cannot test" in said


def test_grammar_is_measured_in_both_domains_against_the_commonest_distance(
    looked, tmp_path: Path
) -> None:
    folder, _ = looked
    run = tmp_path / "run"
    figures = quietly(
        "specialized_heads/syntax", borrowing("specialized_heads/syntax", folder), run
    )
    (trees,) = (folder / "data").glob("*.conllu")
    counts = relative_positions(read_treebank(trees))["nsubj"]
    for name in ("en-ru", "en-ru subtitles"):
        baseline = figures[f"{name}: nsubj_to_head: baseline"].mean
        assert baseline == pytest.approx(max(counts.values()) / sum(counts.values()))
        assert 0 <= figures[f"{name}: nsubj_to_head: best head"].mean <= 1
    assert not (run / "tatoeba-en-ru").exists()  # it is lent
    tuned = Run.open(run / "subtitles-en-ru" / "seed-0")
    base = Run.open(folder / "tatoeba-en-ru" / "seed-0")
    for side in ("source", "target"):
        pieces = f"{side}_pieces.model"
        assert tuned.path(pieces).read_bytes() == base.path(pieces).read_bytes()
    weights = (one.load_tensors("model.safetensors") for one in (tuned, base))
    moved = [float((a - b).norm() / b.norm()) for a, b in _paired(*weights)]
    assert 0 < max(moved) < 0.5  # it began where the other ended
    for name in ("figure-3", "figure-4"):
        assert (run / "pictures" / f"{name}.png").stat().st_size > 5000


def _paired(first, second):
    return [(first[name], second[name]) for name in first if second[name].norm() > 0]


def test_rare_words_are_asked_of_the_first_layer(looked, tmp_path: Path) -> None:
    folder, _ = looked
    figures = quietly(
        "specialized_heads/rare", borrowing("specialized_heads/rare", folder), tmp_path / "run"
    )
    table = Run.open(folder / "inspected" / "tatoeba-en-ru" / "seed-0" / "lines").heads()
    best = max(table.layers("two_rarest")["encoder.self"][0])
    assert figures["en-ru: points at one of the two rarest"].mean == pytest.approx(best)
    assert (tmp_path / "run" / "pictures" / "figure-5.png").stat().st_size > 5000


def test_all_languages_get_the_same_pairs_and_sizes_and_tuning_its_own_steps() -> None:
    recipes = [_training.settings_of(Training(), Job(target, 0)) for target in _training.TARGETS]
    assert {recipe.train_pairs for recipe in recipes} == {46_085}
    assert {recipe.target for recipe in recipes} == {"de", "fr", "ru"}
    shapes = [recipe.shape(8000, 8000) for recipe in recipes]
    assert shapes[0] == shapes[1] == shapes[2]
    assert (shapes[0].encoder_layers, shapes[0].heads, shapes[0].width) == (6, 8, 512)
    tuning = _training.settings_of(Training(steps=7, warmup=3), Job("ru", 1, "subtitles"))
    assert (tuning.fit.steps, tuning.fit.warmup, tuning.fit.seed) == (300, 30, 1)


def test_a_translator_trained_otherwise_is_refused(looked, tmp_path: Path) -> None:
    folder, _ = looked
    smoke = borrowing("specialized_heads/importance", folder)
    run = Run.create(tmp_path / "run", smoke)
    with pytest.raises(ValueError, match="was trained with fit.steps=20, but fit.steps=21"):
        translator_run(replace(smoke, steps=21), run, Job("ru", 0))
    with pytest.raises(ValueError, match="names no folder"):
        translator_run(replace(smoke, trained=("nowhere",)), run, Job("de", 0))
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        replace(smoke, seeds=0)
