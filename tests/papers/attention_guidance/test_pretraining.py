"""Pre-training with guidance and without: what is trained, found, lent, and concluded."""

import dataclasses
import math
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from headwise.config import flat
from headwise.guidance import pattern
from headwise.recording import Run
from headwise.training import Diverged
from headwise_papers.attention_guidance import (
    _losses,
    _pretraining,
    _tuning,
    ablation,
    downstream,
    electra,
    fraction,
    pretrain,
    robust,
    sparse,
    transfer,
    translation,
)
from headwise_papers.attention_guidance._maps import attention_maps, weight_on_patterns
from headwise_papers.attention_guidance._pretraining import (
    ENGLISH,
    GUIDED,
    MLM,
    RECIPES,
    Job,
    found_or_pretrained,
    settings_of,
)
from headwise_papers.attention_guidance._subjects import runs_of
from headwise_papers.core.results import kept_parts
from headwise_papers.core.running import reproduce
from headwise_papers.core.shelf import load_experiment
from headwise_papers.models.encoder_heads import ReplacedToken
from headwise_papers.recipes.pretraining import PretrainingConfig, load_pretrained
from headwise_papers.recipes.pretraining_data import read_texts as texts_of
from headwise_papers.recipes.pretraining_data import text_in, validation_batches

ROOT = Path(__file__).parents[3]

SMOKES = {
    name: load_experiment(f"attention_guidance/{name}").smoke
    for name in (
        "pretrain",
        "sparse",
        "fraction",
        "ablation",
        "robust",
        "electra",
        "downstream",
        "transfer",
    )
}


@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reproduced(name, folder):
    with one_thread():
        return reproduce(f"attention_guidance/{name}", SMOKES[name], folder)


