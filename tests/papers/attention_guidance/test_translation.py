"""Guided and hard-coded translators: what is trained and concluded."""

import dataclasses

import pytest
import torch

from headwise.config import flat
from headwise.recording import Run
from headwise_papers.attention_guidance.translation import (
    ARMS,
    BASE,
    CLAIMS,
    FIRST,
    GUIDED,
    HARD_CODED,
    SMOKE,
    Config,
    _found,
    measured,
    translator,
)
from headwise_papers.core import using_cache, verdict
from headwise_papers.core.runner import reproduce
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.specialized_heads import prune_guided as guided

CORPUS = SMOKE.corpora[0]


@pytest.fixture(scope="module")
def reproduced(data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guidance")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with using_cache(folder / "models"):
        results = reproduce("attention_guidance/translation", SMOKE, folder / "run")
        yield folder / "run", results
    torch.set_num_threads(before)


def test_arms_differ_in_their_heads_alone(reproduced):
    folder, results = reproduced
    assert (folder / "figures" / "table-7.png").is_file()
    configs = {arm: flat(several[1].config()) for arm, several in _found(SMOKE, CORPUS).items()}
    differing = {
        arm: {name for name in own if own[name] != configs[BASE][name]} - {"guide.alpha"}
        for arm, own in configs.items()
    }
    assert differing == {arm: set(ARMS[arm]) for arm in SMOKE.arms}
    updates = {tuple(results[f"{CORPUS}: updates of {arm}"].values) for arm in SMOKE.arms}
    assert updates == {(12, 12)}
    names = [f"{CORPUS}: parameters of {arm}" for arm in (BASE, GUIDED, HARD_CODED)]
    base, guided, hard_coded = (results[name].mean for name in names)
    assert base == guided
    assert base - hard_coded == 2 * 2 * (32 * 32 + 32)  # queries and keys of two sites


def test_every_claim_is_measured(reproduced):
    _, results = reproduced
    wanted = {claim.result for claim in CLAIMS if claim.result.startswith(CORPUS)}
    assert {name for name in wanted if "also first" not in name} <= set(results)
    assert all(len(results[name].values) == 2 for name in wanted & set(results))


def test_translators_are_guided_with_the_weight_that_was_found_to_help():
    told = translator(Config(), CORPUS, GUIDED, 0).guide.alpha
    assert {told, TranslationConfig().guide.alpha, guided.Config().strength} == {1.0}


def test_only_guided_translators_depend_on_the_settings_of_guidance():
    changes = (*SMOKE.changes, "guide.alpha=3", "guide.convention=paper")
    other = dataclasses.replace(SMOKE, changes=changes)
    for arm in (BASE, HARD_CODED):
        assert translator(other, CORPUS, arm, 0) == translator(SMOKE, CORPUS, arm, 0)
    told = translator(other, CORPUS, GUIDED, 0).guide
    assert told.alpha == 3 and told.convention == "paper"


def test_an_unknown_arm_is_refused():
    with pytest.raises(ValueError, match=r"no arm 'guide'. Did you mean 'guided'\?"):
        dataclasses.replace(SMOKE, arms=("guide",))


@pytest.fixture
def planted(tmp_path):
    """Make translators as if trained, one run per seed, guided ones a little better."""

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


def test_global_patterns_are_judged_by_losses_and_bleu_against_both_others(planted):
    """The planted ones, with one head more, are worse than guided ones in loss alone."""
    results = measured(CORPUS, planted(3))
    claims = [one for one in CLAIMS if one.number == 116 and one.result in results]
    found = {one.result: verdict(one, results[one.result]) for one in claims}
    assert found == {
        f"{CORPUS}: validation NLL of {FIRST} - {GUIDED}": "reproduced",
        f"{CORPUS}: BLEU of {FIRST} - {GUIDED}": "not",
        f"{CORPUS}: validation NLL of {FIRST} - {BASE}": "not",
        f"{CORPUS}: BLEU of {FIRST} - {BASE}": "not",
    }


def test_translators_trained_in_parallel_have_no_speeds(planted):
    runs = planted(2)
    runs[BASE][1].path(".trained-in-parallel").touch()
    results = measured(CORPUS, runs)
    assert results[f"{CORPUS}: tokens a second of guided"].values == (1e5, 1e5)
    assert f"{CORPUS}: updates of base" in results
    assert not results.keys() & {
        f"{CORPUS}: {what} of base" for what in ("minutes", "tokens a second")
    }
