"""What `prune` is given wrongly gets one sentence, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import transformers as hf
from safetensors.torch import load_file, save_file

from headwise.recording import HeadTable, Run
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.prune import PruneConfig, prune_folder
from headwise.workflows.prune.pruning import run_folder
from tests.recording.second_process import another_process_in
from tests.workflows.prune.small_tasks import QUICK, config_for, grouped, saved
from tests.workflows.prune.test_prune import lasting
from tests.workflows.small_hosts import host, save, tokenizer_for


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"keep": None}, "either keep=12 heads, or penalty"),
        ({"keep": 3, "penalty": 0.1}, "keep=3 finds .* penalty=0.1 sets it; give one of the two"),
        ({"keep": None, "penalty": 0.1, "choose": "random"}, "only gates take a penalty"),
        ({"choose": "confidence"}, "is a column, so give its inspection"),
        ({"steps": 0}, "Gates are learned"),
        ({"keep": -1}, "keep must not be negative"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"model": ""}, "model is missing"),
        ({"dropped": 1.0}, "dropped must be between 0 and 1"),
        ({"gate_learning_rate": -0.1}, "gate_learning_rate must be above 0"),
        ({"keep": None, "penalty": float("nan")}, "penalty must be a finite number"),
        ({"inspect_lines": -1}, "inspect_lines must not be negative"),
        ({"batch_size": 0, "steps": 0, "choose": "random"}, "batch_size must be at least 1"),
    ],
)
def test_settings_that_cannot_be(changes, sentence):
    given = {"model": "m", "data": ("d",), "dev": ("d",), "keep": 3, **QUICK, **changes}
    with pytest.raises(ValueError, match=sentence):
        PruneConfig(**given)


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("task", "regression", "auto, classification, masked, causal, translation"),
        ("freeze", "encoder", "decoder, none"),
        ("schedule", "round", "constant, inverse_square_root, cosine, linear"),
    ],
)
def test_a_name_that_is_none_of_those_there_are(name, value, known, tmp_path):
    config = config_for("masked", tmp_path / "model")
    object.__setattr__(config, name, value)  # tests check types when a config is made, users do not
    with pytest.raises(ValueError, match=f"{name} must be one of {known}; got '{value}'"):
        config.__post_init__()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"keep": 99}, "keep must be between 0 and the 8 heads"),
        ({"where": "decoder.*"}, "chooses none of the model's sites"),
        ({"freeze": "decoder"}, "is for models with encoder and decoder"),
        ({"data": ("nothing",)}, "no text file nothing"),
        ({"data": ("{text}",)}, "a label, a TAB and a text"),
        ({"data": ("{lab}", "{lab}")}, "Expected one file"),
        ({"keep": 99, "choose": "greedy"}, "count must be between 0 and the 8 heads"),
        ({"freeze": "decoder", "choose": "random"}, "is for models with encoder and decoder"),
        ({"inspection": "nowhere"}, "nowhere is not one"),
        ({"task": "causal"}, "is pruned for classification, not for task='causal'"),
    ],
)
def test_data_and_heads_that_do_not_fit(changes, sentence, tmp_path):
    model = saved("classification", tmp_path / "host")
    files = {name: str(tmp_path / "host" / name) for name in ("text", "lab")}
    if "data" in changes:
        changes = {"data": tuple(name.format(**files) for name in changes["data"])}
    with pytest.raises(ValueError, match=sentence):
        prune_folder(config_for("classification", model, **changes), tmp_path / "small")
    assert not (tmp_path / "small").exists()
    assert not run_folder(tmp_path / "small").exists()  # the corrected command can have it


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    model = saved("classification", tmp_path / "host")
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds thesis\.tex, which is no part of"):
        prune_folder(config_for("classification", model), tmp_path / "small")
    assert (tmp_path / "small" / "thesis.tex").read_text() == "years of work"


def test_a_file_beside_a_pruned_model_stops_the_pruning_before_the_work(tmp_path, monkeypatch):
    model = saved("classification", tmp_path / "host")
    pruned = tmp_path / "small"
    prune_folder(config_for("classification", model, choose="random", steps=0), pruned)
    (pruned / "notes.txt").write_text("years of work")
    run_folder(pruned).rename(tmp_path / "elsewhere")
    monkeypatch.setattr("headwise.workflows.prune.pruning.open_task", None)
    with pytest.raises(ValueError, match=r"holds notes\.txt, which is no part of"):
        prune_folder(config_for("classification", model), pruned)
    assert (pruned / "notes.txt").exists() and not run_folder(pruned).exists()


@pytest.mark.parametrize("out", ["host/classification", "host/more/../classification", "host"])
def test_a_model_is_not_replaced_by_what_is_made_of_it(out, tmp_path):
    model = saved("classification", tmp_path / "host")
    with pytest.raises(ValueError, match=r"would replace .* choose another folder"):
        prune_folder(config_for("classification", model), tmp_path / out)
    assert (model / "config.json").exists()


def test_heads_that_share_keys_cannot_be_asked_to_part(tmp_path):
    model = grouped(tmp_path / "host")
    for choose in ("gates", "random"):
        config = config_for("causal", model, keep=2, group=1, choose=choose)
        with pytest.raises(ValueError, match="multiple of the 2 heads that share keys"):
            prune_folder(config, tmp_path / "small")
    assert not run_folder(tmp_path / "small").exists()


def test_an_inspection_of_another_model_is_refused_before_the_work(tmp_path):
    model = saved("classification", tmp_path / "host")
    with Run.create(tmp_path / "looked", config_for("classification", model)) as run:
        run.save_heads(HeadTable.of({"confidence": {"encoder.0.self": [0.1, 0.2, 0.3, 0.4]}}))
    config = config_for("classification", model, inspection=str(tmp_path / "looked"))
    with pytest.raises(ValueError, match=r"it has no encoder\.1\.self\.0"):
        prune_folder(config, tmp_path / "small")
    assert not run_folder(tmp_path / "small").exists()


def causal_classifier(folder, marks):
    """A GPT-2 that classifies and, as fresh ones do, names no padding; whose marks it has."""
    shape = hf.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, num_labels=2)
    return save(hf.GPT2ForSequenceClassification(shape), tokenizer_for(marks), folder)


def test_a_causal_classifier_without_padding_is_told_the_remedy(tmp_path):
    host = saved("classification", tmp_path / "host").parent
    model = causal_classifier(host / "gpt2", marks="GPT-2")
    with pytest.raises(
        ValueError, match=r"Set pad_token_id in its config.json, .* end token, 2; or"
    ):
        prune_folder(config_for("classification", model), tmp_path / "small")
    assert not run_folder(tmp_path / "small").exists()
    quick = {"choose": "random", "steps": 0}
    one = config_for("classification", model, batch_size=1, **quick)
    assert prune_folder(one, tmp_path / "small").figures()["heads_kept"] == 3


def test_a_causal_classifier_takes_the_padding_of_its_tokenizer(tmp_path):
    host = saved("classification", tmp_path / "host").parent
    model = causal_classifier(host / "gpt2", marks="Llama")
    config = config_for("classification", model, choose="random", steps=0)
    both = [
        prune_folder(replace(config, batch_size=size), tmp_path / f"small-{size}").figures()
        for size in (1, 8)
    ]
    assert both[0]["accuracy_before"] == both[1]["accuracy_before"]
    assert json.loads((tmp_path / "small-8" / "config.json").read_text())["pad_token_id"] == 0


def test_a_model_without_an_output_is_refused(tmp_path):
    model = saved("classification", tmp_path / "host")
    bare = save(host("BERT").bert, tokenizer_for("BERT"), tmp_path / "host" / "bare")
    assert bare.parent == model.parent
    with pytest.raises(ValueError, match="`prune` has no task for a BertModel"):
        prune_folder(config_for("classification", bare), tmp_path / "small")
    assert not run_folder(tmp_path / "small").exists()


def test_a_pruned_model_of_another_version_is_refused(tmp_path):
    model = saved("classification", tmp_path / "host")
    (model / "pruning.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="is of format 99"):
        prune_folder(config_for("classification", model), tmp_path / "small")


def test_a_pickle_is_not_opened(tmp_path):
    model = saved("classification", tmp_path / "host")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(ValueError, match="could not be opened as a Hugging Face model"):
        prune_folder(config_for("classification", model), tmp_path / "small")


@pytest.mark.parametrize("left", [0.5, 0.001, 0.0])
def test_weights_that_are_cut_short_are_named_and_to_be_fetched_again(left, tmp_path):
    model = saved("classification", tmp_path / "host")
    open_subject(model).model.save_pretrained(model, max_shard_size="50KB")
    (model / "model.safetensors").unlink(missing_ok=True)
    cut = model / "model-00002-of-00002.safetensors"
    os.truncate(cut, int(cut.stat().st_size * left))
    sentence = rf"a Hugging Face model: {cut.name} is cut short or damaged; fetch it again\.$"
    with pytest.raises(ValueError, match=sentence):
        prune_folder(config_for("classification", model), tmp_path / "small")
    assert not run_folder(tmp_path / "small").exists()


def test_several_processes_are_told_what_to_use(tmp_path, monkeypatch):
    model = saved("classification", tmp_path / "host")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="runs in one process"):
        prune_folder(config_for("classification", model), tmp_path / "small")


@pytest.mark.parametrize("changed", ["lab", "model.safetensors", "config.json"])
def test_a_pruning_does_not_go_on_with_other_data_or_another_model(changed, tmp_path, monkeypatch):
    model = saved("classification", tmp_path / "host")
    config = config_for("classification", model, choose="random", steps=0)
    with monkeypatch.context() as patch:
        patch.setattr("headwise.workflows.prune.pruning.choose_and_train", None)
        with pytest.raises(TypeError):
            prune_folder(config, tmp_path / "small")
    assert Run.open(run_folder(tmp_path / "small")).has("before.json")
    path = tmp_path / "host" / changed if changed == "lab" else model / changed
    before = path.read_bytes()
    if changed == "lab":
        path.write_bytes(before.replace(b"1\t", b"0\t"))
    elif changed == "config.json":
        path.write_bytes(before.replace(b'"hidden_act": "gelu"', b'"hidden_act": "relu"'))
    else:
        weights = {name: tensor + 1 for name, tensor in load_file(path).items()}
        save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"{changed} has changed since .* choose another folder"):
        prune_folder(config, tmp_path / "small")
    path.write_bytes(before)
    assert prune_folder(config, tmp_path / "small").figures()["heads_kept"] == 3
    path.unlink()
    assert prune_folder(config, tmp_path / "small").has("figures.json")  # finished: it is shown


def test_weights_that_were_pruned_before_are_not_summed_again(tmp_path):
    model = saved("classification", tmp_path / "host")
    quick = {"choose": "random", "steps": 0}
    prune_folder(config_for("classification", model, **quick), tmp_path / "host" / "small")
    again = config_for("classification", tmp_path / "host" / "small", keep=1, **quick)
    kept = prune_folder(again, tmp_path / "smaller").read_json("inputs.json")
    assert {path.rpartition("/")[2] for path in kept} == {"lab", "pruning.json"}


def test_two_prunings_into_one_folder_are_one_too_many(tmp_path):
    model = saved("classification", tmp_path / "host")
    config = config_for("classification", model, choose="random", steps=0)
    with another_process_in(run_folder(tmp_path / "small")):
        with pytest.raises(ValueError, match=r"is writing to .*small-pruning; wait for"):
            prune_folder(config, tmp_path / "small")
        assert [path.name for path in run_folder(tmp_path / "small").iterdir()] == [".lock"]
    assert prune_folder(config, tmp_path / "small").figures()["heads_kept"] == 3


@pytest.mark.slow
def test_kill_9_in_the_middle_and_the_command_again_gives_the_same(tmp_path):
    model = saved("classification", tmp_path / "host")
    lab = str(tmp_path / "host" / "lab")
    options = {**QUICK, "steps": 120, "evaluate_every": 40, "checkpoint_every": 40}
    command = [sys.executable, "-m", "headwise", "prune", str(model), "--data", lab, "--dev", lab]
    command += ["--keep", "3", "--out", str(tmp_path / "small")]
    command += [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    checkpoint = run_folder(tmp_path / "small") / "checkpoint.safetensors"
    until = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < until:
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert checkpoint.exists() and not (tmp_path / "small").exists()
    config = config_for("classification", model, **options)
    prune_folder(config, tmp_path / "small")
    whole = prune_folder(config, tmp_path / "whole")
    assert lasting(Run.open(run_folder(tmp_path / "small"))) == lasting(whole)
