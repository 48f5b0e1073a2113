"""A 12-layer encoder with a quarter, a half and three quarters of its heads removed.

Random weights of BERT-base's shape, on which speed does not depend. The same heads go from every
layer. Ours is measured against the unpruned model by `headwise.pruning.speed`, forward passes in
turns; with Torch-Pruning installed (`pip install torch-pruning`), what it makes of the same model,
with as many heads, is measured the same way. A pruned model whose outputs are not those of the
model with these heads masked is wrong, and not timed. A GPU is timed in bfloat16, a CPU in float32;
on a GPU passes are started from Python, and replayed as CUDA graphs.

    python -m benchmarks prune                     # a quarter of an hour on two cores
    python -m benchmarks prune --device cuda
    python -m benchmarks prune --only attention    # long texts, where heads are most of the work
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from rich.table import Table
from torch import nn
from transformers import BertConfig, BertModel

from benchmarks import SEED, Measured, name_of
from headwise import adopt, masked, release
from headwise.pruning import prune, speed
from headwise.pruning.timing import random_text

OURS, PEER = "headwise", "Torch-Pruning"
TOLERANCE = 1e-4
SHARES = (0.25, 0.5, 0.75)

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    width: int = 768  # BERT-base's shape
    heads: int = 12
    layers: int = 12
    feed_forward: int = 3072
    vocabulary: int = 30522
    positions: int = 2048
    batches: tuple[int, ...] = (1, 16)
    lengths: tuple[int, ...] = (32, 128, 512)
    long_lengths: tuple[int, ...] = (1024, 2048)  # with a batch of 1
    most_on_cpu: int = 1024  # tokens of a pass there: more take many seconds, and 16 are timed
    backends: tuple[str, ...] = ("sdpa", "eager")
    on_a_gpu: tuple[str, ...] = ("sdpa", "sdpa, replayed")


SIZES = Sizes()
PARTS = ("usual", "attention")


def measure(repeat: int, device: torch.device, *, only: tuple[str, ...] = ()) -> Measured:
    """Compare with the unpruned model, for every share of heads that goes.

    Args:
        repeat: seconds that each combination is timed, about.
        device: where.
        only: "usual" or "attention".
    """
    before = _encoder(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    timed = nn.Module.to(copy.deepcopy(before), dtype)
    rows: list[Row] = []
    wrong = 0
    for share in SHARES:
        for name, make in _contestants().items():
            try:
                after = make(before, share)
            except ValueError as reason:
                rows.append({"contestant": name, "removed": share, "reason": str(reason)})
                continue
            if name == OURS and (apart := _apart(before, after, share)) > TOLERANCE:
                wrong += 1
                reason = f"outputs differ from the masked model's by {apart:.2g}"
                rows.append({"contestant": name, "removed": share, "reason": reason})
                continue
            nn.Module.to(after, dtype)
            for part in only or PARTS:
                rows += _timed(timed, after, part, seconds=float(repeat), name=name, share=share)
    return Measured(rows, _table(rows, device), wrong)


def _encoder(device: torch.device) -> BertModel:
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=SIZES.vocabulary,
        hidden_size=SIZES.width,
        num_hidden_layers=SIZES.layers,
        num_attention_heads=SIZES.heads,
        intermediate_size=SIZES.feed_forward,
        max_position_embeddings=SIZES.positions,
    )
    model = BertModel(config).eval()
    nn.Module.to(model, device)
    return model


def _contestants() -> dict[str, Callable[[BertModel, float], nn.Module]]:
    return {OURS: _by_headwise, PEER: _by_torch_pruning}


def _kept(share: float) -> list[int]:
    """The heads of each layer that stay: the last ones."""
    return list(range(round(SIZES.heads * share), SIZES.heads))


def _by_headwise(model: BertModel, share: float) -> nn.Module:
    small = adopt(copy.deepcopy(model))
    prune(small, {f"encoder.{layer}.self": _kept(share) for layer in range(SIZES.layers)})
    release(small)
    return small


def _by_torch_pruning(model: BertModel, share: float) -> nn.Module:
    """As many heads of each layer gone, those it finds the least important."""
    if find_spec("torch_pruning") is None:
        raise ValueError("not installed")
    peer: Any = import_module("torch_pruning")
    small: Any = copy.deepcopy(model)
    small.set_attn_implementation("eager")  # it follows gradients through every operation
    attention = [layer.attention.self for layer in small.encoder.layer]
    heads = {part: SIZES.heads for own in attention for part in (own.query, own.key, own.value)}
    pruner = peer.pruner.BasePruner(
        small,
        dict(random_text(small, 1, 8)),
        importance=peer.importance.GroupMagnitudeImportance(),
        pruning_ratio=0.0,
        pruning_ratio_dict=dict.fromkeys(heads, share),
        num_heads=heads,
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=share,
        output_transform=lambda output: output.last_hidden_state.sum(),
        root_module_types=[nn.Linear],
    )
    pruner.step()
    for own in attention:
        own.num_attention_heads = pruner.num_heads[own.query]
        own.all_head_size = own.query.out_features
        if own.num_attention_heads != len(_kept(share)):
            raise ValueError(f"{own.num_attention_heads} heads stay instead of {len(_kept(share))}")
    return small


def _apart(before: BertModel, after: nn.Module, share: float) -> float:
    inputs = random_text(before, 2, 16)
    off = [head for head in range(SIZES.heads) if head not in _kept(share)]
    adopt(before)
    with torch.no_grad(), masked(before, {f"encoder.{n}.self": off for n in range(SIZES.layers)}):
        wanted = before(**inputs).last_hidden_state
    release(before)
    with torch.no_grad():
        got = after(**inputs).last_hidden_state
    return float((wanted - got).abs().max())


def _timed(
    before: nn.Module, after: nn.Module, part: str, *, seconds: float, name: str, share: float
) -> list[Row]:
    long = part == "attention"
    lengths = SIZES.long_lengths if long else SIZES.lengths
    on_cpu = next(before.parameters()).device.type == "cpu"
    most = SIZES.most_on_cpu if on_cpu else math.inf
    rows: list[Row] = []
    for batch in (1,) if long else SIZES.batches:
        fitting = [length for length in lengths if batch * length <= most]
        found = speed(
            before,
            after,
            batches=(batch,),
            lengths=fitting,
            backends=SIZES.backends if on_cpu else SIZES.on_a_gpu,
            seconds=seconds,
        )
        shared = {"contestant": name, "removed": share, "parameters": list(found.parameters)}
        shared["dtype"] = str(next(before.parameters()).dtype).removeprefix("torch.")
        rows += [{**shared, "part": part, **work} for work in found.to_json()["workloads"]]
    return rows


def _table(rows: list[Row], device: torch.device) -> Table:
    title = f"Heads removed from a {SIZES.layers}-layer encoder, {name_of(device)}"
    header = ("contestant", "heads gone", "backend", "batch x length", "times faster", "FLOPs gone")
    table = Table(*header, title=title)
    for row in rows:
        gone = f"{100 * row['removed']:.0f} %"
        if "reason" in row:
            table.add_row(row["contestant"], gone, "", "", row["reason"], "")
            continue
        ratio = row["time"]["ratio"]
        table.add_row(
            row["contestant"],
            gone,
            row["backend"],
            f"{row['batch']} x {row['length']}",
            f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
            f"{100 * row['saved_flops']:.0f} %",
        )
    return table
