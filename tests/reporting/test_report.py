import json
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from headwise.recording import HeadTable, Run
from headwise.reporting import write_report
from tests.reporting.pages import CHROMIUM, Page, data_of, dump_dom, written

HOSTILE = "</script><script>alert('x')</script>"


@dataclass(frozen=True)
class Config:
    steps: int = 4
    note: str = HOSTILE


def two_sites() -> HeadTable:
    return HeadTable.of(
        {
            "confidence": {"encoder.0.self": [0.25, 0.75], "decoder.0.cross": [0.5, 0.125]},
            "alignment": {"decoder.0.cross": [0.9, 0.1]},
            "bleu_drop": {"encoder.0.self": [-1.5, 2.0], "decoder.0.cross": [0.5, 12.25]},
            f"role {HOSTILE}": {"encoder.0.self": [HOSTILE, "position"]},
        }
    )


def sampled_attention() -> dict[str, object]:
    tokens = {"encoder": ["the", HOSTILE, "\u2028"], "decoder": ["<bos>", "la"]}
    sites = {
        "encoder.0.self": [[[[0, 1.0]], [[0, 0.5], [1, 0.5]], [[2, 0.4]]]] * 2,
        "decoder.0.cross": [[[[2, 1.0]], [[0, 0.3]]]] * 2,
    }
    return {"sentences": [{"tokens": tokens, "sites": sites}]}


@pytest.fixture
def bare(tmp_path) -> Run:
    return Run.create(tmp_path / "my run & <b>more", Config())


@pytest.fixture
def full(bare) -> Run:
    with bare as run:
        for step in range(1, 5):
            run.log(step, loss=1 / step)
        run.log(4, accuracy=0.5)
    bare.save_heads(two_sites())
    bare.save_figures({"token_accuracy": 0.981, "bleu": 93.21, "signature": "nrefs:1|" * 9})
    bare.write_json("trace/attention.json", sampled_attention())
    return bare


def test_report_is_written_into_the_run_folder(full):
    assert write_report(full) == full.folder / "report.html"


def test_every_head_and_value_can_be_read_without_a_script(full):
    text = Page(written(full)).text
    assert [name for name in text["th"] if name.startswith("encoder")] == [
        "encoder.0.self.0",
        "encoder.0.self.1",
    ]
    assert {"0.250", "0.900", "\N{MINUS SIGN}1.5", "12.2"} <= set(text["td"])


def test_figures_are_shown_large_and_long_ones_at_the_foot(full):
    page = written(full)
    tiles = page[page.index('class="tiles"') : page.index('id="learning"')]
    assert "98.1 %" in tiles and "93.2" in tiles and "nrefs" not in tiles
    assert "nrefs:1|" * 9 in page[page.index("<footer>") :]


def test_page_is_balanced_html_with_unique_ids(full):
    page = Page(written(full))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))


def test_page_refers_to_nothing_outside_itself(full):
    page = written(full)
    assert "http://" not in page and "https://" not in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "url(" not in page and "@import" not in page


def test_hostile_names_and_tokens_stay_text(full):
    text = written(full)
    page = Page(text)
    assert "<script>alert" not in text
    assert page.tags.count("script") == 2 and "b" not in page.tags
    assert page.handlers == []
    assert page.text["h1"] == ["my run & <b>more"]
    assert HOSTILE in page.text["td"]


def test_tokens_come_back_from_the_data_block_as_they_were(full):
    [sentence] = data_of(written(full))["attention"]
    assert sentence["tokens"]["encoder"] == ["the", HOSTILE, "\u2028"]
    assert sentence["sites"]["encoder.0.self"][0] == [[0, 1000], [0, 500, 1, 500], [2, 400]]


@pytest.mark.parametrize(
    "text", ["</script>", "<!--", "]]>", "a & b", "\u2028", '"', "'", "\ud83d"]
)
def test_data_cannot_leave_its_script_block(bare, text):
    sentence = {"tokens": {text: [text]}, "sites": {text: [[[[0, 1.0]]]]}}
    bare.write_text("trace/attention.json", json.dumps({"sentences": [sentence]}))
    page = written(bare)
    block = re.search(r'id="report-data">(.*?)</script>', page)[1]
    assert not set("<>&\u2028") & set(block)
    assert data_of(page)["attention"][0]["tokens"] == {text: [text]}


def test_text_is_escaped_once(bare):
    bare.save_figures({"<&>": "a < b & 'c' \"d\""})
    text = Page(written(bare)).text
    assert text["dt"][0] == "<&>" and text["dd"][0] == "a < b & 'c' \"d\""


def test_a_thinned_curve_says_so(bare):
    with bare as run:
        for step in range(500):
            run.log(step, loss=1.0)
    assert "mean of neighbouring steps" in written(bare)


def test_maps_point_at_rows_of_the_table(full):
    heads = data_of(written(full))["heads"]
    assert heads["maps"] == {"encoder.self": [[0, [0, 1]]], "decoder.cross": [[0, [2, 3]]]}
    assert heads["columns"][1]["values"] == [None, None, 0.9, 0.1]


