"""Where a guided head should look (Deshpande & Narasimhan, 2020, §3.2)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from headwise.config import suggestion
from headwise.ops.checks import check_whole_number

NAMES = ("next", "prev", "first", "delim", "period", "tokens", "offset")
OFFSETS = {"next": 1, "prev": -1}
OF_TOKENS = ("delim", "period", "tokens")


@dataclass(frozen=True)
class Aim:
    """Where one head should look: made by `pattern`. Without offset and tokens, the first key.

    Only keys that a query may see count, so a text's last token has no next one, wherever the text
    ends: at the end of the row, before padding, or before the next text of the row. The first key
    is that of the text that the query belongs to.
    """

    name: str
    offset: int | None = None  # the key at the query's position + offset
    tokens: tuple[int, ...] = ()  # the keys that hold one of these tokens, evenly

    @property
    def label(self) -> str:
        """How it is told from others.

        >>> pattern("next").label, pattern("offset", offset=-2).label
        ('next', 'offset -2')
        """
        if self.name == "offset":
            return f"{self.name} {self.offset}"
        return f"{self.name} {self.tokens}" if self.name == "tokens" else self.name


def pattern(name: str, *, tokens: Iterable[int] = (), offset: int | None = None) -> Aim:
    """A pattern by name: "next", "prev", "first", "delim", "period", "tokens" or "offset".

    Args:
        name: of the pattern. "delim", "period" and "tokens" mean the same, under names of their
            own: the keys that hold certain tokens.
        tokens: their numbers, e.g. `(tokenizer.cls_token_id, tokenizer.sep_token_id)`.
        offset: for "offset", how far after the query the key is; 0 is the query's own position.

    >>> pattern("prev").offset, pattern("period", tokens=[4]).tokens
    (-1, (4,))
    """
    if name not in NAMES:
        raise ValueError(f"There is no pattern {name!r}. {suggestion(name, NAMES)}")
    held = _numbers(tokens)
    _check_tokens(name, held)
    if (offset is not None) != (name == "offset"):
        wanted = "needs" if name == "offset" else "takes no"
        raise ValueError(f"The pattern {name!r} {wanted} offset=, got {offset!r}.")
    if offset is not None:
        check_whole_number("offset", offset)
    return Aim(name, OFFSETS.get(name, offset), tuple(sorted(set(held))))


def _numbers(tokens: object) -> tuple[int, ...]:
    if not isinstance(tokens, Iterable) or isinstance(tokens, str):
        raise ValueError(f"tokens= takes the numbers of tokens, e.g. (4,), got {tokens!r}.")
    return tuple(cast("Iterable[int]", tokens))


def _check_tokens(name: str, tokens: tuple[int, ...]) -> None:
    if bool(tokens) != (name in OF_TOKENS):
        wanted = "needs the numbers of its tokens as" if name in OF_TOKENS else "takes no"
        raise ValueError(f"The pattern {name!r} {wanted} tokens=, got {tokens}.")
    for token in tokens:
        check_token("A token", token)


def check_token(name: str, token: int) -> None:
    """Raise if it is no token's number."""
    check_whole_number(name, token)
    if token < 0:
        raise ValueError(f"{name} must be a token's number, 0 or more, got {token}.")
