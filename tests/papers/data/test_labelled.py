import json
import lzma

import pytest

from headwise_papers.data.classification import (
    read_labelled,
    statistics,
    without_wrapping,
    words_and_punctuation,
)
from headwise_papers.data.vocabulary import UNK

SIZES = {  # training texts before 400 were pulled out, test texts published
    "sst": 6920,
    "ag_news": 9432,
    "newsgroups": 1193,  # of 597 + 600, four are nothing but quotations
    "yelp": 126_663,  # of 126,670, seven have no letter or digit
}


@pytest.fixture
def put(tmp_path):
    """Write a file of the data folder, packed if its name says so."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        data = text.encode()
        path.write_bytes(lzma.compress(data) if name.endswith(".xz") else data)

    return write


@pytest.fixture
def small(tmp_path):
    """Read a set of the test's own files."""

    def read(name, **options):
        usual = {"held_out": 2, "keep_copies": True}  # small sets are written as copies of a line
        return read_labelled(name, folder=tmp_path, verify=False, **{**usual, **options})

    return read


def words(read, part="train"):
    return [read.vocabulary.decode(text) for text in getattr(read, part).texts]


def test_imdb_reviews_lose_their_line_breaks_and_rare_words(put, small):
    line = "1\t9\tpos/{0}_9\tGood<br /><br />film, isn't it? rare{0}\n"
    put("imdb/imdb.train.tsv.xz", "".join(line.format(number) for number in range(6)))
    put("imdb/imdb.test.tsv", "0\t1\tneg/0_1\tBad film\n")
    read = small("imdb")
    assert words(read) == [["good", "film", ",", "is", "n't", "it", "?", "<unk>"]] * 4
    assert words(read, "test") == [["<unk>", "film"]]
    assert read.test.labels == [0] and read.train.labels == [1] * 4
    assert read.classes == 2 and read.name == "imdb"


def test_words_seen_fewer_than_three_times_in_the_training_part_are_unknown(put, small):
    put("sst/sst2.train.tsv", "1\tthrice twice\n1\tthrice twice\n1\tthrice .\n1\tfew\n1\tfew\n")
    put("sst/sst2.test.tsv", "1\tthrice\n")
    for seed in range(10):
        read = small("sst", seed=seed)
        train = [word for text in words(read) for word in text]
        known = set(read.vocabulary.words[4:])
        assert known <= {"thrice"} and ("thrice" in known) == (train.count("thrice") == 3)


def test_ag_news_is_world_and_business_without_numbers_and_escapes(put, small):
    line = '{0}\tIt #39;s &lt;A HREF="x"&gt;GOOG&lt;/A&gt; . 25 of\\7  quot;x quot;\tnoisyag_val\n'
    put("ag_news/ag_news.train_subset.tsv", "".join(line.format(n % 4) for n in range(12)))
    put("ag_news/ag_news.test.tsv", "2\tIt\tGOOG\n1\tsport\tgoog\n")
    read = small("ag_news")
    assert words(read)[0] == ["it", "'s", "goog", "<unk>", "of", "7", '"', "x", '"']
    everything = read.train.labels + read.validation.labels
    assert sorted(everything) == [0, 0, 0, 1, 1, 1]
    assert words(read, "test") == [["it", "goog"]] and read.test.labels == [1]


def test_the_published_ag_news_is_read_where_it_is_there(put, small):
    rows = '"1","Wall ""St.""","one, two"\n' * 5 + '"2","sport","x"\n'
    put("ag_news/train.csv", rows)
    put("ag_news/ag_news.test.tsv", "0\ttitle\ttext\n")
    assert words(small("ag_news"))[0] == ["wall", '"', "st", ".", '"', "one", ",", "two"]
    put("ag_news/train.csv", rows + '"5","no","class"\n')
    with pytest.raises(ValueError, match=r"train.csv, row 7: class 1 to 4"):
        small("ag_news")


def test_newsgroup_posts_are_bare_and_split_at_underscores(put, small):
    text = (
        "From: a@b\nSubject: hockey\n\nIn article <1> b writes:\n> old\nthe_puck 1993 5\n--\nMe\n"
    )
    rows = [{"group": f"rec.sport.{sport}", "text": text} for sport in ("hockey", "baseball")]
    lines = "".join(json.dumps(row) + "\n" for row in [*rows * 3, {"group": "sci", "text": "x"}])
    for part in ("train", "test"):
        put(f"newsgroups20/20news-bydate.{part}.jsonl", lines)
    read = small("newsgroups")
    assert words(read) == [["the", "puck", "<unk>", "5"]] * 4
    assert sorted(read.train.labels + read.validation.labels) == [0, 0, 0, 1, 1, 1]
    put("newsgroups20/20news-bydate.test.jsonl", '{"group": 3}\n')
    with pytest.raises(ValueError, match=r"test.jsonl, line 1: a JSON object with group and text"):
        small("newsgroups")


