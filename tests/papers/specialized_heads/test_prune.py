"""Experiments on pruning: tiny, and each with a property that fails when it is broken."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.pruning import record_of
from headwise.sites import find_sites
from headwise.workflows.prune import choosing_heads
from headwise_papers.core import Result, find_or_train, using_cache, verdict
from headwise_papers.core.cache import model_folder
from headwise_papers.core.runner import load_experiment, reproduce
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads import _pruning, prune_guided, prune_scratch
from headwise_papers.specialized_heads._pruning import Amount, pruned
from tests.papers.recipes.small_translation import stopping
from tests.workflows.prune.small_tasks import grouped
from tests.workflows.small_hosts import host, save, tokenizer_for

Results = dict[str, Result]


def smoke(name: str, **changes: Any) -> Any:
    return replace(load_experiment(f"specialized_heads/{name}").smoke, **changes)


def quietly(name: str, folder: Path, *, jobs: int = 1, **changes: Any) -> Results:
    """Run with smoke settings on one thread, which is faster at this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reproduce(f"specialized_heads/{name}", smoke(name, **changes), folder, jobs=jobs)
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def everything(data_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """Run specialized_heads/prune-all; later experiments of the module share its models."""
    folder = tmp_path_factory.mktemp("prune")
    with using_cache(folder / "models"):
        yield folder / "run", quietly("prune-all", folder / "run")


def test_heads_of_all_kinds_are_counted_and_the_pruned_are_runs(everything) -> None:
    folder, results = everything
    config = smoke("prune-all")
    (model,) = config.models("en-ru")
    for count in (9, 4):
        left = [results[f"en-ru: {count} heads: {kind} left"].mean for kind in _pruning.KINDS]
        assert sum(left) == count
        one = pruned(config.pruning(model, Amount(keep=count)))
        small = Translator.load(_pruning.Run.open(one.folder)).model
        assert sum(site.num_heads for site in find_sites(small)) == count
        assert sum(record_of(small).heads.values()) == 24
        assert not one.run.has("checkpoint.safetensors")
        before = results["en-ru: BLEU"].mean
        lost = results[f"en-ru: {count} heads: BLEU lost"].mean
        assert results[f"en-ru: {count} heads: BLEU"].mean + lost == pytest.approx(before, abs=0.5)
    figures = {path.name for path in (folder / "figures").iterdir()}
    assert figures == {"all.png", "kinds.png", "layers.png", "gates.png"}


def test_gates_are_not_decided_before_training() -> None:
    start = float(_pruning.HardConcrete().prob_open(torch.tensor(2.0)))
    assert start > 0.9  # so that P(open) alone would call them decided
    assert _pruning.share_decided([start, start]) == 0
    assert _pruning.share_decided([0.0, 1.0, 0.05, 0.9999]) == 1


def test_an_encoder_is_pruned_alone_and_what_is_left_is_inspected(
    everything, tmp_path, monkeypatch
) -> None:
    results = quietly("prune-encoder", tmp_path / "run")
    assert results["en-ru: 3 heads: heads left"].mean == 3
    assert results["en-ru: lambda-50: heads left"].mean == 0  # so dear that all go
    config = smoke("prune-encoder")
    (model,) = config.models("en-ru")
    kept = pruned(config.pruning(model, Amount(keep=3), part="encoder")).record.kept
    assert sum(len(heads) for site, heads in kept.items() if site.startswith("decoder")) == 16
    monkeypatch.setattr("headwise_papers.specialized_heads._inspection.inspect_folder", None)
    assert quietly("prune-encoder", tmp_path / "again") == results  # nothing is opened again


def test_the_same_shape_is_trained_from_scratch(everything, tmp_path, monkeypatch) -> None:
    results = quietly("prune-scratch", tmp_path / "run")
    name = "en-ru: 9 heads"
    fresh, old = (results[f"{name}: BLEU from {x}"].mean for x in ("scratch", "trained"))
    assert results[f"{name}: from scratch less from trained"].mean == pytest.approx(fresh - old)
    assert results["en-ru: from scratch less from trained"].mean == pytest.approx(fresh - old)
    lost = results["en-ru: 24 heads: BLEU from scratch"].mean - fresh
    assert results[f"{name}: BLEU lost from scratch"].mean == pytest.approx(lost)
    config = smoke("prune-all")
    pruning = config.pruning(config.models("en-ru")[0], Amount(keep=9))
    scratch = prune_scratch.Scratch(pruning)
    model = Translator.load(find_or_train(prune_scratch.train_from_scratch, scratch)).model
    other = Translator.load(_pruning.Run.open(pruned(pruning).folder)).model
    shapes = [{n: tuple(p.shape) for n, p in one.named_parameters()} for one in (model, other)]
    assert shapes[0] == shapes[1]
    weights = zip(model.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(one, two) for one, two in weights)
    monkeypatch.setattr(prune_scratch, "fit", None)
    assert quietly("prune-scratch", tmp_path / "again") == results  # nothing is trained again


def test_gates_are_trained_from_the_start(everything, tmp_path) -> None:
    results = quietly("gates", tmp_path / "run")
    assert results["largest difference of formulas and draws"].mean < 0.01
    assert results["en-ru: lambda 50: heads left"].mean == 0
    assert 0 <= results["en-ru: gates decided by value"].mean <= 1
    assert "en-ru: 9 heads: from trained less with gates from the start" in results


def test_a_long_pruning_that_was_killed_resumes(everything, tmp_path, monkeypatch) -> None:
    changes = {"keep": (5,), "steps": 30}
    monkeypatch.setattr(_pruning, "OFTEN", 5)
    with monkeypatch.context() as patch:
        patch.setattr(choosing_heads, "progress_bar", stopping(choosing_heads.progress_bar, 20))
        patch.setattr(choosing_heads, "SHOWN", ("loss",))
        with pytest.raises(KeyboardInterrupt):
            quietly("prune-all", tmp_path / "run", **changes)
    config = smoke("prune-all", **changes)
    pruning = config.pruning(config.models("en-ru")[0], Amount(keep=5))
    folder = _pruning.run_folder(model_folder(_pruning.prune_translator, pruning) / "model")
    killed = _pruning.Run.open(folder)
    assert int(killed.note("checkpoint.safetensors")["step"]) == 15
    quietly("prune-all", tmp_path / "run", **changes)
    assert killed.figures()["heads_kept"] == 5


def test_the_same_difference_with_every_seed_does_not_answer_for_guided_heads() -> None:
    claim = prune_guided.CLAIMS[0]
    answers = [
        verdict(claim, Result(differences, "difference"))
        for differences in ([0.42, 0.31, 0.53], [0.3, 0.4], [1 / 9] * 3, [-0.3, -0.4, -0.5])
    ]
    assert answers == ["reproduced", "undecided", "undecided", "not"]  # two seeds do not either


def test_guided_heads_are_counted_apart_and_attend_where_they_were_taught(
    everything, tmp_path
) -> None:
    results = quietly("prune-guided", tmp_path / "run")
    name = "en-ru guided: 4 heads: kept"
    guided, others = (results[f"{name}, of {heads} heads"].mean for heads in ("guided", "other"))
    assert 4 * guided + 4 * others == 4
    patterns = [results[f"{name}, of heads guided to {aim}"].mean for aim in ("next", "prev")]
    assert sum(patterns) / 2 == guided
    assert results[f"{name}, guided less other heads"].mean == guided - others
    weight = results["en-ru guided: weight there, of guided heads"].mean
    plain = results["en-ru: weight there, of heads with these numbers"].mean
    assert weight > 1.2 * plain  # without guidance both are the same model
    after = results.get("en-ru guided: 4 heads: weight there, of guided heads left")
    assert (after is not None) == (guided > 0)
    assert after is None or after.mean > plain
    both = [results[f"{name}: BLEU"].mean for name in ("en-ru", "en-ru guided")]
    assert results["BLEU, guided less plain"].mean == both[1] - both[0]
    with pytest.raises(ValueError, match="plan may name next and prev here, got first"):
        smoke("prune-guided", plan="first=1")


def test_a_classifier_is_pruned_in_every_way_to_as_many_heads(data_folder, tmp_path) -> None:
    encoder = save(host("BERT").bert, tokenizer_for("BERT"), tmp_path / "encoder")
    with using_cache(tmp_path / "models"):
        results = quietly("prune-minilm", tmp_path / "run", model=str(encoder))
    for choice in smoke("prune-minilm").choices:
        assert results[f"3 heads: {choice}: heads left"].mean == 3
        assert 0 <= results[f"3 heads: {choice}: accuracy"].mean <= 1
    apart = results["3 heads: gates: accuracy"].mean - results["3 heads: random: accuracy"].mean
    assert results["3 heads: gates less random"].mean == pytest.approx(apart)


def test_a_language_model_is_pruned_by_groups_saved_loaded_and_continues_a_text(
    data_folder, tmp_path
) -> None:
    with using_cache(tmp_path / "models"):
        results = quietly("prune-smollm", tmp_path / "run", model=str(grouped(tmp_path / "host")))
    for choice in smoke("prune-smollm").choices:
        assert results[f"4 heads: {choice}: saved and loaded gives the same"].mean == 1
        assert results[f"4 heads: {choice}: continues a text"].mean == 1
        assert results[f"4 heads: {choice}: perplexity"].mean < 200
    assert results["4 heads: gates: perplexity"].mean < results["unpruned: perplexity"].mean


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prune-minilm", "prune-smollm", "prune-scratch"])
def test_two_jobs_find_the_same(name, data_folder, tmp_path) -> None:
    changes: dict[str, Any] = {}
    if name == "prune-minilm":
        model = save(host("BERT").bert, tokenizer_for("BERT"), tmp_path / "encoder")
        changes = {"seeds": 2, "model": str(model)}
    elif name == "prune-smollm":
        changes = {"model": str(grouped(tmp_path / "host"))}
    found: list[Results] = []
    for jobs in (1, 2):
        with using_cache(tmp_path / f"models-{jobs}"):
            found.append(quietly(name, tmp_path / f"run-{jobs}", jobs=jobs, **changes))
    assert found[0] == found[1]
    assert list((tmp_path / "run-2" / "logs").iterdir())


@pytest.mark.parametrize("name", ["prune-minilm", "prune-smollm"])
def test_a_model_must_be_named(name, tmp_path) -> None:
    with pytest.raises(ValueError, match="give --set model=FOLDER"):
        quietly(name, tmp_path / "run")
