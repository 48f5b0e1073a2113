"""output_relevance/classification, /frozen and /influence: one training, three readings of it."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from headwise.recording.run import Run
from headwise_papers.core.base import Estimate
from headwise_papers.core.running import reproduce
from headwise_papers.data.classification import Labelled, LabelledTexts
from headwise_papers.data.vocabulary import Vocabulary
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.output_relevance import (
    _classification,
    _table_1,
    classification,
    frozen,
    influence,
    random_embeddings,
)
from headwise_papers.output_relevance._classification import Training, trained_on
from headwise_papers.output_relevance._peaks import InfluencePeaks

Figures = dict[str, Estimate]


@pytest.fixture(scope="module")
def trained(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Figures]:
    """A tiny training on SST and its figures."""
    folder = tmp_path_factory.mktemp("classification") / "run"
    return folder, reproduce(
        "output_relevance/classification", classification.experiment.smoke, folder
    )


def _drawn(folder: Path, *names: str) -> bool:
    return all((folder / "pictures" / f"{name}.png").stat().st_size > 5000 for name in names)


def _of_sst(expected) -> set[str]:
    return {item.metric for item in expected if item.metric.startswith("sst: ")}


def test_relevance_under_uniform_attention_foretells_attention(trained) -> None:
    folder, figures = trained
    assert figures["sst: best accuracy"].mean > 0.6
    assert figures["sst: hr above the random baseline"].mean == 1
    assert figures["sst: ceiling, another normal run"].mean > figures["sst: random baseline"].mean
    assert figures["sst: random baseline"].mean < 0.15
    assert _of_sst(classification.EXPECTED) <= set(figures)
    assert _drawn(folder, "fig4-relevance-under-uniform-attention", "table1")


def test_a_finished_set_is_not_trained_again(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, figures = trained
    monkeypatch.setattr(_classification, "_train", pytest.fail)
    again = reproduce("output_relevance/classification", classification.experiment.smoke, folder)
    assert again == figures
    assert not list(folder.glob("**/stacked.safetensors"))


def test_influence_and_frozen_runs_read_what_was_trained(
    trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_classification, "_train", pytest.fail)
    settings = replace(influence.experiment.smoke, trained=str(trained[0]))
    figures = reproduce("output_relevance/influence", settings, tmp_path / "influence")
    floor = figures["sst: random baseline"].mean
    assert figures["sst: hr(xi of the uniform run, beta_unif)"].mean > floor + 0.1
    assert figures["sst: hr(xi of normal runs, beta_unif)"].mean > floor + 0.1
    # one model's influence and relevance agree before anything is learnt, those of two do not
    first = "hr(xi of {}, beta_unif) before the first update"
    assert figures["sst: " + first.format("the uniform run")].mean > floor + 0.1
    assert figures["sst: " + first.format("normal runs")].mean < floor + 0.15
    assert figures["sst: rise of beta, mean over positions"].mean > 0
    assert 0.5 < figures["sst: share of positions where beta rises"].mean <= 1
    assert _of_sst(influence.EXPECTED) <= set(figures)
    drawn = ("fig3-influence", "influence-through-training", "rise-of-relevance")
    assert _drawn(tmp_path / "influence", *drawn)

    settings = replace(frozen.experiment.smoke, trained=str(trained[0]))
    figures = reproduce("output_relevance/frozen", settings, tmp_path / "frozen")
    # a frozen model's attention is learnt, but nothing else of it is
    assert figures["sst: frozen best accuracy"].mean < trained[1]["sst: best accuracy"].mean
    assert (
        figures["sst: hr(alpha*, beta_unif)"].mean == trained[1]["sst: hr(alpha*, beta_unif)"].mean
    )
    assert _of_sst(frozen.EXPECTED) <= set(figures)
    assert _drawn(tmp_path / "frozen", "table3", "frozen-through-training")


def test_smoke_settings_of_the_three_are_one_training() -> None:
    ours = [
        {item.name: getattr(module.experiment.smoke, item.name) for item in fields(Training)}
        for module in (classification, frozen, influence)
    ]
    assert ours[0] == ours[1] == ours[2]


def test_a_folder_that_lacks_something_is_refused(trained, tmp_path: Path) -> None:
    settings = frozen.experiment.smoke
    with Run.create(tmp_path / "run", settings) as run:
        with pytest.raises(ValueError, match="holds no training on sst"):
            trained_on("sst", settings, run, trained=str(tmp_path))
        with pytest.raises(ValueError, match="was trained with seeds=2, but here it is 3"):
            trained_on("sst", replace(settings, seeds=3), run, trained=str(trained[0]))
        unfinished = tmp_path / "other"
        Run.create(unfinished / "sst", _classification._settings_of("sst", settings)).close()
        with pytest.raises(ValueError, match="is not finished"):
            trained_on("sst", settings, run, trained=str(unfinished))


def test_random_embeddings_give_both_tables(data_folder: Path, tmp_path: Path) -> None:
    settings = random_embeddings.experiment.smoke
    figures = reproduce("output_relevance/random-embeddings", settings, tmp_path / "run")
    assert _of_sst(random_embeddings.EXPECTED) <= set(figures)
    # a frozen model knows nothing about words, neither from GloVe nor from training
    frozen_best, best = (figures[f"sst: {x}best accuracy"].mean for x in ("frozen ", ""))
    assert best > max(0.6, frozen_best + 0.05)
    assert _drawn(tmp_path / "run", "table1", "table3", "frozen-through-training")


def test_embeddings_start_from_glove_or_are_each_model_s_own(data_folder: Path) -> None:
    texts = LabelledTexts(
        "sst", *[Labelled([[4, 5]], [0])] * 3, Vocabulary.from_sentences([["the", "film"]]), 2
    )
    wide = random_embeddings.experiment.config
    assert _classification._settings_of("sst", wide).width == 300
    vectors = {}
    for module in (classification, random_embeddings):
        settings = replace(module.experiment.smoke, width=50)
        stack = _classification._stack(texts, settings, torch.device("cpu"))
        vectors[module] = stack.weights["embed.weight"][:, texts.vocabulary.encode(["the"])[0]]
    assert torch.equal(vectors[classification][0], vectors[classification][1])
    assert not torch.equal(vectors[random_embeddings][0], vectors[random_embeddings][1])
    assert 0.8 < vectors[random_embeddings].std() < 1.2


def test_reviews_of_yelp_have_the_paper_s_row(tmp_path: Path, trained) -> None:
    settings = replace(classification.experiment.config, sets=("yelp_reviews",))
    assert _classification._settings_of("yelp_reviews", settings).updates == 2300
    with Run.create(tmp_path / "run", settings) as run:
        known = trained_on("sst", classification.experiment.smoke, run, trained=str(trained[0]))
        figures, shown = _table_1.table_1("yelp_reviews", known)
        assert "yelp_reviews: accuracy at s is non-trivial" in figures
        _table_1.draw_table_1({"yelp_reviews": shown}, run)
    assert _drawn(tmp_path / "run", "table1")


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
        Training(**settings)


def test_variants_and_seeds_have_starts_and_orders_of_their_own() -> None:
    texts = Labelled([[4, 5, 6], [5], [6, 6], [4, 4, 4, 5]] * 5, [0, 1, 0, 1] * 5)
    settings = replace(classification.experiment.smoke, batch=4, seeds=2)
    batch = _classification._batches(texts, settings, torch.device("cpu"))
    ids, lengths, labels = batch(0)
    assert ids.shape == (6, 4, 4)
    assert labels.shape == lengths.shape == (6, 4)
    assert len({tuple(order.flatten().tolist()) for order in ids}) > 1
    assert torch.equal(ids, batch(0)[0])


def test_a_step_is_recorded_once_even_when_resumed() -> None:
    config = RnnClassifierConfig(vocabulary=8, embedding=4, hidden=4, attention=4)
    stack = RnnClassifierStack([RnnClassifier(config) for _ in range(2)])
    part = Labelled([[4, 5, 6], [7], [6, 5]], [0, 1, 1])
    read = _classification._influencing(part, device=torch.device("cpu"), seeds=2)
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
    assert not other.tensors()["rise_at"].any()  # nothing was learnt


def test_a_rise_is_counted_from_the_first_evaluation_at_the_peaks_of_every_run() -> None:
    config = RnnClassifierConfig(vocabulary=8, embedding=4, hidden=4, attention=4)
    stack = RnnClassifierStack([RnnClassifier(config) for _ in range(2)])
    part = Labelled([[4, 5, 6], [7], [6, 5]], [0, 1, 1])
    read = _classification._influencing(part, device=torch.device("cpu"), seeds=2)
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
