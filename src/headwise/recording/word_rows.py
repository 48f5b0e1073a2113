"""Rows of attention in words: what is summed over key pieces and averaged over query pieces.

A model reads pieces, and what is asked of its heads is asked in words. The weight from one word to
another is

    W(i, j) = mean over the pieces q of i of the sum over the pieces k of j of w(q, k)

Positions that are no words (special tokens, padding) ask nothing; each is a key of its own.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.ops.rows import Block, in_blocks, weights_of
from headwise.ops.scores import Part
from headwise.recording.words import Words

__all__ = ["WordRows", "word_rows"]


class WordRows(NamedTuple):
    """Statistics of the words of each sentence that ask; what is no word holds zeros and -1."""

    peak: Float[Tensor, "B H W"]  # the largest weight on a word
    strongest: Int[Tensor, "B H W"]  # its number, the first on ties; -1 where words get no weight
    special: Float[Tensor, "B H W"]  # weight on what is no word
    entropy: Float[Tensor, "B H W"]  # of the weights on words and on each special token, in nats
    seen: Bool[Tensor, "B H W"]  # a word that asks, and attends to something
    queries: Words  # those that ask
    keys: Words  # those that are looked at


@torch.no_grad()
def word_rows(attended: Attended, query_words: Words, key_words: Words) -> WordRows:
    """Look at one attention call in words, a part at a time, never at the whole matrix.

    Args:
        attended: the call.
        query_words: words of its queries, (B, Q).
        key_words: words of its keys, (B, K).
    """
    device = attended.out.device
    query_words, key_words = query_words.to(device), key_words.to(device)
    if query_words.are_everything and key_words.are_everything:
        found_BHQ = _plain_rows(attended, key_words)
    else:
        found_BHQ = _merged_rows(attended, query_words, key_words)
    present_B1W = query_words.present[:, None].to(device)
    last_B1W = query_words.last[:, None].to(device)
    peak, strongest, special, entropy = (
        x_BHQ.gather(2, last_B1W.expand(-1, x_BHQ.shape[1], -1)).masked_fill(~present_B1W, fill)
        for x_BHQ, fill in zip(found_BHQ, (0, -1, 0, 0), strict=True)
    )
    seen_BHW = present_B1W & (peak + special > 0)
    return WordRows(peak, strongest, special, entropy, seen_BHW, query_words, key_words)


def _plain_rows(attended: Attended, key_words: Words) -> tuple[Tensor, ...]:
    """Where every position is a word, the call's own statistics are those of words."""
    key_BHQ = attended.peak_key
    strongest_BHQ = torch.where(key_BHQ < 0, -1, key_BHQ + key_words.of[:, None, :1])
    return attended.peak, strongest_BHQ, torch.zeros_like(attended.peak), attended.entropy


def _merged_rows(attended: Attended, queries: Words, keys: Words) -> tuple[Tensor, ...]:
    """Peak, strongest, special and entropy, (B, H, Q): a word's stand at its last piece."""

    def look(block: Block) -> tuple[Tensor, ...]:
        part = block.part
        # The rows before, in which words of this part begin, are computed once more: there are few,
        # and no half of a word need be carried from part to part.
        start = queries.reach_back(part.batch, part.rows)
        wider = part._replace(rows=slice(start, part.rows.stop))
        found = _reduced(_weights(attended, wider), wider, queries, keys)
        return tuple(x_BHQ[:, :, part.rows.start - start :] for x_BHQ in found)

    scores = attended.scores
    return in_blocks(look, scores, list(scores.parts()), parameters=attended.parameters)


def _weights(attended: Attended, part: Part) -> Tensor:
    """Weights of a part, up to the last key that any of its queries can see."""
    scores = attended.scores.part(part)
    parameters = (part.of(parameter) for parameter in attended.parameters)
    return weights_of(scores.up_to(scores.reach()), attended.row_function, *parameters)


def _reduced(
    weights_BHQK: Tensor, part: Part, queries: Words, keys: Words
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Peak, strongest, special and entropy of a part, (b, h, q). Writes over the weights."""
    if merge := queries.merge(part.batch, part.rows, lead="last"):
        merge.add_rows(weights_BHQK)
    seen = slice(0, weights_BHQK.shape[3])
    if merge := keys.merge(part.batch, seen, lead="first"):
        merge.add_columns(weights_BHQK)
    # the log of 0 counts as that of a number so small that 0 times it is 0
    other_BHQK = weights_BHQK.clamp(min=torch.finfo(weights_BHQK.dtype).tiny).log_()
    entropy_BHQ = other_BHQK.mul_(weights_BHQK).sum(dim=-1).neg_()
    special_BHQ = torch.zeros_like(entropy_BHQ)
    if (special_BK := keys.special(part.batch, seen)) is not None:
        special = special_BK[:, None, None].to(weights_BHQK.dtype)
        special_BHQ = torch.mul(weights_BHQK, special, out=other_BHQK).sum(dim=-1)
        weights_BHQK *= 1 - special
    peak_BHQ, key_BHQ = weights_BHQK.max(dim=-1)
    number_BHK = keys.of[part.batch, None, seen].expand(-1, key_BHQ.shape[1], -1)
    strongest_BHQ = torch.where(peak_BHQ > 0, number_BHK.gather(2, key_BHQ), -1)
    return peak_BHQ, strongest_BHQ, special_BHQ, entropy_BHQ
