import pytest

from headwise.text.frequencies import WordRanks

SENTENCES = [["The", "dog", "saw", "the", "cat"], ["the", "cat", "slept"]]


def test_ranks_count_the_words_that_are_more_common():
    ranks = WordRanks.count(iter(SENTENCES))
    assert [ranks.rank(word) for word in ("the", "THE", "cat", "dog", "saw")] == [0, 0, 1, 2, 2]
    assert ranks.rank("zebra") == len(ranks.counts) == 5


def test_words_as_written_keep_their_case():
    ranks = WordRanks.count(SENTENCES, lower=False)
    assert ranks.counts["the"] == 2 and ranks.counts["The"] == 1
    assert ranks.rank("The") > ranks.rank("the")


def test_counts_survive_a_file(tmp_path):
    ranks = WordRanks.count([*SENTENCES, ["naïve", "кот"]])
    ranks.save(tmp_path / "counts.json")
    assert WordRanks.load(tmp_path / "counts.json") == ranks
    assert [path.name for path in tmp_path.iterdir()] == ["counts.json"]


def test_what_holds_no_counts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="hold none"):
        WordRanks.count([])
    with pytest.raises(ValueError, match="There are no word counts"):
        WordRanks.load(tmp_path / "absent.json")
    for text in ("[]", "{}", '{"counts": {"a": "b"}, "lower": true}', "no JSON"):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(ValueError, match="holds no word counts"):
            WordRanks.load(tmp_path / "wrong.json")
