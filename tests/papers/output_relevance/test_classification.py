"""output_relevance/classification, /frozen and /influence: one training, three readings of it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headwise_papers.core import find_or_train
from headwise_papers.data.classification import Labelled, LabelledTexts
from headwise_papers.data.vocabulary import Vocabulary
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.output_relevance import _classifiers
from headwise_papers.output_relevance._classifiers import (
    SMOKE,
    Config,
    InfluencePeaks,
    make_stack,
    read_influence,
    text_batches,
    train_classifiers,
)
from tests.papers.output_relevance.conftest import missing

CPU = torch.device("cpu")


def test_relevance_under_uniform_attention_foretells_attention(data_folder: Path, smoke) -> None:
    found = smoke("classification")
    assert found["sst: best accuracy"].mean > 0.6
    assert found["all sets: hr above the random baseline"].mean == 1
    assert found["sst: ceiling, another normal run"].mean > found["sst: random baseline"].mean
    assert found["sst: random baseline"].mean < 0.15
    assert found["sst: hr - best of as many shuffles"].kind == "difference"
    assert not missing("classification", found.results, "sst: ", "all sets: ")
    assert found.has_figures("fig4-relevance-under-uniform-attention", "table1")


def test_influence_and_frozen_runs_use_the_models_of_classification(
    data_folder: Path, smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = smoke("classification")
    monkeypatch.setattr(_classifiers, "_train", pytest.fail)
    found = smoke("influence")
    floor = found["sst: random baseline"].mean
    assert found["sst: hr(xi of the uniform run, beta_unif)"].mean > floor + 0.1
    assert found["sst: hr(xi of normal runs, beta_unif)"].mean > floor + 0.1
    # one model's influence and relevance agree before anything is learned, those of two do not
    first = "hr(xi of {}, beta_unif) before the first update"
    assert found["sst: " + first.format("the uniform run")].mean > floor + 0.1
    assert found["sst: " + first.format("normal runs")].mean < floor + 0.15
    assert found["sst: rise of beta, mean over positions"].mean > 0
    assert 0.5 < found["all sets: share of positions where beta rises"].mean <= 1
    assert not missing("influence", found.results, "all sets: ")
    assert found.has_figures("fig3-influence", "influence-through-training", "rise-of-relevance")

    found = smoke("frozen")
    # a frozen model's attention is learned, but nothing else of it is
    assert found["sst: frozen best accuracy"].mean < known["sst: best accuracy"].mean
    assert found["sst: hr(alpha*, beta_unif)"] == known["sst: hr(alpha*, beta_unif)"]
    assert not missing("frozen", found.results, "all sets: ")
    assert found.has_figures("table3", "frozen-through-training")


def test_a_finished_training_keeps_its_traces_only(data_folder: Path) -> None:
    run = find_or_train(train_classifiers, SMOKE.on("sst"))
    assert not run.has("stacked.safetensors")
    assert run.names("trace/*/curves.safetensors")


def test_random_embeddings_are_a_part_of_both_tables(
    data_folder: Path, smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_classifiers.WIDTHS, "random", 100)
    config = replace(SMOKE, embeddings="random", rate=1e-2)
    table_1 = smoke("classification", config)
    table_3 = smoke("frozen", config)
    assert not missing("classification", table_1.results, "sst, random: ", "all sets, random: ")
    assert not missing("frozen", table_3.results, "sst, random: ", "all sets, random: ")
    # a frozen model knows nothing about words, neither from GloVe nor from training
    best = table_1["sst, random: best accuracy"].mean
    assert best > max(0.6, table_3["sst, random: frozen best accuracy"].mean + 0.05)


def test_embeddings_start_from_glove_or_are_each_model_s_own(data_folder: Path) -> None:
    texts = LabelledTexts(
        "sst", *[Labelled([[4, 5]], [0])] * 3, Vocabulary.from_sentences([["the", "film"]]), 2
    )
    vectors = {}
    for embeddings in ("glove", "random"):
        stack = make_stack(texts, replace(SMOKE, embeddings=embeddings), CPU)
        vectors[embeddings] = stack.weights["embed.weight"][:, texts.vocabulary.encode(["the"])[0]]
    assert torch.equal(vectors["glove"][0], vectors["glove"][1])
    assert not torch.equal(vectors["random"][0], vectors["random"][1])
    assert 0.8 < vectors["random"].std() < 1.2


def test_reviews_of_yelp_have_the_paper_s_number_of_updates() -> None:
    assert Config(sets=("yelp_reviews",)).on("yelp_reviews").updates == 2300


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sets": ("imbd",)}, "Did you mean 'imdb'"),
        ({"seeds": 1}, "others"),
        ({"updates": 0}, "updates must be 1 or more, got 0; none means the paper's number"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config(**settings)


def test_variants_and_seeds_have_starts_and_orders_of_their_own() -> None:
    texts = Labelled([[4, 5, 6], [5], [6, 6], [4, 4, 4, 5]] * 5, [0, 1, 0, 1] * 5)
    batch = text_batches(texts, seeds=6, device=CPU, batch=4)
    ids, lengths, labels = batch(0)
    assert ids.shape == (6, 4, 4)
    assert labels.shape == lengths.shape == (6, 4)
    assert len({tuple(order.flatten().tolist()) for order in ids}) > 1
    assert torch.equal(ids, batch(0)[0])


def test_a_step_is_recorded_once_even_when_resumed() -> None:
    config = RnnClassifierConfig(vocabulary=8, embedding=4, hidden=4, attention=4)
    stack = RnnClassifierStack([RnnClassifier(config) for _ in range(2)])
    part = Labelled([[4, 5, 6], [7], [6, 5]], [0, 1, 1])
    read = read_influence(part, device=CPU, seeds=2)
    recorder = InfluencePeaks(read, lambda step: step % 2 == 0)
    for step in range(3):
        recorder(step, stack)
    kept = recorder.tensors()
    other = InfluencePeaks(read, lambda step: step % 2 == 0)
    other.restore(kept)
    other(2, stack)
    other(4, stack)
    assert other.tensors()["step"].tolist() == [0, 2, 4]
    assert other.tensors()["peak"].shape == (3, 2, 3)
    assert (kept["peak"][:, :, 0] == 0).all()  # the shortest text comes first
    assert not other.tensors()["rise_at"].any()  # nothing was learned


def test_a_rise_is_counted_from_the_first_evaluation_at_the_peaks_of_every_run() -> None:
    config = RnnClassifierConfig(vocabulary=8, embedding=4, hidden=4, attention=4)
    stack = RnnClassifierStack([RnnClassifier(config) for _ in range(2)])
    part = Labelled([[4, 5, 6], [7], [6, 5]], [0, 1, 1])
    read = read_influence(part, device=CPU, seeds=2)
    recorder = InfluencePeaks(read, lambda step: True)
    recorder(0, stack)
    (before,) = [shown.beta for shown in read(stack)]
    with torch.no_grad():
        stack.weights["output.weight"].mul_(3)
    resumed = InfluencePeaks(read, lambda step: True)
    resumed.restore(recorder.tensors())
    resumed(1, stack)
    (after,) = read(stack)
    kept, gain = resumed.tensors(), after.beta - before
    rows = [gain[:, row, :length] for row, length in enumerate(after.lengths.tolist())]
    wanted = torch.stack([row.double().mean(-1) for row in rows]).mean(0)
    torch.testing.assert_close(kept["rise"][1], wanted, atol=1e-6, rtol=0)
    share = torch.stack([(row > 0).double().mean(-1) for row in rows]).mean(0)
    torch.testing.assert_close(kept["rising"][1], share, atol=1e-6, rtol=0)
    for ours in range(2):
        for theirs in range(2):
            places = kept["peak"][1, theirs].long()
            at_peaks = gain[ours].gather(1, places[:, None]).double().mean()
            torch.testing.assert_close(kept["rise_at"][1, ours, theirs], at_peaks)
