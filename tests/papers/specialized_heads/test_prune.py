"""Experiments on pruning: tiny, and each with a property that fails when it is broken."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.pruning import record_of
from headwise.recording import Run
from headwise.sites import find_sites
from headwise.workflows.prune import choosing_heads
from headwise_papers.core.base import Estimate
from headwise_papers.core.running import reproduce
from headwise_papers.core.shelf import load_experiment
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads import _translators
from headwise_papers.specialized_heads import prune_encoder as encoder
from headwise_papers.specialized_heads import prune_guided as guided
from headwise_papers.specialized_heads import prune_scratch as scratch
from headwise_papers.specialized_heads import prune_smollm as smollm
from tests.papers.recipes.small_translation import stopping
from tests.workflows.prune.small_tasks import grouped
from tests.workflows.small_hosts import host, save, tokenizer_for

Figures = Mapping[str, Estimate]


def quietly(name: str, config: Any, folder: Path) -> Figures:
    """On one thread, which is faster at this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reproduce(name, config, folder)
    finally:
        torch.set_num_threads(before)


def smoke(name: str, **changes: Any) -> Any:
    return replace(load_experiment(name).smoke, **changes)


@pytest.fixture(scope="module")
def everything(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Figures]:
    """The smoke run of specialized_heads/prune-all: its folder and figures."""
    folder = tmp_path_factory.mktemp("prune") / "run"
    return folder, quietly(
        "specialized_heads/prune-all", smoke("specialized_heads/prune-all"), folder
    )


def test_heads_of_all_kinds_are_counted_and_the_pruned_are_runs(everything) -> None:
    folder, figures = everything
    for count in (9, 4):
        kinds = ("encoder.self", "decoder.self", "decoder.cross")
        left = [figures[f"en-ru: {count} heads: {kind} left"].mean for kind in kinds]
        assert sum(left) == count
        place = folder / "all" / "tatoeba-en-ru" / "seed-0" / f"keep-{count}"
        model = Translator.load(Run.open(place)).model
        assert sum(site.num_heads for site in find_sites(model)) == count
        assert sum(record_of(model).heads.values()) == 24
        assert not (place.with_name(f"{place.name}-pruning") / "checkpoint.safetensors").exists()
        before = figures["en-ru: BLEU"].mean
        lost = figures[f"en-ru: {count} heads: BLEU lost"].mean
        assert figures[f"en-ru: {count} heads: BLEU"].mean + lost == pytest.approx(before, abs=0.5)
    assert {path.name for path in (folder / "pictures").iterdir()} == {
        *("all.png", "kinds.png", "layers.png", "gates.png")
    }


def test_an_encoder_is_pruned_alone_and_what_is_left_is_looked_at(
    everything, tmp_path, monkeypatch
) -> None:
    lent, _ = everything
    config = smoke("specialized_heads/prune-encoder", trained=(str(lent),))
    figures = quietly("specialized_heads/prune-encoder", config, tmp_path / "run")
    assert figures["en-ru: 3 heads: heads left"].mean == 3
    assert figures["en-ru: lambda-50: heads left"].mean == 0  # so dear that all go
    one = tmp_path / "run" / "encoder" / "tatoeba-en-ru" / "seed-0" / "keep-3"
    kept = record_of(Translator.load(Run.open(one)).model).kept
    assert sum(len(heads) for site, heads in kept.items() if site.startswith("decoder")) == 16
    assert (tmp_path / "run" / "looked" / "tatoeba-en-ru" / "seed-0" / "keep-3").exists()

    monkeypatch.setattr(encoder, "inspect_folder", None)
    assert (
        quietly("specialized_heads/prune-encoder", config, tmp_path / "run") == figures
    )  # not opened again
    environment = Run.open(tmp_path / "run").read_json("result.json")["environment"]
    assert [now for now in (environment, *environment["resumed"]) if "command" in now] == []


