"""Masked language modelling with our encoder, against Hugging Face's RoBERTa.

RoBERTa gets our weights and must have our loss; then both train on the same batches of random
words, 15 % of them to be guessed, with dropout: bf16 by autocast and fused AdamW, batches already
on the device. Ours scores words at the masked places alone, as `MaskedLM` always does; RoBERTa
scores them everywhere. Utilisation counts the products that a contestant really computes.

RoBERTa's 50,265 words are no multiple of 8, which may make the product of its head slow; our table
has 50,304 rows anyway. "Rounded vocabulary" is the same RoBERTa with that many words: the peer at
its best. Its loss is a little larger, as there are more words to choose from.

A step here is less than one of `headwise train mlm`: gradients are neither measured nor clipped,
the learning rate stays, and nothing is logged. What is compiled is the loss with the model inside,
as there. Every compiled contestant has a graph of its own. "Replayed" steps are recorded as CUDA
graphs by what `headwise.training.fit` records them with: so does `headwise train mlm`, and RoBERTa
gets the same. Rows are kept as they come, at first with the speed of one turn alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from types import FunctionType
from typing import Any, cast

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import SEED, Measured, name_of, wait_for
from benchmarks.peers import FAILURES, one_line
from headwise.ops.graphs import Replayed, on_a_stream
from headwise.training.settings import COMPILED_WARM
from headwise_papers.attention_guidance._masked_steps import (
    Batch,
    drawn_batch,
    drawn_model,
    own_loss,
)
from headwise_papers.models import EncoderConfig
from headwise_papers.models.encoder import training_flops
from headwise_papers.models.encoder_weights import to_hugging_face
from headwise_papers.sparse_transformer._speed import take_turns

PEAK = 790e12  # operations a second of the fastest large products in bf16 that an H200 did for us
OURS, THEIRS = "ours", "RoBERTa"
COMPILED, REPLAYED = ", compiled", ", replayed"
CUDNN, ROUNDED = ", cuDNN attention", ", rounded vocabulary"
AIM = {f"{OURS}{COMPILED}": 0.45, f"{OURS}{COMPILED}{REPLAYED}": 0.45}  # of PEAK
# whom everybody is compared with, and what that column is called
PEERS = {
    THEIRS: "over RoBERTa",
    f"{THEIRS}{ROUNDED}": "over rounded",
    f"{THEIRS}{COMPILED}": "over compiled",
    f"{THEIRS}{ROUNDED}{COMPILED}": "over rounded, compiled",
    f"{THEIRS}{ROUNDED}{COMPILED}{REPLAYED}": "over rounded, compiled, replayed",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are for a GPU."""

    config: EncoderConfig
    batch: int = 32
    length: int = 512
    batches: int = 10  # all of them are trained on in a turn
    compiled: bool = True
    agreement: float = 1e-4  # of losses in float32, relatively


SIZES = {
    "cuda": Sizes(EncoderConfig.roberta(50_265)),
    "cpu": Sizes(EncoderConfig.tiny(500), batch=4, length=32, batches=2, compiled=False),
}


