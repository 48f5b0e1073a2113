"""The survey of all families: it finds nothing wrong in good models, and what is planted."""

import pytest
import torch

import headwise as hw
from headwise.hf import adopt as really_adopt
from tests.hf.survey import page, tiny, verbs
from tests.hf.survey.trying import try_family
from tests.hf.survey.verbs import Trial, attempt


def trial_of(family, backend="eager"):
    kind = tiny.classes(family)[0]
    model = tiny.build(tiny.tiny_config(kind), kind, backend)
    return Trial(model, tiny.batch_for(model), backend)


@pytest.fixture(scope="module")
def rows():
    return [row for family in ("llama", "resnet") for row in try_family(family)]


def test_page_shows_what_is_right_and_what_is_refused(rows):
    text = page.page(rows)
    works, not_adopted = text.split("## Everything works")[1].split("## Not adopted")
    assert not page.wrong(rows)
    assert "llama." in works and "resnet" not in works
    assert "- Note 1: resnet." in not_adopted
    assert "1. The attention does not go through transformers' attention interface." in not_adopted
    assert "| `adopt` | 1 | 1 | 0 | 0 | 0 |" in text


def test_families_and_their_classes():
    assert len(tiny.families()) > 400
    names = [kind.__name__ for kind in tiny.classes("gemma3")]
    assert names == ["Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"]


def test_images_get_as_many_tokens_as_the_model_wants():
    trial = trial_of("llava")
    assert (trial.batch["input_ids"] == trial.plain.config.image_token_id).sum() == 2 * 16
    assert trial.expected[0].isfinite().all()


def test_verb_that_changes_outputs_is_wrong(monkeypatch):
    def adopt(model):
        with torch.no_grad():
            next(model.parameters()).mul_(1.001)
        return really_adopt(model)

    trial = trial_of("bert")
    assert attempt(verbs.adopt, trial).state == "ok"
    monkeypatch.setattr(verbs.hw, "adopt", adopt)
    cell = attempt(verbs.adopt, trial_of("bert"))
    assert cell.state == "wrong" and "outputs differ" in cell.reason


def test_verb_without_effect_and_one_that_crashes_are_wrong(monkeypatch):
    trial = trial_of("bert")
    monkeypatch.setattr(verbs.hw, "masked", lambda model, heads: hw.observe(model))
    assert attempt(verbs.mask, trial).state == "wrong"
    monkeypatch.setattr(verbs.hw, "masked", lambda model, heads: 1 / 0)
    cell = attempt(verbs.mask, trial)
    assert cell.state == "wrong" and cell.reason.startswith("ZeroDivisionError")


def test_wrong_cells_are_listed_and_shown():
    cells = {name: {"sdpa": ("ok", ""), "eager": ("wrong", "differs")} for name in verbs.VERBS}
    row = {"family": "x", "model": "XModel", "reason": "", "cells": cells}
    assert page.wrong([row])[0] == "wrong: XModel adopt (eager): differs"
    text = page.page([row])
    assert "| x | adopt (1), observe (1)" in text and "1. **wrong**: eager: differs" in text
