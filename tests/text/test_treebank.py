import gzip
import lzma

import pytest

from headwise.text.treebank import read_treebank


def row(ident, form, head="_", relation="_", *, tag="X", remarks="_"):
    return "\t".join([ident, form, "_", tag, "_", "_", head, relation, "_", remarks])


DOES_NOT_GO = [
    "# text = Tom doesn't go.",
    row("1", "Tom", "4", "nsubj", tag="PROPN"),
    row("2-3", "doesn't"),
    row("2", "does", "4", "aux"),
    row("3", "n't", "4", "advmod"),
    row("4", "go", "0", "root", tag="VERB", remarks="SpaceAfter=No"),
    row("4.1", "there"),
    row("5", ".", "4", "punct"),
]
IM_HAUS = [
    row("1-2", "Im"),
    row("1", "In", "3", "case", tag="ADP"),
    row("2", "dem", "3", "det", tag="DET"),
    row("3", "Haus", "4", "obl"),
    row("4", "bleibt", "0", "root"),
]


@pytest.fixture
def write(tmp_path):
    def written(*sentences, name="a.conllu"):
        text = "".join("".join(f"{line}\n" for line in lines) + "\n" for lines in sentences)
        pack = {".xz": lzma.compress, ".gz": gzip.compress}.get(name[-3:], lambda raw: raw)
        (tmp_path / name).write_bytes(pack(text.encode()))
        return tmp_path / name

    return written


def test_a_token_made_up_of_its_words_is_cut_into_them(write):
    (tree,) = read_treebank(write(DOES_NOT_GO))
    assert tree.words == ("Tom", "does", "n't", "go", ".")
    assert tree.heads == (3, 3, 3, -1, 3)
    assert tree.relations == ("nsubj", "aux", "advmod", "root", "punct")
    assert tree.tags[0] == "PROPN" and tree.tags[3] == "VERB"
    assert tree.text == "Tom doesn't go."
    assert [tree.text[start:end] for start, end in tree.spans] == list(tree.words)


def test_a_contracted_token_stays_one_word_with_the_head_outside_it(write):
    (tree,) = read_treebank(write(IM_HAUS))
    assert tree.words == ("Im", "Haus", "bleibt") and tree.text == "Im Haus bleibt"
    assert tree.heads == (1, 2, -1)
    assert tree.relations[0] == "case" and tree.tags[0] == "ADP"


def test_what_depends_on_a_word_inside_a_token_depends_on_the_token(write):
    rows = [
        row("1", "schon", "3", "advmod"),
        row("2-3", "zumal"),
        row("2", "zu", "3", "case"),
        row("3", "dem", "0", "root"),
    ]
    (tree,) = read_treebank(write(rows))
    assert tree.words == ("schon", "zumal") and tree.heads == (1, -1)


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.xz", "a.conllu.gz"])
def test_packed_files_are_read_and_the_last_empty_line_may_be_missing(write, name):
    path = write(DOES_NOT_GO, IM_HAUS, name=name)
    assert [len(tree.words) for tree in read_treebank(path)] == [5, 3]
    bare = write(DOES_NOT_GO)
    bare.write_text("\ufeff" + bare.read_text().strip())
    assert len(list(read_treebank(bare))) == 1


def test_trees_are_read_one_at_a_time(write):
    trees = read_treebank(write(DOES_NOT_GO, ["broken"]))
    assert len(next(trees).words) == 5
    with pytest.raises(ValueError, match=r"a.conllu, line 10: 10 columns .* got 1"):
        next(trees)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row("one", "a", "0")], "line 1: a word's number such as 3, 3-4 or 3.1 .* got 'one'"),
        ([row("1", "a", "_")], "line 1: the number of the head of 'a' was wanted, got '_'"),
        ([row("1", "a", "2")], "line 1: the head of word 1 .* 1 words or 0, got 2"),
        ([row("1", "a", "1")], "line 1: the head of word 1"),
        ([row("1", "a", "0"), row("3", "b", "1")], "line 2: word 2 .* was wanted, got word 3"),
        ([row("1-3", "ab"), row("1", "a", "0"), row("2", "b", "1")], "line 1: the multiword token"),
        (["# nothing"], "holds no sentence"),
    ],
)
def test_malformed_files_are_refused_with_the_line(write, rows, said):
    with pytest.raises(ValueError, match=said):
        list(read_treebank(write(rows)))


def test_files_that_cannot_be_read_are_said(write, tmp_path):
    with pytest.raises(ValueError, match="There is no treebank"):
        read_treebank(tmp_path / "absent.conllu")
    for name in ("a.conllu.xz", "a.conllu.gz"):
        path = write(DOES_NOT_GO, name=name)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=r"is not a whole \.[xg]z file"):
            list(read_treebank(path))
    path = tmp_path / "b.conllu"
    path.write_bytes(b"# fine\n\xff\n")
    with pytest.raises(ValueError, match=r"b.conllu, line 2: UTF-8"):
        list(read_treebank(path))
