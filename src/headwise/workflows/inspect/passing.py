"""One pass over a corpus with recorders, in constant memory, that goes on where it was stopped."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from headwise.json_files import parse_json
from headwise.ops.attended import Attended
from headwise.recording import Run
from headwise.recording.reading import Gold, Reading
from headwise.sites import Site, observe
from headwise.workflows.inspect.corpus import Numbered, batched_by_length
from headwise.workflows.inspect.identity import Sources, check_unchanged
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import Prepared, Subject
from headwise.workflows.progress import Counted

__all__ = ["Annotate", "Bookmark", "Recorder", "Seen", "Stream", "Sums", "read_through"]

SECONDS = 20.0  # between two bookmarks
Annotate = Callable[[Prepared, Sequence[Sentence]], Sequence[Gold]]


@runtime_checkable
class Sums(Protocol):
    """What can be put away and taken up again."""

    name: str

    def state(self) -> dict[str, Tensor]: ...

    def load(self, state: Mapping[str, Tensor]) -> None: ...


@runtime_checkable
class Recorder(Sums, Protocol):
    """A watcher that is told what it will see, and whose sums can be put away."""

    reading: Reading | None

    def __call__(self, site: Site, attended: Attended) -> None: ...


@dataclass(frozen=True)
class Seen:
    """How far a pass has come, and what it met."""

    chunks: int = 0
    sentences: int = 0
    words: int = 0
    truncated: int = 0  # sentences that were cut to fit the model
    unfinished: int = 0  # translations that were cut at their limit
    over: bool = False


COUNTS = ("chunks", "sentences", "words", "truncated", "unfinished")
NOTE = {**dict.fromkeys(COUNTS, int), "over": bool, "sources": {...: str}}  # shape of a bookmark


@dataclass(frozen=True, eq=False)
class Bookmark:
    """Where a pass of a run leaves its sums, so that a killed one loses seconds only."""

    run: Run
    name: str  # of the pass
    sources: Sources  # what it is of

    @property
    def _file(self) -> str:
        return f"state/{self.name}.safetensors"

    def find(self, recorders: Sequence[Sums]) -> Seen:
        """Give the recorders what was put away, if anything, and say how far that was."""
        if not self.run.has(self._file):
            return Seen()
        path = str(self.run.path(self._file))
        note = parse_json(self.run.note(self._file).get("seen", ""), NOTE, name=path)
        check_unchanged(note.pop("sources"), self.sources, self.run.folder)
        tensors = self.run.load_tensors(self._file)
        for recorder in recorders:
            mark = f"{recorder.name}/"
            state = {k.removeprefix(mark): v for k, v in tensors.items() if k.startswith(mark)}
            recorder.load(state)
        return Seen(**{field.name: note[field.name] for field in fields(Seen)})

    def put(self, recorders: Sequence[Sums], seen: Seen) -> None:
        """Put the sums of the recorders away."""
        tensors = {
            f"{recorder.name}/{key}": value
            for recorder in recorders
            for key, value in recorder.state().items()
        }
        note = json.dumps({**asdict(seen), "sources": dict(self.sources)})
        self.run.save_tensors(self._file, tensors, {"seen": note})


class Stream(NamedTuple):
    """Sentences from the first one on, and how many there are; 0 where nobody knows."""

    sentences: Iterable[Sentence]
    total: int = 0


@torch.no_grad()
def read_through(
    subject: Subject,
    stream: Stream,
    recorders: Sequence[Recorder],
    annotate: Annotate,
    *,
    batch_size: int,
    beside: Sequence[Sums] = (),
    bookmark: Bookmark | None = None,
    progress: Counted = lambda done, total: None,
) -> Seen:
    """Show every sentence to the model while the recorders watch.

    Args:
        subject: what reads.
        stream: the sentences, from the first one on also where a bookmark is further on.
        recorders: filled.
        annotate: what heads might point at in a batch.
        batch_size: sentences read together.
        beside: sums that `annotate` fills, put away together with the recorders'.
        bookmark: where to go on, and what to leave there.
        progress: called with (sentences done, in all).
    """
    sums = (*recorders, *beside)
    seen = bookmark.find(sums) if bookmark else Seen()
    if seen.over:
        for _ in stream.sentences:  # a sample may be drawn from what goes by
            pass
        return seen
    put_at = time.monotonic()
    for chunk in batched_by_length(stream.sentences, batch_size, first=seen.chunks):
        for batch in chunk:
            seen = _read(subject, batch, recorders, annotate, seen)
            progress(seen.sentences, max(stream.total, seen.sentences))
        seen = replace(seen, chunks=seen.chunks + 1)
        if bookmark and time.monotonic() - put_at >= SECONDS:
            bookmark.put(sums, seen)
            put_at = time.monotonic()
    seen = replace(seen, over=True)
    if bookmark:
        bookmark.put(sums, seen)
    return seen


def _read(
    subject: Subject,
    batch: Sequence[Numbered],
    recorders: Sequence[Recorder],
    annotate: Annotate,
    seen: Seen,
) -> Seen:
    sentences = [sentence for _, sentence in batch]
    prepared = subject.prepare(sentences)
    gold = annotate(prepared, sentences)
    reading = Reading([number for number, _ in batch], prepared.words, gold)
    for recorder in recorders:
        recorder.reading = reading
    with observe(subject.model, *recorders):
        subject.look(prepared.inputs)
    return replace(
        seen,
        sentences=seen.sentences + len(batch),
        words=seen.words + sum(_count(words.of) for words in prepared.words.values()),
        truncated=seen.truncated + prepared.truncated,
        unfinished=seen.unfinished + prepared.unfinished,
    )


def _count(of_BT: Tensor) -> int:
    """How many words there are: positions whose word is one that no position before them had."""
    if not of_BT.numel():
        return 0
    highest_BT = of_BT.cummax(dim=1).values
    return int((highest_BT[:, 0] >= 0).sum() + (highest_BT[:, 1:] > highest_BT[:, :-1]).sum())
