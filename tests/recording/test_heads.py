import copy
import doctest
import json
import pickle
import sys
from io import BytesIO, StringIO

import numpy as np
import pytest
import torch
from rich.console import Console

from headwise.recording import HeadTable, columns, heads, tally
from headwise.recording.columns import printed
from headwise.sites import Head


@pytest.fixture
def table() -> HeadTable:
    return HeadTable.of(
        {
            "confidence": {
                "encoder.0.self": torch.tensor([0.25, 0.75]),
                "encoder.1.self": [0.5, None],
            },
            "role": {"encoder.1.self": ["rare", "[next]"], "decoder.0.cross": ["align"]},
        }
    )


def names(table: HeadTable) -> list[str]:
    return [str(head) for head in table.heads]


def test_of_keeps_the_order_of_sites_and_fills_gaps_with_none(table):
    assert names(table) == [
        "encoder.0.self.0",
        "encoder.0.self.1",
        "encoder.1.self.0",
        "encoder.1.self.1",
        "decoder.0.cross.0",
    ]
    assert table["confidence"] == (0.25, 0.75, 0.5, None, None)
    assert table["role"] == (None, None, "rare", "[next]", "align")
    assert len(table) == 5


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.25, 0.5], dtype=np.float32),
        [np.float32(0.25), np.float64(0.5)],
        [torch.tensor(0.25), torch.tensor(0.5, requires_grad=True)],
    ],
    ids=["array", "numpy numbers", "tensors"],
)
def test_numbers_of_numpy_and_torch_become_plain_ones(values):
    column = HeadTable.of({"a": {"x": values}})["a"]
    assert column == (0.25, 0.5) and {type(value) for value in column} == {float}


def test_columns_cannot_be_written_to_and_are_not_those_that_were_handed_in():
    given = {"a": (1.0,)}
    table = HeadTable((Head("x", 0),), given)
    given["b"] = (1.0, 2.0)
    assert list(table.columns) == ["a"]
    with pytest.raises(TypeError):
        table.columns["b"] = (1.0,)
    assert copy.deepcopy(table) == pickle.loads(pickle.dumps(table)) == table


def test_of_refuses_measures_that_disagree_on_the_number_of_heads():
    with pytest.raises(ValueError, match=r"encoder\.0\.self has 2 heads, but 'b' gives 1 values"):
        HeadTable.of({"a": {"encoder.0.self": [1, 2]}, "b": {"encoder.0.self": [1]}})


def test_of_refuses_a_tensor_that_is_not_one_value_per_head():
    with pytest.raises(ValueError, match=r"'a' wants one value per head of x, got .*\(2, 3\)"):
        HeadTable.of({"a": {"x": torch.zeros(2, 3)}})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused_with_its_place(bad):
    with pytest.raises(ValueError, match=rf"'a' is {bad} at x\.1; use None"):
        HeadTable.of({"a": {"x": torch.tensor([0.0, bad])}})


def test_columns_have_one_value_per_head_and_heads_come_once(table):
    with pytest.raises(ValueError, match="'a' has 1 values for 5 heads"):
        table.with_column("a", [1])
    with pytest.raises(ValueError, match=r"one row, but x\.0 came twice"):
        HeadTable((Head("x", 0), Head("x", 0)), {})


def test_rows_can_be_read_one_by_one_and_in_turn(table):
    assert table.row(Head("encoder.1.self", 0)) == {"confidence": 0.5, "role": "rare"}
    assert [(head, row) for head, row in table] == [(head, table.row(head)) for head in table.heads]


def test_unknown_columns_and_heads_are_named(table):
    with pytest.raises(ValueError, match=r"no column 'confidnce'\. Did you mean 'confidence'"):
        table["confidnce"]
    with pytest.raises(ValueError, match=r"no head encoder\.9\.self\.0"):
        table.row(Head("encoder.9.self", 0))


def test_sort_puts_none_last_in_both_directions(table):
    down = table.sort("confidence")
    up = table.sort("confidence", descending=False)
    assert down["confidence"] == (0.75, 0.5, 0.25, None, None)
    assert up["confidence"] == (0.25, 0.5, 0.75, None, None)
    assert names(up)[3:] == names(down)[3:] == ["encoder.1.self.1", "decoder.0.cross.0"]
    assert down["role"] == (None, "rare", None, "[next]", "align")


def test_sort_keeps_the_order_of_equal_rows_and_orders_text(table):
    same = table.with_column("same", [1] * 5)
    assert same.sort("same").heads == table.heads
    assert table.sort("role", descending=False)["role"][:3] == ("[next]", "align", "rare")


