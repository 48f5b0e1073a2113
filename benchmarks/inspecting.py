"""Looking at all heads of a model: against `output_attentions=True`, in time and in memory.

Both sides find the same of every head, in words: confidence, entropy, weight on special tokens, the
distances it looks at, how often it looks at the first word, and how often at its neighbours, at
punctuation and at the rarest words. Ours with `Profile` and `Pointing`, which also draw every
sentence again 200 times for intervals; the other with eager attention that keeps its n x n
matrices: as it is usually done, a sentence and a head at a time, and, better than usual, whole
batches at once. Random weights of MiniLM's shape; a peer whose figures are not ours is not timed.

    python -m benchmarks inspect                      # 10,000 sentences of 128 tokens each; minutes
    python -m benchmarks inspect --repeat 1           # 2,000: a turn, of which the best one counts
    python -m benchmarks inspect --only memory        # or time, or relevance

Memory is the peak of a process of its own, less what the model needs anyway, with one sentence of
2,048 tokens. And the relevance of all heads for every step of a translation stands against one
forward and backward pass for each step.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor
from transformers import BertModel

from benchmarks import SEED, Measured, name_of, wait_for
from benchmarks.attention_maps import (
    Sentences,
    by_batch,
    by_head,
    by_recorders,
    draw_sentences,
    small_bert,
)
from headwise.analysis.propagation import head_relevance, top_class
from headwise_papers.models import Transformer, TransformerConfig

OURS = "headwise"
USUAL, BATCHES = (f"output_attentions=True, {how}" for how in ("head by head", "by batches"))
PARTS = ("time", "memory", "relevance")
AIMS = {"time": 3.0, "memory": 10.0, "relevance": 1 / 4}
CHECKED = 3  # batches whose figures must agree
TOLERANCE = 1e-4  # of figures between 0 and 1
ROOT = Path(__file__).parent.parent

Row = dict[str, Any]
Look = Callable[[Sentences], dict[str, float]]


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    width: int = 384  # MiniLM's shape
    heads: int = 12
    layers: int = 6
    sentences: int = 2000  # a turn
    batch: int = 32
    tokens: int = 128
    long_tokens: int = 2048
    translator: str = "iwslt"
    steps: int = 16  # of a translation
    translations: int = 8


SIZES = Sizes()


def measure(repeat: int, device: torch.device, *, only: tuple[str, ...] = ()) -> Measured:
    """Compare in time, memory and relevance, or in some of them."""
    rows: list[Row] = []
    wrong = 0
    for part in only or PARTS:
        if part == "time":
            found, wrong = _times(repeat, device)
            rows += found
        elif part == "memory":
            rows += _memories()
        else:
            rows += _relevances(repeat, device)
    return Measured(rows, _table(rows, device), wrong)


def _times(repeat: int, device: torch.device) -> tuple[list[Row], int]:
    sizes = SIZES
    sentences = draw_sentences(sizes.sentences, tokens=sizes.tokens, batch=sizes.batch)
    contestants = _contestants(sizes.tokens, device)
    few = sentences[:CHECKED]  # which also warms up
    wrong = _complaints({name: look(few) for name, look in contestants.items()})
    plays = {
        name: partial(look, sentences) for name, look in contestants.items() if name not in wrong
    }
    seconds = _clocked(plays, device, repeat=repeat)
    rows = [
        _row(
            "time",
            name,
            seconds=min(found),
            sentences=sizes.sentences,
            turns=repeat,
            tokens=sizes.tokens,
        )
        for name, found in seconds.items()
    ]
    return rows + [_row("time", name, reason=reason) for name, reason in wrong.items()], len(wrong)


def _complaints(found: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Whose figures are not ours, and by how much."""
    ours = found[OURS]
    apart = {
        name: max(abs(ours[figure] - theirs[figure]) for figure in ours)
        for name, theirs in found.items()
    }
    return {
        name: f"its figures differ from ours by {most:.2g}"
        for name, most in apart.items()
        if most > TOLERANCE
    }


def _contestants(tokens: int, device: torch.device) -> dict[str, Look]:
    """All with the same weights, made when they are first called."""
    ours, theirs = (cache(partial(_bert, backend, tokens, device)) for backend in ("sdpa", "eager"))
    return {
        OURS: lambda sentences: by_recorders(ours(), sentences),
        USUAL: lambda sentences: by_head(theirs(), sentences),
        BATCHES: lambda sentences: by_batch(theirs(), sentences),
    }


