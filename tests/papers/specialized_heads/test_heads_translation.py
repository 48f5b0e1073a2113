"""Translators whose heads are inspected: what is trained, tuned, found again and left out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.analysis.gold import relative_positions
from headwise.recording import Run
from headwise.text.treebank import read_treebank
from headwise_papers.core import Result, find_or_train, using_cache
from headwise_papers.core.runner import load_experiment, reproduce
from headwise_papers.specialized_heads import _models
from headwise_papers.specialized_heads._inspection import Study, inspect_model
from headwise_papers.specialized_heads._models import RECIPE, Tuning, trained, translator

Results = dict[str, Result]


def quietly(name: str, folder: Path, **changes: Any) -> Results:
    """Run with smoke settings on one thread, which is faster at this size."""
    config = replace(load_experiment(f"specialized_heads/{name}").smoke, **changes)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reproduce(f"specialized_heads/{name}", config, folder)
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def inspected(data_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """Run specialized_heads/importance; later experiments of the module share its models."""
    folder = tmp_path_factory.mktemp("heads")
    with using_cache(folder / "models"):
        yield folder, quietly("importance", folder / "run")


def study() -> Study:
    return load_experiment("specialized_heads/importance").smoke


def inspection(model: Any) -> Run:
    found = find_or_train(inspect_model, study().on_lines(model))
    return Run.open(found.folder / "inspection")


def test_heads_of_a_translator_are_measured_and_the_translator_has_learnt(inspected) -> None:
    folder, results = inspected
    (model,) = study().models("en-ru")
    rows = trained(model).metrics()
    losses = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert losses[-1] < losses[0]
    for layer, row in inspection(model).heads().layers("relevance")["encoder.self"].items():
        assert len(row) == 4, layer
        # means of relevances whose absolute values sum to 1
        assert 0 < sum(abs(value) for value in row) <= 1 + 1e-6
    signed, plain = (
        results[f"en-ru: share of the two most relevant heads{end}"].mean
        for end in ("", ", sign aside")
    )
    assert -1 < signed <= plain <= 1
    assert plain >= 0.5  # of four heads
    assert (folder / "run" / "figures" / "importance.png").stat().st_size > 5000


def test_nothing_that_is_done_is_repeated(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, results = inspected
    monkeypatch.setattr("headwise_papers.recipes.translation.fit", None)
    monkeypatch.setattr("headwise_papers.specialized_heads._inspection.inspect_folder", None)
    assert quietly("importance", folder / "again") == results


def test_a_translator_below_the_least_bleu_does_not_enter(inspected, tmp_path: Path) -> None:
    results = quietly("importance", tmp_path / "run", least_bleu=101.0)
    assert set(results) == {"en-ru: BLEU", "en-ru: enters"}
    assert results["en-ru: enters"].mean == 0


def test_grammar_is_measured_in_both_domains_against_the_commonest_distance(
    inspected, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    results = quietly("syntax", run)
    (trees,) = (run / "data").glob("*.conllu")
    counts = relative_positions(read_treebank(trees))["nsubj"]
    for name in ("en-ru", "en-ru subtitles"):
        baseline = results[f"{name}: nsubj_to_head: baseline"].mean
        assert baseline == pytest.approx(max(counts.values()) / sum(counts.values()))
        best = results[f"{name}: nsubj_to_head: best head"].mean
        assert 0 <= best <= 1
        lead = results[f"{name}: nsubj_to_head: best head less baseline"].mean
        assert lead == pytest.approx(best - baseline)
    for name in ("figure-3", "figure-4"):
        assert (run / "figures" / f"{name}.png").stat().st_size > 5000
    ((tuning,),) = [study().models("en-ru subtitles")]
    tuned, base = trained(tuning), trained(tuning.base)
    for side in ("source", "target"):
        pieces = f"{side}_pieces.model"
        assert tuned.path(pieces).read_bytes() == base.path(pieces).read_bytes()
    after, before = (one.load_tensors("model.safetensors") for one in (tuned, base))
    moved = [float((after[n] - before[n]).norm() / x.norm()) for n, x in before.items() if x.any()]
    assert 0 < max(moved) < 0.5  # it began where the other ended


def test_rare_words_are_sought_in_the_first_layer(inspected, tmp_path: Path) -> None:
    results = quietly("rare", tmp_path / "run")
    table = inspection(study().models("en-ru")[0]).heads()
    best = max(table.layers("two_rarest")["encoder.self"][0])
    two = results["en-ru: points at one of the two rarest"].mean
    assert two == pytest.approx(best)
    place = results["en-ru: a fixed place is one of the two rarest"].mean
    assert results["en-ru: points at one of the two rarest less a fixed place"].mean == two - place
    assert (tmp_path / "run" / "figures" / "figure-5.png").stat().st_size > 5000


def test_all_languages_get_the_same_pairs_and_sizes_and_tuning_its_own_steps() -> None:
    recipes = [translator(RECIPE, name, 0) for name in ("en-ru", "en-de", "en-fr")]
    assert {recipe.train_pairs for recipe in recipes} == {46_085}
    assert {recipe.target for recipe in recipes} == {"de", "fr", "ru"}
    shapes = [recipe.shape(8000, 8000) for recipe in recipes]
    assert shapes[0] == shapes[1] == shapes[2]
    assert (shapes[0].encoder_layers, shapes[0].heads, shapes[0].width) == (6, 8, 512)
    tuning = translator(RECIPE, "en-ru subtitles", 1)
    assert isinstance(tuning, Tuning)
    assert (tuning.fit.steps, tuning.fit.warmup, tuning.fit.seed) == (300, 30, 1)
    assert _models.recipe_of(tuning) == translator(RECIPE, "en-ru", 1)
    captions = translator(RECIPE, "en-de multi30k", 0)
    assert (captions.corpus, captions.fit.steps, captions.train_pairs) == ("multi30k", 2000, 0)
    with pytest.raises(ValueError, match="There is no translator 'en-rx'"):
        translator(RECIPE, "en-rx", 0)