@pytest.fixture(scope="module")
def pretrained(data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain") / "run"
    return folder, reproduced("pretrain", folder)


def looks_at(run, name, head):
    """How much of the weight of a head of each layer lies on a pattern, in some text."""
    model, pieces = load_pretrained(run)
    ids = [pieces.begin, *pieces.encode("oduu haaraa har'aa biyya keessaa fi alaa")][:24]
    maps = attention_maps(model.encoder, ids)
    return weight_on_patterns(maps, ids, {name: pattern(name)})[name][:, head]


def test_guided_heads_look_where_they_are_told_and_plain_ones_do_not(pretrained):
    folder, figures = pretrained
    guided, plain = (Run.open(folder / "oromo" / f"{arm}-2-seed-0") for arm in ("guided", "mlm"))
    rows = [row["guidance_loss"] for row in guided.metrics() if "guidance_loss" in row]
    assert rows[-1] < 0.8 * rows[0]
    for head, name in enumerate(("next", "prev")):  # half of four heads
        told, free = (looks_at(run, name, head).mean() for run in (guided, plain))
        assert told > 2 * free
    part = pretrain.part_of("oromo", 2)
    assert len(figures[_losses.difference(part, "average", GUIDED, MLM)].values) == 1
    assert f"{part}: guidance loss of {MLM}" not in figures
    assert (folder / "pictures" / "losses.png").stat().st_size > 5000


def test_arms_differ_in_guidance_alone_and_share_their_text(pretrained):
    folder, _ = pretrained
    runs = {arm: Run.open(folder / "oromo" / f"{arm}-2-seed-0") for arm in ("guided", "mlm")}
    one, other = (run.config() for run in runs.values())
    assert {name for name in one if one[name] != other[name]} == {"guide"}
    assert one["text_of"] == str(folder / "texts" / "oromo")
    assert all(run.names("*.safetensors") == ["model.safetensors"] for run in runs.values())
    costs = [run.figures() for run in runs.values()]
    assert costs[0]["updates"] == costs[1]["updates"] == 40


def test_what_is_done_is_found_again_and_lent(pretrained, tmp_path, monkeypatch):
    folder, figures = pretrained
    monkeypatch.setattr(_pretraining, "pretrain", None)
    assert reproduced("pretrain", folder) == figures
    lent = dataclasses.replace(SMOKES["pretrain"], trained=(str(folder),))
    assert reproduce("attention_guidance/pretrain", lent, tmp_path / "run") == figures
    other = dataclasses.replace(lent, learning_rate=1e-3)
    with pytest.raises(ValueError, match=r"trained with fit.learning_rate=0\.01, but"):
        reproduce("attention_guidance/pretrain", other, tmp_path / "other")
    with pytest.raises(
        ValueError, match="names no folder; give runs of attention_guidance/pretrain"
    ):
        dataclasses.replace(lent, trained=(str(tmp_path / "nowhere"),))
    with pytest.raises(ValueError, match=r"holds no run.*encoders is meant"):
        dataclasses.replace(lent, trained=(str(ROOT / "papers/attention_guidance/results"),))


def test_shares_of_heads_are_guided(data_folder, tmp_path):
    reproduced("fraction", tmp_path / "run")
    plans = {
        arm: Run.open(tmp_path / "run" / "oromo" / f"{arm}-1-seed-0").config()["guide"]["plan"]
        for arm in ("mlm", "guided-1-4", "guided-1")
    }
    assert plans == {"mlm": "", "guided-1-4": "next=1", "guided-1": "next=1,prev=1,first=2"}
    told = looks_at(Run.open(tmp_path / "run" / "oromo" / "guided-1-1-seed-0"), "first", 3)
    free = looks_at(Run.open(tmp_path / "run" / "oromo" / "mlm-1-seed-0"), "first", 3)
    assert told.mean() > 2 * free.mean()


def test_patterns_are_left_out(data_folder, tmp_path):
    figures = reproduced("ablation", tmp_path / "run")
    there = tmp_path / "run" / "ablation" / "oromo"
    plans = {path.name: Run.open(path).config()["guide"]["plan"] for path in there.iterdir()}
    assert plans == {
        "all-1-seed-0": "next=1,prev=1,first=2,delim=1,period=1",
        "without-next-and-prev-1-seed-0": "first=2,delim=1,period=1",
    }
    for path in there.iterdir():
        rows = [row["guidance_loss"] for row in Run.open(path).metrics() if "guidance_loss" in row]
        assert rows[-1] < 0.9 * rows[0]
    loss = figures["oromo, 1 layers: validation loss of all"].mean
    assert loss < math.log(400) - 0.5  # of 400 pieces


def test_settings_that_diverge_are_noted_and_not_tried_again(data_folder, tmp_path, monkeypatch):
    figures = reproduced("robust", tmp_path / "run")
    wild = [path.parent.name for path in (tmp_path / "run").glob("robust/*/diverged.json")]
    assert sorted(wild) == [
        f"{arm}-1-rate-1e+38-warmup-0.1-dropout-0-seed-0" for arm in ("guided", "mlm")
    ]
    assert not list((tmp_path / "run" / "robust").rglob("*.safetensors"))
    part = pretrain.part_of("oromo", 1)
    ended = [figures[f"{part}: {arm}: best validation loss"].mean for arm in ("MLM", "guided")]
    plateau = figures[f"{part}: loss from frequencies alone"].mean
    assert figures[f"{part}: MLM: validation loss"].values[1] == max(*ended, plateau)
    assert figures[f"{part}: MLM: settings that converge"].values[1] == 0
    monkeypatch.setattr(_pretraining, "pretrain", None)
    assert reproduced("robust", tmp_path / "run") == figures


def test_another_error_is_no_divergence(tmp_path, monkeypatch):
    def broken(*args, **named):
        raise ValueError("The disk is full.")

    monkeypatch.setattr(_pretraining, "pretrain", broken)
    monkeypatch.setattr(_pretraining, "_text_run", lambda config, run, settings: run)
    with pytest.raises(ValueError, match="disk"):
        robust.reproduce(robust.Config(), Run.create(tmp_path / "run", robust.Config()))


def test_a_seed_that_diverges_is_noted_and_leaves_the_others(pretrained, tmp_path, monkeypatch):
    folder, _ = pretrained
    config = dataclasses.replace(SMOKES["pretrain"], seeds=2, trained=(str(folder),))

    def wild(settings, folder):
        run = Run.create(folder, settings, "pretraining")
        run.save_tensors("checkpoint.safetensors", {"x": torch.zeros(1)})
        if settings.guide:
            raise Diverged("Training went wrong at step 7: the loss is nan.")
        raise Diverged("Training went wrong: validation_loss is nan at step 40.")

    monkeypatch.setattr(_pretraining, "pretrain", wild)
    figures = reproduce("attention_guidance/pretrain", config, tmp_path / "run")
    part = pretrain.part_of("oromo", 2)
    for arm in (MLM, GUIDED):
        assert figures[f"{part}: trainings that diverged, {arm}"].mean == 1
        assert len(figures[f"{part}: validation loss of {arm}"].values) == 1
        assert figures[f"{part}: {arm} converges"].values[1] == 0
        assert figures[f"{part}: share of updates on the plateau, {arm}"].values[1] == 1
    there = tmp_path / "run" / "oromo" / "guided-2-seed-1"
    assert "step 7" in Run.open(there).read_json("diverged.json")["why"]
    assert not list(there.glob("*.safetensors"))
    monkeypatch.setattr(_pretraining, "pretrain", None)  # not tried again
    assert reproduce("attention_guidance/pretrain", config, tmp_path / "run") == figures


def test_an_encoder_that_diverged_is_not_fine_tuned(data_folder, tmp_path, monkeypatch):
    config = dataclasses.replace(SMOKES["downstream"], seeds=2)
    wild = Run.create(tmp_path / "wild", PretrainingConfig())
    wild.write_json("diverged.json", {"why": "nan"})
    monkeypatch.setattr(_tuning, "encoder_run", lambda *args: wild)
    monkeypatch.setattr(_tuning, "finetune", None)
    figures = downstream.reproduce(config, Run.create(tmp_path / "run", config))
    assert figures == {f"masakhanews-orm: trainings that diverged, {arm}": [2.0]
                       for arm in (MLM, GUIDED)}  # fmt: skip
    config = dataclasses.replace(SMOKES["transfer"], seeds=2)
    figures = transfer.reproduce(config, Run.create(tmp_path / "other", config))
    assert figures["sst2: trainings that diverged, none"] == [2.0] and len(figures) == 3


def test_a_text_is_lent_if_it_is_the_same(pretrained, tmp_path, monkeypatch):
    folder, _ = pretrained
    cut = []
    monkeypatch.setattr(
        _pretraining, "read_texts", lambda *args: cut.append(args) or texts_of(*args)
    )
    settings = settings_of(SMOKES["pretrain"], Job("oromo", MLM, 1, 0))
    lent = dataclasses.replace(SMOKES["pretrain"], trained=(str(folder),))
    run = Run.create(tmp_path / "run", lent)
    assert _pretraining._text_run(lent, run, settings).folder == folder / "texts" / "oromo"
    assert not cut
    other = dataclasses.replace(settings, vocab_size=300)
    assert _pretraining._text_run(lent, run, other).folder == run.folder / "texts" / "oromo"
    assert len(cut) == 1


def test_both_arms_are_pre_trained_with_topk_too(data_folder, tmp_path):
    figures = reproduced("sparse", tmp_path / "run")
    plain = Run.open(tmp_path / "run" / "oromo" / "mlm-1-seed-0")
    runs = {arm: Run.open(tmp_path / "run" / "sparse" / "topk-2" / "oromo" / f"{arm}-1-seed-0")
            for arm in ("mlm", "guided")}  # fmt: skip
    one, other = flat(plain.config()), flat(runs["mlm"].config())
    assert {name for name in one if one[name] != other[name]} == {"model.attention"}
    assert other["model.attention"] == runs["guided"].config()["model"]["attention"] == "topk:2"
    ids = list(range(5, 25))
    for run in runs.values():  # two keys of a row have weight
        maps_LHTT = attention_maps(load_pretrained(run).model.encoder, ids)
        assert ((maps_LHTT > 0).sum(dim=-1) == 2).all()
    told, free = (looks_at(runs[arm], "prev", 1).mean() for arm in ("guided", "mlm"))
    assert told > 2 * free
    assert f"oromo, 1 layers, topk:2: average loss of {GUIDED} less {MLM}" in figures
    assert sparse.gains_more("topk:2") in figures


def test_electra_is_guided_too(data_folder, tmp_path):
    figures = reproduced("electra", tmp_path / "run")
    part = pretrain.part_of("oromo", 2)
    # 40 updates of learning: about as good as a guess that knows the share
    assert figures[f"{part}: validation loss of {GUIDED}"].mean < 0.5
    guided, plain = (
        Run.open(tmp_path / "run" / "electra" / "oromo" / f"{arm}-2-seed-0")
        for arm in ("guided", "electra")
    )
    settings = electra._settings(SMOKES["electra"], GUIDED, 0)
    text = text_in(Run.open(tmp_path / "run" / "texts" / "oromo-bert"), settings, None)
    batches = validation_batches(settings, text)
    share = torch.cat([batches(n).replaced for n in range(len(batches))]).float().mean().item()
    said = electra.share_replaced(SMOKES["electra"], guided)
    assert 0.13 < said < 5 / 32 and said == pytest.approx(share, rel=0.03)
    assert figures[f"{part}: loss from the share alone"].mean == electra.guess_loss(said)
    model, pieces = load_pretrained(guided)
    assert isinstance(model, ReplacedToken) and pieces.piece(pieces.begin) == "[CLS]"
    assert looks_at(guided, "prev", 1).mean() > 2 * looks_at(plain, "prev", 1).mean()


def test_encoders_are_fine_tuned_each_from_its_own_weights(data_folder, tmp_path, monkeypatch):
    figures = reproduced("downstream", tmp_path / "run")
    there = tmp_path / "run" / "tuned" / "masakhanews-orm"
    for arm in ("mlm", "guided"):
        tuned = Run.open(there / f"oromo-{arm}-1-seed-0")
        assert tuned.config()["model"] == str(tmp_path / "run" / "oromo" / f"{arm}-1-seed-0")
        assert not tuned.config()["fresh_weights"] and tuned.config()["folds"] == 3
        losses = [row["loss"] for row in Run.open(tuned.folder / "seed-0-fold-0").metrics()
                  if "loss" in row]  # fmt: skip
        assert losses[-1] < losses[0]
    assert {"masakhanews-orm: MLM", downstream.better("masakhanews-orm")} <= set(figures)
    monkeypatch.setattr(_tuning, "finetune", None)
    assert reproduced("downstream", tmp_path / "run") == figures
    other = dataclasses.replace(SMOKES["downstream"], epochs=3, trained=(str(tmp_path / "run"),))
    with pytest.raises(ValueError, match="trained with epochs=4, but epochs=3"):
        reproduce("attention_guidance/downstream", other, tmp_path / "other")


def test_no_pre_training_has_the_english_tokenizer_and_fresh_weights(
    data_folder, tmp_path, monkeypatch
):
    figures = reproduced("transfer", tmp_path / "run")
    there = tmp_path / "run" / "tuned" / "sst2"
    none, english = (Run.open(there / f"wikitext-2-{arm}-1-seed-0") for arm in ("none", "mlm"))
    assert none.config()["model"] == english.config()["model"]
    assert none.config()["fresh_weights"] and not english.config()["fresh_weights"]
    assert "sst2: oromo, MLM better than none" in figures
    lent = dataclasses.replace(SMOKES["transfer"], trained=(str(tmp_path / "run"),))
    for weights in (tmp_path / "run").rglob("model.safetensors"):
        weights.unlink()
    monkeypatch.setattr(_tuning, "finetune", None)
    assert reproduce("attention_guidance/transfer", lent, tmp_path / "again") == figures
    # what fine-tunings began with is compared too, be the encoders there or only what they say
    longer = dataclasses.replace(lent, steps=40)
    for name in ("longer", "longest"):
        with pytest.raises(
            ValueError, match="trained with fit.steps=20, but fit.steps=40 is asked for"
        ):
            reproduce("attention_guidance/transfer", longer, tmp_path / name)
        for corpus in ("oromo", "wikitext-2"):
            shutil.rmtree(tmp_path / "run" / corpus, ignore_errors=True)
    start = _tuning.Start("sst2", Job("wikitext-2", MLM, 1, 0), fresh=True)
    run = Run.open(tmp_path / "longer")
    assert _tuning.tuned_run(longer, run, start).folder == none.folder  # nothing of it was learnt
    shutil.rmtree(none.folder / "encoder")
    with pytest.raises(ValueError, match=r"cannot be told, as .* is gone"):
        _tuning.tuned_run(longer, run, start)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrain", "robust", "transfer", "patterns"])
def test_two_at_once_find_what_one_after_the_other_do(name, data_folder, tmp_path):
    experiment = load_experiment(f"attention_guidance/{name}")
    found = []
    for processes in (1, 2):
        config = dataclasses.replace(experiment.smoke, at_once=processes)
        # two processes share the threads, and sums of more threads differ in their last digits
        with one_thread(), Run.create(tmp_path / str(processes), config) as run:
            figures = experiment.reproduce(config, run)
        slow = ("minutes", "a second")
        found.append({key: figures[key] for key in figures if not any(x in key for x in slow)})
        assert bool(run.names("at-once/*.log")) == (processes == 2)
    assert found[0] == found[1]


def test_others_find_the_english_encoders(tmp_path):
    arms = {"MLM": MLM, "guided 1/2": GUIDED, "guided 1": "guided 1"}
    for theirs, ours in arms.items():
        run = Run.create(tmp_path / Job(ENGLISH, ours, 12, 0).folder, PretrainingConfig())
        run.save_figures({})
        ((seed, found),) = runs_of([str(tmp_path)], theirs, layers=12)
        assert seed == 0 and found.folder == run.folder


@pytest.mark.parametrize(
    ("part", "corpora", "layers"),
    [
        ("", (ENGLISH,), 12),
        ("8-layers", (ENGLISH,), 8),
        ("16-layers", (ENGLISH,), 16),
        ("filipino-oromo", ("filipino", "oromo"), 12),
        ("wikitext-2", ("wikitext-2",), 12),
    ],
)
def test_recorded_figures_follow_from_the_curves_beside_them(
    part, corpora, layers, tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)
    recorded = kept_parts("attention_guidance/pretrain")[part]
    lent = {
        "trained": ("papers/attention_guidance/results/encoders",),
        "corpora": corpora,
        "layers": (layers,),
    }
    config = pretrain.Config(**lent, seeds=recorded.config["seeds"])
    with Run.create(tmp_path / "again", config) as run:
        figures = pretrain.reproduce(config, run)
    assert figures.keys() == recorded.figures.keys()
    for name, values in figures.items():
        assert values == pytest.approx(recorded.figures[name].values, rel=1e-5)


def test_the_recorded_fraction_follows_from_the_curves_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    recorded = kept_parts("attention_guidance/fraction")[""]
    arms = tuple(recorded.config["arms"])
    config = fraction.Config(trained=("papers/attention_guidance/results/encoders",), arms=arms)
    with Run.create(tmp_path / "again", config) as run:
        figures = fraction.reproduce(config, run)
    assert figures.keys() == recorded.figures.keys()
    for name, values in figures.items():
        assert values == pytest.approx(recorded.figures[name].values, rel=1e-5)


def test_recipes_are_those_of_the_paper_where_it_says():
    config = pretrain.Config()
    plans = {layers: settings_of(config, Job(ENGLISH, GUIDED, layers, 0)) for layers in (8, 12, 16)}
    assert {layers: (one.guide.plan, one.guide.alpha) for layers, one in plans.items()} == {
        8: ("next=1,prev=1,first=4", 100.0),
        12: ("next=1,prev=1,first=4", 30.0),
        16: ("next=1,prev=1,first=6", 30.0),
    }
    assert RECIPES["filipino"].next_sentence and RECIPES[ENGLISH].vocab_size == 52_000
    assert RECIPES[ENGLISH].fit.steps * RECIPES[ENGLISH].batch_size * 512 == 40_960_000


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fraction.Config(arms=("guided 1/3",)), "There is no arm 'guided 1/3'"),
        (lambda: fraction.Config(corpus="klingon"), "There is no recipe for 'klingon'"),
        (lambda: ablation.Config(arms=("without all",)), "There is no arm 'without all'"),
        (lambda: robust.Config(warmups=()), "The grid needs one learning rate"),
        (lambda: downstream.Config(tasks=("qqp",)), "There is no task 'qqp' here"),
        (lambda: transfer.Config(arms=("both",)), "arms are MLM or guided or both"),
        (lambda: fraction.Config(corpus="oromo", heads=1), "at least one of 1 heads"),
        (lambda: pretrain.Config(layers=()), "One text and one number of layers"),
        (lambda: robust.Config(warmups=(1.0,)), "steps must be more than warmup"),
        (lambda: electra.Config(seeds=0), "seeds must be at least 1"),
        (lambda: sparse.Config(attention="topk:8"), "attention are set by attentions"),
        (lambda: pretrain.Config(convention="reference_code"), "add guide_schedule=linear"),
        (
            lambda: translation.settings_for(
                translation.Config(convention="reference_code"), "multi30k-en-de", "guided", 0
            ),
            "begins to fall after 20,000 updates, and there are 1,500",
        ),
    ],
)
def test_slips_are_said(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_an_encoder_that_was_finished_but_not_tidied_up_is(pretrained, tmp_path):
    folder, _ = pretrained
    here = tmp_path / "run"
    config = SMOKES["pretrain"]
    run, job = Run.create(here, config), Job("oromo", MLM, 2, 0)
    shutil.copytree(folder / job.folder, here / job.folder)
    there = Run.open(here / job.folder)
    there.path("frequencies.json").unlink()
    (here / "texts").symlink_to(folder / "texts")
    settings = {**there.config(), "text_of": str(here / "texts" / "oromo")}
    there.write_json("config.json", {"kind": "pretraining", "settings": settings})
    there.save_tensors("checkpoint.safetensors", {"x": torch.zeros(1)})
    done = found_or_pretrained(config, run, (job.folder, settings_of(config, job)))
    assert done.names("*.safetensors") == ["model.safetensors"] and done.has("frequencies.json")
