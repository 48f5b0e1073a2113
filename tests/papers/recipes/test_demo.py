"""The demo: what it writes, that it learns, and that it survives being stopped."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from headwise.recording import Run
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.recipes.demo import DemoConfig, demo
from headwise_papers.recipes.translator import Translator
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_demo import SMALL, quietly

module = sys.modules[demo.__module__]
SITES = ("encoder.0.self", "decoder.0.self", "decoder.0.cross")


def lasting(run):
    """All that a run found, less what a clock measured."""
    metrics = [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in run.metrics()]
    figures = {name: value for name, value in run.figures().items() if name != "seconds"}
    return metrics, figures, run.heads().to_json(), run.read_json("trace/attention.json")


def same_weights(one, other):
    first, second = (run.load_tensors("model.safetensors") for run in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_run_has_all_its_files(small_run):
    names = {path.relative_to(small_run).as_posix() for path in small_run.rglob("*")}
    assert names >= {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "checkpoint.safetensors",
        "source_vocabulary.json",
        "target_vocabulary.json",
        "trace/attention.json",
        "heads.json",
        "figures.json",
        "report.html",
    }
    assert not [name for name in names if "partial" in name]
    assert Run.open(small_run).config() == dataclasses.asdict(SMALL)


def test_the_table_has_a_row_a_head_and_the_measures_of_the_report(small_run):
    table = Run.open(small_run).heads()
    assert {str(head) for head in table.heads} == {f"{site}.{h}" for site in SITES for h in (0, 1)}
    assert set(table.columns) >= {
        *("role", "confidence", "offset", "offset_share", "bleu_drop", "accuracy_drop"),
        *("alignment", "coreference", "nsubj_to_head", "obj_to_dependent"),
    }
    for head, row in table:
        assert 0 < row["confidence"] <= 1
        assert (row["alignment"] is None) == (not head.site.endswith("cross"))
        assert (row["coreference"] is None) == (not head.site.startswith("encoder"))


def test_the_report_stands_alone_and_names_every_head(small_run):
    text = (small_run / "report.html").read_text(encoding="utf-8")
    assert all(str(head) in text for head in Run.open(small_run).heads().heads)
    assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_the_translator_learns(small_run):
    run = Run.open(small_run)
    losses = [row["loss"] for row in run.metrics() if "loss" in row]
    assert losses[-1] < losses[0] - 1.5
    words = len(Translator.load(run).target)
    assert run.figures()["token_accuracy"] > 20 / words  # far beyond guessing
    assert any(drop > 0 for drop in run.heads()["accuracy_drop"])


def test_attention_of_the_samples_is_kept_with_their_words(small_run):
    sentences = Run.open(small_run).read_json("trace/attention.json")["sentences"]
    assert len(sentences) == SMALL.samples
    for sentence in sentences:
        tokens, sites = sentence["tokens"], sentence["sites"]
        assert tokens["encoder"][-1] == "<eos>" and tokens["decoder"][0] == "<bos>"
        assert len(sites["encoder.0.self"][0]) == len(tokens["encoder"])
        assert len(sites["decoder.0.cross"][1]) == len(tokens["decoder"])


def test_a_demo_stopped_in_training_and_started_again_ends_the_same(
    small_run, tmp_path, monkeypatch
):
    real = module.progress_bar

    class Stopping:
        def __init__(self, *args, **options):
            self.bar = real(*args, **options)

        def __enter__(self):
            show = self.bar.__enter__()

            def stop(step, metrics):
                show(step, metrics)
                if step == 110:  # the last checkpoint is of step 100
                    raise KeyboardInterrupt

            return stop

        def __exit__(self, *error):
            return self.bar.__exit__(*error)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "progress_bar", Stopping)
        quietly(SMALL, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    quietly(SMALL, tmp_path / "run")
    stopped, whole = Run.open(tmp_path / "run"), Run.open(small_run)
    assert lasting(stopped) == lasting(whole)
    assert same_weights(stopped, whole)


KILLED = """
import torch
from pathlib import Path
from headwise_papers.recipes.demo import DemoConfig, demo
from tests.papers.recipes.configured import configured
torch.set_num_threads(1)
demo(configured(DemoConfig, **{settings}), Path({folder!r}))
"""


@pytest.mark.slow
def test_a_demo_killed_without_warning_and_started_again_ends_the_same(small_run, tmp_path):
    folder = tmp_path / "run"
    code = KILLED.format(settings=dataclasses.asdict(SMALL), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while not (folder / "checkpoint.safetensors").exists() and time.monotonic() < limit:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "report.html").exists()
    quietly(SMALL, folder)
    assert lasting(Run.open(folder)) == lasting(Run.open(small_run))


def test_a_finished_demo_started_again_trains_nothing_and_finds_the_same(
    small_run, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    folder.mkdir()
    for path in small_run.rglob("*"):  # a copy, so that other tests read what they expect
        if path.is_file():
            target = folder / path.relative_to(small_run)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    before = lasting(Run.open(folder))

    def fail(*args, **options):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(module, "fit", fail)
    assert quietly(SMALL, folder).to_json() == before[2]
    assert lasting(Run.open(folder)) == before


def test_other_settings_do_not_go_into_the_same_folder(small_run):
    before = {path: path.read_bytes() for path in small_run.rglob("*") if path.is_file()}
    other = configured(SMALL, steps=60)
    with pytest.raises(
        ValueError, match=r"fit.steps=120, but this one has fit.steps=60; choose another"
    ):
        demo(other, small_run)
    assert before == {path: path.read_bytes() for path in small_run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 10, "warmup": 10}, "steps must be more than warmup, got 10 and 10"),
        ({"warmup": -1}, "warmup must be 0 steps or more, got -1"),
        ({"width": 15, "heads": 3}, "width must be even and a multiple of heads, got 15 and 3"),
        ({"width": 128, "heads": 3}, "width must be even and a multiple of heads, got 128 and 3"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
    ],
)
def test_settings_that_a_part_would_refuse_are_refused_before_anything_is_made(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        configured(DemoConfig, **settings)


def test_no_test_sentence_stands_in_the_training_pairs():
    language = ToyLanguage(
        nouns=2, transitive_verbs=1, intransitive_verbs=1, adjectives=1, frequency_adverbs=1,
        manner_adverbs=1,
    )  # fmt: skip
    train = language.pairs(300, seed=0)
    known = {pair.source for pair in train}
    assert any(pair.source in known for pair in language.pairs(50, seed=1))
    test = module._unseen(language, train, 50, seed=1)
    assert len(test) == 50 and not any(pair.source in known for pair in test)


@pytest.fixture
def all_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.timeout(900)  # with types checked at every call
@pytest.mark.usefixtures("all_threads")
def test_the_full_demo_translates_well_and_its_heads_have_roles_that_matter(tmp_path):
    table = demo(DemoConfig(), tmp_path / "run")
    assert Run.open(tmp_path / "run").figures()["token_accuracy"] > 0.95
    useful = table.filter(
        lambda head, row: row["role"] in ("alignment", "coreference") and row["bleu_drop"] > 0
    )
    assert len(useful) >= 1
