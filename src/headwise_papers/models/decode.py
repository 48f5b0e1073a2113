"""Decoding: from a source sentence to the words a model finds likely, greedily or with beams.

Sentences are decoded together, with a cache. Those that have ended leave the batch; what comes out
of a sentence does not depend on when they leave, nor on what else is in the batch. On a GPU a step
is recorded as a CUDA graph and replayed for every word, unless `graphs` is false or the model
cannot be replayed (see `Translator`); there all sentences stay until more room is needed.
"""

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from headwise_papers.models._decoding import Hypothesis, State, Translator, leaving
from headwise_papers.models._replayed_search import search_replayed
from headwise_papers.models._search import Search

__all__ = ["Hypothesis", "Translator", "beam", "greedy", "n_best"]


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
    """The likeliest next word, again and again; one hypothesis a sentence.

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
    """What is found for each sentence."""
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
