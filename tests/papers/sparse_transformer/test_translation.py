"""Translators with sparse attention: what the experiments train, share, and conclude."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers as hf
from transformers import BertTokenizer

from headwise.config import flat, to_json
from headwise.recording import Run
from headwise.sites import observe
from headwise_papers.core import Job, Result, find_or_train, is_trained, using_cache
from headwise_papers.core.runner import load_experiment, reproduce
from headwise_papers.data.translation import read_parallel_texts
from headwise_papers.recipes.translation import train_translation
from headwise_papers.recipes.translator import Translator
from headwise_papers.sparse_transformer import choose_k, phases, switch, translation
from headwise_papers.sparse_transformer._pretrained import kind_of, open_pretrained
from headwise_papers.sparse_transformer._translators import (
    MAIN,
    TASKS,
    TINY,
    attending,
    share_of_long_rows,
    subtract,
    teacher_forced_loss,
    translator,
)

SMOKE = translation.SMOKE
NAMES = ("translation", "choose-k", "phases", "switch", "captions", "enwik", "maps", "speed")
UNMEASURED = ("enwik8", "METEOR", "help-en-vi: entmax", "multi30k-en-de: weight on the last")


class Translated(NamedTuple):
    cache: Path
    results: dict[str, Result]
    figures: Path


def quietly(name: str, config, folder: Path) -> dict[str, Result]:
    """Run on one thread, which is faster at this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reproduce(f"sparse_transformer/{name}", config, folder)
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def translated(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Translated:
    """The smoke run of sparse_transformer/translation, and the cache with its models."""
    folder = tmp_path_factory.mktemp("sparse")
    with using_cache(folder / "models"):
        results = quietly("translation", SMOKE, folder / "run")
    return Translated(folder / "models", results, folder / "run/figures")


@pytest.fixture
def cached(translated: Translated):
    with using_cache(translated.cache):
        yield translated


def losses(run: Run, name: str) -> list[float]:
    return [row[name] for row in run.metrics() if name in row]


def trained(*given: object, **more: object) -> Run:
    return find_or_train(train_translation, translator(MAIN, *given, TINY, **more))


def missing(models: list[Job]) -> list[Job]:
    return [job for job in models if not is_trained(*job)]


def test_every_attention_learns_and_is_compared_seed_by_seed(cached):
    results = cached.results
    for attention in SMOKE.attentions:
        for seed in range(SMOKE.seeds):
            validation = losses(trained(attention, seed), "validation_loss")
            assert validation[-1] < validation[0] - 0.3
        assert results[f"{MAIN}: updates of {attention}"].values == (24.0, 24.0)
        assert results[f"{MAIN}: training pieces a second of {attention}"].mean > 0
    ours, base = (results[f"{MAIN}: BLEU of {name}"].values for name in ("topk:8", "softmax"))
    apart = results[f"{MAIN}: topk:8 - softmax"]
    assert apart.kind == "difference"
    assert list(apart.values) == pytest.approx([a - b for a, b in zip(ours, base, strict=True)])
    assert (cached.figures / "table-1.png").stat().st_size > 5000


def test_models_lists_all_that_a_run_trains(cached):
    assert missing(list(translation.models(SMOKE))) == []
    more = replace(SMOKE, seeds=3)
    new = missing(list(translation.models(more)))
    assert len(new) == 2 * len(SMOKE.attentions)  # a translator, and its score on validation
    assert [job.train for job in new[:3]] == [train_translation] * 3


def test_a_translator_with_top_k_attention_looks_at_no_more_keys(cached):
    most: dict[str, int] = {}

    def count(site, attended):
        most[site.name] = max(most.get(site.name, 0), int((attended.weights > 0).sum(-1).max()))

    for attention, fits in (("topk:8", lambda keys: keys == 8), ("softmax", lambda keys: keys > 8)):
        opened = Translator.load(trained(attention, 0))
        most.clear()
        with observe(opened.model, count):
            opened.translate(read_parallel_texts("multi30k", "en", "de").test.source[:4])
        assert set(most) == {"encoder.0.self", "decoder.0.self", "decoder.0.cross"}
        assert all(map(fits, most.values()))


def test_the_signatures_that_the_page_names_are_those_of_the_scores(cached):
    story = sys.modules[translation.__name__].__doc__ or ""
    figures = trained("softmax", 0).figures()
    for kind in ("bleu", "tokenised_bleu"):
        assert figures[f"{kind}_signature"].partition("|version")[0] in story


def test_choosing_k_trains_only_what_is_not_there(cached, tmp_path):
    config = choose_k.experiment.smoke
    new = missing(list(choose_k.models(config)))
    assert {flat(to_json(job.config)).get("model.encoder_attention") for job in new} <= {
        "topk:2",
        None,
    }
    results = quietly("choose-k", config, tmp_path / "run")
    assert missing(list(choose_k.models(config))) == []
    cut = [results[f"{MAIN}: rows with more than {k} keys"].mean for k in (2, 8)]
    assert 1 > cut[0] > cut[1] > 0
    assert (tmp_path / "run/figures/figure-3.png").is_file()

    results = quietly("phases", phases.experiment.smoke, tmp_path / "phases")
    both, training = (trained("topk:2", 0, sparse_in=phase) for phase in ("both", "training"))
    # the same updates; softmax in prediction is seen by the validation loss alone
    assert losses(both, "loss") == losses(training, "loss")
    assert losses(both, "validation_loss") != losses(training, "validation_loss")
    assert {claim.result for claim in phases.CLAIMS} <= set(results)


def test_switching_to_all_keys_changes_nothing_and_to_one_key_costs(cached, tmp_path):
    results = quietly("switch", switch.SMOKE, tmp_path / "run")
    for place in ("all", "cross"):
        assert results[f"{MAIN}, {place}: BLEU of topk:32 - softmax"].mean == 0
        assert abs(results[f"{MAIN}, {place}: loss of topk:32 - softmax"].mean) < 1e-5
    costs = [
        results[f"{MAIN}, {place}: loss of topk:1 - softmax"].mean for place in ("all", "cross")
    ]
    assert costs[0] > 1e-3 and costs[0] != costs[1]
    bleu = trained("softmax", 0).figures()["bleu"]
    assert results[f"{MAIN}: BLEU of softmax"].mean == pytest.approx(bleu)
    assert not any("pretrained" in name for name in results)


def test_the_loss_is_the_one_that_training_validated(cached):
    run = trained("softmax", 0)
    valid = read_parallel_texts("multi30k", "en", "de").valid
    first = type(valid)(valid.source[:12], valid.target[:12])
    loss = teacher_forced_loss(Translator.load(run), first)
    assert loss == pytest.approx(run.figures()["validation_loss"], rel=1e-5)


def test_training_longer_changes_the_updates_and_the_rate_alone():
    before, after = (
        flat(to_json(translator(corpus, "entmax:1.5", 1))) for corpus in (MAIN, translation.LONGER)
    )
    changed = {name: (before[name], after[name]) for name in after if before[name] != after[name]}
    assert changed == {"fit.steps": (1500, 3000), "fit.learning_rate": (2e-3, 1e-3)}


@pytest.mark.parametrize("corpus", TASKS)
def test_a_translator_depends_on_its_corpus_attention_and_seed_alone(corpus):
    settings = flat(to_json(translator(corpus, "entmax:1.5", 2)))
    recipe = flat(to_json(TASKS[corpus].recipe))
    changed = {name for name, value in settings.items() if value != recipe[name]}
    attentions = {f"model.{place}_attention" for place in ("encoder", "decoder", "cross")}
    assert changed == attentions | {"fit.seed"}
    assert TASKS[corpus].attentions[:2] == ("softmax", "topk:8")


def test_an_unknown_corpus_is_refused_before_anything_is_trained(tmp_path):
    config = replace(SMOKE, corpora=(MAIN, "multi30k-en-dd"))
    with pytest.raises(ValueError, match="Did you mean 'multi30k-en-de'"):
        list(translation.models(config))


@pytest.mark.parametrize("name", NAMES)
def test_claims_name_results_that_are_recorded_or_not_measured(name, monkeypatch):
    from headwise_papers.core import page, record

    folder = Path(__file__).parents[3] / "papers"
    monkeypatch.setattr(record, "PAPERS_FOLDER", folder)
    judged = page.judged_claims(f"sparse_transformer/{name}")
    lost = {one.claim.result for one in judged if one.verdict == "not measured"}
    assert all(result.startswith(UNMEASURED) for result in lost)
    assert len(load_experiment(f"sparse_transformer/{name}").claims) == len(judged) > 0


def test_differences_are_of_pairs_that_were_measured():
    values = {"topk:8": Result([36.9, 36.0]), "softmax": Result([36.0, 36.1])}
    found = dict(subtract("de", values, [("topk:8", "softmax"), ("sparsemax", "softmax")]))
    assert list(found) == ["de: topk:8 - softmax"]
    assert list(found["de: topk:8 - softmax"].values) == pytest.approx([0.9, -0.1])


def test_the_best_k_is_found_for_each_seed():
    rows = {"topk:2": [1, 9], "topk:4": [2, 2], "topk:8": [5, 3], "topk:16": [3, 1],
            "topk:32": [2, 2], "softmax": [2, 2]}  # fmt: skip
    found = choose_k.best_keys({name: Result(list(map(float, own))) for name, own in rows.items()})
    assert found["best k is inside"].values == (1.0, 0.0)
    assert found["8 is best of 4, 8, 16, 32"].values == (1.0, 1.0)


def test_rows_of_all_three_attentions_are_counted():
    # 5 + 5 keys in 5 + 3 rows, and 1, 2 and 3 keys in 3 rows
    assert share_of_long_rows([(5, 3)], 2) == pytest.approx((5 + 3 + 1) / 11)
    assert share_of_long_rows([(5, 3)], 5) == 0


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "saw", "a", "cat", "ran"]
TEXTS = ["the dog saw a cat the cat ran", "a cat ran the dog saw the dog", "dog cat ran saw a"]
SIZE = {"vocab_size": len(WORDS)}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT = {**SHAPE, "intermediate_size": 64, "initializer_range": 0.5}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.5}
MODELS = {
    "loss at hidden words": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZE, **BERT)),
    "loss at finding the other half": lambda: hf.BertModel(hf.BertConfig(**SIZE, **BERT)),
    "loss at next words": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**SIZE, **GPT)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_pretrained_model_is_measured_by_what_it_is_for(name, tmp_path):
    model = MODELS[name]().eval()
    model.save_pretrained(tmp_path)
    tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(WORDS)})
    tokenizer.save_pretrained(tmp_path)
    subject = open_pretrained(tmp_path)
    kind = kind_of(subject)
    assert kind.name == name
    base, all_keys, one_key = (
        kind.losses(subject, TEXTS, tokens=16, attention=attention)
        for attention in ("", "topk:16", "topk:1")
    )
    torch.testing.assert_close(all_keys, base, rtol=1e-4, atol=1e-5)
    assert (one_key - base).abs().max() > 1e-3
    if name == "loss at next words":
        inputs = tokenizer(TEXTS[2], return_tensors="pt")
        wanted = model(**inputs, labels=inputs["input_ids"]).loss.item()
        assert base[2].item() == pytest.approx(wanted, rel=1e-4)
    with attending(subject.model, ""):
        assert kind.losses(subject, TEXTS, tokens=16).tolist() == base.tolist()
