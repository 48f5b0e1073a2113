"""Attention ops against PyTorch's fused attention and against other libraries of the same op."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any

import entmax
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as fused

from benchmarks import SEED, Measured
from benchmarks.gpu_cases import guided_half
from benchmarks.peers import target_matrix
from headwise.ops import (
    Attended,
    entmax_attention,
    softmax_attention,
    sparsemax_attention,
    topk_attention,
)
from headwise.ops._impl import Impl
from headwise.ops.guidance import guidance_loss

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

SHAPES = [(4, 8, 128, 64), (1, 8, 512, 64), (1, 2, 2048, 64)]  # B, H, n, d: 4096 queries each
KEEP = 8
TOLERANCE = 1e-3
# Two ways to multiply matrices round differently, and now and then another key is the eighth best.
SHARE_THAT_MAY_DIFFER = 1e-3


@dataclass(frozen=True)
class Case:
    """One op: what we ship, its definition, and who else computes the same."""

    name: str
    ours: Attend
    definition: Attend
    peers: dict[str, Attend] = field(default_factory=dict[str, Attend])


def measure(repeat: int, device: torch.device, *, only: tuple[str, ...] = ()) -> Measured:
    """Check and time every op, or those named, at every shape, on a CPU."""
    assert device.type == "cpu"
    pairs = list(product(SHAPES, [case for case in _cases() if not only or _part(case) in only]))
    rows = [
        _measure_case(case, shape, repeat)
        for shape, case in track(pairs, "Timing ops", console=Console(stderr=True))
    ]
    return Measured(rows, _table(rows))


def _part(case: Case) -> str:
    """What --only calls it."""
    return "statistics" if case.name == "row statistics" else case.name.partition(" ")[0]


def _cases() -> list[Case]:
    sparsemax_peers = {
        f"entmax.sparsemax k={k}": _materialised(partial(entmax.sparsemax, dim=-1, k=k))
        for k in (16, 64)
    }
    entmax_peers = {
        f"entmax.entmax15 k={k}": _materialised(partial(entmax.entmax15, dim=-1, k=k))
        for k in (32, 128)
    }
    return [
        _case("softmax", softmax_attention, {"eager softmax": _materialised(_softmax)}),
        _case(
            f"topk keep={KEEP}",
            partial(topk_attention, keep=KEEP),
            {"masked dense": _materialised(_masked_topk)},
        ),
        _case("sparsemax", sparsemax_attention, sparsemax_peers),
        _case("entmax 1.5", entmax_attention, entmax_peers),
        Case(
            "row statistics",
            lambda q, k, v: _statistics(softmax_attention(q, k, v)),
            lambda q, k, v: _statistics(softmax_attention(q, k, v, impl="reference")),
            {"materialised": _reduced_matrix},
        ),
        Case(
            "guidance half the heads",
            partial(_guided, impl="auto"),
            partial(_guided, impl="reference"),
            {"eager matrices": _guided_matrices},
        ),
    ]


def _case(name: str, op: Callable[..., Attended], peers: dict[str, Attend]) -> Case:
    return Case(
        name,
        lambda q, k, v: op(q, k, v).out,
        lambda q, k, v: op(q, k, v, impl="reference").out,
        peers,
    )


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def _softmax(scores_BHQK: Tensor) -> Tensor:
    return scores_BHQK.softmax(dim=-1)


def _masked_topk(scores_BHQK: Tensor) -> Tensor:
    """The usual way: find the k-th score, mask what is below it, take the dense softmax."""
    last_BHQ1 = scores_BHQK.topk(KEEP, dim=-1).values[..., -1:]
    return scores_BHQK.masked_fill(scores_BHQK < last_BHQ1, -math.inf).softmax(dim=-1)


def _materialised(weigh: Callable[[Tensor], Tensor]) -> Attend:
    """Attention with the whole matrix of weights in memory, as libraries of row functions have."""
    return lambda q, k, v: weigh(_scores(q, k)) @ v


def _statistics(attended: Attended) -> Tensor:
    parts = (attended.lse, attended.peak, attended.entropy, attended.sum_squares)
    return torch.stack(parts, dim=-1)


def _reduced_matrix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    fused(q, k, v)  # as the op itself does before anybody reads a statistic
    scores_BHQK = _scores(q, k)
    weights_BHQK = scores_BHQK.softmax(dim=-1)
    parts = (
        scores_BHQK.logsumexp(dim=-1),
        weights_BHQK.amax(dim=-1),
        torch.special.entr(weights_BHQK).sum(dim=-1),
        weights_BHQK.square().sum(dim=-1),
    )
    return torch.stack(parts, dim=-1)


def _guided(q: Tensor, k: Tensor, v: Tensor, *, impl: Impl) -> Tensor:
    """Attention goes on as it is, and the loss is computed beside it."""
    guided = guided_half(q.shape[1], q.device)
    return _with_loss(fused(q, k, v), guidance_loss(q, k, guided, impl=impl))


def _guided_matrices(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eager attention, and how far its matrices are from those that are wanted."""
    weights_BHQK = _scores(q, k).softmax(dim=-1)
    target_NQK = _target(q.shape[1], k.shape[2])
    apart_BNQK = weights_BHQK[:, : len(target_NQK)] - target_NQK
    return _with_loss(weights_BHQK @ v, apart_BNQK.square().sum(dim=(0, 2, 3)))


