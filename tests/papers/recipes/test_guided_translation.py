"""Translators that are guided or hard-coded: what is logged, and that it survives being stopped."""

import dataclasses
import doctest
import sys

import pytest
import torch
from torch import nn
from typer import Typer
from typer.testing import CliRunner

from headwise.config import override
from headwise.guidance import Plan
from headwise.sites import observe
from headwise.training import Summed, average_checkpoints
from headwise_papers.cli import add_commands
from headwise_papers.data.batches import parallel_batch
from headwise_papers.data.vocabulary import Vocabulary
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.recipes import training_run
from headwise_papers.recipes.guiding import GuideSettings, guided, with_guidance
from headwise_papers.recipes.pretraining import PretrainingConfig
from headwise_papers.recipes.training_run import RunningLoss
from headwise_papers.recipes.translation import TranslationConfig, train_translation
from headwise_papers.recipes.translator import Translator, WordCodec
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_translation import lasting, quietly, small_config, stopping

module = sys.modules[train_translation.__module__]
GUIDE = {"plan": "next=1,prev=1", "alpha": 100.0}
TOKENS = {"encoder": {"delim": (1, 2), "period": (4,)}, "decoder": {"delim": (1, 2), "period": ()}}
SHORT = {"steps": 40, "evaluate_every": 10, "checkpoint_every": 15, "test_pairs": 2, "beams": 1}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(scope="module")
def guided_run(texts, tmp_path_factory):
    config = small_config(texts, **SHORT, **GUIDE)
    return quietly(config, tmp_path_factory.mktemp("guided") / "run")


@pytest.fixture(scope="module")
def plain_run(texts, tmp_path_factory):
    config = small_config(texts, **SHORT, label_smoothing=0.0)
    return quietly(config, tmp_path_factory.mktemp("plain") / "run")


def evaluated(run):
    return [row for row in run.metrics() if "validation_loss" in row]


def found_by(run, sentence="the dog saw a cat ."):
    """How often the two heads of the encoder look most at the next and the previous position."""
    translator, shares = Translator.load(run), []

    def watch(site, attended):
        place = torch.arange(attended.peak_key.shape[-1])
        shares.append((attended.peak_key[0, 0] == place + 1)[:-1].float().mean())
        shares.append((attended.peak_key[0, 1] == place - 1)[1:].float().mean())

    with torch.no_grad(), observe(translator.model, watch, where="encoder.*"):
        translator.translate([sentence], beams=1)
    return shares


def test_guided_heads_end_where_they_are_told(guided_run, plain_run):
    assert min(found_by(guided_run)) > 0.7 > max(found_by(plain_run))


def test_the_loss_of_guidance_falls_and_its_weight_to_0(guided_run):
    rows = evaluated(guided_run)
    losses = [row["guidance_loss"] for row in rows]
    assert losses[-1] < 0.7 * losses[0]
    # what it was at the last update before
    wanted = [100 * (40 - done) / 40 for done in (9, 19, 29, 39)]
    assert [row["guidance_alpha"] for row in rows] == pytest.approx(wanted)


def test_guidance_is_no_part_of_the_average_loss(guided_run, plain_run):
    logged = [row["loss"] for row in plain_run.metrics() if "loss" in row]  # means of 10 updates
    assert plain_run.figures()["average_nll"] == pytest.approx(sum(logged) / len(logged), rel=1e-5)
    assert plain_run.figures()["train_nll"] == pytest.approx(logged[-1], rel=0.1)
    first = next(row["loss"] for row in guided_run.metrics() if "loss" in row)
    assert evaluated(guided_run)[0]["average_nll"] < first - 0.5  # which is smoothed and guided
    assert "guidance_loss" not in evaluated(plain_run)[0]


@pytest.mark.slow
def test_a_guided_training_stopped_and_started_again_ends_the_same(
    guided_run, texts, tmp_path, monkeypatch
):
    config = small_config(texts, **SHORT, **GUIDE)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "training_bar", stopping(module.training_bar, 20))
        quietly(config, tmp_path / "run")
    again = quietly(config, tmp_path / "run")
    assert lasting(again) == lasting(guided_run)
    one, other = (run.load_tensors("model.safetensors") for run in (again, guided_run))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.slow
def test_guidance_of_weight_0_changes_nothing(plain_run, texts, tmp_path):
    config = small_config(texts, **SHORT, label_smoothing=0.0, plan="prev=2", alpha=0.0)
    run = quietly(config, tmp_path / "run")
    for name in ("validation_loss", "average_nll"):
        assert run.figures()[name] == plain_run.figures()[name]


def test_hard_coded_heads_train_and_translate(texts, tmp_path):
    own = {"encoder_attention": "gaussian:-1,1", "decoder_attention": "gaussian:-1,0"}
    run = quietly(small_config(texts, **{**SHORT, **own, "steps": 20}), tmp_path / "run")
    first, last = (row["validation_loss"] for row in evaluated(run))
    assert last < first - 0.3
    assert len(run.path("translations.txt").read_text().splitlines()) == 2


def test_guidance_is_added_to_the_mean_of_a_batch():
    model = Transformer(TransformerConfig(9, 9, width=8, heads=2, feed_forward=8))
    settings = GuideSettings("next=1", alpha=1.0, schedule="constant")
    with guided(model, settings, steps=3, tokens=TOKENS) as guidance:
        model(torch.randint(4, 9, (2, 5)), torch.tensor([5, 3]), torch.randint(4, 9, (2, 4)))
        total, number = with_guidance(Summed(torch.tensor(6.0), torch.tensor(3)), guidance)
        assert (total / number).item() == pytest.approx(2 + guidance.loss().item())
        assert guidance.loss() > 0


