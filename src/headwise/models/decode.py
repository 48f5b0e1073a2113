"""Decoding: from a source sentence to the words a model finds likely, greedily or with beams."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.models.attention import Cache


@runtime_checkable
class Translator(Protocol):
    """What decoding needs of a model; `headwise.models.Transformer` is one."""

    training: bool

    def encode(self, source: Tensor, source_lengths: Tensor) -> Tensor: ...

    def decode(
        self, target: Tensor, memory: Tensor, source_lengths: Tensor, *, cache: Cache | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """One output sentence."""

    ids: list[int]  # without the marks of beginning and end
    log_probability: float  # summed over the words and, if it ended, the end mark
    ended: bool  # False when it was cut at max_length


@torch.no_grad()
def greedy(
    model: Translator,
    source: Int[Tensor, "B K"],
    lengths: Int[Tensor, " B"],
    *,
    bos: int,
    eos: int,
    max_length: int,
) -> list[Hypothesis]:
    """The likeliest next word, again and again; one hypothesis a sentence.

    Args:
        model: in eval mode.
        source: ids, padded at the end.
        lengths: how many ids of each row are real.
        bos: id that begins every target.
        eos: id that ends it.
        max_length: the most words of an output, the end mark included.
    """
    _check(model, max_length)
    state = _State(model, source, lengths)
    last_N1 = torch.full_like(source[:, :1], bos)
    words_NT, total_N = last_N1[:, :0], torch.zeros(len(source), device=source.device)
    found: dict[int, Hypothesis] = {}
    for step in range(1, max_length + 1):
        best_N, word_N = state.next_words(last_N1).max(dim=-1)
        total_N, last_N1 = total_N + best_N, word_N[:, None]
        words_NT = torch.cat([words_NT, last_N1], dim=1)
        ended_N = word_N == eos
        over_N = ended_N | (step == max_length)
        for n in over_N.nonzero()[:, 0].tolist():
            found[state.sentences[n]] = _hypothesis(words_NT[n], total_N[n], eos=eos)
        if over_N.any():
            rest_N = (~over_N).nonzero()[:, 0]
            if not len(rest_N):
                break
            state.keep(rest_N)
            last_N1, words_NT, total_N = last_N1[rest_N], words_NT[rest_N], total_N[rest_N]
    return [found[sentence] for sentence in range(len(source))]


@torch.no_grad()
def beam(
    model: Translator,
    source: Int[Tensor, "B K"],
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
    al., 2016, Eq. 14), the end mark counted. The search for a sentence is over when `beams`
    hypotheses have ended, or when no unfinished one can still win. Hypotheses cut at `max_length`
    count only where none has ended.

    Args:
        model: in eval mode.
        source: ids, padded at the end.
        lengths: how many ids of each row are real.
        bos: id that begins every target.
        eos: id that ends it.
        max_length: the most words of an output, the end mark included.
        beams: hypotheses followed at the same time; 1 is greedy.
        length_penalty: 0 compares plain log-probabilities; more favours longer outputs.
    """
    _check(model, max_length)
    if beams < 1:
        raise ValueError(f"beams must be at least 1, got {beams}.")
    if length_penalty < 0:
        raise ValueError(f"length_penalty must not be negative, got {length_penalty}.")
    search = _Search(_State(model, source, lengths), bos, eos, beams, length_penalty, max_length)
    for _ in range(max_length):
        search.step()
        if not search.unfinished:
            break
    search.take_cut_ones()
    return [search.best[sentence] for sentence in range(len(source))]


class _State:
    """The model's side of decoding: memory, lengths and cache, a row for each open hypothesis."""

    def __init__(self, model: Translator, source_BK: Tensor, lengths_B: Tensor) -> None:
        self.model = model
        self.memory_NKM = model.encode(source_BK, lengths_B)
        self.lengths_N = lengths_B
        self.cache = Cache()
        self.sentences = list(range(len(source_BK)))  # of each row

    def next_words(self, last_N1: Tensor) -> Float[Tensor, "N V"]:
        """Log-probabilities of the next word, given the last one; the cache knows the others."""
        logits_N1V = self.model.decode(last_N1, self.memory_NKM, self.lengths_N, cache=self.cache)
        return logits_N1V[:, -1].float().log_softmax(dim=-1)

    def keep(self, index_N: Tensor) -> None:
        """Row n continues what row index[n] was."""
        self.memory_NKM, self.lengths_N = self.memory_NKM[index_N], self.lengths_N[index_N]
        self.cache.reorder(index_N)
        self.sentences = [self.sentences[n] for n in index_N.tolist()]


