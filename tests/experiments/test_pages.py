import re
from pathlib import Path

import pytest

from headwise.experiments import experiment_names, load_experiment
from headwise.experiments.pages import page
from headwise.experiments.results import kept
from headwise.experiments.shelf import FOLDER, summary_of

ROOT = Path(__file__).parents[2]
FAMILIES = sorted({name.partition("/")[0] for name in experiment_names()})


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are found from the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_opens_with_its_introduction_and_has_a_section_an_experiment(family: str) -> None:
    text = page(family)
    assert text.startswith((FOLDER / family / "introduction.md").read_text().strip())
    for name in experiment_names():
        assert (f"\n## {name}\n" in text) == name.startswith(f"{family}/")


def test_experiments_of_guidance_are_listed_after_those_whose_runs_they_take() -> None:
    text = (FOLDER / "guidance" / "introduction.md").read_text()
    listed: list[str] = []
    for line in text.splitlines():
        if line.startswith("headwise reproduce guidance/"):
            lenders = re.findall(r"runs/(guidance/[a-z]+)", line)
            assert set(lenders) <= set(listed), line
            listed.append(line.split()[2])
    assert sorted(listed) == [name for name in experiment_names() if name.startswith("guidance/")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_in_docs_is_the_generated_one(family: str) -> None:
    file = ROOT / "docs" / f"{family}.md"
    if not file.exists():
        pytest.skip(f"docs/{family}.md has not been generated")
    assert file.read_text() == page(family), f"run: python -m headwise.experiments.pages {family}"


@pytest.mark.parametrize("name", experiment_names())
def test_an_experiment_asks_something_and_says_what_to_expect(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.summary == summary_of(name)
    assert experiment.summary.endswith("?")
    assert f"headwise reproduce {name}" in (FOLDER / f"{name.replace('-', '_')}.py").read_text()
    metrics = [item.metric for item in experiment.expected]
    assert metrics
    assert len(set(metrics)) == len(metrics)
    assert type(experiment.smoke) is type(experiment.config)
    assert experiment.smoke != experiment.config


@pytest.mark.parametrize("name", experiment_names())
def test_a_kept_result_has_expected_figures_and_its_pictures(name: str) -> None:
    result = kept(name)
    if result is None:
        pytest.skip(f"no full run of {name} has been kept")
    expected = {item.metric for item in load_experiment(name).expected}
    assert expected & set(result.figures)
    assert not expected - set(result.figures) or "not measured yet" in page(name.split("/")[0])
    assert result.pictures
    for picture in result.pictures:
        assert (ROOT / "docs" / "pictures" / name / picture).is_file()