@cache
def _target(heads: int, length: int) -> Tensor:
    """Made once: no part of what the usual way is timed for."""
    device = torch.device("cpu")
    return target_matrix(guided_half(heads, device), length, device)


def _with_loss(out_BHQE: Tensor, loss_N: Tensor) -> Tensor:
    """Both in one: the loss of its head, a query, is one more column; 0 for others."""
    batch, heads, n_queries, _ = out_BHQE.shape
    loss_H = torch.cat([loss_N / (batch * n_queries), loss_N.new_zeros(heads - len(loss_N))])
    column_BHQ1 = loss_H[:, None, None].expand(batch, heads, n_queries, 1)
    return torch.cat([out_BHQE, column_BHQ1], dim=-1)


def _measure_case(case: Case, shape: tuple[int, ...], repeat: int) -> dict[str, Any]:
    torch.manual_seed(SEED)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    wanted = _results(case.definition, inputs)
    for name, attend in {"headwise": case.ours, **case.peers}.items():
        _refuse_if_wrong(f"{name}, {case.name} at {shape}", _results(attend, inputs), wanted)
    contestants = {"headwise": case.ours, "sdpa": fused, **case.peers}
    forward = _take_turns(contestants, lambda attend: _forward(attend, inputs), repeat)
    both = _take_turns(contestants, lambda attend: _results(attend, inputs), repeat)
    return {
        "op": case.name,
        "shape": shape,
        "dtype": str(inputs[0].dtype).removeprefix("torch."),
        "forward_ms": forward,
        "forward_backward_ms": both,
        "best_peer": min(case.peers, key=lambda name: both[name]),
        "kept_mb": {name: _kept_mb(attend, inputs) for name, attend in contestants.items()},
    }


def _forward(attend: Attend, inputs: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return attend(*inputs)


def _results(attend: Attend, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    out = attend(*inputs)
    upstream = torch.linspace(-1, 1, out.numel()).view_as(out)
    # statistics do not depend on v
    grads = torch.autograd.grad(out, inputs, upstream, allow_unused=True, materialize_grads=True)
    return [out.detach(), *grads]


def _refuse_if_wrong(name: str, got: list[Tensor], wanted: list[Tensor]) -> None:
    for got_BHTD, wanted_BHTD in zip(got, wanted, strict=True):
        error_BHT = (got_BHTD - wanted_BHTD).abs().amax(dim=-1)
        allowed_BHT = TOLERANCE * (1 + wanted_BHTD.abs().amax(dim=-1))
        wrong = (~(error_BHT <= allowed_BHT)).float().mean().item()
        if wrong > SHARE_THAT_MAY_DIFFER:
            raise SystemExit(
                f"{name}: {wrong:.1%} of the rows differ from the definition. "
                "Fast only counts when right: nothing is reported."
            )


def _take_turns(
    contestants: dict[str, Attend], play: Callable[[Attend], object], repeat: int
) -> dict[str, float]:
    """The best time of each in milliseconds, after one turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeat + 1):
        for name, attend in contestants.items():
            start = time.perf_counter()
            play(attend)
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: round(min(turns[1:]), 3) for name, turns in times.items()}


def _kept_mb(attend: Attend, inputs: list[Tensor]) -> float:
    """What the forward pass keeps in memory for the backward pass, beyond q, k and v."""
    given = {x.untyped_storage().data_ptr() for x in inputs}
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = attend(*inputs)
    del out
    return round(sum(size for pointer, size in kept.items() if pointer not in given) / 2**20, 1)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Attention ops on this CPU; ratios are our time over theirs")
    for name in ("op", "B, H, n, d", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in ("fwd ms", "f+b ms", "fwd/SDPA", "f+b/SDPA"):
        table.add_column(name, justify="right")
    table.add_column("best peer", no_wrap=True)
    for name in ("fwd/peer", "f+b/peer", "kept MB", "peer's MB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    forward, both, peer = row["forward_ms"], row["forward_backward_ms"], row["best_peer"]
    ours = forward["headwise"], both["headwise"]
    return [
        row["op"],
        ", ".join(map(str, row["shape"])),
        row["dtype"],
        *(f"{ms:.1f}" for ms in ours),
        *(f"{mine / turns['sdpa']:.2f}" for mine, turns in zip(ours, (forward, both), strict=True)),
        peer,
        *(f"{mine / turns[peer]:.2f}" for mine, turns in zip(ours, (forward, both), strict=True)),
        f"{row['kept_mb']['headwise']:.1f}",
        f"{row['kept_mb'][peer]:.1f}",
    ]