def test_a_column_called_row_is_kept(bare):
    bare.save_heads(HeadTable.of({"row": {"encoder.0.self": [0.5, 0.25]}}))
    heads = data_of(written(bare))["heads"]
    assert heads["columns"][0]["values"] == [0.5, 0.25]


def test_missing_parts_are_left_out(bare):
    page = Page(written(bare))
    assert not {"learning", "maps", "attention", "heads"} & set(page.ids)
    assert "table" not in page.tags and page.open == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("metrics.jsonl", "learning"),
        ("heads.json", "maps"),
        ("heads.json", "heads"),
        ("trace/attention.json", "attention"),
    ],
)
def test_each_part_comes_from_its_own_file(full, name, part):
    assert part in Page(written(full)).ids
    full.path(name).unlink()
    assert part not in Page(written(full)).ids


def test_a_table_of_text_alone_has_no_maps(bare):
    bare.save_heads(HeadTable.of({"role": {"encoder.0.self": ["position", None]}}))
    ids = Page(written(bare)).ids
    assert "heads" in ids and "maps" not in ids


def test_same_folder_gives_the_same_report(full):
    assert written(full) == written(Run.open(full.folder))


def test_known_columns_are_explained(full):
    assert "How much BLEU falls" in " ".join(Page(written(full)).text["dd"])


def test_thousand_heads_stay_small(bare):
    names = ("confidence", "entropy", "offset_share", "special_mass", "loss_rise", "bleu_drop")
    sites = {
        f"decoder.{layer}.self": [layer / 7 + head / 3 for head in range(32)] for layer in range(32)
    }
    bare.save_heads(HeadTable.of(dict.fromkeys(names, sites)))
    assert write_report(bare).stat().st_size < 3_000_000


def test_a_run_is_reported_without_transformers_or_matplotlib(full):
    program = (
        "import sys; from pathlib import Path; from headwise.recording import Run; "
        "from headwise.reporting import write_report; write_report(Run.open(Path(sys.argv[1]))); "
        "assert not {'transformers', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(full.folder)], check=True, timeout=120)
    assert full.has("report.html")


def test_importing_the_package_loads_no_templates():
    program = "import sys, headwise.reporting; assert 'jinja2.environment' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_broken_attention_says_what_was_wanted(bare):
    bare.write_json("trace/attention.json", {"sentences": [{"tokens": {}}]})
    with pytest.raises(ValueError, match="must hold sentences with tokens by stack"):
        write_report(bare)


def test_figures_that_are_a_list_say_so(bare):
    bare.write_json("figures.json", [1])
    with pytest.raises(ValueError, match=r"figures\.json must hold a JSON object"):
        write_report(bare)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to run the page's script")
def test_the_script_runs_in_a_browser_without_complaint(full, tmp_path):
    result = dump_dom(write_report(full), tmp_path / "profile")
    assert "CONSOLE" not in result.stderr
    dom = result.stdout
    assert 'class="scripted"' in dom
    assert dom.count("data-row=") == 4
    assert dom.count("<canvas") == 2
    assert re.search(r'<tr class="chosen"><th[^>]*><button type="button">encoder.0.self.1<', dom)
    assert "alert('x')" in dom and "<script>alert" not in dom


CLICKS = """
const click = (selector) => document.querySelector(selector).click();
click("#heads thead th:nth-child(2) button");
const filter = document.querySelector("#heads input");
filter.value = "confidence>=0.5 self";
filter.dispatchEvent(new Event("input"));
click("[data-row='2']");
click("#next");
click("#as-lines");
document.querySelector("#picture .token").focus();
"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to run the page's script")
def test_clicks_sort_filter_and_choose(full, tmp_path):
    clicks = f"<script>addEventListener('load', () => {{{CLICKS}}})</script></body>"
    page = tmp_path / "clicked.html"
    page.write_text(written(full).replace("</body>", clicks), encoding="utf-8")
    result = dump_dom(page, tmp_path / "profile")
    assert "CONSOLE" not in result.stderr
    dom = result.stdout
    rows = re.findall(r'<tr([^>]*)><th scope="row"><button type="button">([^<]*)<', dom)
    by_confidence = ["encoder.0.self.1", "decoder.0.cross.0", "encoder.0.self.0"]
    assert [name for _, name in rows] == [*by_confidence, "decoder.0.cross.1"]
    assert [name for attributes, name in rows if "hidden" not in attributes] == by_confidence[:1]
    assert '<h3 id="picture-title">Head decoder.0.cross.1</h3>' in dom
    # two queries, two lines, and those of the first query stand out
    assert dom.count('class="line') == 2 and dom.count('class="line on"') == 1


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to run the page's script")
def test_the_script_runs_on_a_bare_run(bare, tmp_path):
    result = dump_dom(write_report(bare), tmp_path / "profile")
    assert "CONSOLE" not in result.stderr and 'class="scripted"' in result.stdout