def test_the_same_shape_is_trained_from_scratch_and_gates_from_the_start(
    everything, tmp_path
) -> None:
    lent, _ = everything
    figures = quietly(
        "specialized_heads/prune-scratch",
        smoke("specialized_heads/prune-scratch", trained=(str(lent),)),
        tmp_path / "scratch",
    )
    name = "en-ru: 9 heads"
    apart = figures[f"{name}: BLEU from scratch"].mean - figures[f"{name}: BLEU from trained"].mean
    assert figures[f"{name}: from scratch less from trained"].mean == pytest.approx(apart)
    assert figures["en-ru: from scratch less from trained"].mean == pytest.approx(apart)  # one row
    lost = (
        figures["en-ru: 24 heads: BLEU from scratch"].mean
        - figures[f"{name}: BLEU from scratch"].mean
    )
    assert figures[f"{name}: BLEU lost from scratch"].mean == pytest.approx(lost)
    fresh = Run.open(tmp_path / "scratch" / "scratch" / "tatoeba-en-ru" / "seed-0" / "keep-9")
    model = Translator.load(fresh).model
    lender = lent / "all" / "tatoeba-en-ru" / "seed-0" / "keep-9"
    shape = {name: tuple(p.shape) for name, p in model.named_parameters()}
    other = Translator.load(Run.open(lender)).model
    assert shape == {name: tuple(p.shape) for name, p in other.named_parameters()}
    assert any(
        not torch.equal(one, two)
        for one, two in zip(model.parameters(), other.parameters(), strict=True)
    )
    assert not (tmp_path / "scratch" / "all").exists()  # it was lent

    figures = quietly(
        "specialized_heads/gates",
        smoke("specialized_heads/gates", trained=(str(lent),)),
        tmp_path / "gates",
    )
    assert figures["formulas agree with draws"].mean == 1
    assert figures["en-ru: lambda 50: heads left"].mean == 0
    assert figures["en-ru: gates that are decided"].mean > 0.9
    assert f"{name}: from trained less with gates from the start" in figures


def test_translators_from_scratch_are_lent_to_those_of_their_shape(
    everything, tmp_path, monkeypatch
) -> None:
    lent, _ = everything
    config = smoke("specialized_heads/prune-scratch", trained=(str(lent),))
    figures = quietly("specialized_heads/prune-scratch", config, tmp_path / "first")
    both = replace(config, trained=(str(lent), str(tmp_path / "first")))
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "fit", None)
        assert quietly("specialized_heads/prune-scratch", both, tmp_path / "second") == figures
        assert (
            quietly("specialized_heads/prune-scratch", config, tmp_path / "first") == figures
        )  # not made again
    record = tmp_path / "first/scratch/tatoeba-en-ru/seed-0/keep-9/pruning_record.json"
    record.write_text((lent / "all/tatoeba-en-ru/seed-0/keep-4" / record.name).read_text())
    with pytest.raises(ValueError, match="keep-9 was trained with other heads than"):
        quietly("specialized_heads/prune-scratch", both, tmp_path / "third")


def test_a_long_pruning_that_was_killed_goes_on(everything, tmp_path, monkeypatch) -> None:
    lent, _ = everything
    config = smoke("specialized_heads/prune-all", trained=(str(lent),), keep=(5,), prune_steps=30)
    monkeypatch.setattr(_translators, "OFTEN", 5)
    with monkeypatch.context() as patch:
        patch.setattr(choosing_heads, "training_bar", stopping(choosing_heads.training_bar, 20))
        patch.setattr(choosing_heads, "SHOWN", ("loss",))
        with pytest.raises(KeyboardInterrupt):
            quietly("specialized_heads/prune-all", config, tmp_path / "run")
    killed = Run.open(tmp_path / "run" / "all" / "tatoeba-en-ru" / "seed-0" / "keep-5-pruning")
    assert int(killed.note("checkpoint.safetensors")["step"]) == 15
    quietly("specialized_heads/prune-all", config, tmp_path / "run")
    assert killed.figures()["heads_kept"] == 5


def test_the_same_difference_with_every_seed_does_not_answer_for_guided_heads() -> None:
    names = {kept: f"en-ru guided: {kept} heads: " for kept in (17, 10, 4, 2)}
    differences = ([0.42, 0.31, 0.53], [0.3, 0.4], [1 / 9] * 3, [-0.3, -0.4, -0.5])
    apart = "kept, guided less other heads"
    figures = {f"{name}{apart}": own for name, own in zip(names.values(), differences, strict=True)}
    found = guided._kept_more_often(figures)
    assert list(found.values()) == [[1.0], [0.5], [0.5], [0.0]]  # two seeds do not either
    answers = {item.metric: item for item in guided.EXPECTED}
    for kept, verdict in ((17, "reproduced"), (10, "undecided"), (4, "undecided")):
        claim = f"{names[kept]}guided heads kept more often than others"
        assert answers[claim].paper_verdict(Estimate.of(found[claim])) == verdict


