"""Greedy decoding and beam search.

Sentences are decoded together, with a cache. Those that have ended leave the batch; the output of
a sentence depends neither on when they leave nor on what else is in the batch. On a GPU a step is
recorded as a CUDA graph and replayed for every word, unless `graphs` is false or the model cannot
be replayed (see `Translator`); then all sentences stay until the cache must grow.

Axes: N unfinished sentences, W beams, X = N W rows, C candidates, R ended hypotheses that are
remembered, T words of the longest output.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from headwise.ops.graphs import lasting_pool, on_a_stream, record
from headwise_papers.models.cache import Cache, FixedCache

__all__ = ["Hypothesis", "Translator", "beam", "greedy", "n_best"]

LOOK_EVERY = 4  # steps on a GPU, as looking for sentences that have ended makes the host wait
LEAVE_SHARE = 1 / 8  # of the sentences have ended when they leave, as leaving copies the others


@runtime_checkable
class Translator(Protocol):
    """Methods that decoding needs of a model, such as `headwise_papers.models.Transformer`.

    With beams, `decode` is given the hypotheses of a sentence as neighbouring rows, `cache.beams`
    of them, and memory and lengths repeated for each.

    A model may also have `fixed_room`, a number of positions. On a GPU, searches for outputs of up
    to so many words hand a `FixedCache` to `decode` and replay one call of it for every word. It
    must be 0 wherever what `decode` does in Python matters, as it does where heads are observed.
    """

    training: bool

    def encode(self, source: Tensor, source_lengths: Tensor) -> Tensor: ...

    def decode(
        self, target: Tensor, memory: Tensor, source_lengths: Tensor, *, cache: Any = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """One output sentence."""

    ids: list[int]  # without the marks of beginning and end
    log_probability: float  # summed over the words and, if it ended, the end mark
    ended: bool  # False when it was cut at max_length


class State:
    """The model's side of decoding: memory, lengths and cache, a row for each open hypothesis.

    Axes: N unfinished sentences, W beams of each, X = N W rows.
    """

    def __init__(
        self, model: Translator, source_B: Tensor, lengths_B: Tensor, *, beams: int = 1
    ) -> None:
        self.model = model
        self.memory_XKM = model.encode(source_B, lengths_B).repeat_interleave(beams, dim=0)
        self.lengths_X = lengths_B.repeat_interleave(beams)
        self.cache: Cache | FixedCache = Cache(beams=beams)
        self.sentences = list(range(len(lengths_B)))  # unfinished ones, as numbered in the batch

    def logits(self, last_X1: Int[Tensor, "X 1"]) -> Float[Tensor, "X V"]:
        """Score the next word, given the last one; the cache holds the others."""
        logits_X1V = self.model.decode(last_X1, self.memory_XKM, self.lengths_X, cache=self.cache)
        return logits_X1V[:, -1].float()

    def without(self, leave: Sequence[int]) -> Int[Tensor, " N"]:
        """Remove these sentences; return the places of those that stay."""
        gone = set(leave)
        stay = [n for n in range(len(self.sentences)) if n not in gone]
        self.sentences = [self.sentences[n] for n in stay]
        stay_N = torch.tensor(stay, dtype=torch.long, device=self.lengths_X.device)
        beams = self.cache.beams
        row_X = (stay_N[:, None] * beams + torch.arange(beams, device=stay_N.device)).flatten()
        self.memory_XKM, self.lengths_X = self.memory_XKM[row_X], self.lengths_X[row_X]
        self.cache.reorder(row_X)
        return stay_N


def leaving(over_N: Tensor, *, step: int, max_length: int) -> list[int]:
    """List the sentences to remove after a step: the ended ones, if many; all at the last step."""
    if step == max_length:
        return list(range(len(over_N)))
    if over_N.device.type != "cpu" and step % LOOK_EVERY:
        return []
    over = over_N.tolist()
    ended = [n for n, is_over in enumerate(over) if is_over]
    return ended if len(ended) >= LEAVE_SHARE * len(over) else []


def hypothesis(words: list[int], total: float, *, eos: int) -> Hypothesis:
    """Make a hypothesis of a row of words, cut before the first end-of-sentence token."""
    ended = eos in words
    return Hypothesis(words[: words.index(eos)] if ended else words, total, ended)


class Found(NamedTuple):
    """State of a search; words that are still to come are end-of-sentence tokens."""

    last_NW: Tensor
    words_NWT: Tensor
    total_NW: Tensor  # log-probabilities
    over_N: Tensor  # whether nothing better can come
    score_NR: Tensor  # of what has ended, by which it is judged
    ended_total_NR: Tensor
    ended_words_NRT: Tensor
    ended_N: Tensor  # how many have

    def up_to(self, length: int | None) -> "Found":
        """Return the state with the first words alone; None takes all."""
        words_NWT, ended_NRT = self.words_NWT[..., :length], self.ended_words_NRT[..., :length]
        return self._replace(words_NWT=words_NWT, ended_words_NRT=ended_NRT)


class Ended(NamedTuple):
    """Parts of the state that change when hypotheses end."""

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
        """Extend every unfinished sentence by one word.

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
        """Return the best next words over all beams of a sentence: total, beam and word of each."""
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
        """Return the best ended hypotheses, including those that end at this step."""
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
    """Select row index[n, r] of the words of each n."""
    return words_NXT.gather(1, index_NR[..., None].expand(-1, -1, words_NXT.shape[2]))


