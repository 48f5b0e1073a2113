"""Tokenised text as people write it."""

import html
import re

__all__ = ["plain_text"]

_RULES = (
    (re.compile(r" @-@ "), "-"),
    (re.compile(r" ##AT##-##AT## "), "-"),
    (re.compile(r" (?=(?:[,.!?;:%)\]}…]|\.\.\.)(?: |$))"), ""),
    (re.compile(r"(?<![^ ])([(\[{]) "), r"\1"),
    (re.compile(r" (?='(?:s|t|re|ve|ll|d|m|S|T|RE|VE|LL|D|M)(?: |$))"), ""),
    (re.compile(r' " (.*?) "(?= |$|[,.!?;:)])'), r' "\1"'),
)


def plain_text(line: str) -> str:
    """Undo Moses' tokenisation and escapes, so far as marks show it.

    Marks go back to the word before them, brackets and pairs of quotation marks around what they
    enclose, English clitics to their words. Apostrophes of other languages stay apart.

    >>> plain_text("I don &apos;t know , she said : &quot; Why ? &quot;")
    'I don\\'t know, she said: "Why?"'
    """
    text = f" {html.unescape(line)}"
    for pattern, written in _RULES:
        text = pattern.sub(written, text)
    return text.strip()