@dataclass
class Contestant:
    """A model in training."""

    model: nn.Module
    loss: Callable[[Batch], Tensor]
    batches: list[Batch]
    flops: float  # of the products of a step
    attention: Callable[[], AbstractContextManager[object]] = nullcontext
    replayed: bool = False

    def __post_init__(self) -> None:
        self.device = self.batches[0].ids.device
        self.cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, fused=self.cuda, capturable=self.replayed
        )
        self.update = Replayed(self._update, warm=COMPILED_WARM) if self.replayed else self._update

    def __call__(self) -> int:
        """A step on every batch; how many tokens they had."""
        for batch in self.batches:
            self.step(batch)
        return sum(batch.ids.numel() for batch in self.batches)

    def step(self, batch: Batch) -> None:
        """One update."""
        with on_a_stream(self.device) if self.replayed else nullcontext():
            self.update(batch)

    def _update(self, batch: Batch) -> Tensor:
        with self.attention(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
            loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def evaluated(self, loss: Callable[[Batch], Tensor]) -> float:
        """The loss of the first batch without dropout, not compiled."""
        self.model.eval()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
            found = loss(self.batches[0]).item()
        self.model.train()
        return found


def measure(
    repeat: int,
    device: torch.device,
    *,
    keep: Callable[[list[Row]], None] = lambda rows: None,
    sizes: Sizes | None = None,
) -> Measured:
    """Check that both compute the same loss, and time them in turns."""
    sizes = sizes or SIZES[device.type]
    batches = drawn_batches(sizes, device)
    _check_losses(sizes, batches[0], device)
    rows: list[Row] = []
    able: dict[str, Contestant] = {}
    alone: dict[str, list[float]] = {}
    for name in _names(sizes, device):
        contestant = _contestant(name, sizes, batches, device)
        row = _tried(name, contestant, device)
        rows.append(row)
        if "reason" not in row:
            able[name] = contestant
            alone |= take_turns({name: contestant}, device, turns=1)
            _add_figures(rows, able, alone, device)
        keep(rows)
    speeds: dict[str, list[float]] = {name: [] for name in able}  # in turns, unlike those before
    for _ in range(repeat):
        for name, found in take_turns(able, device, turns=1, warm=0).items():
            speeds[name] += found
        _add_figures(rows, able, speeds, device)
        keep(rows)
    return Measured(rows, _table(rows, device), sum(bool(row.get("wrong")) for row in rows))


def drawn_batches(sizes: Sizes, device: torch.device) -> list[Batch]:
    """Random texts with as many masks in each."""
    rng = torch.Generator().manual_seed(SEED)
    vocab, texts, length = sizes.config.vocab, sizes.batch, sizes.length
    return [
        drawn_batch(vocab, texts=texts, length=length, generator=rng, device=device)
        for _ in range(sizes.batches)
    ]


def _names(sizes: Sizes, device: torch.device) -> list[str]:
    names = [OURS, THEIRS]
    if sizes.config.rows > sizes.config.vocab:
        names.append(f"{THEIRS}{ROUNDED}")
    if not sizes.compiled:
        return names
    ours, *theirs = (f"{name}{COMPILED}" for name in names)
    if device.type != "cuda":
        return [*names, ours, *theirs]
    replayed = f"{ours}{REPLAYED}", f"{ours}{REPLAYED}{CUDNN}", f"{theirs[-1]}{REPLAYED}"
    return [*names, *replayed, ours, *theirs]


def _contestant(name: str, sizes: Sizes, batches: list[Batch], device: torch.device) -> Contestant:
    config, mine = sizes.config, name.startswith(OURS)
    if ROUNDED in name:
        config = replace(config, vocab=config.rows)
    model = drawn_model(config, device)
    model = (model if mine else to_hugging_face(model)).train()
    loss = own_loss(model)
    scored = len(batches[0].places) if mine else batches[0].ids.numel()
    return Contestant(
        model,
        torch.compile(_with_own_code(loss, name)) if COMPILED in name else loss,
        batches,
        training_flops(config, texts=sizes.batch, length=sizes.length, scored=scored),
        _by_cudnn if CUDNN in name else nullcontext,
        replayed=REPLAYED in name,
    )


def _with_own_code(loss: Callable[[Batch], Tensor], name: str) -> Callable[[Batch], Tensor]:
    """The same function from code of its own name.

    A compiled graph belongs to a code object: one that a contestant shares with another would be
    found to fit both, though they choose their attention differently.
    """
    found = cast(FunctionType, loss)
    code = found.__code__.replace(co_name=name)
    return FunctionType(code, found.__globals__, name, found.__defaults__, found.__closure__)


def _by_cudnn() -> AbstractContextManager[object]:
    """PyTorch chooses flash attention by itself, though cuDNN's may be faster on a Hopper."""
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)