def test_a_ruled_line_far_from_the_end_is_no_signature():
    table = "header\n\nscores\n------\n" + "7 1\n" * 20
    assert without_wrapping(table).count("7 1") == 20
    assert without_wrapping("header\n\nbye\n-----------\nKurt\nin Atlanta") == "bye"


def test_amazon_reviews_of_400_words_are_left_out_and_both_parts_pulled_out(put, small):
    row = "books\t{0}\t5.0\ttitle\t{1}\n"
    texts = ["w " * 399, "w " * 400, *["short &quot;"] * 5]
    put("amazon_mds/amazon_mds.tsv.xz", "".join(row.format(1, text) for text in texts))
    read = small("amazon")
    parts = (read.train, read.validation, read.test)
    assert [len(part.texts) for part in parts] == [2, 2, 2]
    assert sorted(len(text) for part in parts for text in part.texts) == [2] * 5 + [399]


def test_the_whole_amazon_set_is_read_where_it_is_there(put, small, tmp_path):
    put("amazon_mds/amazon_mds.tsv", "books\t1\t5.0\ttitle\tof four domains\n")
    review = "<review>\n<rating>\n{0}\n</rating>\n<title>\nT\n</title>\n"
    review += "<review_text>\nlasts\n&quot;{1}&quot; R&D <br>\n</review_text>\n</review>\n"
    folder = tmp_path / "amazon_mds/unprocessed/sorted_data"
    for domain in ("apparel", "toys_&_games"):
        (folder / domain).mkdir(parents=True)
        for kind, stars in (("positive", (4.0, 5.0)), ("negative", (1.0, 2.0, 3.0))):
            text = "".join(review.format(each, "caf\xe9") for each in stars)
            (folder / domain / f"{kind}.review").write_bytes(text.encode("latin-1"))
        (folder / domain / "unlabeled.review").write_text(review.format(5.0, "unlabelled"))
    read = small("amazon")
    parts = (read.train, read.validation, read.test)
    assert sorted(label for part in parts for label in part.labels) == [0] * 4 + [1] * 4
    assert words(read)[0][:5] == ["lasts", '"', "café", '"', "r"]
    (folder / "apparel/positive.review").write_text("<review><rating>many</rating></review>")
    with pytest.raises(ValueError, match=r"positive.review is no file of reviews"):
        small("amazon")
    for path in folder.rglob("*.review"):
        path.unlink()
    with pytest.raises(ValueError, match=r"neither positive.review nor negative.review"):
        small("amazon")


def test_yelp_trains_on_the_file_test(put, small):
    put("yelp_sentences/yelp.test.tsv", "1\tThe $ _num_ menu !\n" * 5)
    put("yelp_sentences/yelp.dev.tsv", "0\tthe menu\n")
    read = small("yelp")
    assert words(read)[0] == ["the", "$", "_num_", "menu", "!"]
    assert read.test.labels == [0]


def test_yelp_reviews_of_three_stars_are_left_out(put, small, tmp_path):
    reviews = [{"review_id": "x", "stars": float(n % 5 + 1), "text": "ok place"} for n in range(10)]
    name = "yelp_reviews/yelp_academic_dataset_review.json"
    put(name, "".join(json.dumps(review) + "\n" for review in reviews))
    read = small("yelp_reviews")
    labels = read.train.labels + read.validation.labels + read.test.labels
    assert sorted(labels) == [0] * 4 + [1] * 4
    with pytest.raises(ValueError, match="has 8 reviews with other than 3 stars, but 20000"):
        read_labelled("yelp_reviews", folder=tmp_path)
    put(name, '{"stars": "many", "text": ""}\n')
    with pytest.raises(ValueError, match="line 1: a JSON object with stars and text"):
        small("yelp_reviews")
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"ask for it at https://www.yelp.com/dataset"):
        small("yelp_reviews")


@pytest.fixture
def numbered(put):
    put("sst/sst2.train.tsv", "".join(f"{n % 2}\t{'so ' * (n + 1)}word{n} !\n" for n in range(20)))
    put("sst/sst2.test.tsv", "".join(f"0\tso {'so ' * n}\n" for n in range(20)))


def test_the_seed_decides_which_texts_are_held_out(numbered, small):
    assert small("sst") == small("sst")
    assert small("sst").validation != small("sst", seed=1).validation
    read = small("sst", held_out=5)
    lengths = [len(text) for part in (read.train, read.validation) for text in part.texts]
    assert sorted(lengths) == list(range(3, 23))  # each text once
    assert len(read.test.texts) == 5


