import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headwise.recording import Run
from headwise_papers.core.base import OUR_QUESTION, Estimate, Expected
from headwise_papers.core.pages import (
    HEADER,
    VERDICTS,
    by_verdict,
    figure_tables,
    joined,
    listed,
    page,
    section,
    verdict_rows,
)
from headwise_papers.core.results import check_part, keep, kept, kept_parts
from headwise_papers.core.shelf import FOLDER, experiment_names, load_experiment, summary_of

ROOT = Path(__file__).parents[3]
FAMILIES = sorted({name.partition("/")[0] for name in experiment_names()})


@dataclass(frozen=True)
class Small:
    """Settings of a run that holds pictures alone."""

    seed: int = 0


SMALL = Small()


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are found from the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_opens_with_its_introduction_and_has_a_section_an_experiment(family: str) -> None:
    text = page(family)
    assert text.startswith((ROOT / "papers" / family / "introduction.md").read_text().strip())
    for name in experiment_names():
        assert (f"\n## {name}\n" in text) == name.startswith(f"{family}/")


def test_experiments_of_guidance_are_listed_after_those_whose_runs_they_take() -> None:
    text = (ROOT / "papers" / "attention_guidance" / "introduction.md").read_text()
    listed: list[str] = []
    for line in text.splitlines():
        if line.startswith("headwise reproduce attention_guidance/"):
            lenders = re.findall(r"runs/(attention_guidance/[a-z]+)", line)
            assert set(lenders) <= set(listed), line
            listed.append(line.split()[2])
    assert sorted(listed) == [
        name for name in experiment_names() if name.startswith("attention_guidance/")
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_in_docs_is_the_generated_one(family: str) -> None:
    file = ROOT / "papers" / family / "README.md"
    if not file.exists():
        pytest.skip(f"papers/{family}/README.md has not been generated")
    assert file.read_text() == page(family), f"run: python -m headwise_papers.core.pages {family}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_overview_counts_figures_and_leads_to_their_sections(family: str) -> None:
    text = page(family)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    # as GitHub makes anchors of headings
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([^)]*)\)", text)
    assert links
    assert set(links) <= anchors
    overview = text.partition("## What came out of the paper's figures")[2].partition("\n## ")[0]
    head, _, *rows = (line for line in overview.splitlines() if line.startswith("|"))
    columns = ["experiment", *VERDICTS, "not measured"]
    assert head == f"| {' | '.join(columns)} |"
    assert rows[-1].startswith("| in all |")
    assert all(cell.strip().isdigit() for row in rows for cell in row.split("|")[2:-1])
    assert ("\nNot reproduced:\n\n- " in overview) == any(
        int(row.split("|")[1 + columns.index("not")]) for row in rows
    )


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_is_counted_where_it_belongs(
    verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Expected, "paper_verdict", lambda *_: verdict)
    expected = (
        Expected("a", 1.0),
        Expected("b", 1.0),
        Expected("plain"),
        Expected("asked", 1.0, OUR_QUESTION),
    )
    figures = {"a": Estimate.of([1.0]), "plain": Estimate.of([1.0]), "asked": Estimate.of([1.0])}
    found = by_verdict(expected, figures)
    assert found.pop(verdict) == ["a"]
    assert found.pop("not measured") == ["b"]
    assert not any(found.values())
    cells = {row[0]: row[-1] for row in verdict_rows(expected, figures)}
    assert cells["a"] == verdict
    answers = {"reproduced": "yes", "partly": "partly", "undecided": "undecided", "not": "no"}
    assert cells["asked"] == answers[verdict]


def test_a_claim_about_several_sets_is_named_once_and_many_claims_are_cut_short() -> None:
    assert listed(["a, 4 layers: rises", "whole", "b, 8 layers: rises"]) == (
        "rises (a, 4 layers; b, 8 layers); whole"
    )
    assert listed([f"claim {number}" for number in range(8)]).endswith("claim 5; and 2 more")


FIGURES = {
    "extra": Estimate.of([1.0, 2.0]),
    "beside": Estimate.of([0.3]),
    "claim": Estimate.of([1.0]),
    "words": Estimate.of([19_425_864]),
}
EXPECTED = (
    Expected("claim", 1.0, "Table 1"),
    Expected("beside", None, "Table 2 has 0.4"),
    Expected("oromo, 12 layers: loss", 2.0),
    Expected("oromo, 12 layers: gain", 2.0),
    Expected("alone: loss"),
)


