import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwise.analysis import roles
from headwise.recording import HeadTable, Run
from headwise.recording.columns import column_of
from headwise.reporting import inspection, write_report
from headwise.reporting.inspection import opening_row
from headwise.reporting.measures import measures_of
from tests.reporting.pages import CHROMIUM, Page, data_of, dump_dom, written

SITE, OTHER = "encoder.0.self", "encoder.1.self"


@dataclass(frozen=True)
class Config:
    model: str = "model"


def with_interval(name: str, sites: dict[str, list[float]], width: float = 0.05):
    ends = {"": 0.0, "_low": -width, "_high": width}
    return {
        name + end: {site: [value + by for value in values] for site, values in sites.items()}
        for end, by in ends.items()
    }


def heads() -> HeadTable:
    return HeadTable.of(
        {
            "role": {SITE: ["previous", None], OTHER: ["rare words", "nsubj_to_head"]},
            "roles": {SITE: ["previous, sink", None], OTHER: ["rare words", "nsubj_to_head"]},
            **with_interval("confidence", {SITE: [0.9, 0.4], OTHER: [0.3, 0.6]}),
            **with_interval("relevance", {SITE: [0.25, 0.75], OTHER: [0.625, 0.375]}),
            **with_interval("nsubj_to_head", {SITE: [0.1, 0.2], OTHER: [0.3, 0.8]}),
            **with_interval("nsubj_to_dependent", {SITE: [0.5, 0.45], OTHER: [0.1, 0.2]}),
            **with_interval("rarest", {SITE: [0.2, 0.85], OTHER: [0.7, 0.1]}),
            **with_interval("coreference_pronoun", {SITE: [0.2, 0.1], OTHER: [0.35, 0.1]}),
        }
    )


def attention() -> dict[str, object]:
    sites = {site: [[[[0, 1.0]], [[0, 0.5], [1, 0.5]]]] * 2 for site in (SITE, OTHER)}
    first = {"tokens": {"encoder": ["one", "two"]}, "sites": sites}
    second = {"tokens": {"encoder": ["three", "four"]}, "sites": sites}
    return {"sentences": [first, {**second, "examples": [f"{OTHER}.0"]}]}


@pytest.fixture
def run(tmp_path) -> Run:
    run = Run.create(tmp_path / "inspected", Config())
    run.save_heads(heads())
    run.write_json("trace/attention.json", attention())
    run.write_json("trace/baselines.json", {"nsubj_to_head": 0.4, "nsubj_to_dependent": 0.38})
    run.write_json("trace/antecedents.json", {"coreference_pronoun": {"nearest_noun": 0.123}})
    offsets = {"nsubj_to_head": {1: 3, 12: 1}, "nsubj_to_dependent": {-1: 3, -12: 1}, "rarest": {}}
    run.write_json("trace/offsets.json", offsets)
    left_out = {"duplicate": "only causal models are asked for it"}
    run.write_json("trace/inspection.json", {"left_out": left_out, "counts": {"sentences": 321}})
    return run


def part(page: str, name: str) -> str:
    """The section with an id."""
    return page[(start := page.index(f'<section id="{name}"')) : page.index("</section>", start)]


def test_ends_of_intervals_are_no_columns_of_their_own(run):
    page = written(run)
    names = [column["name"] for column in data_of(page)["heads"]["columns"]]
    assert "relevance" in names and not [name for name in names if name.endswith(("_low", "_high"))]
    assert "relevance_low" not in page
    assert "<td>0.250<small>[0.200, 0.300]</small></td>" in part(page, "heads")


def test_an_end_without_its_measure_stays_a_column():
    table = HeadTable.of({"x_low": {SITE: [0.5]}, "y": {SITE: [0.5]}, "y_low": {SITE: [0.1]}})
    assert list(measures_of(table)) == ["x_low", "y", "y_low"]


def test_heads_of_a_layer_stand_by_relevance_in_all_matrices(run):
    section = part(written(run), "by-layer")
    matrices = section.split("<figure>")[1:]
    assert [re.search("<figcaption>([A-Za-z]*)", matrix)[1] for matrix in matrices] == [
        *("Importance", "Confidence", "Function")
    ]
    for matrix in matrices:
        assert re.findall(r'data-row="(\d)"', matrix) == ["1", "0", "2", "3"]


