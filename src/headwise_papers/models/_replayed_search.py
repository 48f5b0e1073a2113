"""Beam search on a GPU: a step is recorded once and replayed for every further word."""

from collections.abc import Callable
from threading import Lock

import torch

from headwise.ops.graphs import lasting_pool, on_a_stream, record
from headwise_papers.models._decoding import LOOK_EVERY, Hypothesis
from headwise_papers.models._search import Search
from headwise_papers.models.cache import FixedCache

MORE_WORDS = 8  # for which there is room at first, beside a quarter more than the source has
MULTIPLE = 16  # rooms are of so many positions
_ONE_AT_A_TIME = Lock()  # of all threads: nobody may wait for a device that is being recorded


def search_replayed(search: Search, source_length: int) -> dict[int, list[Hypothesis]]:
    """What is found for each sentence.

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
    """Steps until there is no room or all is over; how many words there are then."""
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
