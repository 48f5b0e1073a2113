"""docs/kernels.md says what was measured and what the code does, and nothing older."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import kernel_pictures, rooflines
from benchmarks.kernel_tables import LENGTHS, MISSING, cases_at, documents, verdict

pytest.importorskip("triton", reason="the page's constants are those of Triton kernels")
from benchmarks import pages

ENVIRONMENT = {
    "commit": "0123456789abcdef",
    "dirty": False,
    "versions": {"torch": "2.11.0", "triton": "3.6.0"},
    "gpu": "a device",
    "command": ["headwise", "bench", "ops"],
}


def _write(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    day: int = 1,
    device: str = "cuda",
    name: str = "ops",
) -> None:
    """Results of a day, as the benchmark writes them."""
    document = {
        "environment": ENVIRONMENT | {"started": f"2026-01-{day:02}T00:00:00"},
        "settings": {"device": device},
        "rows": rows,
    }
    (folder / f"{name}-device-2026-01-{day:02}.json").write_text(json.dumps(document))


def _row(who: str, ms: float, **more: Any) -> dict[str, Any]:
    times = {"forward_ms": ms, "forward_ratio": ms, "both_ms": ms, "both_ratio": ms}
    times |= {"both_host_ms": ms}
    about = {"inputs": "N(0, 1)", "n": 512, "op": "sparsemax", "who": who}
    return about | times | more


def test_the_page_in_docs_is_the_generated_one():
    assert pages.PAGE.read_text() == pages.page(), "run: python -m benchmarks.pages"


def test_the_picture_of_times_shows_the_times_in_results():
    points = kernel_pictures.times(documents("ops"))
    with Image.open(pages.PICTURES / "times.png") as picture:
        drawn = picture.info["Source"]
    assert drawn == kernel_pictures.digest(points), "run: python -m benchmarks.pages"


def test_every_place_of_the_text_is_filled():
    assert "{{" not in pages.page()


def test_without_results_the_page_says_that_nothing_was_measured(tmp_path):
    text = pages.page(tmp_path)
    assert "Nothing has been measured yet." in text
    assert f"| guided | {MISSING} |" in text
    with_aims = verdict([])
    assert " 0 are met, 0 are missed" in with_aims
    for case in cases_at(LENGTHS[0]):
        assert f"**{case.name}**" in text


def test_the_newest_result_counts_and_an_older_one_fills_its_gaps(tmp_path):
    old = [_row("SDPA", 1.0), _row("headwise", 7.0), _row("SDPA", 1.0, n=2048)]
    old += [_row("headwise", 5.0, n=2048)]
    _write(tmp_path, old, day=1)
    new = [_row("SDPA", 1.0), _row("headwise", 3.0)]
    _write(tmp_path, new, day=2)
    text = pages.page(tmp_path)
    assert "| 512 | headwise | 3.000 |" in text
    assert "| 512 | headwise | 7.000 |" not in text
    assert "| 2,048 | headwise | 5.000 |" in text


def test_a_contestant_that_was_wrong_has_no_time_and_is_named(tmp_path):
    wrong = {"inputs": "N(0, 1)", "n": 512, "op": "sparsemax", "who": "peer", "wrong": "by 0.3"}
    rows = [_row("SDPA", 1.0), _row("headwise", 3.0), wrong]
    _write(tmp_path, rows)
    assert "Not timed: peer (N(0, 1) 512): wrong: by 0.3." in pages.page(tmp_path)


def test_inputs_that_could_not_be_made_are_named_below_the_tables_that_miss_them(tmp_path):
    reason = "HEADWISE_DATA is not set; set it to a folder."
    failed = {"inputs": "trained encoder", "op": "", "who": "", "reason": reason}
    _write(tmp_path, [_row("SDPA", 1.0), _row("headwise", 3.0), failed])
    told = "Not timed: everybody (trained encoder): HEADWISE_DATA is not set; set it to a folder."
    assert pages.page(tmp_path).count(f"{told}\n") == 1  # below sparsemax, the only op with a table


def test_an_op_that_is_never_given_some_inputs_does_not_miss_them(tmp_path):
    failed = {"inputs": "trained encoder", "op": "", "who": "", "reason": "There is no text."}
    plain = [_row(who, 1.0, op="top-k keep 8 d=128") for who in ("SDPA", "headwise")]
    _write(tmp_path, [*plain, failed])
    assert "There is no text" not in pages.page(tmp_path)


def test_trainings_of_an_encoder_are_shown_with_who_was_wrong(tmp_path):
    assert f"| ours, compiled | {MISSING} |" in pages.page(tmp_path)
    rows = [
        {"contestant": "ours", "tokens_per_second": 12_345, "ms": 1.5, "utilisation": 0.4567},
        {"contestant": "RoBERTa", "tokens_per_second": 99_999, "ms": 1.0, "wrong": True},
        {"contestant": "ours, compiled", "reason": "no compiler"},
    ]
    _write(tmp_path, rows, name="mlm")
    text = pages.page(tmp_path)
    assert "| ours | 12,345 | 1.5 | 0.4567 |" in text and "99,999" not in text
    assert "Not timed: RoBERTa: wrong; ours, compiled: " in text


def test_results_of_a_cpu_are_not_shown(tmp_path):
    _write(tmp_path, [_row("SDPA", 1.0)], device="cpu")
    assert not documents("ops", tmp_path)


@pytest.mark.parametrize("scores", [kernel_pictures.CERTAIN, kernel_pictures.DOUBTFUL])
def test_in_the_picture_a_certificate_means_that_the_threshold_is_right(scores):
    levels = kernel_pictures.remembered(scores)
    right = sorted(scores, reverse=True)[kernel_pictures.KEEP - 1]
    assert kernel_pictures.certified(levels) == (kernel_pictures.threshold(levels) == right)
    assert kernel_pictures.certified(levels) == (scores is kernel_pictures.CERTAIN)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_estimate_with_overlap_is_never_above_one_without(length):
    for kernels in rooflines.estimates(length).values():
        for kernel in kernels:
            overlapped, in_turn = kernel.milliseconds(length)
            assert 0 < overlapped <= in_turn