def test_a_column_of_text_and_numbers_has_no_order(table):
    with pytest.raises(ValueError, match="mixes text and numbers"):
        table.with_column("a", [1, "b", None, 2, 3]).sort("a")


def test_filter_and_top_take_rows(table):
    assert names(table.filter(lambda head, row: row["role"] == "align")) == ["decoder.0.cross.0"]
    assert names(table.filter(lambda head, row: head.index == 1)) == [
        "encoder.0.self.1",
        "encoder.1.self.1",
    ]
    assert table.top(2, "confidence")["confidence"] == (0.75, 0.5)
    assert len(table.top(99, "confidence")) == 5
    with pytest.raises(ValueError, match="count must be 0 or more, got -1"):
        table.top(-1, "confidence")


def test_join_has_the_heads_and_columns_of_both(table):
    other = HeadTable.of({"drop": {"decoder.0.cross": [1.5], "pool": [2.5]}})
    joined = table.join(other)
    assert names(joined) == [*names(table), "pool.0"]
    assert joined["drop"] == (None, None, None, None, 1.5, 2.5)
    assert joined["confidence"] == (*table["confidence"], None)
    with pytest.raises(ValueError, match="Both tables have a column 'drop'"):
        joined.join(other)


def test_with_column_leaves_the_table_alone(table):
    wider = table.with_column("rank", range(5))
    assert wider["rank"] == (0, 1, 2, 3, 4)
    assert "rank" not in table.columns
    assert wider.with_column("rank", [0] * 5)["rank"] == (0,) * 5


def test_json_round_trip_gives_an_equal_table(table):
    text = json.dumps(table.with_column("count", range(5)).to_json(), allow_nan=False)
    assert HeadTable.from_json(json.loads(text)) == table.with_column("count", range(5))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "A head table must hold a JSON object"),
        ({"heads": []}, "A head table must hold the field 'columns'"),
        ({"heads": ["nonsense"], "columns": {}}, "A head is written like"),
        (
            {"heads": ["x.0"], "columns": {"a": 3}},
            "A head table must hold a JSON list in columns.a",
        ),
        ({"heads": ["x.0"], "columns": {"a": []}}, "has 0 values for 1 heads"),
    ],
)
def test_json_that_is_no_table_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        HeadTable.from_json(value)


def test_csv_has_a_line_per_head(table, tmp_path):
    table.to_csv(str(tmp_path / "heads.csv"))
    lines = (tmp_path / "heads.csv").read_text().splitlines()
    assert lines[0] == "head,confidence,role"
    assert lines[3] == "encoder.1.self.0,0.5,rare"
    assert lines[5] == "decoder.0.cross.0,,align"


def test_pandas_gets_the_heads_as_index(table):
    pytest.importorskip("pandas", reason="pandas is an extra")
    frame = table.to_pandas()
    assert list(frame.index) == names(table)
    assert frame.loc["encoder.0.self.1", "confidence"] == 0.75


def test_without_pandas_the_error_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match=r"pip install headwise\[pandas\]"):
        table.to_pandas()


def test_layers_are_by_kind_layer_and_head(table):
    assert table.layers("confidence") == {
        "encoder.self": {0: [0.25, 0.75], 1: [0.5, None]},
        "decoder.cross": {0: [None]},
    }


def test_layers_are_in_order_and_missing_heads_are_none(table):
    few = table.sort("confidence").filter(lambda head, row: head.index == 1)
    assert few.layers("confidence")["encoder.self"] == {0: [None, 0.75], 1: [None, None]}
    deep = HeadTable.of({"a": {"x.10": [1], "x.9": [2], "pool": [3]}})
    assert list(deep.layers("a")["x"]) == [9, 10]
    assert deep.layers("a")["pool"] == {0: [3]}


