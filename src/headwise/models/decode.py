"""Decoding: from a source sentence to the words a model finds likely, greedily or with beams.

Sentences are decoded together, with a cache. Those that have ended leave the batch; what comes out
of a sentence does not depend on when they leave, nor on what else is in the batch.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from headwise.models._decoding import Hypothesis, State, Translator, hypothesis, leaving

__all__ = ["Hypothesis", "Translator", "beam", "greedy", "n_best"]


@torch.no_grad()
def greedy(
    model: Translator,
    source: Shaped[Tensor, "B ..."],
    lengths: Int[Tensor, " B"],
    *,
    bos: int,
    eos: int,
    max_length: int,
) -> list[Hypothesis]:
    """The likeliest next word, again and again; one hypothesis a sentence.

    Args:
        model: in eval mode.
        source: ids, padded at the end; or whatever the model encodes.
        lengths: how many positions of each row are real.
        bos: id that begins every target.
        eos: id that ends it.
        max_length: the most words of an output, the end mark included.
    """
    _check(model, max_length)
    state = State(model, source, lengths)
    last_N1 = torch.full_like(lengths[:, None], bos, dtype=torch.long)
    words_NT = torch.full_like(last_N1, eos).repeat(1, max_length)
    total_N = torch.zeros_like(lengths, dtype=torch.float32)
    over_N = torch.zeros_like(lengths, dtype=torch.bool)
    found: dict[int, Hypothesis] = {}
    for step in range(max_length):
        logits_NV = state.logits(last_N1)
        best_N, word_N = logits_NV.max(dim=-1)
        total_N = total_N + (best_N - logits_NV.logsumexp(dim=-1)).masked_fill(over_N, 0)
        words_NT[:, step] = word_N.masked_fill(over_N, eos)
        last_N1, over_N = words_NT[:, step : step + 1], over_N | (word_N == eos)
        if leave := leaving(over_N, step=step + 1, max_length=max_length):
            left = words_NT[leave].tolist(), total_N[leave].tolist()
            for n, words, total in zip(leave, *left, strict=True):
                found[state.sentences[n]] = hypothesis(words, total, eos=eos)
            rest_N = state.without(leave)
            last_N1, words_NT, total_N, over_N = (
                x[rest_N] for x in (last_N1, words_NT, total_N, over_N)
            )
        if not state.sentences:
            break
    return [found[sentence] for sentence in range(len(lengths))]


def beam(
    model: Translator,
    source: Shaped[Tensor, "B ..."],
    lengths: Int[Tensor, " B"],
    *,
    bos: int,
    eos: int,
    max_length: int,
    beams: int = 4,
    length_penalty: float = 0.6,
) -> list[Hypothesis]:
    """Beam search; the best hypothesis of each sentence.

    Best is the one with the highest log-probability / ((5 + length) / 6) ^ length_penalty (Wu et
    al., 2016, Eq. 14), the end mark counted. The search for a sentence is over when no unfinished
    hypothesis can still win; or when `beams` have ended and no unfinished one is better so far.
    Hypotheses cut at `max_length` count only where none has ended.

    Args:
        model: in eval mode.
        source: ids, padded at the end; or whatever the model encodes.
        lengths: how many positions of each row are real.
        bos: id that begins every target.
        eos: id that ends it.
        max_length: the most words of an output, the end mark included.
        beams: hypotheses followed at the same time; 1 is greedy.
        length_penalty: 0 compares plain log-probabilities; more favours longer outputs.
    """
    lists = n_best(
        model,
        source,
        lengths,
        bos=bos,
        eos=eos,
        max_length=max_length,
        count=1,
        beams=beams,
        length_penalty=length_penalty,
    )
    return [best for best, *_ in lists]


@torch.no_grad()
def n_best(
    model: Translator,
    source: Shaped[Tensor, "B ..."],
    lengths: Int[Tensor, " B"],
    *,
    bos: int,
    eos: int,
    max_length: int,
    count: int,
    beams: int = 4,
    length_penalty: float = 0.6,
) -> list[list[Hypothesis]]:
    """Beam search; the best hypotheses of each sentence, the best first. Arguments as in `beam`.

    Args:
        count: how many hypotheses, up to `beams`. There are fewer where fewer have ended, but
            always one.
    """
    _check(model, max_length)
    if beams < 1:
        raise ValueError(f"beams must be at least 1, got {beams}.")
    if not 1 <= count <= beams:
        raise ValueError(f"count must be from 1 to the {beams} beams, got {count}.")
    if length_penalty < 0:
        raise ValueError(f"length_penalty must not be negative, got {length_penalty}.")
    state = State(model, source, lengths, beams=beams)
    search = _Search(state, bos, eos, count, length_penalty, max_length)
    found: dict[int, list[Hypothesis]] = {}
    for step in range(max_length):
        search.step()
        if leave := leaving(search.over_N, step=step + 1, max_length=max_length):
            found |= search.take(leave)
        if not state.sentences:
            break
    return [found[sentence] for sentence in range(len(lengths))]


class _Search:
    """Beam search in progress. Nothing here makes the host wait for a GPU but `take`.

    Axes: N unfinished sentences, W beams, C candidates, R ended hypotheses that are remembered, T
    words so far.
    """

    def __init__(
        self, state: State, bos: int, eos: int, count: int, alpha: float, max_length: int
    ) -> None:
        n, w, device = len(state.sentences), state.cache.beams, state.lengths_X.device
        self.state, self.eos, self.alpha, self.max_length = state, eos, alpha, max_length
        self.last_NW = torch.full((n, w), bos, device=device)
        self.words_NWT = self.last_NW[..., None][..., :0]
        # All beams start as the same sentence: only the first may count.
        self.total_NW = torch.full((n, w), -math.inf, device=device)
        self.total_NW[:, 0] = 0
        self.score_NR = torch.full((n, count), -math.inf, device=device)
        self.ended_total_NR = torch.full_like(self.score_NR, -math.inf)
        self.ended_words_NRT = torch.full((n, count, max_length), eos, device=device)
        self.ended_N = torch.zeros(n, dtype=torch.long, device=device)
        self.over_N = torch.zeros(n, dtype=torch.bool, device=device)

    def step(self) -> None:
        """Every unfinished sentence gets one word longer."""
        total_NC, beam_NC, word_NC = self._candidates()
        ends_NC = word_NC == self.eos
        self._remember_ended(total_NC, beam_NC, ends_NC)
        beams = self.state.cache.beams
        self.total_NW, place_NW = total_NC.masked_fill(ends_NC, -math.inf).topk(beams)
        beam_NW, self.last_NW = beam_NC.gather(1, place_NW), word_NC.gather(1, place_NW)
        self.words_NWT = torch.cat([_rows(self.words_NWT, beam_NW), self.last_NW[..., None]], -1)
        # Log-probabilities only fall; a longer output's are divided by at most this.
        hope_N = self.total_NW[:, 0] / self._penalty(self.max_length)
        so_far_N = self.total_NW[:, 0] / self._penalty(self.words_NWT.shape[2])
        enough_N = (self.ended_N >= beams) & (so_far_N <= self.score_NR[:, -1])
        self.over_N = self.over_N | enough_N | (hope_N <= self.score_NR[:, -1])
        if beams > 1:
            first_N1 = torch.arange(0, beam_NW.numel(), beams, device=beam_NW.device)[:, None]
            self.state.cache.swap_beams((first_N1 + beam_NW).flatten())

    def take(self, leave: Sequence[int]) -> dict[int, list[Hypothesis]]:
        """Stop searching for these sentences; what was found, by sentence."""
        leaving_N = torch.tensor(leave, device=self.over_N.device)
        ended = self.ended_words_NRT[leaving_N].tolist(), self.ended_total_NR[leaving_N].tolist()
        cut = self.words_NWT[leaving_N].tolist(), self.total_NW[leaving_N].tolist()
        names = [self.state.sentences[n] for n in leave]
        found: dict[int, list[Hypothesis]] = {}
        for name, *both in zip(
            names, zip(*ended, strict=True), zip(*cut, strict=True), strict=True
        ):
            first, second = (self._hypotheses(*listed) for listed in both)
            found[name] = first or second[: self.score_NR.shape[1]]
        self._keep(self.state.without(leave))
        return found

    def _hypotheses(self, words: list[list[int]], totals: list[float]) -> list[Hypothesis]:
        listed = zip(words, totals, strict=True)
        return [hypothesis(ids, x, eos=self.eos) for ids, x in listed if x > -math.inf]

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best next words over all beams of a sentence: total, beam and word of each."""
        beams = self.state.cache.beams
        logits_XV = self.state.logits(self.last_NW.view(-1, 1))
        # Each beam has one way to end, so twice the beams leave enough that go on. They are among
        # the best of their beams.
        several = min(2 * beams, logits_XV.shape[1])
        best_XC, word_XC = logits_XV.topk(several)
        gain_XC = best_XC - logits_XV.logsumexp(dim=-1, keepdim=True)
        all_NX = (self.total_NW[..., None] + gain_XC.unflatten(0, (-1, beams))).flatten(1)
        total_NC, place_NC = all_NX.topk(min(2 * beams, all_NX.shape[1]))
        word_NC = word_XC.view(all_NX.shape).gather(1, place_NC)
        return total_NC, place_NC // several, word_NC

    def _remember_ended(self, total_NC: Tensor, beam_NC: Tensor, ends_NC: Tensor) -> None:
        # Of the twice as many candidates as beams, those below the beams do not count as endings.
        beams, length = self.state.cache.beams, self.words_NWT.shape[2]
        beam_NW, ends_NW = beam_NC[:, :beams], ends_NC[:, :beams] & ~self.over_N[:, None]
        total_NW = total_NC[:, :beams].masked_fill(~ends_NW, -math.inf)
        self.ended_N = self.ended_N + total_NW.isfinite().sum(-1)

        score_NX = torch.cat([self.score_NR, total_NW / self._penalty(length + 1)], dim=1)
        self.score_NR, place_NR = score_NX.topk(self.score_NR.shape[1])
        total_NX = torch.cat([self.ended_total_NR, total_NW], dim=1)
        self.ended_total_NR = total_NX.gather(1, place_NR)
        before_NRT = self.ended_words_NRT[..., :length]
        words_NXT = torch.cat([before_NRT, _rows(self.words_NWT, beam_NW)], dim=1)
        self.ended_words_NRT[..., :length] = _rows(words_NXT, place_NR)

    def _keep(self, index_N: Tensor) -> None:
        self.last_NW, self.words_NWT = self.last_NW[index_N], self.words_NWT[index_N]
        self.total_NW, self.score_NR = self.total_NW[index_N], self.score_NR[index_N]
        self.ended_total_NR = self.ended_total_NR[index_N]
        self.ended_words_NRT = self.ended_words_NRT[index_N]
        self.ended_N, self.over_N = self.ended_N[index_N], self.over_N[index_N]

    def _penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha


def _rows(words_NXT: Tensor, index_NR: Tensor) -> Tensor:
    """Row index[n, r] of the words of each n."""
    return words_NXT.gather(1, index_NR[..., None].expand(-1, -1, words_NXT.shape[2]))


def _check(model: Translator, max_length: int) -> None:
    if model.training:
        raise ValueError("Decoding needs a model without dropout; call model.eval() first.")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1 word, got {max_length}.")
