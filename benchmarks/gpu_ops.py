"""Attention ops on a GPU against PyTorch's fused attention and against other libraries.

Two blocks, q and k drawn from N(0, 1) and those of a trained encoder. Whoever is wrong is not
timed. Rows are handed on after every op, so that a run that is stopped leaves what it found.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from benchmarks import SEED, Measured
from benchmarks.certificate import failures
from benchmarks.gpu_cases import Case, Shape, cases, guided_half
from benchmarks.gpu_table import table_of
from benchmarks.judging import Answer, Contestant, answer, complaint, dropout_complaint
from benchmarks.peers import FAILURES, one_line, peers_of
from benchmarks.trained_heads import TrainedHeads, train_heads
from benchmarks.turns import Time, backward_play, forward_play, take_turns

SHAPES = [Shape(batch, 16, n, 64) for batch, n in ((32, 512), (8, 2048), (4, 4096), (1, 16384))]
PEER_SECONDS = 35.0  # for peers that must be compiled; then the rest of them is left out
ADASPLASH = "adasplash"  # --only: that peer with tuned kernels, at one length
TUNED_LENGTH = 4096
NORMAL, TRAINED = "N(0, 1)", "trained encoder"

OUT = {"wrong", "reason"}
SPENT = "left out: the time for compiling peers is spent; --only gives it more"
UNCOMPILED = "left out: it could not be compiled for another length"

Row = dict[str, Any]
Keep = Callable[[list[Row]], None]


@dataclass(frozen=True)
class Settings:
    """What the benchmark is run with; tests make it small."""

    shapes: list[Shape] = field(default_factory=lambda: list(SHAPES))
    dtype: torch.dtype = torch.bfloat16
    peer_seconds: float = PEER_SECONDS
    train: Callable[[torch.device], TrainedHeads] = train_heads


def measure(
    repeat: int,
    device: torch.device,
    *,
    only: tuple[str, ...] = (),
    keep: Keep = lambda rows: None,
    settings: Settings | None = None,
) -> Measured:
    """Check and time every op at every shape.

    Args:
        repeat: turns each contestant gets.
        device: where.
        only: parts to run, all unless given; "adasplash" is causal entmax with that peer tuned.
        keep: called with all rows so far, after every op.
        settings: the issue's sizes unless given.
    """
    settings = settings or Settings()
    course = Course(repeat, device, settings, only)
    rows: list[Row] = []
    for found in _all_rows(course):
        rows += found
        keep(rows)
    wrong = sum(bool(row.keys() & OUT) for row in rows if row["who"] == "headwise")
    # PyTorch's own attention is judged to test the judge: wrong, it is a mistake of ours
    wrong += sum("wrong" in row for row in rows if row["who"] == "SDPA")
    peers = sum("wrong" in row for row in rows if row["who"] not in ("headwise", "SDPA"))
    return Measured(rows, table_of(rows, device), wrong=wrong, wrong_peers=peers)


@dataclass
class Course:
    """One run: its settings, how long peers have compiled so far, and who could not be."""

    repeat: int
    device: torch.device
    settings: Settings
    only: tuple[str, ...] = ()
    compiling: float = 0.0
    uncompiled: set[tuple[str, str]] = field(default_factory=set)  # op and peer

    @property
    def tuned(self) -> bool:
        """Whether peers may tune themselves."""
        return ADASPLASH in self.only

    def obstacle(self, case: Case, who: Contestant) -> str | None:
        """Why somebody is not to be compiled."""
        if (case.name, who.name) in self.uncompiled:
            return UNCOMPILED
        spent = not self.tuned and self.compiling >= self.settings.peer_seconds
        return SPENT if spent and who.compiles else None


@dataclass(frozen=True)
class Block:
    """Inputs of one kind and shape."""

    kind: str
    shape: Shape
    draw: Callable[..., list[Tensor]]
    encoder_loss: float | None = None

    def facts(self) -> Row:
        """What all its rows have in common."""
        batch, heads, length, _ = self.shape
        facts: Row = {"inputs": self.kind, "n": length, "batch": batch, "heads": heads}
        return facts if self.encoder_loss is None else facts | {"encoder_loss": self.encoder_loss}


def _all_rows(course: Course) -> Iterator[list[Row]]:
    """Ops and peers that run at once; then, while time lasts, peers that must be compiled."""
    blocks = [
        Block(NORMAL, shape, partial(_normal, shape, course)) for shape in course.settings.shapes
    ]
    for block in blocks:
        yield from _block_rows(block, course, compiled=False)
    try:
        trained = _trained_blocks(course)
    except ValueError as problem:
        trained = []
        yield [{"inputs": TRAINED, "op": "", "who": "", "reason": str(problem)}]
    for block in trained:
        yield from _block_rows(block, course, compiled=False)
    for block in sorted([*blocks, *trained], key=lambda block: abs(block.shape.length - 2048)):
        yield from _block_rows(block, course, compiled=True)


def _trained_blocks(course: Course) -> list[Block]:
    heads = course.settings.train(course.device)
    dtype = course.settings.dtype
    return [
        Block(TRAINED, shape, partial(heads.inputs, shape.batch, shape.length, dtype), heads.loss)
        for shape in course.settings.shapes
    ]


def _normal(shape: Shape, course: Course, width: int | None = None) -> list[Tensor]:
    rng = torch.Generator(course.device).manual_seed(SEED)
    size = (*shape[:3], width or shape.width)
    drawn = (torch.randn(size, generator=rng, device=course.device) for _ in range(3))
    return [x.to(course.settings.dtype) for x in drawn]


def _block_rows(block: Block, course: Course, *, compiled: bool) -> Iterator[list[Row]]:
    shape, trained = block.shape, block.kind == TRAINED
    for case in _cases(block, course):
        guided = guided_half(shape.heads, course.device)
        peers = peers_of(case, guided, length=shape.length, tuned=course.tuned)
        peers = [p for p in peers if p.compiles == compiled and (p.data_matters or not trained)]
        if compiled and not peers:
            continue
        about = block.facts() | {"op": case.name, "width": case.width or shape.width}
        why = {peer.name: course.obstacle(case, peer) for peer in peers}
        if compiled and all(why.values()):
            yield [about | {"who": name, "reason": reason} for name, reason in why.items()]
            continue
        inputs = block.draw(width=case.width) if case.width else block.draw()
        ours = [case.contestant] if case.contestant and not compiled else []
        rows = _measure(case, inputs, [*ours, *peers], course)
        if compiled:  # SDPA was reported before; here it only took turns, for the ratios
            rows = [row for row in rows if row["who"] != "SDPA"]
            torch._dynamo.reset()  # every shape is compiled for itself, and few are remembered
        yield [about | row for row in rows]
        _tidy(course.device)


def _cases(block: Block, course: Course) -> list[Case]:
    parts = tuple(part for part in course.only if part != ADASPLASH)
    chosen = cases(block.shape, course.device, parts) if parts or not course.only else []
    if course.tuned and block.shape.length == TUNED_LENGTH:
        entmax = cases(block.shape, course.device, ("entmax",))
        chosen += [case for case in entmax if case.question.causal and case.part not in parts]
    return [case for case in chosen if case.on_trained or block.kind == NORMAL]


def _measure(
    case: Case, inputs: Sequence[Tensor], contestants: list[Contestant], course: Course
) -> list[Row]:
    """A row for everybody, with times for those that are right."""
    yardstick = Contestant("SDPA", case.yardstick)
    # Where SDPA computes what is asked, judging it is a test of the judge; it is timed anyway.
    judged = [yardstick, *contestants] if case.part == "softmax" else contestants
    verdicts = _judge(case, inputs, judged, course)
    fit = [yardstick, *(who for who in contestants if not verdicts[who.name].keys() & OUT)]
    try:
        forward, both = _times(case, inputs, fit, course)
    except FAILURES as problem:  # such as too little memory for what its own check had room for
        for who in fit[1:]:
            verdicts[who.name] = {"reason": f"while timing everybody: {one_line(problem)}"}
        _tidy(course.device)
        forward, both = _times(case, inputs, [yardstick], course)
    rows: list[Row] = []
    for who in (yardstick, *contestants):
        row: Row = {"who": who.name} | verdicts.get(who.name, {})
        if who.name in forward:
            row |= _figures(case, who, forward, both)
        if who.name == "headwise":
            row |= {"aims": list(case.aims)} | ({} if "reason" in row else failures(case, inputs))
        rows.append(row)
    return rows


def _figures(case: Case, who: Contestant, forward: dict[str, Time], both: dict[str, Time]) -> Row:
    """Times and ratios to SDPA; of what is added to it, where the op stands beside it."""
    row: Row = {}
    for name, times in (("forward", forward), ("both", both)):
        if not times:  # it has no backward pass
            continue
        base, mine = times["SDPA"].ms, times[who.name]
        added = case.added and who.name != "SDPA"
        ms = mine.ms - base if added else mine.ms
        row |= {
            f"{name}_ms": round(ms, 4),
            f"{name}_ratio": round(ms / base, 3),
            f"{name}_sdpa_ms": round(base, 4),
            f"{name}_host_ms": round(mine.host_ms, 4),
            f"{name}_turns": mine.turns,
        }
    return row


def _judge(
    case: Case, inputs: Sequence[Tensor], contestants: list[Contestant], course: Course
) -> dict[str, Row]:
    """What is to be said of each, by name; one of OUT where somebody is not to be timed."""
    answers: dict[bool, Answer] = {}
    verdicts: dict[str, Row] = {}
    for who in contestants:
        if who.attend is None:
            verdicts[who.name] = {"reason": who.reason}
            continue
        if reason := course.obstacle(case, who):
            verdicts[who.name] = {"reason": reason}
            continue
        start = time.perf_counter()
        try:
            verdicts[who.name] = _verdict(case, inputs, who, answers)
        except FAILURES as problem:
            verdicts[who.name] = {"reason": one_line(problem)}
            if isinstance(problem, BackendCompilerFailed):
                course.uncompiled.add((case.name, who.name))
        _tidy(course.device)
        seconds = time.perf_counter() - start
        if seconds >= 1:  # compiling, most often
            verdicts[who.name]["check_s"] = round(seconds, 1)
        course.compiling += seconds if who.compiles else 0.0
    return verdicts


def _verdict(
    case: Case, inputs: Sequence[Tensor], who: Contestant, answers: dict[bool, Answer]
) -> Row:
    assert who.attend is not None
    if case.dropout:
        said = dropout_complaint(who, inputs, case.dropout)
    else:
        if who.coarse not in answers:
            heads = judged_heads(case.part, *inputs[0].shape[1:3])
            answers[who.coarse] = answer(case.question, inputs, heads, coarse=who.coarse)
        said = complaint(who, case.question, inputs, answers[who.coarse])
    with torch.no_grad():  # a forward pass alone may be compiled anew, and fail
        who.attend(*inputs)
    excused = 0.0 if case.dropout else answers[who.coarse].excused
    return {"wrong": said} if said else {"excused_rows": round(excused, 6)}


def judged_heads(part: str, heads: int, length: int) -> list[int]:
    """Which of so many heads are compared with the definition; long rows take much memory."""
    last = max(1, heads // 2) - 1 if part == "guidance" else heads - 1
    return sorted({last * third // 3 for third in range(4)}) if length <= 2048 else [0]


def _times(
    case: Case, inputs: Sequence[Tensor], contestants: list[Contestant], course: Course
) -> list[dict[str, Time]]:
    """Of the forward pass, then of both; nothing of both where there is no backward pass."""
    forward: dict[str, Callable[[], object]] = {}
    both: dict[str, Callable[[], object]] = {}
    for who in contestants:
        assert who.attend is not None
        asked = (3, 1) if who.name == "SDPA" else (case.question.leaves, case.question.through)
        forward[who.name] = forward_play(who.attend, inputs)
        if case.question.leaves:
            both[who.name] = backward_play(who.attend, inputs, *asked)
    return [take_turns(plays, course.device, repeat=course.repeat) for plays in (forward, both)]


def _tidy(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
