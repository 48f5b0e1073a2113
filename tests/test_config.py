import doctest
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Optional

import pytest

from headwise import config as config_module
from headwise.config import from_json, override, to_json


@dataclass(frozen=True)
class Inner:
    width: int = 4


@dataclass(frozen=True)
class Config:
    steps: int = 300
    learning_rate: float = 1e-2
    causal: bool = False
    name: str = "toy"
    out: Path = Path("runs")
    limit: int | None = None
    label: Optional[str] = "x"  # noqa: UP045 - the older spelling must work too
    sizes: tuple[int, ...] = (8, 16)
    share: float | int = 0
    span: tuple[int, float] = (1, 0.5)
    impl: Literal["auto", "triton", 3] = "auto"
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Needy:
    seed: int


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("steps=20", 20),
        ("steps=-1", -1),
        ("learning_rate=3", 3.0),
        ("learning_rate=1e-4", 1e-4),
        ("causal=true", True),
        ("causal=No", False),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("out=some/where", Path("some/where")),
        ("limit=5", 5),
        ("limit=none", None),
        ("label=None", None),
        ("label=5", "5"),
        ("sizes=1,2, 3", (1, 2, 3)),
        ("sizes=7", (7,)),
        ("sizes=", ()),
        ("share=3", 3),
        ("share=0.5", 0.5),
        ("span=2,3", (2, 3.0)),
        ("impl=triton", "triton"),
        ("impl=3", 3),
    ],
)
def test_text_becomes_the_type_of_the_field(setting, wanted):
    got = getattr(override(Config(), [setting]), setting.partition("=")[0])
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stpes=3", r"^Config has no setting 'stpes'\. Did you mean 'steps'\?$"),
        ("zzz=3", r"Config has no setting 'zzz'\. Known: steps, "),
        ("steps", r"^A setting is written NAME=VALUE, got 'steps'\.$"),
        ("steps=ten", r"^Config's setting 'steps' wants a whole number, got 'ten'\.$"),
        ("steps=1.5", "wants a whole number"),
        ("steps=", "wants a whole number"),
        ("learning_rate=nan", "wants a finite number, got 'nan'"),
        ("causal=maybe", "wants true or false"),
        ("limit=x", "wants a whole number or none, got 'x'"),
        ("sizes=1,x", "wants values parted by commas, each a whole number"),
        ("sizes=1,,2", "parted by commas"),
        ("span=1", "wants 2 values"),
        ("impl=cuda", "wants one of 'auto', 'triton', 3, got 'cuda'"),
        ("inner.wdith=3", r"Inner has no setting 'wdith'\. Did you mean 'width'\?"),
        ("inner=3", "'inner' wants settings of Inner, each by its own name"),
        ("steps.width=3", "'steps' has no settings inside"),
    ],
)
def test_a_bad_setting_is_named_and_explained(setting, message):
    with pytest.raises(ValueError, match=message):
        override(Config(), [setting])


def test_override_leaves_the_original_alone_and_the_last_setting_counts():
    before = Config()
    after = override(before, ["steps=1", "name=new", "steps=2"])
    assert (after.steps, after.name) == (2, "new")
    assert before == Config()


def test_an_inner_setting_is_reached_by_a_dot():
    assert override(Config(), ["inner.width=9"]).inner == Inner(9)


def test_json_round_trip_gives_an_equal_config():
    config = override(Config(), ["limit=3", "sizes=1", "out=a/b", "impl=3", "inner.width=2"])
    settings = to_json(config)
    assert settings["sizes"] == [1]
    assert settings["out"] == "a/b"
    assert from_json(Config, settings) == config


def test_absent_settings_get_defaults_unless_they_have_none():
    assert from_json(Config, {"steps": 1}) == Config(steps=1)
    with pytest.raises(ValueError, match="Needy needs the setting 'seed', which is missing"):
        from_json(Needy, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stpes": 3}, "Did you mean 'steps'"),
        ({"steps": "3"}, "'steps' wants a whole number, got '3'"),
        ({"steps": True}, "wants a whole number, got True"),
        ({"causal": 1}, "wants true or false"),
        ({"learning_rate": float("inf")}, "wants a finite number"),
        ({"name": None}, "wants text, got None"),
        ({"sizes": 3}, "parted by commas"),
        ({"sizes": ["3"]}, "each a whole number"),
        ({"impl": [1]}, "one of 'auto'"),
        ({"impl": 3.0}, "one of 'auto'"),
        ({"inner": 3}, "wants settings of Inner"),
    ],
)
def test_json_of_a_wrong_type_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        from_json(Config, settings)


def test_a_whole_number_in_json_serves_as_a_float():
    value = from_json(Config, {"learning_rate": 1}).learning_rate
    assert value == 1.0
    assert type(value) is float


def test_examples_in_docstrings_hold():
    result = doctest.testmod(config_module)
    assert result.attempted > 0
    assert result.failed == 0