def test_cells_carry_head_measure_and_interval(run):
    section = part(written(run), "by-layer")
    assert 'title="encoder.0.self.1\nrelevance 0.750 [0.700, 0.800]">0.75</td>' in section
    assert 'class="role positional"' in section
    assert 'title="encoder.0.self.0\nprevious, sink">\N{MINUS SIGN}1</td>' in section
    assert "no role found (1)" in section


def test_without_relevance_another_importance_sorts(run):
    columns = {name: run.heads()[name] for name in ("role", "confidence")}
    run.save_heads(HeadTable(run.heads().heads, {**columns, "output_norm": (0.1, 0.2, 0.3, 0.4)}))
    section = part(written(run), "by-layer")
    assert "sorted by output norm" in section
    assert re.findall(r'data-row="(\d)"', section)[:4] == ["1", "0", "3", "2"]


def test_table_of_relations_names_the_best_head_and_judges_its_interval(run):
    rows = re.findall("<tr>(.*?)</tr>", part(written(run), "relations"))
    texts = [re.findall(">([^<>]+)<", row) for row in rows[1:]]
    assert texts == [
        ["nsubj_to_head", f"{OTHER}.1", "80.0 %", "75.0 to 85.0", "40.0 %", "+40.0", "yes"],
        # 12 points above the baseline, but the lower end of its interval is only 7
        ["nsubj_to_dependent", f"{SITE}.0", "50.0 %", "45.0 to 55.0", "38.0 %", "+12.0", "no"],
    ]


def test_the_margin_is_that_of_the_roles():
    assert inspection.MARGIN == roles.MARGIN


def test_mirrored_directions_are_drawn_once_and_what_is_far_is_put_together(run):
    section = part(written(run), "relations")
    assert section.count("dependent, from its head; 4 pairs") == 1
    assert "head, from its dependent" not in section
    assert "<title>\N{MINUS SIGN}8: 25.0 %</title>" in section


def test_best_head_and_baseline_are_drawn_to_scale(run):
    bars = re.findall(r'<rect class="(bar[ a-z]*)"[^>]* width="([\d.]+)"', written(run))
    best, baseline = float(bars[0][1]), float(bars[1][1])
    assert bars[1][0] == "bar other" and best == pytest.approx(2 * baseline, rel=1e-3)


def test_mentions_are_compared_with_rules(run):
    section = part(written(run), "coreference")
    assert "nearest noun" in section and "12.3 %" in section and f"{OTHER}.0" in section


def test_no_distance_is_compared_with_a_distance(run):
    columns = {"previous": {SITE: [0.5, 0.6]}, "punctuation": {SITE: [0.5, 0.6]}}
    run.save_heads(HeadTable.of(columns))
    run.write_json("trace/baselines.json", {"previous": 1.0, "punctuation": 0.25})
    section = part(written(run), "pointing")
    assert "25.0 %" in section and "100.0 %" not in section


def test_what_was_left_out_and_how_words_are_made_is_said(run):
    section = part(written(run), "method")
    assert "duplicate: only causal models are asked for it" in section
    assert "summed over the tokens of the word attended to and averaged over" in section
    assert "<dt>sentences</dt><dd>321</dd>" in section


def test_links_to_heads_lead_to_rows_without_a_script(run):
    page = written(run)
    targets = set(re.findall('href="#(head=[^"]*)"', page))
    assert targets and targets <= set(Page(page).ids)


def test_the_page_opens_at_the_head_for_rare_words(run):
    # encoder.0.self.1 points at rare words more often, but another has the role
    assert data_of(written(run))["opening"] == opening_row(measures_of(heads())) == 2


def test_a_run_that_is_no_inspection_is_shown_as_before(run):
    run.path("trace/inspection.json").unlink()
    page = written(run)
    ids = set(Page(page).ids)
    assert {"maps", "attention", "heads"} <= ids
    assert not {"by-layer", "relations", "head-view", "method"} & ids
    assert "setUpMatrix" not in page and "head=" not in page.split("<script")[0]


@pytest.mark.parametrize("name", ["baselines", "antecedents", "offsets", "attention"])
def test_any_other_file_may_be_missing(run, name):
    run.path(f"trace/{name}.json").unlink()
    page = Page(written(run))
    assert page.open == [] and "relations" in page.ids


def test_an_inspection_without_heads_is_still_a_page(run):
    run.save_heads(HeadTable((), {}))
    ids = Page(written(run)).ids
    assert "method" in ids and "head-view" not in ids and "by-layer" not in ids