def test_texts_are_cut_and_rid_of_punctuation_on_request(numbered, small):
    assert max(map(len, small("sst", longest=4).train.texts)) == 4
    assert "!" in small("sst").vocabulary.words
    assert "!" not in small("sst", punctuation=False).vocabulary.words


def test_training_texts_that_equal_a_held_out_text_are_left_out(put, small):
    put("sst/sst2.train.tsv", "1\tGood film\n" * 9 + "".join(f"0\tbad {n}\n" for n in range(9)))
    put("sst/sst2.test.tsv", "0\tgood  film\n")  # another label, space and case: the same words
    train = words(small("sst", keep_copies=False))
    assert train and not [text for text in train if text[0] == "good"]
    assert [text for text in words(small("sst")) if text[0] == "good"]
    put("sst/sst2.train.tsv", "1\tgood film\n" * 9)
    with pytest.raises(ValueError, match="Every training text of sst equals a held-out one"):
        small("sst", keep_copies=False)


def test_statistics_are_those_of_the_training_part(numbered, small):
    read = small("sst")
    lengths = sorted(map(len, read.train.texts))
    assert statistics(read) == (sum(lengths[8:10]) / 2, 18, 20)


def test_texts_without_a_letter_or_digit_are_left_out(put, small):
    put("sst/sst2.train.tsv", "1\t...\n" + "1\tgood\n" * 5)
    put("sst/sst2.test.tsv", "1\t!\n")
    with pytest.raises(ValueError, match="sst has no texts to test on"):
        small("sst")


def test_a_set_too_small_to_hold_texts_out_is_said(numbered, small):
    with pytest.raises(ValueError, match="sst has 20 texts to train on, of which 20 would be"):
        small("sst", held_out=20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "imbd"}, "no labelled set 'imbd'. Did you mean 'imdb'?"),
        ({"name": "sst", "longest": 0}, "longest must be 1 or more, got 0"),
    ],
)
def test_wrong_arguments_are_said(small, options, said):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        small(**options)


@pytest.mark.parametrize("line", ["2\ttext\n", "text\n", "1\ta\tb\n"])
def test_a_bad_label_or_row_is_named(put, small, line):
    put("sst/sst2.train.tsv", "1\tgood\n" + line)
    with pytest.raises(ValueError, match="line 2: label, text were wanted between tabs"):
        small("sst")


def test_empty_missing_and_broken_files_are_said(put, small, tmp_path):
    with pytest.raises(ValueError, match=r"There is no sst/sst2.train.tsv"):
        small("sst")
    put("sst/sst2.train.tsv", "\n")
    with pytest.raises(ValueError, match="holds no text"):
        small("sst")
    (tmp_path / "sst/sst2.train.tsv").write_bytes(b"1\tna\xefve\n")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        small("sst")
    (tmp_path / "sst/sst2.train.tsv").unlink()
    (tmp_path / "sst/sst2.train.tsv.xz").write_bytes(lzma.compress(b"1\tgood\n" * 99)[:-20])
    with pytest.raises(ValueError, match="not a whole xz file"):
        small("sst")


def test_every_character_but_white_space_is_in_a_token():
    text = "It's _so_ «good» — isn't it, 3.5/5?"
    assert "".join(words_and_punctuation(text)) == "".join(text.lower().split())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("yelp", "ag_news"))) for n in SIZES]
)
def test_real_sets_have_the_published_sizes(data_folder, name):
    read = read_labelled(name, folder=data_folder, keep_copies=True)
    assert statistics(read).with_validation == SIZES[name]
    assert len(read.validation.texts) == len(read.test.texts) == 400
    assert {*read.train.labels} == {*read.test.labels} == {0, 1}
    assert all(read.train.texts) and all(read.test.texts)
    unknown = sum(text.count(UNK) for text in read.test.texts)
    assert 0 < unknown < sum(map(len, read.test.texts)) / 5


def test_the_amazon_reviews_are_those_of_fewer_than_400_words(data_folder):
    read = read_labelled("amazon", folder=data_folder, keep_copies=True)
    parts = (read.train, read.validation, read.test)
    assert sum(len(part.texts) for part in parts) == 7377
    assert max(len(text) for part in parts for text in part.texts) == 399


def test_no_amazon_review_is_both_learnt_and_tested(data_folder):
    read = read_labelled("amazon", folder=data_folder)
    learnt = {tuple(text) for text in read.train.texts}
    assert len(read.train.texts) == 6577 - 31
    assert not [text for text in read.test.texts if tuple(text) in learnt]


@pytest.mark.slow
def test_imdb_has_the_published_size(data_folder):
    read = read_labelled("imdb", folder=data_folder, keep_copies=True)
    assert statistics(read).with_validation == 25_000
