"""Guided and hard-coded translators: what is trained, lent, and concluded."""

import dataclasses
import shutil
import sys

import pytest
import torch

from headwise.config import changed, flat
from headwise.recording import Run
from headwise_papers.attention_guidance.translation import (
    ARMS,
    BASE,
    EXPECTED,
    FIRST,
    GUIDED,
    HARD_CODED,
    Config,
    _measured,
    higher,
    lower,
    settings_for,
    translator,
)
from headwise_papers.core import at_once, lending
from headwise_papers.core.running import reproduce
from headwise_papers.core.shelf import load_experiment
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.sparse_transformer import _training
from headwise_papers.sparse_transformer._training import Job, found_or_trained, settings_of
from headwise_papers.specialized_heads import prune_guided as guided

SMOKE = load_experiment("attention_guidance/translation").smoke
CORPUS = SMOKE.corpora[0]


@pytest.fixture(scope="module")
def reproduced(data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guidance") / "run"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return folder, reproduce("attention_guidance/translation", SMOKE, folder)
    finally:
        torch.set_num_threads(before)


def test_all_that_the_paper_speaks_of_is_measured(reproduced):
    folder, figures = reproduced
    wanted = {item.metric for item in EXPECTED if item.metric.startswith(CORPUS)}
    assert {name for name in wanted if "also first" not in name} <= set(figures)
    assert (folder / "pictures" / "table-7.png").is_file()
    for arm in (HARD_CODED, GUIDED):
        for what in ("average NLL", "validation NLL", "train NLL", "BLEU"):
            assert len(figures[f"{CORPUS}: {what} of {arm} less base"].values) == 2
        assert figures[f"{CORPUS}: speed of {arm} by that of base"].mean > 0


def test_arms_differ_in_their_heads_alone(reproduced):
    folder, figures = reproduced
    runs = {arm: translator(SMOKE, Run.open(folder), CORPUS, arm, 1) for arm in SMOKE.arms}
    configs = {arm: flat(run.config()) for arm, run in runs.items()}
    differing = {
        arm: {name for name in own if own[name] != configs[BASE][name]}
        for arm, own in configs.items()
    }
    assert differing == {arm: set(ARMS[arm]) for arm in SMOKE.arms}
    updates = {tuple(figures[f"{CORPUS}: updates of {arm}"].values) for arm in SMOKE.arms}
    assert updates == {(12, 12)}
    names = [f"{CORPUS}: parameters of {arm}" for arm in (BASE, GUIDED, HARD_CODED)]
    base, guided, hard_coded = (figures[name].mean for name in names)
    assert base == guided
    assert base - hard_coded == 2 * 2 * (32 * 32 + 32)  # queries and keys of two sites


def test_the_signatures_that_the_page_names_are_those_of_the_scores(reproduced):
    folder, _ = reproduced
    story = sys.modules["headwise_papers.attention_guidance.translation"].__doc__ or ""
    figures = Run.open(folder / CORPUS / "guided-seed-0").figures()
    for kind in ("bleu", "tokenised_bleu"):
        assert figures[f"{kind}_signature"].partition("|version")[0] in story


def test_translators_with_softmax_are_those_of_sparse_translation(reproduced, tmp_path):
    assert settings_for(SMOKE, CORPUS, BASE, 1) == settings_of(SMOKE, Job(CORPUS, "softmax", 1))
    folder, _ = reproduced
    lent = tmp_path / "lent" / Job(CORPUS, "softmax", 0).folder
    shutil.copytree(folder / Job(CORPUS, "softmax", 0).folder, lent)
    config = dataclasses.replace(SMOKE, trained=(str(tmp_path / "lent"),))
    with Run.create(tmp_path / "run", config) as run:
        assert translator(config, run, CORPUS, BASE, 0).folder == lent
        old = Run.open(lent)
        old.save_figures({k: v for k, v in old.figures().items() if k != "average_nll"})
        # as it was before there was guidance
        settings = {k: v for k, v in old.config().items() if k != "guide"}
        old.write_json("config.json", {"kind": "translation", "settings": settings})
        with pytest.raises(ValueError, match=r"before losses of the training were kept"):
            translator(config, run, CORPUS, BASE, 0)


def test_plain_translators_are_lent_whatever_their_weight_of_guidance_was(tmp_path):
    old = changed(settings_for(SMOKE, CORPUS, BASE, 0), {"guide.alpha": 10.0})
    with Run.create(tmp_path / "old", old) as run:
        assert lending.checked(run, settings_for(SMOKE, CORPUS, BASE, 0)) is run
    told = settings_for(SMOKE, CORPUS, GUIDED, 0)
    with Run.create(tmp_path / "guided", changed(told, {"guide.alpha": 10.0})) as run:
        with pytest.raises(ValueError, match=r"trained with guide.alpha=10\.0"):
            lending.checked(run, told)
        with pytest.raises(ValueError, match=r"trained with guide.plan="):
            lending.checked(run, settings_for(SMOKE, CORPUS, BASE, 0))


def test_translators_are_guided_with_the_weight_that_was_found_to_help():
    weights = {Config().alpha, TranslationConfig().guide.alpha, guided.Config().strength}
    assert weights == {1.0}


def test_only_guided_translators_depend_on_the_settings_of_guidance():
    other = dataclasses.replace(SMOKE, alpha=3.0, convention="paper")
    for arm in (BASE, HARD_CODED):
        assert settings_for(other, CORPUS, arm, 0) == settings_for(SMOKE, CORPUS, arm, 0)
    told = settings_for(other, CORPUS, GUIDED, 0).guide
    assert told.alpha == 3 and told.convention == "paper"


def test_an_unknown_arm_is_refused():
    with pytest.raises(ValueError, match=r"no arm 'guide'. Did you mean 'guided'\?"):
        dataclasses.replace(SMOKE, arms=("guide",))


@pytest.fixture
def planted(tmp_path):
    """Translators as if trained, a run a seed, guided ones a little better."""

    def plant(seeds):
        runs = {}
        for arm, better in ((BASE, 0.0), (GUIDED, 0.1), (FIRST, 0.05)):
            runs[arm] = [Run.create(tmp_path / f"{seeds}-{arm}-{n}", SMOKE) for n in range(seeds)]
            for n, run in enumerate(runs[arm]):
                nll = 2.0 + 0.01 * n - better * (1 + 0.01 * n)
                losses = dict.fromkeys(("train_nll", "average_nll", "validation_loss"), nll)
                costs = {"updates": 12, "minutes": 1.0, "tokens_per_second": 1e5, "parameters": 9}
                bleu = 20.0 + (better + 0.01) * n + 3.0 * (arm == FIRST)
                run.save_figures({**losses, **costs, "bleu": bleu, "tokenised_bleu": 1})
        return runs

    return plant


def test_claims_need_three_seeds(planted):
    claims = [lower(CORPUS, "validation NLL", GUIDED, BASE)]
    claims.append(f"{CORPUS}: BLEU of guided and base comparable")
    for seeds, verdict in ((2, 0.5), (3, 1.0)):
        figures = _measured(CORPUS, planted(seeds))
        assert [figures[claim] for claim in claims] == [[verdict]] * 2


def test_global_patterns_are_judged_by_losses_and_bleu_beside_both_others(planted):
    """The planted ones, with one head more, are worse than guided ones in loss alone."""
    figures = _measured(CORPUS, planted(3))
    assert figures[lower(CORPUS, "validation NLL", GUIDED, FIRST)] == [1.0]
    assert figures[lower(CORPUS, "validation NLL", BASE, FIRST)] == [0.0]
    for arm in (GUIDED, BASE):
        assert figures[higher(CORPUS, "BLEU", arm, FIRST)] == [0.0]
        for claim in (
            lower(CORPUS, "validation NLL", arm, FIRST),
            higher(CORPUS, "BLEU", arm, FIRST),
        ):
            (item,) = (item for item in EXPECTED if item.metric == claim)
            assert item.three_way and "detrimental" in item.where


def test_translators_trained_beside_others_have_no_speeds(planted):
    runs = planted(2)
    at_once.note_company(dataclasses.replace(SMOKE, at_once=2), runs[BASE][1])  # one that is lent
    figures = _measured(CORPUS, runs)
    assert figures[f"{CORPUS}: pieces a second of guided"] == [1e5, 1e5]
    assert f"{CORPUS}: updates of base" in figures
    names = {name.removeprefix(f"{CORPUS}: ") for name in figures}
    assert not names & {"minutes of base", "pieces a second of base"}
    assert "speed of guided by that of base" not in names


def test_translators_know_that_others_were_trained_beside_them(tmp_path, monkeypatch):
    for number in (1, 2):
        config = dataclasses.replace(SMOKE, at_once=number)
        run = Run.create(tmp_path / str(number), config)
        monkeypatch.setattr(
            _training, "train_translation", lambda settings, folder: Run.create(folder, settings)
        )
        done = found_or_trained(config, run, "x", settings_for(config, CORPUS, BASE, 0))
        assert at_once.in_company([done]) == (number > 1)


def test_every_claim_of_table_7_is_judged():
    claims = {item.metric for item in EXPECTED if item.paper == 1}
    for what in ("train NLL", "average NLL", "validation NLL"):
        assert lower(CORPUS, what, GUIDED, BASE) in claims
        assert lower(CORPUS, what, BASE, HARD_CODED) in claims
    assert f"{CORPUS}: BLEU of guided and base comparable" in claims
