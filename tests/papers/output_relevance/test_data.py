"""output_relevance/data: what is counted is what was read."""

from dataclasses import replace
from pathlib import Path

import pytest

from headwise_papers.core.running import reproduce
from headwise_papers.output_relevance.data import EXPECTED, Config, experiment


@pytest.mark.usefixtures("data_folder")
def test_the_treebank_has_its_published_size(tmp_path: Path) -> None:
    figures = reproduce("output_relevance/data", experiment.smoke, tmp_path / "run")
    assert figures["sst: texts to train on"].mean == 6920
    assert figures["sst: texts to train on less validation"].mean == 6520
    marks = figures["sst: median length"].mean - figures["sst: median length without marks"].mean
    assert 0 < marks < 5
    assert {x.metric for x in EXPECTED if x.metric.startswith("sst: ")} <= set(figures)
    assert (tmp_path / "run" / "pictures" / "table2.png").stat().st_size > 5000


def test_translations_are_counted_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "multi30k"
    folder.mkdir()
    words = ["ein", "mann", "und", "eine", "frau", "sehen", "den", "hund", "an", "der", "see"]
    lines = "".join(" ".join(words[: 3 + n % 8]) + "\n" for n in range(40))
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            (folder / f"{part}.{language}").write_text(lines)
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    monkeypatch.setattr("headwise.text.source.DataFile.lines", _unverified)
    settings = replace(Config(), sets=(), parallel=("multi30k",), pieces=40)
    figures = reproduce("output_relevance/data", settings, tmp_path / "run")
    assert figures["multi30k: texts to train on"].mean == 40
    assert figures["multi30k: median length"].mean >= 6
    assert (
        figures["multi30k: median length of targets"].mean
        == figures["multi30k: median length"].mean
    )


def _unverified(file, folder: Path, *, verify: bool = True) -> list[str]:
    return (folder / file.name).read_text().splitlines()
