"""Fine-tuning: it learns texts, pairs and tags, from any start, and goes on after a stop."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf

import headwise as hw
from headwise import pruning
from headwise.cli import main
from headwise.recording import Run
from headwise.workflows.inspect.opening import load_model
from headwise_papers.data.subword import train_byte_level
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import TokenClassifier
from headwise_papers.models.encoder_weights import to_hugging_face
from headwise_papers.recipes.classifier import IGNORED, batch_of, class_scores
from headwise_papers.recipes.finetuning import (
    FinetuningConfig,
    compare,
    finetune,
    load_classifier,
    read_predictions,
    read_task,
    train_part,
)
from headwise_papers.recipes.finetuning_data import from_folder, from_nothing
from headwise_papers.recipes.pretraining import PretrainingConfig, load_pretrained, pretrain
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_finetuning import (
    SIZES,
    small_config,
    write_classes,
    write_pairs,
    write_tags,
)
from tests.papers.recipes.small_translation import lasting, quietly

module = sys.modules[train_part.__module__]
WRITERS = {"classes": write_classes, "pairs": write_pairs, "tags": write_tags}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    return {name: write(folder / name) for name, write in WRITERS.items()}


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuning")
    return {name: quietly(small_config(files[name]), folder / name, finetune) for name in WRITERS}


@pytest.fixture(scope="module")
def pretrained(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlm")
    rows = Path(files["pairs"]["train"]).read_text().splitlines()
    lines = [" ".join(row.split("\t")[1:]) for row in rows]
    (folder / "text.txt").write_text("\n".join(lines * 2))
    config = configured(
        PretrainingConfig,
        corpus="file",
        file=str(folder / "text.txt"),
        vocab_size=300,
        layers=1,
        width=32,
        heads=2,
        feed_forward=128,
        max_length=24,
        batch_size=4,
        steps=2,
        warmup=1,
    )
    return quietly(config, folder / "run", pretrain)


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_task_is_learnt(name, finished):
    figures = finished[name].figures()
    assert figures["score"] == figures[figures["metric"]] > 0.95
    assert figures["score"] > figures.get("commonest_class", 0) + 0.2
    assert figures["examples"] == SIZES and figures["scores"] == {"seed-0": figures["score"]}
    assert figures["metric"] == ("span_f1" if name == "tags" else "accuracy")
    assert finished[name].has("report.html")


@pytest.mark.parametrize("name", WRITERS)
def test_the_kept_model_says_what_was_predicted(name, finished, files):
    run = finished[name]
    task, said = read_task(small_config(files[name])), read_predictions(run)
    assert [row.example for row in said] == list(range(200, 260))
    classifier = load_classifier(run)
    if name == "tags":
        assert classifier.tag([row.words for row in task.test]) == [row.predicted for row in said]
        assert [row.gold for row in said] == [list(row.tags) for row in task.test]
        return
    seconds = [row.second for row in task.test] if name == "pairs" else None
    assert classifier.classify([row.text for row in task.test], seconds) == [
        row.predicted for row in said
    ]


@pytest.mark.parametrize(
    ("name", "ask", "said"),
    [
        ("tags", lambda one: one.classify(["a film"]), "tags words; call tag"),
        ("tags", lambda one: one.tag(["a film"]), "lists of words, got text"),
        ("classes", lambda one: one.tag([["a", "film"]]), "classifies texts; call classify"),
        ("classes", lambda one: one.classify("a film"), r"give \[text\]"),
        ("classes", lambda one: one.classify(["a"], ["b"]), "on single texts; leave the second"),
        ("pairs", lambda one: one.classify(["a film"]), "on pairs; give the second texts too"),
        ("pairs", lambda one: one.classify(["a", "b"], ["c"]), "as texts were wanted, got 1 and 2"),
    ],
)
def test_a_model_is_asked_only_what_it_can_say(name, ask, said, finished):
    with pytest.raises(ValueError, match=said):
        ask(load_classifier(finished[name]))


def test_no_words_have_no_tags(finished):
    tagger = load_classifier(finished["tags"])
    (both,) = tagger.tag([["New", "Kano"]])
    assert tagger.tag([[], ["New", "Kano"], []]) == [[], both, []] and tagger.tag([]) == []
    with pytest.raises(ValueError, match="does not go with reads='text'"):
        dataclasses.replace(tagger, reads="text")


def test_a_finished_run_is_shown_without_its_data(files, finished, monkeypatch):
    monkeypatch.setattr("headwise_papers.recipes.finetuning.read_task", None)
    config, run = small_config(files["tags"]), finished["tags"]
    assert finetune(config, run.folder).figures() == run.figures()
    with pytest.raises(ValueError, match="epochs"):
        finetune(configured(config, epochs=3), run.folder)


def test_a_run_killed_before_its_report_is_given_one(files, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished["classes"].folder, folder)
    (folder / "report.html").unlink()
    figures = (folder / "figures.json").read_bytes()
    finetune(small_config(files["classes"]), folder)
    assert "</html>" in (folder / "report.html").read_text()
    assert (folder / "figures.json").read_bytes() == figures


def test_a_batch_whose_words_were_all_cut_costs_nothing():
    encoder = Encoder(EncoderConfig.tiny(20))
    labels = torch.full((2, 8), IGNORED)
    batch = {"ids": torch.full((2, 8), 9), "lengths": torch.tensor([8, 8]), "labels": labels}
    batch["types"] = torch.zeros_like(labels)
    total, count = module._loss(TokenClassifier(encoder, 3), batch)
    assert (total / count).item() == 0


@pytest.mark.parametrize("every", [20, 500])  # from a checkpoint, or from the start
def test_a_training_stopped_and_started_again_ends_the_same(
    files, finished, tmp_path, monkeypatch, every
):
    monkeypatch.setattr("headwise_papers.recipes.finetuning_data.CHECKPOINT_EVERY", {"cpu": every})
    config = small_config(files["classes"])

    def interrupted(*args, **options):
        def stop(step, metrics):
            if step == 50 and "loss" in metrics:
                raise KeyboardInterrupt

        return module_fit(*args, **{**options, "progress": stop})

    module_fit = module.fit
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "fit", interrupted)
        quietly(config, tmp_path / "run", finetune)
    assert not (tmp_path / "run" / "figures.json").exists()
    assert bool(list((tmp_path / "run").glob("*/checkpoint.safetensors"))) == (every < 50)
    again = quietly(config, tmp_path / "run", finetune)
    assert lasting(again) == lasting(finished["classes"])
    assert read_predictions(again) == read_predictions(finished["classes"])
    assert not list((tmp_path / "run").glob("*/*checkpoint*"))


@pytest.mark.parametrize("name", WRITERS)
def test_seeds_of_a_run_have_the_same_examples(name, tmp_path, monkeypatch):
    files = WRITERS[name](tmp_path)
    config = small_config(files, seeds=(0, 1), epochs=1)
    folder = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("headwise_papers.recipes.finetuning.train_part", _first_seed_only)
        quietly(config, folder, finetune)
    path = Path(files["test"])
    before = path.read_text()
    path.write_text(before.replace("film", "book"))
    with pytest.raises(ValueError, match="not those that the run in"):
        finetune(config, folder)
    path.write_text(before)
    assert len(quietly(config, folder, finetune).figures()["scores"]) == 2


def _first_seed_only(config, run, task, start, rows, split, **options):
    if split.seed:
        raise KeyboardInterrupt
    train_part(config, run, task, start, rows, split, **options)


@pytest.mark.parametrize(
    ("batches", "cpu", "cuda"), [(50, 0, 0), (51, 500, 0), (201, 500, 2000), (3000, 3000, 3000)]
)
def test_short_trainings_have_no_checkpoints_and_others_few(batches, cpu, cuda, monkeypatch):
    for there, every in ((False, cpu), (True, cuda)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        settings = FinetuningConfig().fit_config(batches, seed=0)
        assert settings.checkpoint_every == every and settings.evaluate_every == batches


def test_steps_of_our_own_encoders_are_replayed_on_a_gpu(host, files, monkeypatch):
    config = small_config(files["pairs"])
    task = read_task(config)
    ours = from_nothing(task, shape=config.shape, vocab=300, length=24)
    theirs = from_folder(host, task, length=24, fresh=False)
    found = {}
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        for start in (ours, theirs):
            settings = config.fit_config(10, seed=0, replayable=start.replayable)
            found[start, there] = settings.graphs
    assert [one for one, graphs in found.items() if graphs] == [(ours, True)]
    plain = configured(config, graphs=False)
    assert not plain.fit_config(10, seed=0, replayable=True).graphs


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", WRITERS)
def test_replayed_steps_learn_as_others_do(name, files, tmp_path):
    found = {}
    for graphs in (True, False):
        run = quietly(small_config(files[name], graphs=graphs), tmp_path / str(graphs), finetune)
        curve = Run.open(run.folder / "seed-0").metrics()
        found[graphs] = [row["loss"] for row in curve if "loss" in row]
        assert run.figures()["score"] > 0.9
    assert found[True] == pytest.approx(found[False], rel=0.05, abs=0.02)


def test_folds_judge_every_example_and_can_be_compared(files, tmp_path):
    config = small_config(files["classes"], folds=3)
    good = quietly(config, tmp_path / "good", finetune)
    nothing = configured(config, learning_rate=0.0, epochs=1)
    bad = quietly(nothing, tmp_path / "bad", finetune)
    said = read_predictions(good)
    assert sorted(row.example for row in said) == list(range(260))
    assert len(good.figures()["scores"]) == 3 and good.figures()["spread"] is not None
    found = compare(good, bad)
    assert found.parts == 3 and found.difference > 0.2
    assert found.bootstrap_low > 0 and found.bootstrap_p < 0.01
    assert found.difference == pytest.approx(good.figures()["score"] - bad.figures()["score"])
    assert compare(good, good).p == 1
    assert len(list((tmp_path / "good").glob("*/model.safetensors"))) == 1  # of the first alone


def test_only_equal_tasks_are_compared(finished, files, tmp_path):
    with pytest.raises(ValueError, match="same task can be compared"):
        compare(finished["classes"], finished["tags"])
    other = quietly(small_config(files["classes"], epochs=1, seeds=(1,)), tmp_path / "x", finetune)
    with pytest.raises(ValueError, match="same seeds, folds and examples"):
        compare(finished["classes"], other)


def test_patience_stops_early(files, tmp_path):
    config = small_config(files["classes"], learning_rate=0.0, patience=2, keep="none")
    run = quietly(config, tmp_path / "run", finetune)
    assert run.figures()["updates"] == 30  # the first evaluation, and two that are no better
    with pytest.raises(ValueError, match="keeps the weights of no training"):
        load_classifier(run)


def test_a_pretraining_run_is_a_start(pretrained, files, tmp_path):
    config = small_config(files["pairs"], model=str(pretrained.folder), seeds=(0, 1), epochs=6)
    run = quietly(config, tmp_path / "run", finetune)
    assert max(run.figures()["scores"].values()) > 0.9 and len(read_predictions(run)) == 120
    task = read_task(config)
    start = from_folder(pretrained.folder, task, length=24, fresh=False)
    encoder = load_pretrained(pretrained).model.encoder
    for name, tensor in start.build().encoder.state_dict().items():
        assert torch.equal(tensor, encoder.state_dict()[name])
    drawn = from_folder(pretrained.folder, task, length=24, fresh=True).build().encoder
    same = [torch.equal(p, encoder.get_parameter(n)) for n, p in drawn.named_parameters()]
    assert drawn.config == encoder.config and not all(same)


def test_fresh_weights_need_no_old_ones(pretrained, files, tmp_path):
    lent = tmp_path / "lent"
    shutil.copytree(pretrained.folder, lent, ignore=shutil.ignore_patterns("*.safetensors"))
    task = read_task(small_config(files["pairs"]))
    start = from_folder(lent, task, length=24, fresh=True)
    model, pieces = load_pretrained(pretrained)
    assert start.pieces.definition == pieces.definition
    assert start.build().encoder.config == model.encoder.config
    with pytest.raises(ValueError, match=r"is finished, but its model\.safetensors is not there"):
        from_folder(lent, task, length=24, fresh=False)


def test_the_pooling_of_a_bert_is_kept_as_hugging_face_keeps_it(files, tmp_path):
    lines = [row.split("\t")[1] for row in Path(files["pairs"]["train"]).read_text().splitlines()]
    (tmp_path / "text.txt").write_text("\n".join(lines * 2))
    config = configured(
        PretrainingConfig,
        corpus="file",
        file=str(tmp_path / "text.txt"),
        next_sentence=True,
        vocab_size=280,
        layers=1,
        width=32,
        heads=2,
        feed_forward=128,
        max_length=24,
        batch_size=4,
        steps=1,
        warmup=0,
    )
    run = quietly(config, tmp_path / "bert", pretrain)
    model, pieces = load_pretrained(run)
    to_hugging_face(model).save_pretrained(tmp_path / "theirs")
    pieces.hugging_face().save_pretrained(tmp_path / "theirs")
    task = read_task(small_config(files["pairs"]))
    starts = [from_folder(tmp_path / name, task, length=24, fresh=False)
              for name in ("bert", "theirs")]  # fmt: skip
    ours, theirs = (start.build().eval() for start in starts)
    with torch.no_grad():
        theirs.classifier.weight.copy_(ours.classes.weight)
        theirs.classifier.bias.copy_(ours.classes.bias)
        rows = starts[0].pieces.read(task.dev)
        batch = batch_of(starts[0].pieces, rows, [[0]] * len(rows))
        assert torch.allclose(class_scores(ours, batch), class_scores(theirs, batch), atol=1e-5)
    drawn = from_folder(tmp_path / "bert", task, length=24, fresh=True).build()
    assert not torch.equal(drawn.pool.dense.weight, ours.pool.dense.weight)


@pytest.fixture(scope="module")
def host(files, tmp_path_factory):
    """A masked RoBERTa with a tokenizer, as its users save it."""
    folder = tmp_path_factory.mktemp("host")
    texts = [Path(files[name]["train"]).read_text() for name in ("pairs", "tags")]
    pieces = train_byte_level(texts, size=300)
    shape = hf.RobertaConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=64,
        max_position_embeddings=34,
        type_vocab_size=1,
        pad_token_id=pieces.pad,
        bos_token_id=pieces.begin,
        eos_token_id=pieces.end,
    )
    torch.manual_seed(0)
    hf.RobertaForMaskedLM(shape).save_pretrained(folder)
    pieces.hugging_face().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["pairs", "tags"])
def test_a_hugging_face_model_is_a_start(name, host, files, tmp_path):
    config = small_config(files[name], model=str(host), length=64, epochs=14)
    run = quietly(config, tmp_path / "run", finetune)
    assert run.figures()["score"] > 0.9
    classifier = load_classifier(run)
    wanted = {
        "pairs": hf.RobertaForSequenceClassification,
        "tags": hf.RobertaForTokenClassification,
    }
    assert type(classifier.model) is wanted[name]
    assert classifier.pieces.length == 32  # positions 0 and 1 are not for words
    assert classifier.model.config.id2label == dict(enumerate(classifier.classes))
    task, said = read_task(config), read_predictions(run)
    if name == "tags":
        assert classifier.tag([row.words for row in task.test]) == [row.predicted for row in said]


def test_the_weights_of_a_hugging_face_model_are_taken_or_drawn(host, files):
    task = read_task(small_config(files["pairs"]))
    saved = hf.RobertaForMaskedLM.from_pretrained(host).roberta.encoder.state_dict()
    kept = from_folder(host, task, length=24, fresh=False).build().roberta.encoder.state_dict()
    drawn = from_folder(host, task, length=24, fresh=True).build().roberta.encoder.state_dict()
    assert all(torch.equal(kept[name], saved[name]) for name in saved)
    assert not all(torch.equal(drawn[name], saved[name]) for name in saved)


def test_a_hugging_face_model_without_its_weights_is_refused(host, files, tmp_path):
    from safetensors.torch import load_file, save_file

    for path in host.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(host / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layer.0.attention" not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"are missing, roberta.encoder.layer.0.attention"):
        from_folder(tmp_path, read_task(small_config(files["pairs"])), length=24, fresh=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": ()}, "seeds must be one or more different"),
        ({"seeds": (1, 1)}, "seeds must be one or more different"),
        ({"warmup_share": 1.0}, "warmup_share must be 0 to below 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"folds": -1}, "folds must be at least 0"),
        ({"train": "x.tsv"}, "with task='files'"),
        ({"heads": 5}, "width must be a multiple of heads"),
        ({"length": 7}, "length must be at least 8, got 7"),
        ({"vocab_size": 100}, "vocab_size must be at least 261, got 100"),
        ({"vocab_size": 10**9}, "vocab_size must be at most 10,000,000, got 1000000000"),
        ({"learning_rate": -1.0}, "learning_rate must be 0 or more, got -1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more"),
        ({"clip": float("nan")}, "'clip' wants a finite number, got nan"),
    ],
)
def test_bad_settings_are_told_before_there_is_a_folder(changes, said):
    with pytest.raises(ValueError, match=said):
        configured(FinetuningConfig, **changes)


def test_missing_models_and_tasks_are_told(files, tmp_path):
    config = small_config(files["classes"], model=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="There is no model folder"):
        finetune(config, tmp_path / "run")
    with pytest.raises(ValueError, match="neither a headwise run nor"):
        finetune(configured(config, model=str(tmp_path)), tmp_path / "run")
    with pytest.raises(ValueError, match="Did you mean 'wnli'"):
        read_task(configured(FinetuningConfig, task="wnlii"))
    with pytest.raises(ValueError, match="no labelled Filipino set"):
        read_task(configured(FinetuningConfig, task="filipino-sentiment"))
    assert not (tmp_path / "run").exists()


def test_the_command_trains_shows_and_refuses(files, tmp_path, monkeypatch, capsys):
    def headwise(*words):
        monkeypatch.setattr(sys, "argv", ["headwise", "train", "classifier", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    sizes = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64}
    small = {f"encoder.{name}": size for name, size in sizes.items()}
    small |= {"vocab_size": 300, "epochs": 1}
    settings = [f"--set={name}={value}" for name, value in small.items()]
    own = [f"--{part}={path}" for part, path in files["classes"].items()]
    out = f"--out={tmp_path / 'run'}"
    code, shown, _ = headwise(*own, "--seeds=3", out, *settings)
    assert code == 0 and "commonest class" in shown and "seed-3" in shown
    assert headwise(own[0], out)[::2] == (
        2,
        "headwise: Your own files are train, dev and test, with task='files'.\n",
    )
    code, _, said = headwise("--task=rte", "--model=nowhere", f"--out={tmp_path / 'other'}")
    assert code == 2 and said.count("\n") == 1


def test_real_tasks_run(data_folder, tmp_path):
    small = {"train_examples": 40, "dev_examples": 10, "test_examples": 20, "epochs": 1}
    shape = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "vocab_size": 400}
    for name, length in {"rte": 64, "masakhaner-yor": 64}.items():
        config = configured(
            FinetuningConfig, task=name, seeds=(0,), length=length, **small, **shape
        )
        run = quietly(config, tmp_path / name, finetune)
        assert run.figures()["examples"] == {"train": 40, "dev": 10, "test": 20}
        assert 0 <= run.figures()["score"] <= 1


def test_a_model_with_pruned_heads_is_refused_where_its_head_would_be_new(tmp_path):
    """Transformers would draw what is left of its attention anew, and say nothing."""
    theirs = hf.BertForMaskedLM(
        hf.BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=4,
                   intermediate_size=16, max_position_embeddings=32)
    )  # fmt: skip
    pruning.save(hw.prune(hw.adopt(theirs), {"encoder.0.self": [1, 2]}), tmp_path / "pruned")
    kind, new = hf.BertForSequenceClassification, {"num_labels": 2}
    with pytest.raises(ValueError, match=r"have other shapes than its configuration says, bert\."):
        load_model(tmp_path / "pruned", kind, new_head=new)