class _Search:
    """Beam search in progress: tensors hold the unfinished sentences, `best` what has ended.

    Axes here: N unfinished sentences, W beams, C candidates, T words so far.
    """

    def __init__(
        self, state: _State, bos: int, eos: int, beams: int, alpha: float, max_length: int
    ) -> None:
        count, device = len(state.sentences), state.lengths_N.device
        self.state, self.eos, self.beams = state, eos, beams
        self.alpha, self.max_length = alpha, max_length
        state.keep(torch.arange(count, device=device).repeat_interleave(beams))
        self.unfinished = list(range(count))
        self.best: dict[int, Hypothesis] = {}
        self.words_NWT = torch.full((count, beams, 1), bos, device=device)
        # All beams start as the same sentence: only the first may count.
        self.total_NW = torch.full((count, beams), -math.inf, device=device)
        self.total_NW[:, 0] = 0
        self.best_score_N = torch.full((count,), -math.inf, device=device)
        self.ended_N = torch.zeros(count, dtype=torch.long, device=device)

    def step(self) -> None:
        """Every unfinished sentence gets one word longer."""
        total_NC, beam_NC, word_NC = self._candidates()
        ends_NC = (word_NC == self.eos) & total_NC.isfinite()
        # Of the twice as many candidates as beams, those below the beams do not count as endings.
        ends_NC[:, self.beams :] &= False
        self._take_ended(total_NC.masked_fill(~ends_NC, -math.inf), beam_NC)
        self.ended_N = self.ended_N + ends_NC.sum(-1)

        open_NW = (word_NC == self.eos).int().argsort(dim=-1, stable=True)[:, : self.beams]
        beam_NW, word_NW = beam_NC.gather(1, open_NW), word_NC.gather(1, open_NW)
        self.total_NW = total_NC.gather(1, open_NW).masked_fill(word_NW == self.eos, -math.inf)
        chosen_NWT = self.words_NWT.gather(
            1, beam_NW[..., None].expand(-1, -1, self.words_NWT.shape[2])
        )
        self.words_NWT = torch.cat([chosen_NWT, word_NW[..., None]], dim=-1)
        self._go_on_with(beam_NW)

    def take_cut_ones(self) -> None:
        """Where nothing ended, the best of what there is."""
        for n, sentence in enumerate(self.unfinished):
            if sentence not in self.best:
                words_T, total = self.words_NWT[n, 0, 1:], self.total_NW[n, 0]
                self.best[sentence] = _hypothesis(words_T, total, eos=self.eos)

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best next words over all beams of a sentence: total, beam and word of each."""
        step_NWV = self.state.next_words(self.words_NWT[..., -1].reshape(-1, 1)).unflatten(
            0, (-1, self.beams)
        )
        all_NX = (self.total_NW[..., None] + step_NWV).flatten(1)
        # Each beam has one way to end, so twice the beams leave enough that go on.
        total_NC, index_NC = all_NX.topk(min(2 * self.beams, all_NX.shape[1]), dim=-1)
        vocabulary = step_NWV.shape[-1]
        return total_NC, index_NC // vocabulary, index_NC % vocabulary

    def _take_ended(self, total_NC: Tensor, beam_NC: Tensor) -> None:
        # All candidates of a step are equally long, so the likeliest has the best score.
        total_N, place_N = total_NC.max(dim=-1)
        score_N = total_N / self._penalty(self.words_NWT.shape[2])
        better_N = score_N > self.best_score_N
        self.best_score_N = torch.where(better_N, score_N, self.best_score_N)
        for n in better_N.nonzero()[:, 0].tolist():
            words_T = self.words_NWT[n, beam_NC[n, place_N[n]], 1:]
            ids, total = words_T.tolist(), total_N[n].item()
            self.best[self.unfinished[n]] = Hypothesis(ids, total, ended=True)

    def _go_on_with(self, beam_NW: Tensor) -> None:
        """Leave finished sentences behind, and let the model's rows follow the chosen beams."""
        # Log-probabilities only fall; a longer output's are divided by at most this.
        hope_N = self.total_NW.max(dim=-1).values / self._penalty(self.max_length)
        over_N = (self.ended_N >= self.beams) | (hope_N <= self.best_score_N)
        rest_N = (~over_N).nonzero()[:, 0]
        row_NW = torch.arange(len(beam_NW), device=beam_NW.device)[:, None] * self.beams + beam_NW
        self.unfinished = [self.unfinished[n] for n in rest_N.tolist()]
        self.words_NWT, self.total_NW = self.words_NWT[rest_N], self.total_NW[rest_N]
        self.best_score_N, self.ended_N = self.best_score_N[rest_N], self.ended_N[rest_N]
        self.state.keep(row_NW[rest_N].flatten())

    def _penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha


def _hypothesis(words_T: Tensor, total: Tensor, *, eos: int) -> Hypothesis:
    ids = words_T.tolist()
    ended = ids[-1] == eos
    return Hypothesis(ids[:-1] if ended else ids, total.item(), ended)


def _check(model: Translator, max_length: int) -> None:
    if model.training:
        raise ValueError("Decoding needs a model without dropout; call model.eval() first.")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1 word, got {max_length}.")
