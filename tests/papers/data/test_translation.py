import hashlib
import itertools
import lzma

import pytest

from headwise_papers.data.subword import CodecPair
from headwise_papers.data.translation import (
    CORPORA,
    bare,
    corpus_file,
    median_lengths,
    plain_text,
    read_parallel_texts,
    read_part,
    read_translation,
    split_pairs,
)

PAIRS = [(f"der hund sah {word}", f"the dog saw {word}") for word in ("rot", "blau", "alt", "neu")]


def write(folder, path, lines, *, packed=True):
    """A file of lines below a data folder."""
    text = "".join(f"{line}\n" for line in lines).encode()
    place = folder / (f"{path}.xz" if packed else path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(lzma.compress(text) if packed else text)


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
    with pytest.raises(ValueError, match=r"train.de has 2 lines, but .*train.en has 4"):
        read_parallel_texts("multi30k", folder=small, verify=False)


def test_other_and_missing_files_are_refused(small):
    with pytest.raises(ValueError, match="damaged or another version"):
        read_parallel_texts("multi30k", folder=small)
    (small / "multi30k/val.de.xz").unlink()
    with pytest.raises(ValueError, match=r"There is no multi30k/val.de .*make it from data/task1"):
        read_parallel_texts("multi30k", folder=small, verify=False)


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("iwslt15", "en", "vi"),
        ("wmt14", "de", "en"),
        ("tatoeba", "fr", "en"),
        ("libreoffice-help", "en", "om"),
        ("europarl", "fr", "de"),
        ("msdocs", "ru", "en"),
        ("freesoft", "en", "fr"),
    ],
)
def test_each_corpus_is_read_from_its_documented_files(tmp_path, name, source, target):
    for number, part in enumerate(CORPORA[name].parts):
        for language in (source, target):
            file = corpus_file(name, part, language, pair=(target, source))
            write(tmp_path, file.name, [f"{part} {language} {n}" for n in range(number + 1)])
    texts = read_parallel_texts(name, source, target, folder=tmp_path, verify=False)
    for number, part in enumerate((texts.train, texts.valid, texts.test)):
        stem = CORPORA[name].parts[number]
        assert part.source == [f"{stem} {source} {n}" for n in range(number + 1)]
        assert part.target == [f"{stem} {target} {n}" for n in range(number + 1)]


def test_a_published_file_of_another_length_is_refused(tmp_path):
    for language in ("en", "de"):
        write(tmp_path, f"wmt14-en-de/train.{language}", ["one"], packed=False)
    with pytest.raises(ValueError, match=r"has 1 lines, but 4468840 were wanted; .*stanford"):
        read_part("wmt14", "train", "en", "de", folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wmt14", r"no wmt14-en-de/train.en .*make it from nlp.stanford.edu"),
        ("iwslt15", r"no iwslt15-en-vi/train.en .*make it from nlp.stanford.edu"),
        ("tatoeba", r"no tatoeba-en-de/train.en .*manythings.org/anki"),
        ("libreoffice-help", r"no libreoffice-help/en-de/train.en.txt .*LibreOffice 7.4"),
        ("europarl", r"no europarl-en-de-fr/train.en .*Multilingual-Parallel-Direct-Europarl"),
        ("msdocs", r"no msdocs-en-ru/train.en .*live-sxs of MicrosoftDocs/Dynamics-365"),
        ("freesoft", r"no freesoft-en-de/train.en .*debian-webwml at 80cd9461d384"),
    ],
)
def test_a_missing_file_says_where_it_comes_from(tmp_path, name, said):
    with pytest.raises(ValueError, match=said):
        read_parallel_texts(name, "en", CORPORA[name].languages[1], folder=tmp_path)


def test_other_parts_are_read_on_request(small):
    for language, text in (("en", "A dog ."), ("de", "Ein Hund .")):
        write(small, f"multi30k/test_2017_mscoco.{language}", [text])
    lines = read_part("multi30k", "test_2017_mscoco", "en", "de", folder=small, verify=False)
    assert lines == (["A dog ."], ["Ein Hund ."])
    plain = read_part(
        "multi30k", "test_2017_mscoco", "en", "de", folder=small, verify=False, plain=True
    )
    assert plain == (["A dog."], ["Ein Hund."])
    with pytest.raises(ValueError, match=r"no part 'test_2017'. Did you mean 'test_2017"):
        read_part("multi30k", "test_2017", "en", "de", folder=small)


@pytest.mark.parametrize(
    ("tokenised", "plain"),
    [
        ("Hello , world !", "Hello, world!"),
        ("&quot; Yes , &quot; he said .", '"Yes," he said.'),
        ("the boat &apos;s end ( in 1975 ) .", "the boat's end (in 1975)."),
        ("a well @-@ known 3.5 % &amp; more ...", "a well-known 3.5% & more..."),
        ("Plain text, as it is.", "Plain text, as it is."),
    ],
)
def test_tokenisation_is_undone(tokenised, plain):
    assert plain_text(tokenised) == plain
    assert plain_text(plain) == plain