@torch.no_grad()
def _check_losses(sizes: Sizes, batch: Batch, device: torch.device) -> None:
    """RoBERTa with our weights must have our loss, in float32."""
    model = drawn_model(sizes.config, device).eval()
    ours, theirs = (own_loss(each)(batch).item() for each in (model, to_hugging_face(model)))
    if not abs(ours - theirs) <= sizes.agreement * abs(theirs):
        raise SystemExit(f"RoBERTa's loss is {theirs:.6f}, ours {ours:.6f}: nothing is reported.")


def _tried(name: str, contestant: Contestant, device: torch.device) -> Row:
    """Some steps, which compile and record, and the memory of one more; or why not."""
    batch = contestant.batches[0]
    before = contestant.evaluated(own_loss(contestant.model))
    try:
        # the one after is recorded, which is when a graph takes its memory
        for _ in range(COMPILED_WARM if contestant.replayed else 1):
            contestant.step(batch)
        held = _held(device)
        contestant.step(batch)
        wait_for(device)
    except FAILURES as problem:
        return {"contestant": name, "reason": one_line(problem)}
    row: Row = {"contestant": name, "loss_before": round(before, 4)}
    if device.type == "cuda":
        row["peak_gib"] = round((torch.cuda.max_memory_allocated(device) - held) / 2**30, 2)
    return row


def _held(device: torch.device) -> int:
    """What is there before a step: weights and moments of all contestants so far."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _add_figures(
    rows: Sequence[Row],
    able: Mapping[str, Contestant],
    speeds: Mapping[str, list[float]],
    device: torch.device,
) -> None:
    """Medians of those who can; ratios are medians of those turn by turn."""
    for row in rows:
        if row["contestant"] in able:
            row |= _figures(row["contestant"], able[row["contestant"]], speeds, device)
            row["wrong"] = not row["loss_after"] < row["loss_before"]


def _figures(
    name: str,
    contestant: Contestant,
    speeds: Mapping[str, list[float]],
    device: torch.device,
) -> Row:
    own, tokens = speeds[name], contestant.batches[0].ids.numel()
    a_second = contestant.flops / tokens * median(own)
    row: Row = {
        "tokens_per_second": round(median(own)),
        "ms": round(1000 * tokens / median(own), 3),
        "turns": len(own),
        "flops": contestant.flops,
        "tflops_per_second": float(f"{a_second / 1e12:.4g}"),
    }
    if device.type == "cuda":
        row |= {"utilisation": round(a_second / PEAK, 4), "aim": AIM.get(name)}
    for other in PEERS:
        if other in speeds and other != name:
            ratios = [a / b for a, b in zip(own, speeds[other], strict=True)]
            row[f"over {other}"] = round(median(ratios), 3)
    row["loss_after"] = round(contestant.evaluated(own_loss(contestant.model)), 4)
    return row


def _table(rows: list[Row], device: torch.device) -> Table:
    table = Table(title=f"A training step of masked language modelling, {name_of(device)}")
    table.add_column("contestant", no_wrap=True)
    for name in ("tokens/s", "ms", "TFLOP/s", "utilisation", "step's GiB", *PEERS.values()):
        table.add_column(name, justify="right")
    table.add_column("aim, or why not")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    def shown(name: str, form: str) -> str:
        return format(row[name], form) if row.get(name) is not None else ""

    ratios = [shown(f"over {other}", ".2f") for other in PEERS]
    return [
        row["contestant"],
        shown("tokens_per_second", ","),
        shown("ms", ".1f"),
        shown("tflops_per_second", ".3g"),
        shown("utilisation", ".1%"),
        shown("peak_gib", ".1f"),
        *ratios,
        row.get("reason")
        or ("wrong: no loss is less" if row.get("wrong") else shown("aim", ".0%")),
    ]
