"""docs/kernels.md says what was measured and what the code does, and nothing older."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import kernel_pictures, rooflines
from benchmarks.kernel_tables import (
    LENGTHS,
    MISSING,
    cases_at,
    documents,
    part_tables,
    step_table,
    translation_table,
    verdict,
)

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
    """Results of a day, as the benchmark writes them; `name` with the parts, where of some."""
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


def test_a_record_of_some_parts_counts_for_these(tmp_path):
    rows = [_row(who, ms) for who, ms in (("SDPA", 1.0), ("headwise", 7.0))]
    rows += [_row(who, ms, op="entmax-1.5") for who, ms in (("SDPA", 1.0), ("headwise", 5.0))]
    _write(tmp_path, rows, day=1)
    part = [_row("SDPA", 1.0), _row("headwise", 3.0)]
    _write(tmp_path, part, day=2, name="ops-sparsemax")
    text = pages.page(tmp_path)
    assert "| 512 | headwise | 3.000 |" in text
    assert "| 512 | headwise | 7.000 |" not in text
    assert "| 512 | headwise | 5.000 |" in text
    assert "ops-sparsemax-device-2026-01-02.json" in text


def test_steps_that_a_newer_record_lacks_are_those_of_the_last_that_has_them(tmp_path):
    old = [{"who": who, "step_ms": ms} for who, ms in (("plain", 98.0), ("plain, compiled", 12.0))]
    _write(tmp_path, old, day=1, name="guided-step")
    _write(tmp_path, [{"who": "plain", "step_ms": 10.0}], day=2, name="guided-step-usual")
    table = step_table(documents("guided-step", tmp_path), 1.05)
    assert "| plain | 10.0 |" in table and "| plain, compiled | 12.0 |" in table
    assert "98.0" not in table
    assert (
        table.index("01-02.json") < table.index("| plain, compiled |") < table.index("01-01.json")
    )


def test_searches_that_a_newer_record_lacks_are_shown_too(tmp_path):
    def row(what: str, speed: int) -> dict[str, Any]:
        about = {"what": what, "contestant": "softmax", "aims": {}}
        return about | {"tokens_per_second": speed, "ms": 1.0}

    old = [row("training", 111), row("beam search", 222)]
    _write(tmp_path, old, day=1, name="translation")
    _write(tmp_path, [row("training", 333)], day=2, name="translation-training")
    table = translation_table(documents("translation", tmp_path))
    assert "333" in table and "222" in table and "111" not in table


def test_an_op_that_was_renamed_keeps_its_older_times(tmp_path):
    rows = [_row(who, 4.0, op="top-k keep 8 masked") for who in ("SDPA", "headwise")]
    _write(tmp_path, rows)
    text = pages.page(tmp_path)
    assert "| top-k keep 8 lengths= | 4.00 | 4.00 |" in text
    assert "top-k keep 8 masked" not in text


def test_an_op_without_a_backward_pass_has_no_time_of_one(tmp_path):
    timed = {"inputs": "N(0, 1)", "n": 512, "op": "topk_selected keep 8"}
    timed |= {"forward_ms": 2.0, "forward_ratio": 2.0}
    _write(tmp_path, [timed | {"who": who} for who in ("SDPA", "headwise")])
    text = pages.page(tmp_path)
    assert f"| topk_selected keep 8 | 2.00 |  | {MISSING} |  |" in text
    assert "| N(0, 1) | 512 | headwise | 2.000 | 2.00 |  |  |  |  |  |  |" in text
    assert f"| N(0, 1) | 2,048 | headwise | {MISSING} |  |  |  |  |  |  |  |" in text


def test_whoever_was_excused_in_more_than_a_few_rows_is_named_with_the_share(tmp_path):
    rows = [_row("SDPA", 1.0), _row("headwise", 3.0, excused_rows=0.009)]
    rows += [_row("peer", 2.0, excused_rows=0.0456), _row("peer", 2.0, n=2048, excused_rows=0.456)]
    _write(tmp_path, rows)
    text = pages.page(tmp_path)
    assert "Rows whose gradients were not compared, " in text
    assert "weight. peer: 4.6 % (N(0, 1) 512), 46 % (N(0, 1) 2,048).\n" in text


def test_the_page_says_which_heads_are_judged():
    told = "heads 0, 2, 4 and 7 of 16 at n = 512 and 2,048; head 0 of 16 at n = 4,096 and 16,384."
    assert part_tables([], "guidance").endswith(f"Judged by the definition were {told}")


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
        {"contestant": "RoBERTa, rounded", "tokens_per_second": 8_230, "ms": 2.2},
        {"contestant": "RoBERTa, compiled", "tokens_per_second": 4_115, "ms": 4.4},
        {"contestant": "ours, compiled", "reason": "no compiler"},
    ]
    for row in rows:
        row["turns"] = 1
    _write(tmp_path, rows, name="mlm")
    text = pages.page(tmp_path)
    assert "| ours | 12,345 | 1.5 | 0.4567 |  | 1.50 |" in text and "99,999" not in text
    assert "This run was cut short" in text
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
