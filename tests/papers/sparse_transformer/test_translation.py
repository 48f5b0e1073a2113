"""Translators with sparse attention: what the experiments train, lend each other, and conclude."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers import BertTokenizer

from headwise.config import flat, to_json
from headwise.recording import Run
from headwise.sites import observe
from headwise_papers.core.base import Estimate
from headwise_papers.core.running import reproduce
from headwise_papers.core.shelf import load_experiment
from headwise_papers.data.translation import read_parallel_texts
from headwise_papers.recipes.translator import Translator
from headwise_papers.sparse_transformer import _training
from headwise_papers.sparse_transformer._long_rows import share_of_long_rows
from headwise_papers.sparse_transformer._pretrained import kind_of, open_pretrained
from headwise_papers.sparse_transformer._scoring import Switch, attending, teacher_forced_loss
from headwise_papers.sparse_transformer._table import as_in_paper, differences
from headwise_papers.sparse_transformer._training import (
    TASKS,
    Job,
    Training,
    settings_of,
    translator_run,
)
from headwise_papers.sparse_transformer.choose_k import shape_of
from headwise_papers.sparse_transformer.translation import EXPECTED

CORPUS = "multi30k-en-de"
SMOKE = load_experiment("sparse_transformer/translation").smoke
Figures = dict[str, Estimate]


def quietly(name: str, config: object, folder: Path) -> Figures:
    """On one thread, which is faster at this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reproduce(name, config, folder)
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def translated(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Figures]:
    """The smoke run of sparse_transformer/translation: its folder and figures."""
    folder = tmp_path_factory.mktemp("sparse") / "run"
    return folder, quietly("sparse_transformer/translation", SMOKE, folder)


def borrowing(name: str, folder: Path):
    """The smoke settings of another experiment, with the translators of that run."""
    return dataclasses.replace(load_experiment(name).smoke, trained=(str(folder),))


def losses(run: Run, name: str) -> list[float]:
    return [row[name] for row in run.metrics() if name in row]


def test_every_method_learns_and_is_compared_seed_by_seed(translated):
    folder, figures = translated
    for method in SMOKE.methods:
        for seed in range(SMOKE.seeds):
            run = Run.open(folder / Job(CORPUS, method, seed).folder)
            validation = losses(run, "validation_loss")
            assert validation[-1] < validation[0] - 0.3
            assert not run.names("check*") + run.names("checkpoints/*") + run.names("best*")
        assert figures[f"{CORPUS}: updates of {method}"].values == (24.0, 24.0)
        assert figures[f"{CORPUS}: training pieces a second of {method}"].mean > 0
    ours, base = (figures[f"{CORPUS}: BLEU of {m}"].values for m in ("topk:8", "softmax"))
    apart = figures[f"{CORPUS}: topk:8 less softmax"].values
    assert apart == pytest.approx([a - b for a, b in zip(ours, base, strict=True)])
    assert (folder / "pictures" / "table-1.png").stat().st_size > 5000
    known = {item.metric for item in EXPECTED if item.metric.startswith(f"{CORPUS}: topk:8")}
    assert known - set(figures) <= {name for name in known if "sparsemax" in name}


def test_nothing_is_trained_twice(translated, monkeypatch):
    folder, figures = translated
    monkeypatch.delattr(_training, "train_translation")
    assert quietly("sparse_transformer/translation", SMOKE, folder) == figures


def test_a_translator_with_top_k_attention_looks_at_no_more_keys(translated):
    folder, _ = translated
    most: dict[str, int] = {}

    def count(site, attended):
        most[site.name] = max(most.get(site.name, 0), int((attended.weights > 0).sum(-1).max()))

    for method, fits in (("topk:8", lambda keys: keys == 8), ("softmax", lambda keys: keys > 8)):
        translator = Translator.load(Run.open(folder / Job(CORPUS, method, 0).folder))
        most.clear()
        with observe(translator.model, count):
            translator.translate(read_parallel_texts("multi30k", "en", "de").test.source[:4])
        assert set(most) == {"encoder.0.self", "decoder.0.self", "decoder.0.cross"}
        assert all(map(fits, most.values()))


def test_the_signatures_that_the_page_names_are_those_of_the_scores(translated):
    folder, _ = translated
    story = sys.modules["headwise_papers.sparse_transformer.translation"].__doc__ or ""
    figures = Run.open(folder / Job(CORPUS, "softmax", 0).folder).figures()
    for kind in ("bleu", "tokenised_bleu"):
        assert figures[f"{kind}_signature"].partition("|version")[0] in story


