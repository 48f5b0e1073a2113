"""The command line: what it prints, and one sentence for everything that can be given wrongly."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from headwise import cli
from headwise.recording import Run
from tests.hf.families import SIZES
from tests.papers.recipes.small_demo import SMALL
from tests.papers.recipes.small_translation import write_texts
from tests.workflows.small_hosts import LINES, host, save, tokenizer_for
from tests.workflows.small_trees import write_treebank

HEADWISE = [sys.executable, "-m", "headwise"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder with a small BERT, not to be written to."""
    return save(host("BERT"), tokenizer_for("BERT"), tmp_path_factory.mktemp("host") / "bert")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command line in an empty folder; (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
            raise SystemExit(0)
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def complaint(command):
    """Run a command line that is to fail; the sentence it fails with."""

    def run(*arguments):
        code, _, error = command(*arguments)
        assert code == 2
        assert error.startswith("headwise: ") and error.count("\n") == 1 and error.endswith("\n")
        return error

    return run


def test_inspect_prints_the_table_and_writes_a_run(command, bert, text, tmp_path):
    text.write_text("\n".join(LINES * 2) + "\n", encoding="utf-8")
    code, out, _ = command("inspect", bert, "--data", text, "--sort", "confidence")
    assert code == 0
    assert "encoder.1.self.3" in out and "confidence" in out and "report.html" in out
    assert "relevance" in out and "[" in out and "Not measured: syntax." in out
    table = Run.open(tmp_path / "runs" / "inspect-bert-text").heads()
    places = [out.index(str(head)) for head in table.sort("confidence").heads]
    assert places == sorted(places)


def test_settings_reach_the_journey(command, bert, text, tmp_path):
    options = ("--out", tmp_path / "out", "--set", "samples=1", "--set", "ablation_lines=0")
    code, out, _ = command("inspect", bert, "--data", text, *options)
    assert code == 0 and "output change" not in out
    assert Run.open(tmp_path / "out").config()["samples"] == 1


def test_options_of_inspect_reach_the_journey(command, bert, text, tmp_path):
    options = ("--steps", "all", "--no-relevance", "--ablation-lines", 0, "--special", ".,the")
    options += ("--relations", "nsubj,det", "--batch-size", 2, "--device", "cpu")
    code, out, _ = command("inspect", bert, "--data", text, "--out", tmp_path / "out", *options)
    assert code == 0 and "relevance" not in out
    settings = Run.open(tmp_path / "out").config()
    assert settings["steps"] is None and settings["special"] == [".", "the"]
    assert settings["relations"] == ["nsubj", "det"] and settings["batch_size"] == 2


def test_a_report_can_be_asked_for_by_name(command, bert, tmp_path):
    trees = write_treebank(tmp_path / "trees.conllu")
    options = ("--out", tmp_path / "heads.html", "--set", "sample=3", "--sort", "nsubj_to_head")
    code, out, _ = command("inspect", bert, "--data", trees, *options)
    assert code == 0 and "heads.html" in out
    page = (tmp_path / "heads.html").read_text()
    assert page == (tmp_path / "heads" / "report.html").read_text()
    assert "nsubj_to_head" in Run.open(tmp_path / "heads").heads().columns


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.conllu", "the dog ran\n", "bad.conllu, line 1: 10 columns between tabs"),
        ("empty.conllu", "\n", "empty.conllu holds no sentence"),
        ("bad.conllu.xz", "x", "bad.conllu.xz is not a whole .xz file"),
    ],
)
def test_a_treebank_that_is_none(complaint, bert, tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    assert said in complaint("inspect", bert, "--data", name)
    assert not (tmp_path / "runs").exists()


def test_sets_ranks_and_devices_that_are_not_there(complaint, bert, text):
    for options, said in (
        (("--coreference", "gaps"), "There is no coreference set 'gaps'"),
        (("--ranks", "no.json"), "There are no word counts no.json"),
        (("--device", "abacus"), "A device such as cpu, cuda or cuda:1 was wanted"),
        (("--steps", "some"), "steps"),
    ):
        assert said in complaint("inspect", bert, "--data", text, *options)
        assert not (text.parent / "runs").exists()


@pytest.mark.parametrize("name", ["demo", "inspect"])
def test_help_names_the_options(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0 and "--set" in out and "--out" in out


def test_a_command_line_without_a_command_gives_help(command):
    _, out, error = command()
    assert "inspect" in out + error and "demo" in out + error


def in_a_shell(*arguments, folder):
    """The one line on stderr of a command that is to fail, in a process of its own."""
    line = [*HEADWISE, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_missing_model_folder(command, text, tmp_path):
    code, out, said = command("inspect", "nowhere", "--data", text)
    assert code == 2 and out == "" and said.count("\n") == 1
    assert said.startswith("headwise: There is no model folder nowhere.")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", [b"", b"\n  \n\t\n", b"\xef\xbb\xbf"])
def test_a_file_without_text(complaint, bert, tmp_path, content):
    (tmp_path / "text.txt").write_bytes(content)
    said = complaint("inspect", bert, "--data", "text.txt")
    assert "text.txt holds no text" in said
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_not_utf8_is_named_with_the_line(complaint, command, bert, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"the dog\nthe cat\nd\xe9j\xe0 vu\n")
    said = complaint("inspect", bert, "--data", "text.txt")
    assert "text.txt, line 3:" in said and "0xe9" in said
    (tmp_path / "text.txt").write_text("the dog\nthe cat\n", encoding="utf-8")
    assert command("inspect", bert, "--data", "text.txt")[0] == 0  # nothing is in the way


def test_a_folder_or_nothing_for_a_text(complaint, bert, tmp_path):
    assert "is a folder; name a file inside it" in complaint("inspect", bert, "--data", tmp_path)
    assert "There is no text file no.txt" in complaint("inspect", bert, "--data", "no.txt")


def test_a_folder_that_holds_no_model(complaint, text, tmp_path):
    said = complaint("inspect", tmp_path, "--data", text)
    assert "holds neither a headwise run nor a Hugging Face model" in said


def damaged(folder: Path, copy: Path) -> Path:
    """A copy whose weights are cut in half."""
    shutil.copytree(folder, copy)
    weights = copy / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    return copy


def test_weights_cut_short_of_a_run(complaint, small_run, text, tmp_path):
    folder = damaged(small_run, tmp_path / "cut")
    said = complaint("inspect", folder, "--data", text)
    assert "model.safetensors is not a whole safetensors file" in said


def test_weights_cut_short_of_a_hugging_face_model(complaint, bert, text, tmp_path):
    said = complaint("inspect", damaged(bert, tmp_path / "cut"), "--data", text)
    assert "cut could not be opened as a Hugging Face model" in said


def test_weights_that_do_not_fit_the_model(complaint, small_run, text, tmp_path):
    shutil.copytree(small_run, tmp_path / "other")
    settings = json.loads((tmp_path / "other" / "model.json").read_text())
    (tmp_path / "other" / "model.json").write_text(json.dumps({**settings, "width": 64}))
    said = complaint("inspect", tmp_path / "other", "--data", text)
    assert "do not fit model.json" in said


def test_a_run_that_is_not_finished(complaint, small_run, text, tmp_path):
    shutil.copytree(small_run, tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").unlink()
    assert "holds no trained model yet" in complaint("inspect", tmp_path / "half", "--data", text)


@pytest.mark.parametrize(
    "config",
    [
        '{"model_type": "headless", "architectures": ["HeadlessModel"]}',
        '{"model_type": "bert", "architectures": ["utils"], "hidden_size": "wide"}',
        '["no", "settings"]',
        '{"model_type": "be',
        "{}",
    ],
    ids=["unknown type", "nonsense", "a list", "cut short", "empty"],
)
def test_a_config_that_describes_no_model(complaint, bert, text, tmp_path, config):
    shutil.copytree(bert, tmp_path / "odd")
    (tmp_path / "odd" / "config.json").write_text(config)
    said = complaint("inspect", "odd", "--data", text)
    assert said.startswith("headwise: odd could not be opened as a Hugging Face model: ")


def test_pickled_weights_are_refused(complaint, bert, text, tmp_path):
    shutil.copytree(bert, tmp_path / "old")
    (tmp_path / "old" / "model.safetensors").unlink()
    torch.save(host("BERT").state_dict(), tmp_path / "old" / "pytorch_model.bin")
    said = complaint("inspect", "old", "--data", text)
    assert "could not be opened" in said and "safetensors" in said


@pytest.mark.slow
def test_weights_of_another_model_are_not_taken_for_this_one(bert, text, tmp_path):
    shutil.copytree(bert, tmp_path / "mixed")
    weights = tmp_path / "mixed" / "model.safetensors"
    save_file(dict(host("ViT").state_dict()), weights, {"format": "pt"})
    # a real shell, because the libraries below write to the stderr they started with
    said = in_a_shell("inspect", "mixed", "--data", text, folder=tmp_path)
    assert said.startswith("headwise: The weights in mixed are not those of a BertForMaskedLM: ")
    assert "are missing" in said


def test_a_model_without_a_tokenizer(complaint, bert, text, tmp_path):
    shutil.copytree(bert, tmp_path / "mute")
    for path in (tmp_path / "mute").glob("token*"):
        path.unlink()
    said = complaint("inspect", "mute", "--data", text)
    assert "mute has no tokenizer that can be loaded" in said


def test_a_misspelt_setting_gets_a_suggestion(complaint, tmp_path):
    said = complaint("demo", "--set", "stpes=3")
    assert "stpes" in said and "Did you mean 'fit.steps'?" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("setting", ["fit.steps=many", "fit.steps=1.5", "fit.steps=", "fit.steps"])
def test_a_setting_that_cannot_be_read(complaint, setting):
    assert "steps" in complaint("demo", "--set", setting)


@pytest.mark.parametrize(
    "setting",
    [
        *("fit.steps=0", "batch_size=0", "train_pairs=0", "samples=-1", "model.heads=3"),
        *("fit.warmup=-2", "fit.steps=100", "model.width=127"),
    ],
)
def test_a_setting_that_makes_no_sense_leaves_no_folder(complaint, tmp_path, setting):
    name = setting.partition("=")[0].rpartition(".")[2]
    assert name in complaint("demo", "--set", setting)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("setting", ["batch_size=0", "ablation_lines=-1", "samples=-1"])
def test_inspect_looks_at_its_settings_first(complaint, bert, text, tmp_path, setting):
    said = complaint("inspect", bert, "--data", text, "--set", setting)
    assert setting.partition("=")[0] in said
    assert not (tmp_path / "runs").exists()


def test_a_column_that_is_not_there_is_said_before_anything_is_read(
    complaint, bert, text, tmp_path
):
    said = complaint("inspect", bert, "--data", text, "--sort", "confidense")
    assert "Did you mean 'confidence'?" in said
    assert not (tmp_path / "runs").exists()


def test_a_column_that_will_not_be_measured_is_said_before_anything_is_read(
    complaint, bert, text, tmp_path
):
    options = ("--sort", "output_change", "--set", "ablation_lines=0")
    said = complaint("inspect", bert, "--data", text, *options)
    assert "takes a column, but 'output_change' is none" in said
    assert not (tmp_path / "runs").exists()


def test_a_column_that_the_model_does_not_have_loses_nothing(command, text, tmp_path):
    bare = hf.BertModel(hf.BertConfig(**SIZES))
    save(bare, tokenizer_for("BERT"), tmp_path / "bare")
    options = ("--sort", "relevance", "--set", "ablation_lines=0")
    code, out, _ = command("inspect", tmp_path / "bare", "--data", text, *options)
    assert code == 0 and "Not sorted: this model and these data give no relevance." in out
    assert len(Run.open(tmp_path / "runs" / "inspect-bare-text").heads()) == 8


def test_translations_that_were_cut_are_said(command, text, tmp_path):
    save(host("BART"), tokenizer_for("BART"), tmp_path / "bart")
    options = ("--set", "sample=0", "--set", "max_translation=2")
    code, out, _ = command("inspect", tmp_path / "bart", "--data", text, *options)
    assert code == 0 and "translations had not ended at their limit" in out


def test_a_parser_that_is_not_there_is_said(complaint, bert, text, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    said = complaint("inspect", bert, "--data", text, "--parser", "spacy:small")
    assert "wants the package spacy, which is not installed" in said
    assert not (text.parent / "runs").exists()


def test_each_text_has_a_folder_of_its_own(command, bert, text, tmp_path):
    (tmp_path / "more.txt").write_text("a cat slept .\n")
    for path in (text, "more.txt"):
        assert command("inspect", bert, "--data", path)[0] == 0
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    assert names == {"inspect-bert-text", "inspect-bert-more"}


def test_other_settings_do_not_go_into_the_same_folder(complaint, command, bert, text, tmp_path):
    assert command("inspect", bert, "--data", text)[0] == 0
    before = (tmp_path / "runs" / "inspect-bert-text" / "heads.json").read_bytes()
    said = complaint("inspect", bert, "--data", text, "--set", "samples=1")
    assert "choose another folder (--out)." in said
    assert (tmp_path / "runs" / "inspect-bert-text" / "heads.json").read_bytes() == before


def test_a_folder_with_other_files_is_not_written_to(complaint, bert, text, tmp_path):
    said = complaint("inspect", bert, "--data", text, "--out", tmp_path)
    assert "choose a new or empty folder (--out)." in said


def test_lines_that_were_cut_are_told_of(command, bert, text, tmp_path):
    options = ("--set", "ablation_lines=0")
    assert "were cut" not in command("inspect", bert, "--data", text, *options)[1]
    (tmp_path / "long.txt").write_text("dog " * 100 + "\nit ran .\n")
    _, out, _ = command("inspect", bert, "--data", "long.txt", *options)
    assert "1 of 2 lines were cut to 40 tokens." in out


def test_a_folder_that_cannot_be_made(complaint, bert, text, tmp_path):
    (tmp_path / "file").write_text("here already")
    said = complaint("inspect", bert, "--data", text, "--out", "file/run")
    assert "file" in said


@pytest.mark.slow
def test_an_interrupted_demo_says_how_to_go_on(tmp_path):
    settings = {**vars(SMALL), "steps": 100_000}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    process = subprocess.Popen(
        [*HEADWISE, "demo", "--out", "run", *options],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # tests in several processes ignore it, and so would what they start
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "run" / "checkpoint.safetensors").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    try:
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error == "headwise: interrupted; the same command resumes where this one stopped.\n"
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_an_interrupted_experiment_ends_with_one_line(command, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise_papers.core.runner.reproduce", interrupted)
    code, _, error = command("reproduce", "training_dynamics/synthetic", "--smoke")
    assert code == 130
    assert error == "headwise: interrupted; the same command resumes where this one stopped.\n"


def test_figures_of_a_smoke_run_are_not_kept(command, tmp_path):
    code, _, error = command("reproduce", "training_dynamics/synthetic", "--smoke", "--save")
    assert code == 2 and "leave out --save" in error and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "problem", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")]
)
def test_too_little_memory_is_one_sentence(problem, command, monkeypatch):
    def too_large(*arguments, **options):
        raise problem

    monkeypatch.setattr("headwise_papers.core.runner.reproduce", too_large)
    code, _, error = command("reproduce", "training_dynamics/synthetic", "--smoke")
    assert code == 2 and error.startswith("headwise: There is not enough memory: ")
    assert "more" not in error


def test_other_errors_of_the_program_are_not_hidden(command, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr("headwise_papers.core.runner.reproduce", broken)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        command("reproduce", "training_dynamics/synthetic", "--smoke")


def test_data_lists_the_sets_and_what_is_missing(command, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    code, out, _ = command("data")
    assert code == 0 and "multi30k" in out and out.count("missing") == out.count("\n") - 1
    (tmp_path / "amazon_mds").mkdir()
    (tmp_path / "amazon_mds/amazon_mds.tsv").write_bytes(b"x" * 2_000_000)
    code, out, _ = command("data", "--folder", tmp_path)
    (line,) = [line for line in out.splitlines() if line.startswith("amazon")]
    assert "amazon_mds" in line and "2.0" in line


def test_data_says_what_it_cannot_fetch(complaint, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    assert "give --folder, or set HEADWISE_DATA" in complaint("data", "imdb")
    assert "Did you mean 'imdb'?" in complaint("data", "imbd", "--folder", tmp_path)
    assert "yelp.com/dataset" in complaint("data", "yelp_reviews", "--folder", tmp_path)


SHORT = (
    *("fit.steps=2", "fit.warmup=1", "fit.average=1", "beams=1", "test_pairs=2", "valid_pairs=4"),
    *("vocab_size=120", "batch_tokens=512", "model.width=32", "model.heads=2"),
    *("model.encoder_layers=1", "model.decoder_layers=1", "model.feed_forward=64"),
    "model.max_length=64",
)


def set_options(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def test_train_translation_takes_files_and_shows_the_figures(command, tmp_path):
    files = [
        word
        for part, paths in write_texts(tmp_path, train=60).items()
        for path in paths
        for word in (f"--{part}", path)
    ]
    options = ("--attention", "topk:4", "--out", "out", *set_options(*SHORT))
    code, out, _ = command("train", "translation", *files, *options)
    assert code == 0 and "bleu signature" in out and "case:mixed" in out and "Run: out" in out
    config = Run.open(tmp_path / "out").config()
    assert config["corpus"] == "files" and config["model"]["encoder_attention"] == "topk:4"


@pytest.mark.parametrize("kind", ["translation", "lm", "caption", "mlm", "electra"])
def test_help_of_each_training_names_its_options(command, kind):
    code, out, _ = command("train", kind, "--help")
    assert code == 0 and "--attention" in out and "--set" in out and "--corpus" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("translation", "--attention", "sharp"), "Attention must be softmax"),
        (("translation", "--size", "huge"), "There is no size 'huge'. Known: small, iwslt, base."),
        (("translation", "--corpus", "multi30"), "Did you mean 'multi30k'?"),
        (("translation", "--set", "fit.steps=100"), "steps must be more than warmup"),
        (("translation", "--train", "a.en"), "train takes two files"),
        (("translation", "--corpus", "multi30k", "--test", "a"), "Give either --corpus or"),
        (("lm", "--corpus", "enwik"), "Did you mean 'enwik8'?"),
        (("lm", "--file", "no.txt"), "There is no text file no.txt"),
        (("mlm", "--corpus", "debian"), "There is no pre-training text 'debian'."),
        (("mlm", "--file", "no.txt", "--guide", "next=1"), "There is no text file no.txt"),
        (("mlm", "--guide", "nxt=1"), "There is no pattern 'nxt'. Did you mean 'next'?"),
        (("mlm", "--alpha", "5"), "alpha=5.0 is a setting of guidance, but no heads are guided"),
        (("electra", "--set", "guide.convention=paper"), "or leave convention out"),
        (("translation", "--alpha", "5"), "say which with guide.plan, e.g. next=1,prev=1, or"),
        (("mlm", "--set", "vocab_size=10"), "vocab_size must be 261 or more"),
        (("mlm", "--text-of", "no"), "A run is a folder, but no is not one"),
        (("electra", "--layers", "0"), "layers must be at least 1, got 0"),
        (("electra", "--set", "objective=mlm"), "`headwise train mlm` is the command"),
        (("caption", "--corpus", "coco"), "'corpus' wants one of 'flickr8k'"),
        (("caption", "--features", "no"), "There is no file of features no"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_sentence(complaint, tmp_path, arguments, sentence):
    assert sentence in complaint("train", *arguments)
    assert not (tmp_path / "runs").exists()


def test_training_without_data_says_what_to_set(complaint, monkeypatch, tmp_path):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    for kind in ("translation", "lm", "caption", "mlm"):
        assert "HEADWISE_DATA" in complaint("train", kind)
    assert not (tmp_path / "runs").exists()


def test_train_mlm_takes_a_file_and_guides_heads(command, tmp_path):
    (tmp_path / "text.txt").write_text("the dog saw a cat .\na cat slept .\n" * 40)
    small = ("model.width=64", "model.heads=4", "model.feed_forward=128", "model.max_length=16")
    small += ("vocab_size=270", "batch_size=4", "fit.steps=4", "fit.warmup=1")
    options = ("--layers", "1", "--guide", "next=1", "--alpha", "5", *set_options(*small))
    code, out, _ = command("train", "mlm", "--file", "text.txt", "--out", "out", *options)
    assert code == 0 and "average loss" in out and "guidance loss" in out and "Run: out" in out
    config = Run.open(tmp_path / "out").config()
    guide = config["guide"]
    assert (config["objective"], guide["plan"], guide["alpha"]) == ("mlm", "next=1", 5.0)


def given(monkeypatch, text):
    """Standard input with a text."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_translate_answers_line_by_line(command, small_translation, monkeypatch):
    given(monkeypatch, "the dog saw a cat .\n\nit ran .\n")
    code, out, error = command("translate", small_translation, "--beams", "2", "--batch", "1")
    assert code == 0 and not error
    assert [bool(line) for line in out.split("\n")] == [True, False, True, False]


def test_a_demo_translates_too(command, small_run, monkeypatch):
    given(monkeypatch, "the dog saw a cat .\n")
    code, out, _ = command("translate", small_run)
    assert code == 0 and out.count("\n") == 1


def test_lines_cut_by_translate_are_told_of(command, small_translation, monkeypatch):
    given(monkeypatch, "the dog " * 100 + "\n")
    code, out, error = command("translate", small_translation, "--beams", "1")
    assert code == 0 and out.count("\n") == 1
    assert error == "headwise: lines cut to 63 tokens: 1\n"


def test_what_holds_no_translator_is_said_in_one_sentence(complaint, small_translation, tmp_path):
    assert "is not one; check the path" in complaint("translate", "nowhere")
    shutil.copytree(small_translation, tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").unlink()
    assert "holds no trained model yet" in complaint("translate", "half")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[v2]", "[v2]"),
        ("[red]x[/bold]", "[red]x[/bold]"),
        (":smile:", ":smile:"),
        ("a\x1b[31mb\nc\u202ed", r"a\x1b[31mb\nc\u202ed"),
    ],
)
def test_names_are_printed_as_they_are_and_leave_the_terminal_alone(
    command, bert, text, name, shown
):
    code, out, _ = command("inspect", bert, "--data", text, "--set", "sample=0", "--out", name)
    assert code == 0 and f"Report: {shown}/report.html\n" in out
    code, out, error = command("inspect", name, "--data", text)
    assert code == 2 and not set("\x1b\u202e") & set(out + error)


def test_a_name_that_is_no_text_is_refused_before_there_is_a_folder(complaint, bert, text):
    assert r"'bad\udcff' is not" in complaint("inspect", bert, "--data", text, "--out", "bad\udcff")
    assert not Path("bad\udcff").exists()


def test_a_report_takes_the_place_of_a_symbolic_link(command, bert, text, tmp_path):
    (tmp_path / "precious.html").write_text("mine")
    (tmp_path / "page.html").symlink_to("precious.html")
    given = ("inspect", bert, "--data", text, "--set", "sample=0", "--out")
    assert command(*given, "page.html")[0] == 0
    assert (tmp_path / "precious.html").read_text() == "mine"
    page = tmp_path / "page.html"
    assert not page.is_symlink() and page.read_text().startswith("<!")
    (tmp_path / "folder.html").mkdir()
    code, _, error = command(*given, "folder.html")
    assert code == 2 and "folder.html is a folder" in error and not (tmp_path / "folder").exists()


def test_a_closed_stdout_ends_a_command_quietly():
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *HEADWISE, "--help"], capture_output=True, text=True
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    with subprocess.Popen(
        [*HEADWISE, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as gone:
        gone.stdout.close()  # as `head -1` does
        assert gone.stderr.read() == b"" and gone.wait() == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mlm", "--set", f"model.layers={10**12}"), "layers must be at most 1,000,000,000, got"),
        (("mlm", "--layers", 10**9), "got 1,000,000,000 layers"),
        (("electra", "--set", f"model.width={10**8}", "--set", "model.heads=1"), "parameters"),
        (("lm", "--set", f"model.layers={10**6}"), "got 1,000,000 layers"),
        (("caption", "--set", f"model.width={10**8}"), "parameters"),
        (("translation", "--set", f"model.max_length={10**9}"), "parameters"),
        (("translation", "--set", "fit.steps=1e30"), "wants a whole number, got '1e30'"),
        (("translation", "--set", f"fit.steps={10**30}"), "steps must be at most 1,000,000,000"),
        (("classifier", "--set", f"batch_size={10**15}"), "batch_size must be at most"),
        (("classifier", "--set", f"encoder.layers={10**8}"), "layers"),
        (("lm", "--set", f"fit.seed={2**70}"), "seed must be at most"),
    ],
)
def test_absurd_sizes_are_refused_at_once(complaint, arguments, said):
    assert said in complaint("train", *arguments)
    assert not Path("runs").exists()