MORE_WORDS = 8  # for which there is room at first, beside a quarter more than the source has
MULTIPLE = 16  # rooms are of so many positions
_ONE_AT_A_TIME = Lock()  # of all threads: nobody may wait for a device that is being recorded


def search_replayed(search: Search, source_length: int) -> dict[int, list[Hypothesis]]:
    """Return the result for each sentence.

    Sentences that have ended stay until there is no room for the others: with twice the room a step
    must be recorded again, and is recorded without them.

    Args:
        search: that has not begun.
        source_length: positions of the longest source, by which room is made.
    """
    with _ONE_AT_A_TIME, on_a_stream(search.state.lengths_X.device):
        return _search(search, source_length)


def _search(search: Search, source_length: int) -> dict[int, list[Hypothesis]]:
    state, most = search.state, search.max_length
    room = min(most, _rounded(source_length + source_length // 4 + MORE_WORDS))
    rows, device = len(state.lengths_X), state.lengths_X.device
    state.cache = cache = FixedCache(room, beams=state.cache.beams, rows=rows, device=device)
    found: dict[int, list[Hypothesis]] = {}
    done = 0
    while True:
        search.step()  # as it is, which compiles kernels and makes memory
        done = _fill_room(search, done + 1, cache.room)
        over = search.now.over_N.tolist()
        leave = [n for n, is_over in enumerate(over) if is_over or done == most]
        if leave:
            found |= search.take(leave, length=done)
        if not state.sentences:
            return found
        cache.make_room(min(most, 2 * cache.room))


def _fill_room(search: Search, done: int, room: int) -> int:
    """Take steps until the capacity is used or all have ended; return the number of words."""
    if done == room:
        return done
    step = _recorded(search.step)
    while done < room:
        step()
        done += 1
        if done % LOOK_EVERY == 0 and bool(search.now.over_N.all()):
            break
    return done


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    graph, _ = record(step, pool=lasting_pool(torch.cuda.current_device()))
    return graph.replay


def _rounded(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE


def greedy(
    model: Translator,
    source: Shaped[Tensor, "B ..."],
    lengths: Int[Tensor, " B"],
    *,
    bos: int,
    eos: int,
    max_length: int,
    graphs: bool = True,
) -> list[Hypothesis]:
    """Decode greedily: take the likeliest next word at each step, one hypothesis per sentence.

    Args:
        model: in eval mode.
        source: ids, padded at the end; or whatever the model encodes.
        lengths: how many positions of each row are real.
        bos: id that begins every target.
        eos: id that ends it.
        max_length: the most words of an output, the end mark included.
        graphs: replay steps on a GPU, where the model can be.
    """
    given = {"bos": bos, "eos": eos, "max_length": max_length}
    return beam(model, source, lengths, beams=1, graphs=graphs, **given)


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
    graphs: bool = True,
) -> list[Hypothesis]:
    """Search with beams; return the best hypothesis of each sentence.

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
        graphs: replay steps on a GPU, where the model can be.
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
        graphs=graphs,
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
    graphs: bool = True,
) -> list[list[Hypothesis]]:
    """Search with beams; return the best hypotheses of each sentence, best first.

    Arguments as in `beam`.

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
    if not len(lengths):
        return []
    state = State(model, source, lengths, beams=beams)
    search = Search(
        state, bos=bos, eos=eos, count=count, alpha=length_penalty, max_length=max_length
    )
    if graphs and _replays(model, source, max_length):
        found = search_replayed(search, source.shape[1])
    else:
        found = _search_stepwise(search)
    return [found[sentence] for sentence in range(len(lengths))]


def _search_stepwise(search: Search) -> dict[int, list[Hypothesis]]:
    """Return the result for each sentence."""
    found: dict[int, list[Hypothesis]] = {}
    for step in range(1, search.max_length + 1):
        search.step(step)
        if leave := leaving(search.now.over_N, step=step, max_length=search.max_length):
            found |= search.take(leave, length=step)
        if not search.state.sentences:
            break
    return found


def _replays(model: Translator, source: Tensor, max_length: int) -> bool:
    return source.is_cuda and max_length <= getattr(model, "fixed_room", 0)


def _check(model: Translator, max_length: int) -> None:
    if model.training:
        raise ValueError("Decoding needs a model without dropout; call model.eval() first.")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1 word, got {max_length}.")