def test_guided_heads_are_counted_apart_and_look_where_they_were_told(everything, tmp_path) -> None:
    lent, _ = everything
    config = smoke("specialized_heads/prune-guided", trained=(str(lent),))
    figures = quietly("specialized_heads/prune-guided", config, tmp_path / "run")
    name = "en-ru guided: 4 heads: kept"
    guided, others = (figures[f"{name}, of {heads} heads"].mean for heads in ("guided", "other"))
    assert 4 * guided + 4 * others == 4
    patterns = [figures[f"{name}, of heads guided to {aim}"].mean for aim in ("next", "prev")]
    assert sum(patterns) / 2 == guided
    assert figures[f"{name}, guided less other heads"].mean == guided - others
    weight = figures["en-ru guided: weight there, of guided heads"].mean
    plain = figures["en-ru: weight there, of heads with these numbers"].mean
    assert weight > 1.2 * plain  # without guidance both are the same model
    after = figures.get("en-ru guided: 4 heads: weight there, of guided heads left")
    assert (after is not None) == (guided > 0)
    assert after is None or after.mean > plain
    both = [figures[f"{name}: BLEU"].mean for name in ("en-ru", "en-ru guided")]
    assert figures["BLEU, guided less plain"].mean == both[1] - both[0]
    with pytest.raises(ValueError, match="plan may name next and prev here, got first"):
        replace(config, plan="first=1")


def test_a_classifier_is_pruned_in_every_way_to_as_many_heads(data_folder, tmp_path) -> None:
    encoder = save(host("BERT").bert, tokenizer_for("BERT"), tmp_path / "encoder")
    config = smoke("specialized_heads/prune-minilm", model=str(encoder))
    figures = quietly("specialized_heads/prune-minilm", config, tmp_path / "run")
    for choice in config.choices:
        assert figures[f"3 heads: {choice}: heads left"].mean == 3
        assert 0 <= figures[f"3 heads: {choice}: accuracy"].mean <= 1
    apart = figures["3 heads: gates: accuracy"].mean - figures["3 heads: random: accuracy"].mean
    assert figures["3 heads: gates less random"].mean == pytest.approx(apart)


def test_a_language_model_is_pruned_by_groups_saved_loaded_and_goes_on(
    data_folder, tmp_path, monkeypatch
) -> None:
    config = smoke("specialized_heads/prune-smollm", model=str(grouped(tmp_path / "host")))
    figures = quietly("specialized_heads/prune-smollm", config, tmp_path / "run")
    for choice in config.choices:
        assert figures[f"4 heads: {choice}: saved and loaded gives the same"].mean == 1
        assert figures[f"4 heads: {choice}: goes on with a text"].mean == 1
        assert figures[f"4 heads: {choice}: perplexity"].mean < 200
    assert figures["4 heads: gates: perplexity"].mean < figures["unpruned: perplexity"].mean

    known = Run.open(tmp_path / "run").read_json("before.json")  # which the second was told
    assert known["perplexity"] == figures["unpruned: perplexity"].mean
    monkeypatch.setattr(smollm, "load", None)  # what it writes is kept by whoever pruned it
    assert quietly("specialized_heads/prune-smollm", config, tmp_path / "run") == figures


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["specialized_heads/prune-minilm", "specialized_heads/prune-smollm"]
)
def test_prunings_in_two_processes_find_the_same(name, data_folder, tmp_path) -> None:
    if name == "specialized_heads/prune-minilm":
        model = save(host("BERT").bert, tokenizer_for("BERT"), tmp_path / "encoder")
        changes = {"seeds": 2}
    else:
        model, changes = grouped(tmp_path / "host"), {}
    found = [
        quietly(name, smoke(name, model=str(model), at_once=at_once, **changes), tmp_path / folder)
        for folder, at_once in (("one", 1), ("two", 2))
    ]
    assert found[0] == found[1]
    assert Run.open(tmp_path / "two").names("at-once/*.log")
    losses = [_losses(tmp_path / folder) for folder in ("one", "two")]
    assert losses[0] == losses[1] != {}


def _losses(folder: Path) -> dict[str, list[float]]:
    """Of every training below a run, by its place."""
    return {
        str(file.parent.relative_to(folder)): [
            row["loss"] for row in Run.open(file.parent).metrics() if "loss" in row
        ]
        for file in folder.rglob("metrics.jsonl")
    }


@pytest.mark.parametrize(
    "name", ["specialized_heads/prune-minilm", "specialized_heads/prune-smollm"]
)
def test_a_model_must_be_named(name, tmp_path) -> None:
    with pytest.raises(ValueError, match="give --set model=FOLDER"):
        reproduce(name, load_experiment(name).smoke, tmp_path / "run")