SIZES = {"train": 348, "valid": 136, "test": 116}
PHRASES = [(f"Sentence {n // 2}!", f"Satz {n - n // 3 % 2}") for n in range(600)]


def test_a_split_cuts_no_sentence_and_knows_no_order():
    parts = split_pairs(PHRASES, valid=0.2, test=0.2)
    assert sorted(pair for part in parts.values() for pair in part) == sorted(PHRASES)
    assert all(len(part) > 40 for part in parts.values())
    for side in (0, 1):
        words = [{bare(pair[side]) for pair in part} for part in parts.values()]
        assert not words[0] & words[1] and not words[0] & words[2] and not words[1] & words[2]
    backwards = split_pairs(PHRASES[::-1], valid=0.2, test=0.2)
    assert {name: part[::-1] for name, part in backwards.items()} == parts
    # a part is what it was: the hash may not change from release to release
    assert {name: len(part) for name, part in parts.items()} == SIZES


def test_case_and_marks_do_not_make_another_sentence():
    pairs = [(f"{text}{mark}", f"{number}{mark}x") for number, text in enumerate("abcdefgh")
             for mark in ("", "!", "?")]  # fmt: skip
    for part in split_pairs(pairs, valid=0.3, test=0.3).values():
        assert len(part) % 3 == 0


def test_shares_beyond_the_whole_are_refused():
    with pytest.raises(ValueError, match=r"shares below 1 together, got 0.5 and 0.6"):
        split_pairs(PHRASES, valid=0.5, test=0.6)


def test_only_the_first_training_pairs_are_taken_on_request(small):
    texts = read_parallel_texts("multi30k", folder=small, verify=False, train_pairs=2)
    assert texts.train.source == [source for source, _ in PAIRS[:2]]
    assert len(texts.valid.source) == len(PAIRS)
    data = read_translation("multi30k", folder=small, verify=False, train_pairs=3)
    assert len(data.train) == 3 and len(data.test) == len(PAIRS)
    for pairs in (0, 5):
        with pytest.raises(ValueError, match=f"from 1 to the 4 training pairs .* got {pairs}"):
            read_parallel_texts("multi30k", folder=small, verify=False, train_pairs=pairs)


def test_an_export_of_tatoeba_is_split(tmp_path):
    rows = [f"{english}\t{german}\tCC-BY" for english, german in PHRASES]
    write(tmp_path, "tatoeba-en-de/deu.txt", rows, packed=False)
    texts = read_parallel_texts("tatoeba", "en", "de", folder=tmp_path)
    parts = split_pairs(PHRASES)
    assert list(zip(*texts.train, strict=True)) == parts["train"]
    assert list(zip(*texts.test, strict=True)) == parts["test"]
    other = read_parallel_texts("tatoeba", "de", "en", folder=tmp_path)
    assert other.test == (texts.test.target, texts.test.source)
    write(tmp_path, "tatoeba-en-de/deu.txt", [*rows, "no tab"], packed=False)
    with pytest.raises(ValueError, match="line 601: English, a tab and its translation"):
        read_parallel_texts("tatoeba", "en", "de", folder=tmp_path)


def test_each_language_may_have_pieces_of_its_own(small, tmp_path):
    data = read_translation("multi30k", folder=small, vocabulary=40, joint=False, verify=False)
    assert data.both.source != data.both.target and not data.both.joint
    source, target = data.train[0]
    assert (data.both.source.decode(source), data.both.target.decode(target)) == PAIRS[0]
    data.both.save(tmp_path / "run")
    kept = CodecPair.load(tmp_path / "run")
    assert kept == data.both
    again = read_translation("multi30k", folder=small, pieces=kept, verify=False)
    assert again == data
    lines = read_parallel_texts("multi30k", folder=small, verify=False).test
    assert data.encode(lines) == data.test


def test_joint_pieces_are_kept_in_one_file(small, tmp_path):
    data = read_translation("multi30k", folder=small, vocabulary=60, kind="bpe", verify=False)
    data.both.save(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["pieces.model"]
    kept = CodecPair.load(tmp_path / "run")
    assert kept.joint and kept.target == data.pieces


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("tatoeba", "de", "fr"), "one of them en; got 'de' and 'fr'"),
        (("multi30", "de", "en"), "Did you mean 'multi30k'"),
        (("iwslt14", "fr", "en"), "has the languages de, en"),
        (("multi30k", "en", "en"), "got 'en' and 'en'"),
    ],
)
def test_wrong_names_are_said(small, given, said):
    with pytest.raises(ValueError, match=said):
        read_parallel_texts(*given, folder=small)