def test_figures_with_a_verdict_stand_first_and_what_nobody_expects_is_folded() -> None:
    table, missing, folded = figure_tables(EXPECTED, FIGURES)
    head, _, first, second = table.splitlines()
    assert head == f"| {' | '.join(HEADER)} |"
    assert first == "| claim | 1 |  | 1 | 1 | Table 1 | 0, partly 0 | reproduced |"
    assert second == "| beside | 0.3 |  | 1 |  | Table 2 has 0.4 |  |  |"
    assert missing == "Not measured yet: oromo, 12 layers (2 figures); alone: loss."
    # GitHub shows a table inside only between blank lines
    assert folded.startswith("<details>\n<summary>2 more figures</summary>\n\n| figure | ours |")
    assert folded.endswith(" |\n\n</details>")
    assert "| extra | 1.5 | -4.853 to 7.853 | 2 |" in folded
    assert "| words | 19,425,864 |  | 1 |" in folded


def test_columns_about_the_paper_are_left_out_where_it_says_nothing() -> None:
    (table,) = figure_tables((Expected("extra"),), {"extra": FIGURES["extra"]})
    assert table.splitlines()[0] == f"| {' | '.join(HEADER[:4])} |"


def test_recorded_ends_of_an_interval_stand_in_its_row() -> None:
    def recorded(*values: float) -> dict[str, Estimate]:
        ends = {"": 0.0, ", low end": -0.1, ", high end": 0.1}
        return {f"share{end}": Estimate.of([v + by for v in values]) for end, by in ends.items()}

    ((name, mean, interval, runs, *_),) = verdict_rows((), recorded(0.5))
    assert (name, mean, interval, runs) == ("share", "0.5", "0.4 to 0.6", "1")
    ((_, mean, interval, runs, *_),) = verdict_rows((), recorded(0.4, 0.6))
    assert (mean, runs) == ("0.5", "2")
    assert interval.endswith(" to 1.771; within a run 0.4 to 0.6")
    lonely = {name: got for name, got in recorded(0.5).items() if "high" not in name}
    assert [row[0] for row in verdict_rows((), lonely)] == ["share", "share, low end"]


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
    missing = expected - set(result.figures)
    missing -= set(joined(kept_parts(name)))
    assert bool(missing) == ("\nNot measured yet: " in section(name, kept_parts(name)))
    for part, one in kept_parts(name).items():
        assert one.pictures
        for picture in one.pictures:
            assert (
                ROOT
                / "papers"
                / name.split("/")[0]
                / "figures"
                / name.split("/")[1]
                / part
                / picture
            ).is_file()


def test_parts_of_an_experiment_are_one_table_and_say_how_each_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief = kept("attention_guidance/pretrain")
    assert chief is not None
    monkeypatch.chdir(tmp_path)
    run = Run.create(tmp_path / "run", SMALL)
    (run.folder / "pictures").mkdir()
    for picture in chief.pictures:
        run.path(f"pictures/{picture}").write_bytes(b"")
    first, *rest = chief.figures
    other = replace(chief, figures={first: Estimate.of([1.0]), "more": Estimate.of([2.0])})
    assert keep(chief, run) == Path("papers/attention_guidance/results/pretrain.json")
    assert keep(other, run, part="large") == Path(
        "papers/attention_guidance/results/pretrain/large.json"
    )
    parts = kept_parts("attention_guidance/pretrain")
    assert list(parts) == ["", "large"]
    apart = {f"{first} (large)": Estimate.of([1.0]), "more": Estimate.of([2.0])}
    assert joined(parts) == {**chief.figures, **apart} and rest
    text = section("attention_guidance/pretrain", parts)
    assert text.count("Made by `headwise reproduce attention_guidance/pretrain") == 2
    assert "The part `large`. Made by" in text
    assert f"(figures/pretrain/large/{chief.pictures[0]})" in text
    with pytest.raises(ValueError, match="small letters, digits and dashes"):
        check_part("../elsewhere")