def test_page_is_balanced_html_with_unique_ids(run):
    page = Page(written(run))
    assert page.open == [] and len(page.ids) == len(set(page.ids)) and page.handlers == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("baselines", {"rarest": "half"}, "must hold a number in rarest, got 'half'"),
        ("baselines", [1], "must hold a JSON object"),
        ("offsets", {"rarest": {"far": 1}}, "must hold {distance: how often}"),
        ("offsets", {"rarest": 3}, "must hold a JSON object in rarest, got 3"),
        ("antecedents", {"coreference": {"nearest": None}}, "must hold a number in coreference."),
    ],
)
def test_a_broken_trace_says_what_was_wanted(run, name, value, message):
    run.write_json(f"trace/{name}.json", value)
    with pytest.raises(ValueError, match=re.escape(message)):
        write_report(run)


@pytest.mark.parametrize(
    "column",
    [
        *("relevance", "gradient_importance", "output_norm", "output_change", "prediction_change"),
        *("offset_share", "rarest", "two_rarest", "punctuation", "first_word", "previous", "next"),
        *("duplicate", "induction", "alignment", "coreference", "coreference_pronoun"),
        *("coreference_proper", "coreference_nominal", "special_mass", "role", "roles"),
        *("nsubj_to_head", "nsubj:pass_to_dependent"),
    ],
)
def test_columns_of_an_inspection_are_explained(column):
    assert column_of(column).meaning


@pytest.mark.slow
def test_a_model_of_thirty_layers_stays_small(run):
    sites = {f"decoder.{layer}.self": [(layer + head / 9) / 31 for head in range(9)]
             for layer in range(30)}  # fmt: skip
    columns = {"role": {site: ["induction"] * 9 for site in sites}}
    for place in range(40):
        columns |= with_interval(f"relation{place}_to_head", sites, 0.0123)
    run.save_heads(HeadTable.of(columns))
    run.path("trace/attention.json").unlink()
    assert write_report(run).stat().st_size < 1_000_000


def browsed(run: Run, folder: Path, *, script: str = "", address: str = "") -> str:
    """The page as a browser has it after a script ran in it."""
    page = folder / "page.html"
    added = f"<script>addEventListener('load', () => {{{script}}})</script></body>"
    page.write_text(written(run).replace("</body>", added), encoding="utf-8")
    result = dump_dom(page, folder / "profile", address)
    assert "CONSOLE" not in result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to run the page's script")
def test_the_view_of_a_head_shows_ranks_roles_and_examples(run, tmp_path):
    dom = browsed(run, tmp_path)
    view = part(dom, "head-view")
    assert re.search(r'<h3 id="head-title"[^>]*>encoder.1.self.0</h3>', view)
    assert "Roles: rare words." in view
    cells = "<td>0.625</td><td>[0.575, 0.675]</td><td>2 of 4</td><td>1 of 2</td>"
    assert f'<th scope="row">relevance</th>{cells}' in view
    # the sentence that was named as an example comes first
    assert re.findall("<figcaption>([^<]*)", view) == ["three four", "one two"]
    assert "relevance_low" not in dom


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to run the page's script")
def test_an_address_opens_the_view_of_its_head(run, tmp_path):
    where = "document.body.dataset.top = Math.round(document.getElementById('head-view')"
    script = f"{where}.getBoundingClientRect().top)"
    dom = browsed(run, tmp_path, script=script, address="#head=encoder.0.self.1")
    assert re.search(r'<h3 id="head-title"[^>]*>encoder.0.self.1</h3>', dom)
    assert '<h3 id="picture-title">Head encoder.0.self.1</h3>' in dom
    assert 'data-top="0"' in dom


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to run the page's script")
def test_cells_links_and_buttons_choose_a_head(run, tmp_path):
    script = "document.querySelector('#by-layer [data-row=\"3\"]').click()"
    dom = browsed(run, tmp_path, script=script)
    assert re.search(r'<h3 id="head-title"[^>]*>encoder.1.self.1</h3>', dom)
    script += "; document.getElementById('head-after').click()"
    dom = browsed(run, tmp_path, script=script)
    assert re.search(r'<h3 id="head-title"[^>]*>encoder.0.self.0</h3>', dom)
    assert "Roles: previous, sink." in part(dom, "head-view")
