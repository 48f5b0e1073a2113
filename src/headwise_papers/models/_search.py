"""Beam search, a step at a time, in tensors that stay where they are.

Axes: N unfinished sentences, W beams, X = N W rows, C candidates, R ended hypotheses that are
remembered, T words of the longest output.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headwise_papers.models._decoding import Hypothesis, State, hypothesis


class Found(NamedTuple):
    """Where a search stands; words that are still to come are end marks."""

    last_NW: Tensor
    words_NWT: Tensor
    total_NW: Tensor  # log-probabilities
    over_N: Tensor  # whether nothing better can come
    score_NR: Tensor  # of what has ended, by which it is judged
    ended_total_NR: Tensor
    ended_words_NRT: Tensor
    ended_N: Tensor  # how many have

    def up_to(self, length: int | None) -> "Found":
        """The same with the first words alone; None takes all."""
        words_NWT, ended_NRT = self.words_NWT[..., :length], self.ended_words_NRT[..., :length]
        return self._replace(words_NWT=words_NWT, ended_words_NRT=ended_NRT)


class Ended(NamedTuple):
    """What of that changes when hypotheses end."""

    score_NR: Tensor
    ended_total_NR: Tensor
    ended_words_NRT: Tensor
    ended_N: Tensor


class Search:
    """Beam search in progress. Nothing in a step makes the host wait for a GPU.

    Args:
        state: the model's side.
        bos: id that begins every target.
        eos: id that ends it.
        count: how many ended hypotheses are remembered.
        alpha: of the length penalty.
        max_length: the most words of an output, the end mark included.
    """

    def __init__(
        self, state: State, *, bos: int, eos: int, count: int, alpha: float, max_length: int
    ) -> None:
        n, w, device = len(state.sentences), state.cache.beams, state.lengths_X.device
        self.state, self.eos, self.max_length = state, eos, max_length
        # All beams start as the same sentence: only the first may count.
        first_NW = torch.full((n, w), -math.inf, device=device)
        first_NW[:, 0] = 0
        none_NR = torch.full((n, count), -math.inf, device=device)
        self.now = Found(
            last_NW=torch.full((n, w), bos, device=device),
            words_NWT=torch.full((n, w, max_length), eos, device=device),
            total_NW=first_NW,
            score_NR=none_NR,
            ended_total_NR=none_NR.clone(),
            ended_words_NRT=torch.full((n, count, max_length), eos, device=device),
            ended_N=torch.zeros(n, dtype=torch.long, device=device),
            over_N=torch.zeros(n, dtype=torch.bool, device=device),
        )
        self.length_1 = torch.zeros(1, dtype=torch.long, device=device)
        penalties = [((5 + length) / 6) ** alpha for length in range(max_length + 2)]
        self.penalty_T = torch.tensor(penalties, device=device)

    def step(self, length: int | None = None) -> None:
        """Every unfinished sentence gets one word longer.

        Args:
            length: how many words they then have; None if the host does not count, and all room
                for words is gone through.
        """
        now, beams = self.now.up_to(length), self.state.cache.beams
        total_NC, beam_NC, word_NC = self._candidates()
        ends_NC = word_NC == self.eos
        ended = self._with_ended(now, total_NC, beam_NC, ends_NC)
        total_NW, place_NW = total_NC.masked_fill(ends_NC, -math.inf).topk(beams)
        beam_NW, last_NW = beam_NC.gather(1, place_NW), word_NC.gather(1, place_NW)
        words_NWT = now.words_NWT if beams == 1 else _rows(now.words_NWT, beam_NW)
        words_NWT.index_copy_(2, self.length_1, last_NW[..., None])
        self.length_1.add_(1)
        # Log-probabilities only fall; a longer output's are divided by at most this.
        hope_N = total_NW[:, 0] / self.penalty_T[self.max_length]
        so_far_N = total_NW[:, 0] / self._penalty()
        enough_N = (ended.ended_N >= beams) & (so_far_N <= ended.score_NR[:, -1])
        over_N = now.over_N | enough_N | (hope_N <= ended.score_NR[:, -1])
        new = Found(last_NW, words_NWT, total_NW, over_N, **ended._asdict())
        for held, x in zip(now, new, strict=True):
            held.copy_(x)
        if beams > 1:
            first_N1 = torch.arange(0, beam_NW.numel(), beams, device=beam_NW.device)[:, None]
            self.state.cache.swap_beams((first_N1 + beam_NW).flatten())

    def take(self, leave: Sequence[int], *, length: int) -> dict[int, list[Hypothesis]]:
        """Stop searching for these sentences; what was found, by sentence.

        Args:
            leave: places of the sentences among the unfinished ones.
            length: how many steps there were.
        """
        leaving_N = torch.tensor(leave, device=self.now.over_N.device)
        chosen = Found(*(held[leaving_N] for held in self.now.up_to(length)))
        ended = chosen.ended_words_NRT.tolist(), chosen.ended_total_NR.tolist()
        cut = chosen.words_NWT.tolist(), chosen.total_NW.tolist()
        names = [self.state.sentences[n] for n in leave]
        found: dict[int, list[Hypothesis]] = {}
        for name, *both in zip(
            names, zip(*ended, strict=True), zip(*cut, strict=True), strict=True
        ):
            first, second = (self._hypotheses(*listed) for listed in both)
            found[name] = first or second[: self.now.score_NR.shape[1]]
        stay_N = self.state.without(leave)
        self.now = Found(*(held[stay_N] for held in self.now))
        return found

    def _hypotheses(self, words: list[list[int]], totals: list[float]) -> list[Hypothesis]:
        listed = zip(words, totals, strict=True)
        return [hypothesis(ids, x, eos=self.eos) for ids, x in listed if x != -math.inf]

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best next words over all beams of a sentence: total, beam and word of each."""
        beams = self.state.cache.beams
        logits_XV = self.state.logits(self.now.last_NW.view(-1, 1))
        # Each beam has one way to end, so twice the beams leave enough that go on. They are among
        # the best of their beams.
        several = min(2 * beams, logits_XV.shape[1])
        best_XC, word_XC = logits_XV.topk(several)
        gain_XC = best_XC - logits_XV.logsumexp(dim=-1, keepdim=True)
        all_NX = (self.now.total_NW[..., None] + gain_XC.unflatten(0, (-1, beams))).flatten(1)
        total_NC, place_NC = all_NX.topk(min(2 * beams, all_NX.shape[1]))
        word_NC = word_XC.view(all_NX.shape).gather(1, place_NC)
        return total_NC, place_NC // several, word_NC

    def _with_ended(self, now: Found, total_NC: Tensor, beam_NC: Tensor, ends_NC: Tensor) -> Ended:
        """The best that have ended, those of this step among them."""
        beams = self.state.cache.beams
        # Of the twice as many candidates as beams, those below the beams do not count as endings.
        beam_NW, ends_NW = beam_NC[:, :beams], ends_NC[:, :beams] & ~now.over_N[:, None]
        total_NW = total_NC[:, :beams].masked_fill(~ends_NW, -math.inf)
        score_NX = torch.cat([now.score_NR, total_NW / self._penalty(1)], dim=1)
        score_NR, place_NR = score_NX.topk(now.score_NR.shape[1])
        total_NX = torch.cat([now.ended_total_NR, total_NW], dim=1)
        words_NXT = torch.cat([now.ended_words_NRT, _rows(now.words_NWT, beam_NW)], dim=1)
        ended_N = now.ended_N + total_NW.isfinite().sum(-1)
        return Ended(score_NR, total_NX.gather(1, place_NR), _rows(words_NXT, place_NR), ended_N)

    def _penalty(self, more: int = 0) -> Tensor:
        return self.penalty_T.index_select(0, self.length_1 + more)


def _rows(words_NXT: Tensor, index_NR: Tensor) -> Tensor:
    """Row index[n, r] of the words of each n."""
    return words_NXT.gather(1, index_NR[..., None].expand(-1, -1, words_NXT.shape[2]))
