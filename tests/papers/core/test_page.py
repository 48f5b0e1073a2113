"""Pages are generated from records, with claims of the papers apart from our own questions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headwise.recording import Run
from headwise_papers.core import Claim, Result, runner
from headwise_papers.core.page import main, paper_page, result_table
from headwise_papers.core.record import Record, save_record
from headwise_papers.core.runner import load_experiment, reproduce
from tests.papers.core.conftest import NAME

# bad values must reach our own messages, so shapes and types are not checked here
pytestmark = pytest.mark.usefixtures("unchecked")

pytestmark = pytest.mark.usefixtures("registry")

KNOWN = [
    {"number": 66, "paper": "small_paper", "text": "Table 1", "state": "weak"},
    {"number": 67, "paper": "small_paper", "text": "Table 2", "state": "missing"},
]


@pytest.fixture(autouse=True)
def introduction(registry: None, tmp_path: Path) -> None:
    folder = tmp_path / "papers/small_paper"
    folder.mkdir(parents=True)
    (folder / "introduction.md").write_text("# Small paper\n\nIt fits lines.\n")
    (tmp_path / "papers/claims.json").write_text(json.dumps(KNOWN))


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_a_page_has_introduction_claims_and_a_section_per_experiment(tmp_path: Path) -> None:
    reproduce(NAME, load_experiment(NAME).config, tmp_path / "run", save=True)
    text = paper_page("small_paper")
    head, claims = text.split("\n## Claims\n")
    claims, section = claims.split("\n## Small paper, Table 1: does more training find")
    assert head == "# Small paper\n\nIt fits lines.\n"
    _, _, *rows = rows_of(claims)
    direction, value, missing = rows
    assert direction.startswith("|66. More is better (Table 1; toy)|> 0|")
    assert direction.endswith("|reproduced|3|fitted-line|")
    assert r"Finds 2 \| or so" in value and "|2 ± 0.3|" in value
    assert "|not measured|" in missing
    assert "Deviations: the paper has no line." in section
    assert "![slopes](figures/fitted-line/slopes.png)" in section
    assert "\n    headwise reproduce small_paper/fitted-line\n" in section
    assert "\n[Recorded](results/fitted-line.json) on " in section


def test_fault_6_claims_count_once_and_our_own_questions_stand_apart(tmp_path: Path) -> None:
    reproduce(NAME, load_experiment(NAME).config, tmp_path / "run", save=True)
    claims, _, section = paper_page("small_paper").partition("\n## Small paper, Table 1")
    # claim 66 has two rows, 67 one
    assert "1 reproduced, 0 not, 0 undecided, 1 not measured" in claims
    assert "Every run comes near" not in claims
    _, _, own = rows_of(section)
    assert own.startswith("|Every run comes near|≥ 0.3|1 [0.4385, 1]|yes|3|")


def test_a_claim_is_not_reproduced_where_one_of_its_rows_is_not(tmp_path: Path) -> None:
    results = {
        "8 steps - 2 steps": Result([0.5, 0.6, 0.7], "difference"),
        "8 steps": Result([3.0, 3.1]),
    }
    save(results)
    assert "0 reproduced, 1 not, 0 undecided, 1 not measured" in paper_page("small_paper")


def test_the_main_part_of_a_record_counts_and_others_fill_what_it_lacks() -> None:
    save({"8 steps": Result([2.0, 2.0])})
    save({"8 steps": Result([9.0, 9.0]), "16 steps": Result([2.0, 2.0])}, part="longer")
    text = paper_page("small_paper")
    assert "|2 ± 0.3|2|reproduced|" in text
    assert "|2 ± 0.1|2|reproduced|" in text
    assert "Part `longer`: [recorded](results/fitted-line/longer.json) on" in text


def save(results: dict[str, Result], part: str = "") -> None:
    start = {"gpu": None, "cpu": "C", "versions": {"torch": "2"}, "commit": "a" * 40, "dirty": True}
    environment = {**start, "resumed": [{**start, "gpu": "G", "dirty": False}]}
    record = Record(NAME, "headwise", {}, environment, 60.0, results, ())
    save_record(record, Run(Path("unused")), part=part)


def test_a_resumed_run_names_both_machines() -> None:
    save({"8 steps": Result([2.0, 2.0])})
    text = paper_page("small_paper")
    machines = f"C, torch 2, commit {'a' * 10} with changes and, resumed, G, torch 2"
    assert f"[Recorded](results/fitted-line.json) on {machines}" in text
    assert "last start took 60 s" in text


def test_pages_are_written_and_a_stale_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"]) == 1 and not (tmp_path / "papers/claims.md").exists()
    assert main([]) == 0
    assert "No full run has been recorded yet." in (
        (tmp_path / "papers/small_paper/README.md").read_text()
    )
    assert main(["--check"]) == 0
    save({"8 steps": Result([2.0, 2.0])})
    capsys.readouterr()
    assert main(["--check"]) == 1
    assert capsys.readouterr().out.split() == ["papers/small_paper/README.md", "papers/claims.md"]


def test_one_papers_page_is_written_alone_and_a_slip_gets_the_nearest_name(tmp_path: Path) -> None:
    assert main(["small_paper"]) == 0
    assert (tmp_path / "papers/small_paper/README.md").is_file()
    assert not (tmp_path / "papers/claims.md").exists()
    with pytest.raises(ValueError, match="Did you mean 'small_paper'"):
        main(["smal_paper"])


def test_results_of_one_claim_stand_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    one = load_experiment(NAME)
    claims = tuple(
        Claim.value(f"{name} test accuracy", 1.0, margin=0.1, number=66, text="All learn it")
        for name in ("A", "B")
    )
    monkeypatch.setattr(runner, "load_experiment", lambda name: replace(one, claims=claims))
    save({"A test accuracy": Result([1.0, 1.0]), "B test accuracy": Result([0.5, 0.5])})
    (_, _, row) = rows_of(paper_page("small_paper"))
    lines = "A: 1<br>B: 0.5"
    assert row == (f"|66. All learn it|1 ± 0.1|{lines}|reproduced<br>not|2|fitted-line|")


def test_all_claims_are_listed_with_state_and_verdicts() -> None:
    save({"8 steps": Result([2.0, 2.0])})
    main([])
    text = Path("papers/claims.md").read_text()
    assert text.startswith("# The 2 claims of the papers\n\nStates: 1 missing, 1 weak.")
    _, _, first, second = rows_of(text)
    expected = f"|66|small_paper|Table 1|weak|1 not measured, 1 reproduced|{NAME}|"
    assert first == expected
    assert second.startswith("|67|small_paper|Table 2|missing|1 not measured|")


def test_fault_9_a_smoke_run_gets_no_verdict() -> None:
    experiment = load_experiment(NAME)
    results = {"8 steps": Result([2.0, 2.0]), "other": Result([1.0])}
    assert result_table(experiment, results, smoke=True) == [
        ["result", "ours", "values"],
        ["8 steps", "2", "2"],
        ["other", "1", "1"],
    ]
    header, *rows = result_table(experiment, results, smoke=False)
    assert header[-2:] == ["paper", "verdict"]
    assert rows[:2] == [
        ["8 steps", "2", "2", "2 ± 0.3", "reproduced"],
        ["other", "1", "1", "", ""],
    ]
    assert {tuple(row[-1:]) for row in rows[2:]} == {("not measured",)}


def test_a_result_of_the_wrong_kind_is_named() -> None:
    experiment = replace(load_experiment(NAME), claims=(Claim.direction("8 steps"),))
    with pytest.raises(ValueError, match="'8 steps' is of kind mean"):
        result_table(experiment, {"8 steps": Result([2.0, 2.0])}, smoke=False)


def test_the_list_of_claims_is_whole() -> None:
    known = json.loads((Path(__file__).parents[3] / "papers/claims.json").read_text())
    assert [one["number"] for one in known] == list(range(1, 167))
    assert {one["state"] for one in known} <= {"solid", "weak", "missing", "wrong"}
