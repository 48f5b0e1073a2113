"""One pass over a corpus with recorders, in constant memory; a killed pass resumes."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from headwise.json_files import parse_json
from headwise.ops.attended import Attended
from headwise.recording import Run
from headwise.recording.reading import Gold, Reading
from headwise.sites import Site, observe
from headwise.text.frequencies import WordRanks
from headwise.workflows.inspect.corpus import Corpus, Numbered, batched_by_length
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import Prepared, Subject, model_digest
from headwise.workflows.progress import Counted

SECONDS = 20.0  # between two bookmarks
SAID = {
    "data": "The data have",
    "model": "The model, its settings or its tokenizer have",
    "ranks": "The word counts have",
    "alignments": "The references or alignments have",
}
Annotate = Callable[[Prepared, Sequence[Sentence]], Sequence[Gold]]
Sources = Mapping[str, str]  # name -> fingerprint


def sources_of(
    subject: Subject, corpus: Corpus, ranks: WordRanks | None, aligned: Corpus | None = None
) -> Sources:
    """Return fingerprints of all that decides a result, except the settings."""
    known = None if ranks is None else json.dumps([ranks.lower, sorted(ranks.counts.items())])
    counts = "" if known is None else hashlib.sha256(known.encode()).hexdigest()
    found = {"data": corpus.fingerprint, "model": model_digest(subject), "ranks": counts}
    return found if aligned is None else {**found, "alignments": aligned.fingerprint}


def check_unchanged(before: Sources, now: Sources, folder: Path) -> None:
    """Raise if data, model or word counts are not those that an inspection began with.

    Args:
        before: fingerprints at the start of the inspection.
        now: fingerprints now.
        folder: of the inspection.
    """
    for what, said in SAID.items():
        if before.get(what) != now.get(what):
            raise ValueError(
                f"{said} changed since the inspection in {folder} began; choose another folder."
            )


@runtime_checkable
class Sums(Protocol):
    """Sums with a state that can be saved."""

    name: str

    def state(self) -> dict[str, Tensor]: ...

    def load(self, state: Mapping[str, Tensor]) -> None: ...


@runtime_checkable
class Recorder(Sums, Protocol):
    """An observer that knows the batch before it is read, and whose state can be saved."""

    reading: Reading | None

    def __call__(self, site: Site, attended: Attended) -> None: ...


@dataclass(frozen=True)
class Seen:
    """Progress of a pass, and counts of what was read."""

    chunks: int = 0
    sentences: int = 0
    words: int = 0
    truncated: int = 0  # sentences that were cut to fit the model
    unfinished: int = 0  # translations that reached the maximum length
    over: bool = False


COUNTS = ("chunks", "sentences", "words", "truncated", "unfinished")
NOTE = {**dict.fromkeys(COUNTS, int), "over": bool, "sources": {...: str}}  # shape of a bookmark


@dataclass(frozen=True, eq=False)
class Bookmark:
    """Saved state of a pass, so that a killed one loses only seconds."""

    run: Run
    name: str  # of the pass
    sources: Sources  # fingerprints of model and data

    @property
    def _file(self) -> str:
        return f"state/{self.name}.safetensors"

    def load(self, recorders: Sequence[Sums]) -> Seen:
        """Load the saved state, if any, into the recorders, and return the progress."""
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

    def save(self, recorders: Sequence[Sums], seen: Seen) -> None:
        """Save the state of the recorders."""
        tensors = {
            f"{recorder.name}/{key}": value
            for recorder in recorders
            for key, value in recorder.state().items()
        }
        note = json.dumps({**asdict(seen), "sources": dict(self.sources)})
        self.run.save_tensors(self._file, tensors, {"seen": note})


class Stream(NamedTuple):
    """All sentences of a corpus, and how many there are; 0 where that is unknown."""

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
    extra: Sequence[Sums] = (),
    bookmark: Bookmark | None = None,
    progress: Counted = lambda done, total: None,
) -> Seen:
    """Run the model on every sentence while recorders observe.

    Args:
        subject: the model.
        stream: the sentences from the first one on, also where a bookmark is further on.
        recorders: filled.
        annotate: returns the gold of a batch.
        batch_size: sentences in a batch.
        extra: sums that `annotate` fills, saved with those of the recorders.
        bookmark: where to resume, and where to save.
        progress: called with (sentences done, in all).
    """
    sums = (*recorders, *extra)
    seen = bookmark.load(sums) if bookmark else Seen()
    if seen.over:
        for _ in stream.sentences:  # a sample may be drawn from them
            pass
        return seen
    saved_at = time.monotonic()
    for chunk in batched_by_length(stream.sentences, batch_size, first=seen.chunks):
        for batch in chunk:
            seen = _read(subject, batch, recorders, annotate, seen)
            progress(seen.sentences, max(stream.total, seen.sentences))
        seen = replace(seen, chunks=seen.chunks + 1)
        if bookmark and time.monotonic() - saved_at >= SECONDS:
            bookmark.save(sums, seen)
            saved_at = time.monotonic()
    seen = replace(seen, over=True)
    if bookmark:
        bookmark.save(sums, seen)
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
        subject.attend(prepared.inputs)
    return replace(
        seen,
        sentences=seen.sentences + len(batch),
        words=seen.words + sum(_count(words.of) for words in prepared.words.values()),
        truncated=seen.truncated + prepared.truncated,
        unfinished=seen.unfinished + prepared.unfinished,
    )


def _count(of_BT: Tensor) -> int:
    """Count words: positions whose word is another than at the position before."""
    if not of_BT.numel():
        return 0
    highest_BT = of_BT.cummax(dim=1).values
    return int((highest_BT[:, 0] >= 0).sum() + (highest_BT[:, 1:] > highest_BT[:, :-1]).sum())
