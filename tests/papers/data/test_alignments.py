"""Gold word alignments."""

import hashlib

import pytest

from headwise_papers.data.annotations import ALIGNMENTS, read_alignments


def write(folder, name, *lines):
    path = folder / ALIGNMENTS[name].name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_sure_and_possible_links_are_counted_from_zero(tmp_path):
    write(tmp_path, "hansards-447", "we do not know .\tnous ne savons pas .\t1-1 4-3 3p2 3-4 5-5")
    (pair,) = read_alignments("hansards-447", folder=tmp_path, verify=False)
    assert pair.source[3] == "know" and pair.target[2] == "savons"
    assert pair.sure == {(0, 0), (2, 3), (3, 2), (4, 4)}
    assert pair.possible == pair.sure | {(1, 2)}


def test_french_may_be_the_source(tmp_path):
    write(tmp_path, "europarl-golden-100", "the minutes\tle procès - verbal\t0-0 1-1 1-2 1-3")
    (pair,) = read_alignments("europarl-golden-100", source="fr", folder=tmp_path, verify=False)
    assert (pair.source[1], pair.target[1]) == ("procès", "minutes")
    assert pair.sure == pair.possible == {(0, 0), (1, 1), (1, 2), (1, 3)}


@pytest.mark.parametrize("links", ["3-1", "0-1", "1-4", "1_1", "one"])
def test_links_to_words_that_are_not_there_are_refused(tmp_path, links):
    write(tmp_path, "hansards-447", "yes .\toui .\t1-1 2-2", f"yes .\toui .\t{links}")
    with pytest.raises(ValueError, match=r"hansards-447.tsv, line 2: .*links such as 3-4"):
        read_alignments("hansards-447", folder=tmp_path, verify=False)


def test_other_names_languages_and_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'hansards-447'"):
        read_alignments("hansards-474")
    with pytest.raises(ValueError, match="source must be 'en' or 'fr', got 'de'"):
        read_alignments("hansards-447", source="de")
    with pytest.raises(ValueError, match=r"There is no word-align-en-fr/.*neulab/awesome-align"):
        read_alignments("hansards-447", folder=tmp_path)
    write(tmp_path, "hansards-447", "yes .\toui .\t1-1")
    with pytest.raises(ValueError, match="damaged or another version"):
        read_alignments("hansards-447", folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "size", "checksum"),
    [
        ("hansards-447", 447, "c133a1f2b0bbd4e3"),
        ("europarl-golden-100", 100, "a929117db88fbe26"),
    ],
)
def test_real_sets_are_the_stated_ones(data_folder, name, size, checksum):
    packed = ALIGNMENTS[name].path(data_folder).read_bytes()
    assert hashlib.sha256(packed).hexdigest()[:16] == checksum
    pairs = read_alignments(name, folder=data_folder)
    assert len(pairs) == size and all(pair.sure <= pair.possible for pair in pairs)
    extra = sum(len(pair.possible) - len(pair.sure) for pair in pairs)
    assert (extra > 0) == (name == "hansards-447")