def _bert(backend: Literal["sdpa", "eager"], tokens: int, device: torch.device) -> BertModel:
    model = small_bert(
        width=SIZES.width, heads=SIZES.heads, layers=SIZES.layers, tokens=tokens, backend=backend
    )
    model.to(device.type)
    return model


def _clocked(
    plays: Mapping[str, Callable[[], object]], device: torch.device, *, repeat: int
) -> dict[str, list[float]]:
    """Seconds of each, a value a turn."""
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    for _ in range(repeat):
        for name, play in plays.items():
            wait_for(device)
            start = time.perf_counter()
            play()
            wait_for(device)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _memories() -> list[Row]:
    """Each in a process of its own, so that one's memory is not there for the other to use."""
    rows: list[Row] = []
    for name in (OURS, BATCHES):
        command = [sys.executable, "-m", "benchmarks.inspecting", name]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True,
            input=json.dumps({"sizes": vars(SIZES), "threads": torch.get_num_threads()}),
        )  # fmt: skip
        mebibytes = json.loads(done.stdout.splitlines()[-1])
        rows.append(_row("memory", name, mebibytes=mebibytes, tokens=SIZES.long_tokens))
    return rows


def _peak(name: str) -> float:
    """Mebibytes by which looking at one long sentence raises this process's peak."""
    device, tokens = torch.device("cpu"), SIZES.long_tokens
    look = _contestants(tokens, device)[name]
    # a short one first: code is loaded, and the model made
    look(draw_sentences(1, tokens=16, batch=1))
    long = draw_sentences(1, tokens=tokens, batch=1)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak is now what is held
    before = _held("VmRSS")
    look(long)
    return _held("VmHWM") - before


def _held(what: str) -> float:
    """Mebibytes of memory of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def _relevances(repeat: int, device: torch.device) -> list[Row]:
    """LRP of all heads for all steps, and one forward and backward pass for each step."""
    sizes = SIZES
    shape = getattr(TransformerConfig, sizes.translator)(1000, 1000, heads=8, dropout=0.0)
    torch.manual_seed(SEED)
    model = Transformer(shape).to(device).eval()
    shape_BT = (sizes.translations, sizes.steps)
    source_BT = torch.randint(4, 1000, shape_BT, device=device)
    lengths_B = torch.full((sizes.translations,), sizes.steps, device=device)
    target_BT = torch.randint(4, 1000, shape_BT, device=device)
    places_N2 = torch.cartesian_prod(*(torch.arange(size) for size in shape_BT))

    def forward() -> Tensor:
        return model(source_BT, lengths_B, target_BT)

    def step_by_step() -> None:
        for step in range(sizes.steps):
            forward()[:, step].amax(dim=-1).sum().backward()
            model.zero_grad()

    plays = {
        "LRP of all heads": lambda: head_relevance(model, forward, top_class(places_N2)),
        "forward and backward for each step": step_by_step,
    }
    seconds = _clocked(plays, device, repeat=repeat)
    steps = sizes.translations * sizes.steps
    return [
        _row("relevance", name, ms_a_step=1000 * min(found) / steps)
        for name, found in seconds.items()
    ]


def _row(part: str, contestant: str, **found: Any) -> Row:
    return {"part": part, "contestant": contestant, **found}


def _table(rows: list[Row], device: torch.device) -> Table:
    """With how many times more than the first of its part each needs, which is added to its row."""
    table = Table(title=f"Looking at all heads, {name_of(device)}")
    for column in ("what", "contestant", "needs", "times ours", "aim"):
        table.add_column(column, justify="left" if column in ("what", "contestant") else "right")
    figures = {"time": "seconds", "memory": "mebibytes", "relevance": "ms_a_step"}
    for row in rows:
        part, figure = row["part"], figures[row["part"]]
        first = next(other for other in rows if other["part"] == part)
        if figure in row and row is not first:
            row["times ours"], row["aim"] = row[figure] / max(first[figure], 1e-9), AIMS[part]
        needs = f"{row[figure]:.4g} {figure.replace('_', ' ')}" if figure in row else row["reason"]
        shown = [f"{row[name]:.3g}" if name in row else "" for name in ("times ours", "aim")]
        table.add_row(part, row["contestant"], needs, *shown)
    return table


def main() -> None:
    """In a process of its own: print the peak memory of the contestant that is named."""
    global SIZES
    given = json.loads(sys.stdin.read())
    torch.set_num_threads(given["threads"])
    SIZES = Sizes(**given["sizes"])
    print(json.dumps(_peak(sys.argv[1])))


if __name__ == "__main__":
    main()