def test_plot_has_a_panel_per_kind_on_one_scale_with_every_value_written(table):
    figure = table.plot("confidence")
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["encoder.self", "decoder.cross"]
    assert {axes.images[0].get_clim() for axes in panels} == {(0.25, 0.75)}
    assert [text.get_text() for text in panels[0].texts] == ["0.25", "0.75", "0.5"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["L0", "L1"]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["H0", "H1"]


def test_plot_can_be_saved_and_parts_its_colours_at_zero():
    table = HeadTable.of({"drop": {"encoder.0.self": [-1.0, 3.0, 0.0]}})
    figure = table.plot("drop")
    assert figure.axes[0].images[0].get_clim() == (-3.0, 3.0)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")


def test_plot_of_equal_values_can_be_drawn():
    HeadTable.of({"a": {"encoder.0.self": [1, 1]}}).plot("a").savefig(BytesIO(), format="svg")


@pytest.mark.parametrize("column", ["role", "nothing"])
def test_only_numbers_can_be_plotted(table, column):
    with pytest.raises(ValueError, match=f"Only a column of numbers can be plotted, '{column}'"):
        table.with_column("nothing", [None] * 5).plot(column)


def test_it_prints_three_digits_to_the_right_and_text_as_it_is(table):
    numbers = [0.123456, 1234.5, 0.0, 0.00001234, None]
    lines = str(table.with_column("many", numbers)).splitlines()
    assert lines[0].split() == ["head", "confidence", "role", "many"]
    assert [line.split()[-1] for line in lines[1:5]] == ["0.123", "1234", "0.000", "0.000"]
    ends = {len(line) for line in lines[1:5]}
    assert ends == {len(lines[0])}
    assert "[next]" in lines[4]


@pytest.fixture
def shares() -> HeadTable:
    return HeadTable.of(
        {
            "share": {"x": [0.45, 1.0, None]},
            "share_low": {"x": [0.41, 0.964, None]},
            "share_high": {"x": [0.48, 1.0, None]},
            "relevance_low": {"x": [1, 2, 3]},
        }
    )


def test_a_share_and_its_interval_are_printed_as_one(shares):
    lines = str(shares).splitlines()
    assert lines[0].split() == ["head", "share", "relevance", "low"]
    assert "0.45 [0.41, 0.48]" in lines[1] and "1.00 [0.96, 1.00]" in lines[2]
    assert "[" not in lines[3]
    assert repr(shares) == "HeadTable(3 heads: share, relevance_low)"


def test_small_and_large_intervals_keep_their_digits():
    columns = {"drop": [0.0012], "drop_low": [-0.0003], "drop_high": [0.0021]}
    assert printed(columns) == {"drop": ["0.0012 [-0.0003, 0.0021]"]}
    columns = {"loss": [123.4], "loss_low": [99.6], "loss_high": [200]}
    assert printed(columns) == {"loss": ["123 [100, 200]"]}


def test_files_keep_the_ends_of_intervals(shares, tmp_path):
    shares.to_csv(tmp_path / "heads.csv")
    assert (tmp_path / "heads.csv").read_text().startswith("head,share,share_low,share_high")
    assert HeadTable.from_json(shares.to_json()) == shares


def test_parquet_holds_every_column(shares, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is an extra")
    shares.to_parquet(tmp_path / "heads.parquet")
    frame = pandas.read_parquet(tmp_path / "heads.parquet")
    assert list(frame.columns) == ["head", *shares.columns]
    assert frame["share_low"].tolist()[:2] == [0.41, 0.964]


def test_without_pyarrow_the_error_says_what_to_install(shares, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pandas pyarrow, or use to_csv"):
        shares.to_parquet(tmp_path / "heads.parquet")
    assert not list(tmp_path.iterdir())


def test_rich_shows_the_table(table):
    console = Console(width=80, record=True, file=StringIO())
    console.print(table)
    assert "encoder.0.self.1" in console.export_text()


def test_a_narrow_console_has_whole_columns_and_the_names_of_the_others(table):
    console = Console(width=30, record=True, file=StringIO())
    console.print(table)
    shown = console.export_text()
    assert "confidence" in shown.splitlines()[0] and "…" not in shown
    assert "1 more columns do not fit here: role." in " ".join(shown.split())


@pytest.mark.parametrize("width", range(30, 70))
def test_no_cell_is_cut_at_any_width(width):
    names = ("role", "first_share", "accuracy_drop", "output_change")
    columns = dict.fromkeys(names, ("0.53 [0.52]",))
    console = Console(width=width, record=True, file=StringIO())
    console.print(HeadTable((Head("encoder.0.self", 0),), columns))
    table, _, _ = console.export_text().partition(" more columns")
    row = next(line for line in table.splitlines() if line.startswith("encoder"))
    assert row.count("0.53 [") == row.count("0.53 [0.52]") > 0


def test_repr_is_short(table):
    assert repr(table) == "HeadTable(5 heads: confidence, role)"


@pytest.mark.parametrize("module", [heads, columns, tally], ids=lambda module: module.__name__)
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_what_a_table_prints_leaves_the_terminal_alone():
    table = HeadTable((Head("a", 0),), {"[red]\x1b[1mname": ("[bold]\x1b[2Jtext",)})
    printed = str(table)
    assert "\x1b" not in printed
    assert r"[red]\x1b[1mname" in printed and r"[bold]\x1b[2Jtext" in printed