@pytest.mark.parametrize(
    ("name", "pair", "sizes"),
    [
        ("multi30k", ("de", "en"), [29_000, 1014, 1000]),
        ("iwslt14", ("de", "en"), [17_652, 7283, 6750]),
        ("tatoeba", ("en", "de"), [164_812, 2000, 3001]),
        ("tatoeba", ("fr", "en"), [161_979, 2000, 3000]),
        ("tatoeba", ("en", "ru"), [46_085, 1000, 2001]),
        ("opensubtitles", ("en", "ru"), [10_678, 500, 1000]),
        ("libreoffice-help", ("en", "vi"), [15_356, 977, 1198]),
        ("libreoffice-help", ("de", "en"), [31_717, 2033, 2944]),
    ],
)
def test_real_corpora_have_the_published_sizes(data_folder, name, pair, sizes):
    texts = read_parallel_texts(name, *pair, folder=data_folder)
    assert [len(part.source) for part in (texts.train, texts.valid, texts.test)] == sizes


def test_real_corpora_of_equal_size_are_the_first_pairs_to_train_on(data_folder):
    for target in ("de", "fr", "ru"):
        texts = read_parallel_texts("tatoeba", "en", target, folder=data_folder, train_pairs=46_085)
        assert len(texts.train.source) == len(texts.train.target) == 46_085
        assert len(texts.valid.source) >= 1000


def test_real_subtitles_can_be_read_as_people_write_them(data_folder):
    lines = read_parallel_texts("opensubtitles", "en", "ru", folder=data_folder, plain=True).test
    for side in lines:
        apart = [
            line for line in side if any(f" {mark}" in line for mark in (",", "?", "'s", "'t"))
        ]
        assert len(apart) < 0.03 * len(side)  # clitics before a mark stay apart


def test_real_tests_out_of_the_domain_have_the_published_sizes(data_folder):
    for part, size in (("tst2012", 1553), ("tst2013", 1268)):
        lines = read_part("iwslt15", part, "en", "vi", folder=data_folder, plain=True)
        assert len(lines.source) == len(lines.target) == size
        assert not any("&apos;" in line or " ," in line for line in lines.source)


@pytest.mark.slow
def test_no_sentence_of_tatoeba_is_in_two_parts(data_folder):
    texts = read_parallel_texts("tatoeba", "en", "de", folder=data_folder)
    for side in (0, 1):
        trained = set(map(bare, texts.train[side]))
        assert not trained & set(map(bare, texts.test[side]))
        assert not trained & set(map(bare, texts.valid[side]))


@pytest.mark.slow
def test_real_sentences_survive_their_pieces(data_folder):
    data = read_translation("multi30k", folder=data_folder)
    assert len(data.pieces) == 8000 and len(data.train) == 29_000
    texts = read_parallel_texts("multi30k", folder=data_folder)
    same = [data.pieces.decode(ids) == text.strip() for (ids, _), text in
            zip(data.valid, texts.valid.source, strict=True)]  # fmt: skip
    assert sum(same) > 0.95 * len(same)


# lines of valid and test, and the first 16 hex digits of the SHA-256 of the packed files
MADE = {
    ("europarl", "en-de-fr"): {
        "valid": (1963, "66c46e2c786d5e7d", "3f234c3fbff71b57", "17704255b1bb5036"),
        "test": (2993, "46ab4dcba934f64f", "7fee9cb3bee6ef7f", "81fd87238eb71ef0"),
    },
    ("msdocs", "en-ru"): {
        "valid": (2004, "3650f54075ded519", "e1a266f38bf7b79d"),
        "test": (3047, "3175a018cdc5f924", "8b3cf3eae2da3476"),
    },
    ("freesoft", "en-ru"): {
        "valid": (1655, "25303b05b5c7a434", "6f12c4efbaef2e4d"),
        "test": (2002, "a4d4527dd44cfaca", "121778d51a6f49d0"),
    },
    ("freesoft", "en-de"): {
        "valid": (1507, "898181e38041524f", "80054ba75e39c724"),
        "test": (2140, "041c53749b1707eb", "c3e683619f49f647"),
    },
    ("freesoft", "en-fr"): {
        "valid": (1521, "f0fb3ff9b18c3eb5", "8ef3477a3b685171"),
        "test": (2053, "e4a9236cb0bb94b2", "e208378735104f10"),
    },
}


@pytest.mark.parametrize(("name", "languages"), MADE)
def test_real_held_out_parts_are_the_stated_ones(data_folder, name, languages):
    every = languages.split("-")
    for part, (size, *packed) in MADE[name, languages].items():
        for language, checksum in zip(every, packed, strict=True):
            path = corpus_file(name, part, language, pair=every[:2]).path(data_folder)
            assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] == checksum
        for source, target in itertools.combinations(every, 2):
            lines = read_part(name, part, source, target, folder=data_folder)
            assert len(lines.source) == len(lines.target) == size


def test_every_file_of_the_new_corpora_has_a_checksum():
    for name, languages in MADE:
        every = languages.split("-")
        files = [
            corpus_file(name, part, language, pair=every[:2])
            for part in CORPORA[name].parts
            for language in every
        ]
        assert all(len(file.sha256) == 64 for file in files)