def test_no_plan_is_no_guidance():
    with guided(nn.Linear(1, 1), GuideSettings(), steps=3, tokens={}) as guidance:
        assert guidance is None
    assert with_guidance(Summed(torch.tensor(6.0), 3), None) == (6.0, 3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"plan": "next"}, "A plan is written like"),
        ({"plan": "nxt=1"}, "Did you mean 'next'"),
        ({"plan": "next=3,prev=2"}, "wants 5 heads, but a layer has 4"),
        ({"plan": "next=1", "alpha": -1.0}, "alpha must be"),
        ({"plan": "next=1", "encoder_attention": "gaussian:0"}, "cannot guide heads"),
        ({"plan": "next=1", "where": "foo.*"}, r"no attention here; there are encoder\.0"),
        (
            {"plan": "next=1,prev=1", "where": "decoder.*"},
            r"'next', but decoder\.0\.self is causal; leave it out",
        ),
        ({"plan": "next=1", "convention": "reference_code"}, "make constant_for smaller than"),
        ({"plan": "next=1", "constant_for": -1}, "constant_for must be 0 updates or more"),
        (
            dict.fromkeys(("encoder_attention", "cross_attention"), "gaussian:-1,1"),
            "as encoder_attention and decoder_attention alone",
        ),
    ],
)
def test_guidance_that_cannot_be_is_refused_before_anything_is_made(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        configured(TranslationConfig, **changes)


def test_heads_of_the_decoder_may_be_guided_beside_a_hard_coded_encoder():
    config = configured(
        TranslationConfig, plan="prev=1", where="decoder.*.self", encoder_attention="gaussian:-1,1"
    )
    assert Plan.parse(config.guide.plan).heads == (0,)


def test_means_of_a_loss_go_on_from_what_was_kept():
    running, losses = RunningLoss(window=5), torch.rand(50)
    for place, loss in enumerate(losses):
        if place == 20:
            kept, running = running.tensors(), RunningLoss(window=5)
            running.tensors()["running_loss"].copy_(kept["running_loss"])
        running.add(loss)
    assert running.average == pytest.approx(losses.mean().item(), rel=1e-5)
    assert losses[-15:].min() < running.recent < losses[-15:].max()


def test_weights_that_are_kept_hold_the_model_and_nothing_else(guided_run):
    translator = Translator.load(guided_run)
    kept = [guided_run.load_tensors("best.safetensors"), average_checkpoints(guided_run)]
    for weights in kept:
        translator.model.load_state_dict(weights)  # raises on a name too many


@pytest.fixture(scope="module")
def translator(texts):
    model = Transformer(TransformerConfig(9, 9, width=16, heads=4, dropout=0.0))
    words = WordCodec(Vocabulary.from_sentences([["the", "dog", "."]]))
    return Translator(model.eval(), words, words)


@pytest.mark.parametrize("where", ["encoder.*", "decoder.*.self", "decoder.*.cross"])
@pytest.mark.parametrize("plan", ["prev=1,first=1", "delim=1,period=1"])
def test_padding_is_not_guided_wherever_heads_are(translator, where, plan):
    config = configured(TranslationConfig, plan=plan, where=where)
    pairs = [[4, 5, 6], [5, 4]], [[4, 6, 6, 4], [6]]
    losses = []
    with module._guided(config, translator) as guidance:
        for multiple in (1, 8):  # widths without padding but to the longest, and with more
            batch = parallel_batch(*pairs, multiple=multiple)
            translator.model(batch.source, batch.source_lengths, batch.target_in)
            losses.append(guidance.unscaled.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_full_stops_are_those_of_the_language_looked_at(translator):
    no_stop = WordCodec(Vocabulary.from_sentences([["der", "Hund"]]))
    apart = dataclasses.replace(translator, target=no_stop)
    with module._guided(
        configured(TranslationConfig, plan="period=1", where="*.cross"), apart
    ) as found:
        assert found is not None
    wanting = configured(TranslationConfig, plan="period=1", where="decoder.*.self")
    with pytest.raises(ValueError, match="attend to 'period', but no token of the vocabulary"):
        module._guided(wanting, apart).__enter__()


@pytest.mark.parametrize("make", [TranslationConfig, PretrainingConfig])
def test_a_convention_brings_its_schedule(make):
    settings = ["plan=next=1", "convention=reference_code", "constant_for=7"]
    config = override(make(), [f"guide.{setting}" for setting in settings])
    model = Transformer(TransformerConfig(9, 9, width=8, heads=2))
    with guided(model, config.guide, steps=config.fit.steps, tokens=TOKENS) as guidance:
        assert guidance.strength.schedule == "constant_then_linear"
        assert guidance.strength.constant_for == 7


def test_the_command_takes_a_plan(monkeypatch, tmp_path):
    asked = []

    def train(config, folder):
        asked.append(config)
        raise ValueError("enough")

    monkeypatch.setattr("headwise_papers.recipes.translation.train_translation", train)
    options = ["--guide", "next=1,prev=1", "--alpha", "3", "--out", str(tmp_path / "run")]
    app = Typer()
    add_commands(app)
    CliRunner().invoke(app, ["train", "translation", *options])
    (config,) = asked
    assert config.guide == GuideSettings("next=1,prev=1", alpha=3.0, where="encoder.*")


def test_examples_in_docstrings_hold():
    assert doctest.testmod(training_run).failed == 0
