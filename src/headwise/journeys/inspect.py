"""What the heads of a trained model do on a text: one table, any size of corpus.

headwise inspect MODEL --text FILE
"""

import copy
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from headwise.analysis import ablate, with_roles
from headwise.data.corpus import read_lines
from headwise.hf import adopt, release
from headwise.hf.adoption import is_adopted, unwrapped
from headwise.journeys.opening import open_subject, padding_right
from headwise.journeys.progress import counting
from headwise.journeys.subject import HuggingFaceSubject, Output, Prepared, Subject
from headwise.recording import HeadTable, Profile, Run, Samples
from headwise.reporting import write_report
from headwise.sites import observe

CHUNK = 256  # lines sorted by length together, so that batches hold little padding
COLUMNS = (  # of the table, in order; the last two need lines for ablation, the last one scores
    *("role", "confidence", "entropy", "offset", "offset_share", "first_share", "special_mass"),
    *("output_change", "prediction_change"),
)


@dataclass(frozen=True)
class InspectConfig:
    """Settings of an inspection."""

    model: str  # folder of a run or of a Hugging Face model
    text: str  # file with a sentence or paragraph a line
    batch_size: int = 16  # lines
    ablation_lines: int = 16  # lines looked at again with each head off; 0 leaves that out
    samples: int = 4  # lines whose attention is drawn
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        for name in ("ablation_lines", "samples"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")


def inspect(
    model: nn.Module,
    tokenizer: object,
    lines: Iterable[str],
    *,
    batch_size: int = 16,
    ablation_lines: int = 16,
) -> HeadTable:
    """The head table of a Hugging Face model on some lines of text, streamed.

    Columns are those of `recording.Profile`, a `role`, and, when a few lines are looked at again
    with each head switched off, `output_change` (how far the outputs move, relative to their
    size) and, for models with scores, `prediction_change` (share of positions whose best word or
    class changes). Model and tokenizer are left as they came.
    """
    with _adopted(model):
        subject = HuggingFaceSubject(model, padding_right(copy.deepcopy(tokenizer)))
        profiled = profile(subject, lines, batch_size=batch_size, keep=ablation_lines)
        return _ablated(subject, profiled.kept, profiled.table)


@contextmanager
def _adopted(model: nn.Module) -> Generator[None]:
    """A model with sites, evaluated and not trained, for the length of the block."""
    host = _host(model)
    had_sites = is_adopted(host)
    training = {module: module.training for module in model.modules()}
    try:
        adopt(model.eval())
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training
        if not had_sites and is_adopted(host):
            release(model)


def _host(model: nn.Module) -> PreTrainedModel:
    try:
        return unwrapped(model)
    except ValueError:
        raise ValueError(
            "inspect() takes a Hugging Face model (a PreTrainedModel) and its tokenizer, got "
            f"{type(model).__name__}. The run of a model trained by Headwise is inspected by "
            "headwise.journeys.inspect_folder."
        ) from None


def inspect_folder(config: InspectConfig, folder: Path) -> HeadTable:
    """Inspect the model in a folder on a text file; writes a Run with table and report."""
    started = time.perf_counter()
    text = Path(config.text)
    lines = _begun(read_lines(text))
    subject = open_subject(Path(config.model))
    keep = max(config.ablation_lines, config.samples)
    with Run.create(folder, config) as run, counting("reading") as count:
        total, done = text.stat().st_size, 0

        def counted() -> Iterator[str]:
            nonlocal done
            for line in lines:
                yield line
                done = min(total, done + len(line.encode()) + 1)
                count(done, total)

        found = profile(subject, counted(), batch_size=config.batch_size, keep=keep)
        count(total, total)
        run.write_json("trace/attention.json", _draw(subject, found.kept[: config.samples]))
    table = _ablated(subject, found.kept[: config.ablation_lines], found.table)
    run.save_heads(table)
    run.save_figures(
        {
            "lines": found.lines,
            "words": found.words,
            "truncated_lines": found.truncated,
            "token_limit": subject.room,
            "seconds": time.perf_counter() - started,
        }
    )
    write_report(run)
    return table


def _begun(lines: Iterator[str]) -> Iterator[str]:
    """The same lines, the first of them read at once: no folder is made for an empty file."""
    return chain([next(lines)], lines)


@dataclass(frozen=True)
class Profiled:
    """What one pass over a corpus found."""

    table: HeadTable
    kept: list[str]  # the first lines, for a closer look
    lines: int
    words: int
    truncated: int


@torch.no_grad()
def profile(subject: Subject, lines: Iterable[str], *, batch_size: int, keep: int = 0) -> Profiled:
    """Read a corpus once, in batches, with memory that does not grow with it."""
    recorder = Profile()
    stream = iter(lines)
    kept = list(islice(stream, keep))
    seen = words = truncated = 0
    for batch in batched_by_length(chain(kept, stream), batch_size):
        prepared = subject.prepare(batch)
        recorder.words = prepared.words
        with observe(subject.model, recorder):
            subject.forward(prepared)
        seen += len(batch)
        truncated += prepared.truncated
        words += sum(int(mask.sum()) for mask in prepared.words.values())
    if not words:
        raise ValueError("There is no text to look at; give at least one line that is not blank.")
    table = with_roles(HeadTable.of(recorder.drain()), {})
    return Profiled(table, kept, seen, words, truncated)


def batched_by_length(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Batches of lines of similar length, sorting only a chunk of the corpus at a time."""
    if size < 1:
        raise ValueError(f"A batch holds at least one line, got {size}.")
    stream = iter(lines)
    while chunk := sorted(islice(stream, CHUNK), key=len):
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _ablated(subject: Subject, lines: Sequence[str], table: HeadTable) -> HeadTable:
    """Add how much the outputs on some lines change when each head is off."""
    if not lines:
        return table
    prepared = subject.prepare(lines)
    whole = _outputs(subject, prepared)
    if not len(whole.values):  # none of these lines holds a word
        return table
    with counting("switching heads off") as count:
        changes = ablate(
            subject.model, lambda: _change(whole, _outputs(subject, prepared)), progress=count
        )
    return table.join(HeadTable.of(changes))


@torch.no_grad()
def _outputs(subject: Subject, prepared: Prepared) -> Output:
    """Values of all words, (N, V), or one row a line for a classifier."""
    output = subject.forward(prepared)
    if output.values.dim() == 2:
        return output
    words_BT = prepared.words.get("decoder", prepared.words.get("encoder"))
    assert words_BT is not None
    return Output(output.values[words_BT].float(), output.are_scores)


def _change(whole: Output, without: Output) -> dict[str, float]:
    moved = (without.values - whole.values).norm() / whole.values.norm()
    change = {"output_change": moved.item()}
    if whole.are_scores:
        differs_N = without.values.argmax(-1) != whole.values.argmax(-1)
        change["prediction_change"] = differs_N.float().mean().item()
    return change


@torch.no_grad()
def _draw(subject: Subject, lines: Sequence[str]) -> dict[str, object]:
    samples = Samples()
    for line in lines:
        prepared = subject.prepare([line])
        samples.start({stack: list(words) for stack, words in prepared.tokens[0].items()})
        with observe(subject.model, samples):
            subject.forward(prepared)
    return samples.drain()
