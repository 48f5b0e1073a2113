"""What a word is in plain text, and where words stand in it."""

import re
import unicodedata
from collections.abc import Sequence

__all__ = ["characters_for", "first_words", "is_punctuation", "word_spans", "words_in"]

CHARACTERS = 64  # of a text for each token that a model reads; tokens have 4 or 5
FEWEST_CHARACTERS = 2**14  # of any text, if it has so many

# abbreviations, numbers, a word without its n't, n't, other clitics, words, runs of one mark
_WORD = re.compile(
    r"(?:[^\W\d_]\.){2,}|\d+(?:[.,:]\d+)+|\w+?(?=n['\u2019]t\b)|n['\u2019]t\b"
    r"|['\u2019](?:s|m|t|re|ve|ll|d)\b|\w+|\.{2,}|-{2,}|`{2}|'{2}|[^\w\s]",
    re.IGNORECASE,
)
_JOINERS = "\u200c\u200d"  # between letters of one word, in Persian and Hindi for instance


def words_in(text: str) -> list[str]:
    """Words and marks of a text as written, close to what treebanks of English call words.

    Clitics are cut off, numbers and abbreviations stay whole, any other mark stands alone. What
    combines (accents, vowel signs; Unicode's Mn, Mc, Me) and joiners belong to what they follow.

    >>> words_in("Don't tell Tom's U.S. bank (1,900 of 2)...")[:8]
    ['Do', "n't", 'tell', 'Tom', "'s", 'U.S.', 'bank', '(']
    """
    if text.isascii():
        return _WORD.findall(text)
    # words are found in the text without what only follows, and cut out of the text itself
    bases = [place for place in range(len(text)) if not _follows(text, place)]
    begins = [*bases, len(text)]
    found = _WORD.finditer("".join(text[place] for place in bases))
    return [text[begins[match.start()] : begins[match.end()]] for match in found]


def _follows(text: str, place: int) -> bool:
    """Whether a character only continues the one before."""
    character = text[place]
    continues = character in _JOINERS or unicodedata.category(character).startswith("M")
    return continues and place > 0 and not text[place - 1].isspace()


def word_spans(words: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Where each word begins and ends in its text: to find the word of a tokenizer's piece.

    >>> word_spans(["Do", "n't", "go"], "Don't go")
    [(0, 2), (2, 5), (6, 8)]

    Args:
        words: in the order of the text.
        text: holds them all, with or without white space between them.
    """
    spans: list[tuple[int, int]] = []
    end = 0
    for word in words:
        start = text.find(word, end)
        if start < 0:
            raise ValueError(
                f"The word {word!r} was wanted after character {end} of {text[:40]!r}, but is not "
                "there; give the words in the order of their text."
            )
        end = start + len(word)
        spans.append((start, end))
    return spans


def is_punctuation(word: str) -> bool:
    """Whether a word is punctuation or a symbol: it has neither letter nor digit.

    >>> [is_punctuation(word) for word in (",", "--", "$", "n't", "7")]
    [True, True, True, False, False]
    """
    return not any(map(str.isalnum, word))


def characters_for(tokens: int) -> int:
    """Return how much of a text is enough for a model that reads so many tokens of it.

    Tokenizers need much memory for long texts, also where they cut them to a few tokens.
    """
    return max(CHARACTERS * tokens, FEWEST_CHARACTERS)


def first_words(text: str, characters: int) -> str:
    """Return the words that lie within so many characters; of one longer word the beginning."""
    if len(text) <= characters:
        return text
    first = text[:characters]
    parts = first.rsplit(maxsplit=1)
    return first if text[characters].isspace() or len(parts) < 2 else parts[0]
