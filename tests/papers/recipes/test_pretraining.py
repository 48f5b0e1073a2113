"""Pre-training: it learns, is guided, goes on after a stop, and is opened by what comes after."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.recording import Run
from headwise.sites import find_sites
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.inspect.sentence import Sentence
from headwise_papers.data.masking import PackedBlocks
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.models.encoder_heads import MaskedLM, MaskedLMWithNextSentence, ReplacedToken
from headwise_papers.recipes.language import LanguageConfig
from headwise_papers.recipes.pretraining import PretrainingConfig, load_pretrained, pretrain
from headwise_papers.recipes.pretraining_data import (
    read_texts,
    task_loss,
    text_in,
    training_batches,
    validate,
    validation_batches,
)
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_translation import lasting, quietly, stopping

module = sys.modules[pretrain.__module__]
ROOT = Path(__file__).parents[3]
SMALL = {
    "corpus": "file",
    "vocab_size": 300,
    "width": 64,
    "heads": 4,
    "feed_forward": 128,
    "layers": 2,
    "max_length": 32,
    "batch_size": 16,
    "steps": 60,
    "warmup": 5,
    "learning_rate": 3e-3,
    "evaluate_every": 20,
    "checkpoint_every": 20,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    pairs = ToyLanguage(nouns=6, transitive_verbs=3).pairs(600, seed=0)
    lines = [" ".join(pair.source) + "\n" * (1 + (n % 7 == 0)) for n, pair in enumerate(pairs)]
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def config(text):
    return configured(
        PretrainingConfig, **SMALL, file=str(text), plan="next=1,prev=1,first=1,period=1"
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    return quietly(config, tmp_path_factory.mktemp("mlm") / "run", pretrain)


def test_it_learns_and_says_the_losses_of_the_task_alone(finished):
    rows, figures = finished.metrics(), finished.figures()
    valid = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert len(valid) == 3 and valid[-1] < valid[0] < math.log(300) - 1.5
    assert figures["validation_loss"] == pytest.approx(valid[-1])
    assert figures["train_loss"] == rows[-1]["task_loss"] < figures["average_loss"]
    # what is made small has the weighted loss of guidance in it
    first = rows[0]
    assert first["loss"] > first["task_loss"] + first["alpha"] * first["guidance_loss"] / 2
    assert figures["updates"] == 60 and figures["tokens_seen"] == 60 * 16 * 32
    assert figures["model_flops_utilisation"] is None and finished.has("report.html")
    assert not finished.has("best.safetensors")  # nobody would read it


def test_heads_are_drawn_to_their_patterns_while_their_weight_falls(finished):
    rows = [row for row in finished.metrics() if "guidance_loss" in row]
    assert rows[-1]["guidance_loss"] < rows[0]["guidance_loss"] - 0.02
    assert [row["alpha"] for row in rows[:2]] == pytest.approx([30 * 51 / 60, 30 * 41 / 60])
    patterns = {name for name in rows[0] if name.startswith("guidance_")} - {"guidance_loss"}
    assert len(patterns) > 1 and "guidance_next" in patterns
    for row in rows:
        assert sum(row[name] for name in patterns) == pytest.approx(row["guidance_loss"])


def test_without_a_plan_the_loss_is_the_task_s(config, tmp_path):
    run = pretrain(configured(config, plan="", steps=10, warmup=1), tmp_path / "run")
    (row,) = run.metrics()
    assert row["loss"] == pytest.approx(row["task_loss"], rel=1e-5)
    assert "guidance_loss" not in row and "guidance_loss" not in run.figures()


def test_the_saved_model_has_the_loss_that_was_said(config, finished):
    model, pieces = load_pretrained(finished)
    text = text_in(finished, config, None)
    batches = validation_batches(config, text)
    found = validate(model, map(batches, range(len(batches))))["validation_loss"]
    assert found == pytest.approx(finished.figures()["validation_loss"], rel=1e-6)
    assert isinstance(model, MaskedLM) and not model.training and pieces == text.pieces


def test_a_model_is_validated_in_the_precision_of_its_training(config, finished):
    model, _ = load_pretrained(finished)
    batches = validation_batches(config, text_in(finished, config, None))
    exact, mixed = (
        validate(model, map(batches, range(len(batches))), bfloat16=half)["validation_loss"]
        for half in (False, True)
    )
    assert exact != mixed == pytest.approx(exact, rel=1e-2)


def test_weights_of_a_moment_are_kept_and_the_last_evaluation_is_not_repeated(
    config, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        module, "validate", lambda *args, **named: asked.append(1) or validate(*args, **named)
    )
    short = configured(config, plan="", schedule="constant", steps=6, warmup=1, evaluate_every=3)
    run = quietly(short, tmp_path / "run", lambda *both: pretrain(*both, keep_at=(2,)))
    assert len(asked) == 2 and run.names("checkpoints/*") == ["checkpoints/2.safetensors"]
    early = run.load_tensors("checkpoints/2.safetensors")
    less = quietly(configured(short, steps=2), tmp_path / "less", pretrain)
    ended = less.load_tensors("model.safetensors")
    assert early.keys() == ended.keys()
    assert all(torch.equal(early[name], ended[name]) for name in ended)


def test_a_training_stopped_and_started_again_ends_the_same(
    config, finished, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 30))
        quietly(config, tmp_path / "run", pretrain)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    # what was numbered is not numbered again: without the text it goes on all the same
    assert read_texts(config, tmp_path / "run") is None
    again = quietly(config, tmp_path / "run", pretrain)
    assert lasting(again) == lasting(finished)
    one, other = (run.load_tensors("model.safetensors") for run in (again, finished))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_run_killed_before_its_report_is_given_one(config, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    (folder / "report.html").unlink()
    figures = (folder / "figures.json").read_bytes()
    pretrain(config, folder)
    assert "</html>" in (folder / "report.html").read_text()
    assert (folder / "figures.json").read_bytes() == figures


def test_berts_two_tasks_and_electras(config, tmp_path):
    short = configured(config, steps=12, warmup=1, plan="next=1,delim=1")
    bert = pretrain(configured(short, next_sentence=True), tmp_path / "bert")
    assert 0.6 < bert.figures()["validation_next_sentence_loss"] < 0.8
    first = bert.metrics()[0]  # the loss of next sentences, about log 2, is made small beside
    assert first["loss"] > first["task_loss"] + 0.6 + first["alpha"] * first["guidance_loss"]
    model, pieces = load_pretrained(bert)
    assert isinstance(model, MaskedLMWithNextSentence) and pieces.piece(pieces.begin) == "[CLS]"
    electra = pretrain(configured(short, objective="electra"), tmp_path / "electra")
    assert 0.3 < electra.figures()["validation_loss"] < 0.6
    assert isinstance(load_pretrained(electra).model, ReplacedToken)
    for run in (bert, electra):
        subject = open_subject(run.folder)
        assert subject.model.config.model_type == run.folder.name


def test_layers_to_guide_may_be_chosen(config):
    chosen = configured(config, plan="next=1", where="encoder.1.*")
    model = module.fresh_model(chosen, chosen.shape(300))
    with module.guided(model, chosen.guide, steps=4, tokens={"encoder": {}}):
        busy = [site.name for site in find_sites(model) if site.changes]
    assert busy == ["encoder.1.self"]


def test_an_earlier_run_lends_its_text(config, finished, tmp_path):
    later = configured(
        config, text_of=str(finished.folder), seed=1, steps=2, warmup=1, file="gone", corpus="file"
    )
    with pytest.raises(ValueError, match=r"has file=.* text_of is for runs on the same text"):
        pretrain(later, tmp_path / "run")
    later = configured(later, file=config.file)
    with pytest.raises(ValueError, match="has marks='roberta', but this run marks='bert'"):
        pretrain(configured(later, next_sentence=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run = pretrain(later, tmp_path / "run")
    assert not run.has("text.safetensors")
    assert load_pretrained(run).pieces == load_pretrained(finished).pieces
    with pytest.raises(ValueError, match="holds no tokenized text"):
        pretrain(configured(later, text_of=str(run.folder)), tmp_path / "next")


def test_seeds_differ_in_what_they_hide_but_are_validated_alike(config, finished):
    text = text_in(finished, config, None)
    other = configured(config, seed=1)
    train, valid = (
        [make(one, text)(0) for one in (config, other)]
        for make in (training_batches, validation_batches)
    )
    assert not torch.equal(train[0].ids, train[1].ids)
    assert torch.equal(valid[0].ids, valid[1].ids)


def test_inspections_read_it_as_a_masked_language_model(finished):
    subject = open_subject(finished.folder)
    assert isinstance(subject, HuggingFaceSubject)
    prepared = subject.prepare([Sentence.of_text("the dog saw a cat .")])
    found = subject.forward(prepared.inputs)
    model, pieces = load_pretrained(finished)
    ids = [pieces.begin, *pieces.encode("the dog saw a cat ."), pieces.end]
    ours = model(torch.tensor([ids]), torch.arange(len(ids)))
    assert found.predicts == "masked" and subject.mask_id == pieces.mask
    assert torch.allclose(found.values[0], ours, atol=1e-5)


def test_an_inspection_of_it_is_resumed(finished, text, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(text.read_text().splitlines(keepends=True)[:20]))
    config = InspectConfig(str(finished.folder), str(lines), sample=2, ablation_lines=0, samples=1)
    found = inspect_folder(config, tmp_path / "inspected")
    assert inspect_folder(config, tmp_path / "inspected") == found


def test_a_training_that_goes_wrong_ends_with_one_sentence(config, tmp_path):
    wild = configured(config, learning_rate=1e38, clip=0.0, steps=20)
    with pytest.raises(ValueError, match=r"Training went wrong at step \d+: the loss is"):
        pretrain(wild, tmp_path / "run")


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA A100"])
def test_utilisation_is_said_of_an_h200_only(config, finished, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device)
    monkeypatch.setattr(module, "process_count", lambda: 1)
    model = load_pretrained(finished).model
    found = module._utilisation(config, model, 1e9)
    width, ffn, layers, length, vocab = 64, 128, 2, 32, len(load_pretrained(finished).pieces)
    layer = 4 * width * width + 2 * width * ffn + 2 * length * width
    head = (width * width + width * vocab) * 5 / 32
    wanted = 6 * (layers * layer + head) * 1e9 / 790e12
    assert found == (pytest.approx(wanted) if "H200" in device else None)
    electra = configured(config, objective="electra")
    judged = width * width + width  # at every position, and no word is scored
    wanted = 6 * (layers * layer + judged) * 1e9 / 790e12
    found = module._utilisation(electra, model, 1e9)
    assert found == (pytest.approx(wanted) if "H200" in device else None)
    sparse = configured(config, attention="topk:8")
    assert module._utilisation(sparse, model, 1e9) is None


def test_sizes_are_those_of_the_papers():
    for layers, heads in ((8, 12), (12, 12), (16, 16)):
        shape = PretrainingConfig(model=EncoderConfig.roberta(layers=layers)).shape(52_000)
        assert (shape.layers, shape.heads, shape.width, shape.feed_forward) == (
            layers, heads, 768, 3072)  # fmt: skip
    bert = configured(PretrainingConfig, next_sentence=True).shape(8000)
    assert (bert.family, bert.token_types, bert.padding_id, bert.heads) == ("bert", 2, 0, 12)
    assert configured(PretrainingConfig, objective="electra").shape(8000).family == "electra"


@pytest.mark.slow
def test_a_compiled_loss_is_one_graph_and_the_same(tmp_path):
    command = [sys.executable, "-m", "tests.papers.recipes.compiling_pretraining", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_the_loss_is_compiled_with_the_model_where_nothing_wraps_it(
    processes, config, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda call: seen.append(call) or call)
    monkeypatch.setattr(module, "process_count", lambda: processes)
    short = configured(config, steps=2, warmup=1, compile=True)
    quietly(short, tmp_path / "run", pretrain)
    (compiled,) = seen
    assert compiled is task_loss if processes == 1 else isinstance(compiled, MaskedLM)


@pytest.mark.parametrize(("said", "on_gpu"), [(None, True), (True, True), (False, False)])
def test_models_are_compiled_on_a_gpu_unless_it_is_said(said, on_gpu):
    settings = configured(PretrainingConfig, compile=said).fit
    assert settings.on_device(cuda=True, replayable=True).compile is on_gpu
    assert settings.on_device(cuda=True, replayable=True).graphs is not on_gpu
    replayed = settings.on_device(cuda=True, replayable=True, one_shape=True)
    assert replayed.graphs and replayed.warm == (3 if on_gpu else 1)
    assert settings.on_device(cuda=False, replayable=True).compile is (said is True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"plan": "next=3,first=2"}, "wants 5 heads, but a layer has 4"),
        ({"plan": "sideways=1"}, "There is no pattern 'sideways'"),
        ({"plan": "next=1", "alpha": -1.0}, "alpha must be a finite number of at least 0"),
        ({"plan": "next=1", "attention": "gaussian:-1,1"}, "cannot guide heads"),
        ({"plan": "next=1", "where": "encoder.2.*"}, "is the name of no attention here"),
        ({"attention": "gaussian:-1,1", "sparse_in": "training"}, "learns no scores"),
        ({"attention_dropout": 2.0}, "attention_dropout must be at least 0 and below 1"),
        ({"file": ""}, "Your own text"),
        ({"max_length": 4}, "max_length must be at least 8"),
        ({"masked": 0.9}, "masked choose one token to half"),
        ({"objective": "electra", "next_sentence": True}, "next_sentence goes with"),
        ({"attention": "sharp"}, "Attention must be"),
        ({"vocab_size": -1}, "vocab_size must be 261 or more"),
        ({"vocab_size": 10**9}, "and at most 10,000,000, got 1000000000"),
        ({"batch_size": 10**9}, "A batch must have at most 1,000,000,000 tokens"),
        ({"vocab_size": 260}, "must be 261 or more, a token for each byte and each special"),
        ({"train_documents": -1}, "train_documents must be at least 0"),
        ({"warmup": 100}, "steps must be more than warmup"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        configured(configured(PretrainingConfig, **SMALL, file="x"), **changes)


def test_what_is_no_pre_training_is_said(tmp_path, config):
    other = configured(LanguageConfig, corpus="file", file="x")
    with pytest.raises(ValueError, match="holds no run of `headwise train mlm`"):
        load_pretrained(Run.create(tmp_path / "lm", other, "language"))
    with pytest.raises(ValueError, match="let the run finish first"):
        load_pretrained(Run.create(tmp_path / "run", config, "pretraining"))


@pytest.mark.slow
def test_the_oromo_at_hand_is_read(data_folder, tmp_path):
    few = {"corpus": "oromo", "train_documents": 12, "valid_documents": 4, "steps": 4, "warmup": 1}
    run = pretrain(
        configured(PretrainingConfig, **{**SMALL, **few, "vocab_size": 400}), tmp_path / "run"
    )
    text = text_in(run, configured(PretrainingConfig, **{**SMALL, **few, "vocab_size": 400}), None)
    assert len(text.pieces) == 400 and len(PackedBlocks(text.train, text.pieces, 32)) > 100
    assert len(text.train.document_ends) == 12 and len(text.valid.line_ends) == 8


@pytest.mark.slow
def test_two_processes_train_as_one_does_with_two_batches_an_update(config, tmp_path):
    given = {**SMALL, "file": config.file, "plan": config.guide, "steps": 20, "dropout": 0.0}
    given |= {"attention_dropout": 0.0, "batch_size": 4}
    options = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    train = ["-m", "headwise", "train", "mlm", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for start, out in ((launch, ["two"]), ([sys.executable], ["one", "--set", "accumulate=2"])):
        command = [*start, *train, "--out", *out]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
    two, one = (Run.open(tmp_path / name).figures() for name in ("two", "one"))
    assert two["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-4)
    assert two["tokens_seen"] == one["tokens_seen"] == 20 * 2 * 4 * 32
