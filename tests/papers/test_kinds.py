"""Kinds of runs: light to load, registered under their names, with and without entry points."""

import pytest
import torch

from headwise import kinds
from headwise_papers import kinds as ours
from tests.alone import run_alone

NAMES = ("CAPTIONING", "CLASSIFIER", "DEMO", "FINETUNING", "LANGUAGE", "MARIAN", "PRETRAINING")


def test_loading_the_kinds_loads_none_of_their_parts():
    program = "import sys, headwise_papers.kinds; print(*sys.modules)"
    loaded = [name for name in run_alone("-c", program).split() if name.startswith("headwise")]
    ours = ["headwise", "headwise.kinds", "headwise_papers", "headwise_papers.kinds"]
    assert sorted(loaded) == ours


@pytest.mark.parametrize("name", [*NAMES, "TRANSLATION"])
def test_a_kind_is_found_by_its_name(name):
    kind = getattr(ours, name)
    assert kind.name == name.lower() and kinds.find_kind(kind.name) == kind


@pytest.mark.parametrize("name", ["CLASSIFIER", "DEMO", "MARIAN", "PRETRAINING", "TRANSLATION"])
def test_what_a_kind_opens_with_is_there(name, tmp_path):
    with pytest.raises((ValueError, AssertionError)):  # and no error of an import
        getattr(ours, name).subject(tmp_path, special=(), device=torch.device("cpu"))


def test_kinds_can_be_registered_where_nothing_is_installed(monkeypatch):
    monkeypatch.setattr(kinds, "entry_points", lambda **group: [])
    monkeypatch.setattr(kinds, "_REGISTERED", {})
    find = kinds.find_kind.__wrapped__
    with pytest.raises(ValueError, match="No installed package knows the kind 'demo'"):
        find("demo")
    ours.register_all()
    assert find("demo") is ours.DEMO and "model" in kinds.kinds()
    kinds._REGISTERED.clear()
