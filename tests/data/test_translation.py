import lzma

import pytest

from headwise.data.translation import median_lengths, read_parallel_texts, read_translation

PAIRS = [(f"der hund sah {word}", f"the dog saw {word}") for word in ("rot", "blau", "alt", "neu")]


@pytest.fixture
def small(tmp_path):
    """A data folder with both corpora, all parts alike."""
    for folder, stems in {
        "multi30k": ("train", "val", "test_2016_flickr"),
        "iwslt14-de-en": ("train-subset", "valid", "test"),
    }.items():
        (tmp_path / folder).mkdir()
        for stem in stems:
            for place, language in enumerate(("de", "en")):
                text = "".join(f"{pair[place]}\n" for pair in PAIRS)
                path = tmp_path / folder / f"{stem}.{language}.xz"
                path.write_bytes(lzma.compress(text.encode()))
    return tmp_path


@pytest.mark.parametrize("name", ["multi30k", "iwslt14"])
def test_lines_of_both_sides_stay_together(small, name):
    texts = read_parallel_texts(name, folder=small, verify=False)
    assert list(zip(*texts.train, strict=True)) == PAIRS
    assert texts.train == texts.valid == texts.test
    other = read_parallel_texts(name, "en", "de", folder=small, verify=False)
    assert other.train == (texts.train.target, texts.train.source)


def test_pairs_become_numbers_of_shared_pieces(small):
    data = read_translation("multi30k", folder=small, vocabulary=60, verify=False)
    for (source, target), pair in zip(data.train, PAIRS, strict=True):
        assert (data.pieces.decode(source), data.pieces.decode(target)) == pair
    assert data.train[0][0][-1] == data.train[0][1][-1]  # the last piece of "rot" on both sides
    again = read_translation("multi30k", folder=small, pieces=data.pieces, verify=False)
    assert again == data


def test_medians_are_those_of_each_side():
    assert median_lengths([([1], [1, 2]), ([1, 2], [1, 2]), ([1, 2, 3], [3])]) == (2.0, 2.0)


def test_the_whole_training_set_is_read_where_it_is_there(small):
    for language in ("de", "en"):
        (small / f"iwslt14-de-en/train.{language}").write_text("eins\nzwei\n")
    assert read_parallel_texts("iwslt14", folder=small, verify=False).train.source[1] == "zwei"
    with pytest.raises(ValueError, match="has 2 lines, but 160239 were wanted"):
        read_parallel_texts("iwslt14", folder=small)


def test_pairs_with_an_empty_side_are_left_out_and_uneven_sides_refused(small):
    path = small / "multi30k/train.de"
    path.write_text("eins\n \ndrei\nvier\n")
    assert len(read_parallel_texts("multi30k", folder=small, verify=False).train.source) == 3
    path.write_text("eins\nzwei\n")
    with pytest.raises(ValueError, match=r"train.de has 2 lines, but train.en has 4"):
        read_parallel_texts("multi30k", folder=small, verify=False)


def test_other_and_missing_files_are_refused(small):
    with pytest.raises(ValueError, match="damaged or another version"):
        read_parallel_texts("multi30k", folder=small)
    (small / "multi30k/val.de.xz").unlink()
    with pytest.raises(ValueError, match=r"There is no multi30k/val.de .*make it from data/task1"):
        read_parallel_texts("multi30k", folder=small, verify=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("multi30", "de", "en"), "Did you mean 'multi30k'"),
        (("iwslt14", "fr", "en"), "has the languages de, en"),
        (("multi30k", "en", "en"), "got 'en' and 'en'"),
    ],
)
def test_wrong_names_are_said(small, given, said):
    with pytest.raises(ValueError, match=said):
        read_parallel_texts(*given, folder=small)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("multi30k", [29_000, 1014, 1000]), ("iwslt14", [17_652, 7283, 6750])],
)
def test_real_corpora_have_the_published_sizes(data_folder, name, sizes):
    texts = read_parallel_texts(name, folder=data_folder)
    assert [len(part.source) for part in (texts.train, texts.valid, texts.test)] == sizes


@pytest.mark.slow
def test_real_sentences_survive_their_pieces(data_folder):
    data = read_translation("multi30k", folder=data_folder)
    assert len(data.pieces) == 8000 and len(data.train) == 29_000
    texts = read_parallel_texts("multi30k", folder=data_folder)
    same = [data.pieces.decode(ids) == text.strip() for (ids, _), text in
            zip(data.valid, texts.valid.source, strict=True)]  # fmt: skip
    assert sum(same) > 0.95 * len(same)
