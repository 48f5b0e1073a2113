"""Words of plain text and their character spans."""

import re
import unicodedata
from collections.abc import Sequence

CHARACTERS = 64  # kept per token that a model reads; a token has 4 or 5 on average
MIN_CHARACTERS = 2**14  # kept of any text

# abbreviations, numbers, a word without its n't, n't, other clitics, words, runs of punctuation
_WORD = re.compile(
    r"(?:[^\W\d_]\.){2,}|\d+(?:[.,:]\d+)+|\w+?(?=n['\u2019]t\b)|n['\u2019]t\b"
    r"|['\u2019](?:s|m|t|re|ve|ll|d)\b|\w+|\.{2,}|-{2,}|`{2}|'{2}|[^\w\s]",
    re.IGNORECASE,
)
_JOINERS = "\u200c\u200d"  # between letters of one word, in Persian and Hindi for instance


def words_in(text: str) -> list[str]:
    """Split a text into words and punctuation, close to the tokens of English treebanks.

    Clitics are split off, numbers and abbreviations stay whole, other punctuation is single.
    Combining characters (Unicode's Mn, Mc, Me) and joiners belong to the character before.

    >>> words_in("Don't tell Tom's U.S. bank (1,900 of 2)...")[:8]
    ['Do', "n't", 'tell', 'Tom', "'s", 'U.S.', 'bank', '(']
    """
    if text.isascii():
        return _WORD.findall(text)
    # match without combining characters, then cut the words out of the text itself
    bases = [place for place in range(len(text)) if not _follows(text, place)]
    begins = [*bases, len(text)]
    found = _WORD.finditer("".join(text[place] for place in bases))
    return [text[begins[match.start()] : begins[match.end()]] for match in found]


def _follows(text: str, place: int) -> bool:
    """Return whether a character combines with the one before."""
    character = text[place]
    continues = character in _JOINERS or unicodedata.category(character).startswith("M")
    return continues and place > 0 and not text[place - 1].isspace()


def word_spans(words: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Return the character span of each word in its text.

    >>> word_spans(["Do", "n't", "go"], "Don't go")
    [(0, 2), (2, 5), (6, 8)]

    Args:
        words: in the order of the text.
        text: contains all words, with or without white space between them.
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
    """Return whether a word is punctuation or a symbol, without letters and digits.

    >>> [is_punctuation(word) for word in (",", "--", "$", "n't", "7")]
    [True, True, True, False, False]
    """
    return not any(map(str.isalnum, word))


def characters_for(tokens: int) -> int:
    """Return how many characters of a text are enough for this number of tokens.

    Tokenizers need much memory for long texts, even if they truncate them to a few tokens.
    """
    return max(CHARACTERS * tokens, MIN_CHARACTERS)


def first_words(text: str, characters: int) -> str:
    """Truncate a text at a word boundary; a longer word is cut."""
    if len(text) <= characters:
        return text
    first = text[:characters]
    parts = first.rsplit(maxsplit=1)
    return first if text[characters].isspace() or len(parts) < 2 else parts[0]
