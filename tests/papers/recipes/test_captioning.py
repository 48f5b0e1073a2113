"""Training a captioning model, on squares of three colours that are named."""

import shutil
import sys

import pytest
import torch

from headwise.recording import Run
from headwise_papers.data.captions import CaptionData, CaptionPart
from headwise_papers.data.vocabulary import Vocabulary
from headwise_papers.recipes.captioning import Captioner, CaptioningConfig, train_captioning
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_translation import lasting, quietly, stopping

module = sys.modules[train_captioning.__module__]
SMALL = {
    "image_size": 16,
    "patch": 8,
    "width": 32,
    "heads": 2,
    "layers": 1,
    "feed_forward": 64,
    "dropout": 0.0,
    "batch_size": 16,
    "steps": 60,
    "warmup": 10,
    "learning_rate": 1e-2,
    "evaluate_every": 20,
    "checkpoint_every": 20,
    "average": 2,
    "beams": 2,
}
COLOURS = ("red", "green", "blue")


def part_of(count, seed):
    generator = torch.Generator().manual_seed(seed)
    colour = torch.randint(3, (count,), generator=generator)
    images = torch.randint(60, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
    images[torch.arange(count), colour] += 190
    names = [COLOURS[c] for c in colour.tolist()]
    captions = [[f"A {name} square .", f"something {name}", f"This is {name} ."] for name in names]
    return CaptionPart([f"{i}.jpg" for i in range(count)], captions, images)


def squares(*, size, features, minimum_count):
    train, valid, test = part_of(48, 0), part_of(12, 1), part_of(9, 2)
    sentences = [words for captions in train.words() for words in captions]
    known = Vocabulary.from_sentences(sentences, minimum_count=minimum_count)
    return CaptionData(train, valid, test, known)


@pytest.fixture(autouse=True)
def only_squares(monkeypatch):
    monkeypatch.setattr(module, "read_captions", squares)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_captions", squares)
        folder = tmp_path_factory.mktemp("captions")
        return quietly(configured(CaptioningConfig, **SMALL), folder, train_captioning)


def test_it_learns_and_names_the_colours(finished):
    losses = [row["validation_loss"] for row in finished.metrics() if "validation_loss" in row]
    assert losses[-1] < losses[0] - 0.1
    lines = finished.path("captions.txt").read_text().splitlines()
    test = part_of(9, 2)
    right = [captions[0].split()[1] for captions in test.captions]
    assert sum(name in line.split() for name, line in zip(right, lines, strict=True)) >= 8
    assert finished.figures()["updates"] == 60 and finished.has("report.html")


def test_the_saved_model_describes_as_before(finished):
    captioner = Captioner.load(Run.open(finished.folder))
    found = captioner.describe(part_of(9, 2).images, beams=2, batch=4)
    assert [" ".join(words) for words in found] == finished.path("captions.txt").read_text().split(
        "\n"
    )[:-1]


@pytest.mark.slow
def test_a_training_stopped_and_started_again_ends_the_same(finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 30))
        train_captioning(configured(CaptioningConfig, **SMALL), tmp_path / "run")
    again = train_captioning(configured(CaptioningConfig, **SMALL), tmp_path / "run")
    assert lasting(again) == lasting(finished)


def test_a_run_killed_before_its_report_is_given_one(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    (folder / "report.html").unlink()
    figures = (folder / "figures.json").read_bytes()
    train_captioning(configured(CaptioningConfig, **SMALL), folder)
    assert "</html>" in (folder / "report.html").read_text()
    assert (folder / "figures.json").read_bytes() == figures


def test_a_training_does_not_go_on_with_other_images(tmp_path, monkeypatch):
    config = configured(CaptioningConfig, **{**SMALL, "steps": 20, "checkpoint_every": 5})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 10))
        train_captioning(config, tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="not those that the run"):
        changed = squares(size=16, features=None, minimum_count=1)
        changed.test.images[0, 0, 0, 0] ^= 1  # of one pixel a bit
        patch.setattr(module, "read_captions", lambda **options: changed)
        train_captioning(config, tmp_path / "run")
    assert train_captioning(config, tmp_path / "run").has("figures.json")


def test_scores_that_cannot_be_computed_are_said_with_the_reason(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    scores = module._scores([["a", "dog"]], [[["a", "dog"]]])
    assert set(scores) == {"not_scored"} and "pycocoevalcap" in scores["not_scored"]


def test_features_stand_for_images(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    path = tmp_path / "features.safetensors"
    save_file({"any": torch.zeros(1)}, path)

    def with_features(**options):
        assert options["features"].keys() == {"any"}
        data = squares(size=16, features=None, minimum_count=1)
        parts = [data.train, data.valid, data.test]
        for part in parts:
            means = part.images.float().mean((2, 3))[:, None] / 255
            object.__setattr__(part, "images", means)
        return data

    monkeypatch.setattr(module, "read_captions", with_features)
    settings = {
        **SMALL,
        "steps": 2,
        "warmup": 1,
        "features": str(tmp_path / "features.safetensors"),
    }
    run = train_captioning(configured(CaptioningConfig, **settings), tmp_path / "run")
    assert run.read_json("model.json")["encoder"] == "features"
    assert run.read_json("model.json")["feature_width"] == 3


@pytest.mark.parametrize(
    "attention",
    [
        "topk:2",
        "entmax:learned",
        pytest.param("sparsemax", marks=pytest.mark.slow),
        pytest.param("entmax:1.5", marks=pytest.mark.slow),
    ],
)
def test_every_attention_trains(attention, tmp_path):
    places = {f"{place}_attention": attention for place in ("encoder", "decoder", "cross")}
    settings = {**SMALL, **places, "steps": 2, "warmup": 1, "test_images": 2}
    run = train_captioning(configured(CaptioningConfig, **settings), tmp_path / "run")
    assert len(run.path("captions.txt").read_text().split("\n")) == 3


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="image_size must be a multiple of patch"):
        configured(CaptioningConfig, image_size=30)
    with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
        configured(CaptioningConfig, beams=0)
    config = configured(CaptioningConfig, features="nowhere.safetensors")
    with pytest.raises(ValueError, match="There is no file of features"):
        module._data(config)