def test_choosing_k_trains_only_what_it_cannot_borrow(translated, tmp_path):
    folder, _ = translated
    figures = quietly(
        "sparse_transformer/choose-k",
        borrowing("sparse_transformer/choose-k", folder),
        tmp_path / "run",
    )
    trained = [path.parent.name for path in (tmp_path / "run").glob(f"{CORPUS}/*/figures.json")]
    assert trained == ["topk-2-seed-0"]
    cut = [figures[f"{CORPUS}: rows with more than {k} keys"].mean for k in (2, 8)]
    assert 1 > cut[0] > cut[1] > 0
    assert (tmp_path / "run" / "pictures" / "figure-3.png").is_file()

    config = borrowing("sparse_transformer/phases", folder)
    config = dataclasses.replace(config, trained=(*config.trained, str(tmp_path / "run")))
    figures = quietly("sparse_transformer/phases", config, tmp_path / "phases")
    both, training = (
        translator_run(config, Run.open(tmp_path / "phases"), Job(CORPUS, "topk:2", 0, phase))
        for phase in ("both", "training")
    )
    # the same updates; softmax in prediction is seen by the validation loss alone
    assert losses(both, "loss") == losses(training, "loss")
    assert losses(both, "validation_loss") != losses(training, "validation_loss")
    wanted = {item.metric for item in load_experiment("sparse_transformer/phases").expected}
    assert wanted <= set(figures)


def test_switching_to_all_keys_changes_nothing_and_to_one_key_costs(translated, tmp_path):
    folder, _ = translated
    figures = quietly(
        "sparse_transformer/switch",
        borrowing("sparse_transformer/switch", folder),
        tmp_path / "run",
    )
    for place in ("all", "cross"):
        part = f"{CORPUS}, {place}"
        assert figures[f"{part}: BLEU of topk:32 less softmax"].mean == 0
        assert abs(figures[f"{part}: loss of topk:32 less softmax"].mean) < 1e-5
    costs = [figures[f"{CORPUS}, {place}: loss of topk:1 less softmax"].mean for place in
             ("all", "cross")]  # fmt: skip
    assert costs[0] > 1e-3 and costs[0] != costs[1]
    trained = Run.open(folder / Job(CORPUS, "softmax", 0).folder)
    assert figures[f"{CORPUS}: BLEU of softmax"].mean == pytest.approx(trained.figures()["bleu"])
    assert "no model" in Run.open(tmp_path / "run").read_json("skipped.json")["pretrained"]


def test_the_loss_is_the_one_that_training_validated(translated):
    folder, _ = translated
    run = Run.open(folder / Job(CORPUS, "softmax", 0).folder)
    valid = read_parallel_texts("multi30k", "en", "de").valid
    first = type(valid)(valid.source[:12], valid.target[:12])
    loss = teacher_forced_loss(Translator.load(run), first)
    assert loss == pytest.approx(run.figures()["validation_loss"], rel=1e-5)


def test_a_translator_of_other_settings_is_not_borrowed(translated, tmp_path):
    folder, _ = translated
    with Run.create(tmp_path / "run", SMOKE) as run:
        other = dataclasses.replace(borrowing("sparse_transformer/translation", folder), steps=30)
        with pytest.raises(ValueError, match="fit.steps=24, but fit.steps=30 is asked for"):
            translator_run(other, run, Job(CORPUS, "softmax", 0))
        with pytest.raises(ValueError, match="names no folder"):
            lost = dataclasses.replace(SMOKE, trained=("nowhere",))
            translator_run(lost, run, Job(CORPUS, "softmax", 0))


def test_training_longer_changes_the_updates_and_the_rate_alone():
    shorter, longer = (
        load_experiment(f"sparse_transformer/{name}") for name in ("translation", "longer")
    )
    assert longer.config.corpora == (CORPUS,)
    job = Job(CORPUS, "entmax:1.5", 1)
    before, after = (flat(to_json(settings_of(each.config, job))) for each in (shorter, longer))
    changed = {name: (before[name], after[name]) for name in after if before[name] != after[name]}
    assert changed == {"fit.steps": (1500, 3000), "fit.learning_rate": (2e-3, 1e-3)}
    of_corpus = [item for item in shorter.expected if item.metric.startswith(f"{CORPUS}:")]
    assert list(longer.expected) == of_corpus


