import pytest

from headwise.text.words import is_punctuation, word_spans, words_in


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I can't, she's 7.", ["I", "ca", "n't", ",", "she", "'s", "7", "."]),
        (
            "At 10:30 the U.S. paid $1,900.50...",
            ["At", "10:30", "the", "U.S.", "paid", "$", "1,900.50", "..."],
        ),
        ("Doesn 't it ?", ["Doesn", "'t", "it", "?"]),
        ("WON\u2019T \u2014 Да, шёл!", ["WO", "N\u2019T", "\u2014", "Да", ",", "шёл", "!"]),
        ("  \t", []),
        ("re\u0301sume\u0301s, cafe\u0301!", ["re\u0301sume\u0301s", ",", "cafe\u0301", "!"]),
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u0939\u0948\u0964",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u0948", "\u0964"],
        ),
        ("\u0645\u06cc\u200c\u0631\u0648\u0645", ["\u0645\u06cc\u200c\u0631\u0648\u0645"]),
        ("I \u2764\ufe0f it", ["I", "\u2764\ufe0f", "it"]),
        ("\u0301a \u0301\u0301", ["\u0301", "a", "\u0301\u0301"]),  # on nothing
    ],
)
def test_words_are_cut_as_treebanks_do(text, words):
    assert words_in(text) == words


def test_no_letter_is_lost_or_moved():
    text = "Mr. O'Brien's dog -- a Lab-mix -- weighed 30.5kg (or so), didn't it?"
    words = words_in(text)
    assert "".join(words) == text.replace(" ", "")
    assert [text[start:end] for start, end in word_spans(words, text)] == words


def test_a_word_that_is_not_in_the_text_is_refused():
    with pytest.raises(ValueError, match="'cat' was wanted after character 3"):
        word_spans(["dog", "cat"], "dog")


def test_a_mark_has_neither_letter_nor_digit():
    assert all(map(is_punctuation, (".", "...", "\u00ab", "%")))
    assert not any(map(is_punctuation, ("a.", "3", "ш", "'s")))
