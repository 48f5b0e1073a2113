"""Runs of `headwise train classifier` are pruned and inspected; what cannot be is named."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

from headwise import pruning
from headwise.recording import Run
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect.opening import kind_of, open_subject
from headwise.workflows.prune import PruneConfig, prune_folder
from headwise.workflows.prune.pruning import dev_text, open_task, run_folder
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import SequenceClassifier
from headwise_papers.recipes.classifier import Classifier, batch_of, class_scores, read_example
from headwise_papers.recipes.encoder_subject import EncoderSubject, classifier_subject
from headwise_papers.recipes.finetuning import finetune, load_classifier
from tests.hf.families import SIZES
from tests.papers.recipes.small_finetuning import (
    small_config,
    write_classes,
    write_pairs,
    write_tags,
)
from tests.papers.recipes.small_translation import quietly
from tests.workflows.prune.small_tasks import QUICK
from tests.workflows.small_hosts import save, tokenizer_for

WRITERS = {"classes": write_classes, "pairs": write_pairs, "tags": write_tags}
BRIEF = {**QUICK, "steps": 0, "choose": "random", "keep": 1, "length": 128}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    return {name: write(folder / name) for name, write in WRITERS.items()}


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """A run of each kind of task, by its name; the second seed keeps no weights."""
    folder = tmp_path_factory.mktemp("finetuning")
    few = {"epochs": 2, "seeds": (0, 1)}
    for name in WRITERS:
        quietly(small_config(files[name], **few), folder / name, finetune)
    return folder


def config_for(model, files, **changes):
    given = {"model": str(model), "data": (files["train"],), "dev": (files["test"],)}
    return PruneConfig(**{**given, **BRIEF, **changes})


@pytest.mark.parametrize("name", ["classes", "pairs"])
def test_a_seed_is_pruned_and_begins_with_the_score_it_was_judged_by(
    name, trained, files, tmp_path
):
    seed = trained / name / "seed-0"
    run = prune_folder(config_for(seed, files[name]), tmp_path / "small")
    figures = run.figures()
    assert figures["accuracy_before"] == pytest.approx(Run.open(seed).figures()["accuracy"])
    assert (figures["heads_before"], figures["heads_kept"]) == (2, 1)
    small = pruning.load(tmp_path / "small")
    assert type(small) is hf.RobertaForSequenceClassification
    classes = json.loads((seed / "classifier.json").read_text())["classes"]
    assert [small.config.id2label[number] for number in range(2)] == classes
    read = InspectConfig(str(tmp_path / "small"), str(dev_text(tmp_path / "small")), sample=0)
    assert len(inspect_folder(read, tmp_path / "looked")) == 1


def test_what_is_pruned_learns_while_its_heads_go(trained, files, tmp_path):
    gates = {"steps": 10, "choose": "gates", "learning_rate": 1e-3}
    run = prune_folder(
        config_for(trained / "pairs" / "seed-0", files["pairs"], **gates), tmp_path / "small"
    )
    assert run.figures()["heads_kept"] == 1
    read = run.path("dev.txt").read_text().splitlines()
    assert read[0] == " ".join(Path(files["pairs"]["test"]).read_text().split("\n")[0].split()[1:])


def test_only_the_first_dev_lines_are_read_where_that_is_asked(trained, files):
    config = config_for(trained / "pairs" / "seed-0", files["pairs"], dev_lines=3)
    task = open_task(config, Path(config.model))
    assert len(task.texts) == len(task.dev.lengths) == 3


def test_lines_without_a_second_text_are_no_pairs(trained, files, tmp_path):
    config = config_for(trained / "pairs" / "seed-0", files["pairs"])
    (tmp_path / "one").write_text("yes\tonly one text\n")
    config = config_for(config.model, {"train": str(tmp_path / "one"), "test": config.dev[0]})
    with pytest.raises(ValueError, match="must hold a label, a TAB, a text, a TAB and a text"):
        open_task(config, Path(config.model))


def test_a_seed_can_be_inspected(trained, files, tmp_path):
    (tmp_path / "text").write_text("the film was fine\nso very awful\n" * 2)
    for name in WRITERS:
        read = InspectConfig(str(trained / name / "seed-0"), str(tmp_path / "text"), sample=2)
        table = inspect_folder(read, tmp_path / name)
        assert len(table) == 2 and "confidence" in table.columns


@pytest.mark.parametrize("name", ["classes", "pairs"])
def test_the_subject_says_what_the_classifier_says(name, trained):
    classifier = load_classifier(Run.open(trained / name))
    texts = ["the film was fine", "so </s> awful"]
    seconds = ["xyz long", "abc"] if name == "pairs" else [None, None]
    examples = [read_example(*pair) for pair in zip(texts, seconds, strict=True)]
    rows = classifier.pieces.read(examples)
    batch = batch_of(classifier.pieces, rows, [[0], [0]])
    subject = classifier_subject(classifier)
    with torch.no_grad():
        ours, theirs = (class_scores(x, batch) for x in (classifier.model, subject.model))
    torch.testing.assert_close(ours, theirs)
    if name == "classes":
        assert subject.tokenizer(texts)["input_ids"] == [row.ids for row in rows]


def test_a_fine_tuned_hugging_face_model_is_pruned_too(files, tmp_path):
    shape = hf.BertConfig(**SIZES)
    host = save(hf.BertForMaskedLM(shape), tokenizer_for("BERT"), tmp_path / "host")
    config = small_config(files["classes"], model=str(host), epochs=1)
    quietly(config, tmp_path / "run", finetune)
    pruned = config_for(tmp_path / "run" / "seed-0", files["classes"], keep=3)
    run = prune_folder(pruned, tmp_path / "small")
    assert run.figures()["heads_kept"] == 3
    assert any("hugging-face/model.safetensors" in path for path in run.read_json("inputs.json"))
    assert open_subject(tmp_path / "small").tokenizer("the dog")["input_ids"]


def test_other_attention_is_looked_at_in_its_encoder(trained):
    plain = load_classifier(Run.open(trained / "classes"))
    vocab = plain.model.encoder.config.vocab
    encoder = Encoder(EncoderConfig.tiny(vocab, attention="topk:2"))
    sparse = Classifier(SequenceClassifier(encoder, 2), plain.pieces, plain.classes, "text")
    assert isinstance(classifier_subject(sparse), EncoderSubject)


@pytest.mark.parametrize("command", ["prune", "inspect"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("classes", r"is a run of classifiers, one in a folder each; give .*classes/seed-0\."),
        ("classes/seed-1", r"has not kept its weights\. .* give .*classes/seed-0\."),
        ("lm", "holds a language model of characters, which is not opened: runs of `headwise"),
        ("small-pruning", "is the run of a pruning; give the smaller model"),
        ("looked", "is a run without a model of its own, which is not opened"),
    ],
)
def test_what_cannot_be_opened_is_named_with_what_can(
    command, place, said, trained, files, tmp_path
):
    model = (trained if place.startswith("classes") else tmp_path) / place
    if place == "lm":
        Run.create(model, InspectConfig("", ""), "language")
    elif place == "small-pruning":
        Run.create(model, config_for("m", files["classes"]), "pruning")
    elif place == "looked":
        Run.create(model, InspectConfig("", ""), "inspection")
    with pytest.raises(ValueError, match=said):
        if command == "prune":
            prune_folder(config_for(model, files["classes"]), tmp_path / "small")
        else:
            open_subject(model)
    assert (
        command == "inspect"
        or place == "small-pruning"
        or not (run_folder(tmp_path / "small").exists())
    )


def test_a_run_that_tags_words_is_not_pruned(trained, files, tmp_path):
    with pytest.raises(ValueError, match="takes models that classify sequences, fill masks"):
        prune_folder(config_for(trained / "tags" / "seed-0", files["classes"]), tmp_path / "small")
    assert not run_folder(tmp_path / "small").exists()


def test_a_run_of_classifiers_that_keeps_none_says_so(tmp_path, files):
    Run.create(tmp_path / "run", small_config(files["classes"]), "finetuning")
    with pytest.raises(ValueError, match="keeps none of them yet; let it finish"):
        kind_of(tmp_path / "run")