def test_translators_are_trained_for_as_long_and_at_the_rate_asked_for(translated, tmp_path):
    short, _ = translated
    config = load_experiment("sparse_transformer/longer").smoke
    figures = quietly("sparse_transformer/longer", config, tmp_path / "run")
    for method in config.methods:
        run = Run.open(tmp_path / "run" / Job(CORPUS, method, 0).folder)
        assert figures[f"{CORPUS}: updates of {method}"].mean == 48
        assert run.config()["fit"]["learning_rate"] == 5e-3
        validation = losses(run, "validation_loss")
        assert validation[-1] < validation[0]
    ours, base = (figures[f"{CORPUS}: BLEU of {m}"].mean for m in ("entmax:1.5", "softmax"))
    assert figures[f"{CORPUS}: entmax:1.5 less softmax"].mean == pytest.approx(ours - base)
    assert (tmp_path / "run" / "pictures" / "table-1.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="fit.steps=24, but fit.steps=48 is asked for"):
        quietly(
            "sparse_transformer/longer",
            borrowing("sparse_transformer/longer", short),
            tmp_path / "borrowed",
        )


@pytest.mark.parametrize("corpus", TASKS)
def test_a_translator_depends_on_its_corpus_attention_and_seed_alone(corpus):
    settings = settings_of(Training(), Job(corpus, "entmax:1.5", 2))
    changed = {
        name
        for name, value in flat(to_json(settings)).items()
        if value != flat(to_json(TASKS[corpus].recipe))[name]
    }
    attentions = {f"model.{place}_attention" for place in ("encoder", "decoder", "cross")}
    assert changed == attentions | {"fit.seed"}
    assert "softmax" in TASKS[corpus].methods and "topk:8" in TASKS[corpus].methods


def test_an_unknown_corpus_is_refused_before_anything_is_trained(tmp_path):
    config = dataclasses.replace(SMOKE, corpora=(CORPUS, "multi30k-en-dd"))
    with pytest.raises(ValueError, match="Did you mean 'multi30k-en-de'"):
        reproduce("sparse_transformer/translation", config, tmp_path / "run")
    assert not (tmp_path / "run" / CORPUS).exists()


def test_a_difference_whose_interval_includes_0_is_never_claimed():
    values = {"topk:8": [36.9, 36.0, 37.0], "softmax": [36.0, 36.1, 36.1]}
    pair = ("topk:8", "softmax")
    found = differences("de", values, [pair, ("sparsemax", "softmax")], paper={pair: 0.3})
    assert found["de: topk:8 less softmax"] == pytest.approx([0.9, -0.1, 0.9])
    assert found["de: topk:8 better than softmax"] == [0.5]
    assert found["de: topk:8 less softmax, as in the paper"] == [0.5]
    assert not [name for name in found if "sparsemax" in name]


@pytest.mark.parametrize(
    ("gains", "paper", "verdict"),
    [
        ([-4.0, -4.1, -4.5], -4.4, 1.0),
        ([-0.3, -0.4, -0.5], -4.4, 0.0),  # worse, but by far not as much
        ([1.4, 1.5, 1.6], 0.3, 0.0),  # better, but by far too much
        ([0.6, 0.61, 0.62], 0.3, 0.5),
        ([0.3], 0.3, 0.5),  # one seed is never sure
        ([0.7, 0.8, 0.9], 0.0, 0.0),  # not comparable
    ],
)
def test_gains_are_like_the_papers_where_side_and_size_agree(gains, paper, verdict):
    assert as_in_paper(gains, paper) == verdict


def test_the_best_k_is_found_for_each_seed():
    rows = {"topk:2": [1, 9], "topk:4": [2, 2], "topk:8": [5, 3], "topk:16": [3, 1],
            "topk:32": [2, 2], "softmax": [2, 2]}  # fmt: skip
    values = {name: list(map(float, own)) for name, own in rows.items()}
    found = shape_of(values)
    assert found["best k is inside"] == [1.0, 0.0]
    assert found["8 is best of 4, 8, 16, 32"] == [1.0, 1.0]


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
        kind.losses(subject, TEXTS, tokens=16, switch=switch)
        for switch in (None, Switch("topk:16"), Switch("topk:1"))
    )
    torch.testing.assert_close(all_keys, base, rtol=1e-4, atol=1e-5)
    assert (one_key - base).abs().max() > 1e-3
    if name == "loss at next words":
        inputs = tokenizer(TEXTS[2], return_tensors="pt")
        wanted = model(**inputs, labels=inputs["input_ids"]).loss.item()
        assert base[2].item() == pytest.approx(wanted, rel=1e-4)
    with attending(subject.model, None):
        assert kind.losses(subject, TEXTS, tokens=16, switch=None).tolist() == base.tolist()
