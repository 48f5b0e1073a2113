"""docs/speed.md shows what was measured and what the code does, and nothing older."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import rooflines, speed_figures
from benchmarks.speed_tables import (
    LENGTHS,
    MISSING,
    cases_at,
    documents,
    step_table,
    translation_table,
)

pytest.importorskip("triton", reason="the page's constants are those of Triton kernels")
from benchmarks import pages

ENVIRONMENT = {
    "commit": "0123456789abcdef",
    "dirty": False,
    "versions": {"torch": "2.11.0", "triton": "3.6.0"},
    "gpu": "a device",
    "command": ["python", "-m", "benchmarks", "ops"],
}


def _write(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    day: int = 1,
    device: str = "cuda",
    name: str = "ops",
) -> None:
    """Write the results of a day as the benchmark does; `name` has the parts, if any."""
    document = {
        "environment": ENVIRONMENT | {"started": f"2026-01-{day:02}T00:00:00"},
        "settings": {"device": device},
        "rows": rows,
    }
    (folder / f"{name}-device-2026-01-{day:02}.json").write_text(json.dumps(document))


def _row(who: str, ms: float, **more: Any) -> dict[str, Any]:
    times = {"forward_ms": ms, "forward_ratio": ms, "both_ms": ms, "both_ratio": ms}
    about = {"inputs": "N(0, 1)", "n": 512, "op": "sparsemax", "who": who}
    return about | times | more


def test_the_page_in_docs_is_the_generated_one():
    assert pages.PAGE.read_text() == pages.page(), "run: python -m benchmarks.pages"


def test_the_columns_in_docs_are_those_of_the_code():
    text = pages.inspect_page()
    assert pages.INSPECT.read_text() == text, "run: python -m benchmarks.pages"
    assert "| `first_word` | Share of" in text


def test_the_figure_of_times_shows_the_times_in_results():
    points = speed_figures.times(documents("ops"))
    with Image.open(pages.FIGURES / "times.png") as figure:
        drawn = figure.info["Source"]
    assert drawn == speed_figures.digest(points), "run: python -m benchmarks.pages"


def test_every_result_file_is_used():
    text = "".join(path.read_text() for path in Path(pages.ROOT).glob("docs/*.md"))
    text += "".join(path.read_text() for path in Path(pages.ROOT).glob("papers/*/*.md"))
    assert not [path.name for path in pages.BENCH.glob("*.json") if path.name not in text]


def test_without_results_the_page_says_that_nothing_was_measured(tmp_path):
    text = pages.page(tmp_path)
    assert "Nothing has been measured yet." in text and "{{" not in text
    for case in cases_at(LENGTHS[0]):
        if case.ours is not None:
            assert f"| {case.name} | {MISSING} |" in text


def test_the_newest_result_counts_and_an_older_one_fills_its_gaps(tmp_path):
    old = [_row("headwise", 7.0), _row("headwise", 5.0, n=2048)]
    _write(tmp_path, old, day=1)
    _write(tmp_path, [_row("headwise", 3.0)], day=2, name="ops-sparsemax")
    text = pages.page(tmp_path)
    assert "| sparsemax | 3.00 / 3.00 | 5.00 / 5.00 |" in text and "7.00" not in text
    assert "ops-sparsemax-device-2026-01-02.json" in text


def test_a_record_of_which_nothing_is_shown_is_not_named(tmp_path):
    _write(tmp_path, [_row("headwise", 7.0)], day=1)
    _write(tmp_path, [_row("headwise", 3.0)], day=2)
    assert "2026-01-01.json" not in pages.page(tmp_path)


def test_peers_are_shown_where_they_were_right_and_timed(tmp_path):
    wrong = {"inputs": "N(0, 1)", "n": 512, "op": "sparsemax", "who": "bad", "wrong": "by 0.3"}
    rows = [_row("SDPA", 1.0), _row("headwise", 3.0), _row("peer", 4.0), wrong]
    _write(tmp_path, [*rows, _row("peer, float32", 9.0)])
    text = pages.page(tmp_path)
    assert "| sparsemax | headwise | 3.00 |" in text and "|  | peer | 4.00 |" in text
    assert "bad" not in text and "peer, float32" not in text


def test_an_op_without_a_backward_pass_has_no_time_of_one(tmp_path):
    timed = {"inputs": "N(0, 1)", "n": 512, "op": "topk_selected keep 8"}
    timed |= {"forward_ms": 2.0, "forward_ratio": 2.0}
    _write(tmp_path, [timed | {"who": who} for who in ("SDPA", "headwise")])
    assert f"| topk_selected keep 8 | 2.00 | {MISSING} |" in pages.page(tmp_path)


def test_steps_that_a_newer_record_lacks_are_those_of_the_last_that_has_them(tmp_path):
    old = [{"who": who, "step_ms": ms} for who, ms in (("plain", 98.0), ("plain, compiled", 12.0))]
    _write(tmp_path, old, day=1, name="guided-step")
    _write(tmp_path, [{"who": "plain", "step_ms": 10.0}], day=2, name="guided-step-usual")
    table = step_table(documents("guided-step", tmp_path))
    assert "| plain | 10.00 |" in table and "| plain, compiled | 12.00 |" in table
    assert "98.00" not in table
    assert (
        table.index("01-02.json") < table.index("| plain, compiled |") < table.index("01-01.json")
    )


def test_searches_that_a_newer_record_lacks_are_shown_too(tmp_path):
    def row(what: str, speed: int) -> dict[str, Any]:
        return {"what": what, "contestant": "softmax", "tokens_per_second": speed, "ms": 1.0}

    old = [row("training", 111), row("beam search", 222)]
    _write(tmp_path, old, day=1, name="translation")
    _write(tmp_path, [row("training", 333)], day=2, name="translation-training")
    table = translation_table(documents("translation", tmp_path))
    assert "333" in table and "222" in table and "111" not in table


def test_trainings_of_an_encoder_are_shown_with_who_was_wrong(tmp_path):
    rows = [
        {"contestant": "ours", "tokens_per_second": 12_345, "ms": 1.5, "utilisation": 0.4567},
        {"contestant": "RoBERTa", "tokens_per_second": 99_999, "ms": 1.0, "wrong": True},
        {"contestant": "RoBERTa, rounded", "tokens_per_second": 8_230, "ms": 2.2},
        {"contestant": "ours, compiled", "reason": "no compiler"},
    ]
    _write(tmp_path, rows, name="mlm")
    text = pages.page(tmp_path)
    assert "| ours | 12,345 | 1.50 | 0.46 | 1.50 |" in text and "99,999" not in text
    assert "Not timed: RoBERTa: wrong; ours, compiled: no compiler." in text


def test_results_of_a_cpu_are_not_shown_with_those_of_a_gpu(tmp_path):
    _write(tmp_path, [_row("SDPA", 1.0)], device="cpu")
    assert not documents("ops", tmp_path)


@pytest.mark.parametrize("scores", [speed_figures.CERTAIN, speed_figures.DOUBTFUL])
def test_in_the_figure_a_certificate_means_that_the_threshold_is_right(scores):
    levels = speed_figures.remembered(scores)
    right = sorted(scores, reverse=True)[speed_figures.KEEP - 1]
    assert speed_figures.certified(levels) == (speed_figures.threshold(levels) == right)
    assert speed_figures.certified(levels) == (scores is speed_figures.CERTAIN)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_estimate_with_overlap_is_never_above_one_without(length):
    for kernels in rooflines.estimates(length).values():
        for kernel in kernels:
            overlapped, in_turn = kernel.milliseconds(length)
            assert 0 < overlapped <= in_turn
