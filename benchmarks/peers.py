"""Who else computes the same ops. Each is called as its own documentation says, at its best.

None of them is needed: one that is not installed says so in the table.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.gpu_cases import Case
from benchmarks.judging import Attend, Contestant, Outputs
from headwise.ops.guidance import GuidedHeads

# A peer may fail in many ways; each is a reason to report, and none a reason to stop.
FAILURES: tuple[type[BaseException], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
if find_spec("triton"):
    FAILURES += (import_module("triton.errors").TritonError,)

PACKAGES = ("x-transformers", "entmax", "adasplash")
ENTMAX_SORTED = (None, 128)  # keys sorted at first; None all of them
SPARSEMAX_SORTED = (None, 64)
SORTED_LENGTH = 2048  # longer rows are not sorted whole
TUNES = (
    "left out: its autotuner compiles some 180 variants for every length, which takes minutes; "
    "--only adasplash runs it"
)


def peers_of(
    case: Case, guided: GuidedHeads | None = None, *, length: int = 0, tuned: bool = False
) -> list[Contestant]:
    """The peers of a case, present or not.

    Args:
        case: an op.
        guided: the heads of the guidance case.
        length: of rows; some peers would take too long with long ones.
        tuned: also peers that tune themselves for minutes.
    """
    causal = case.question.causal
    if case.name == "top-k keep 8":
        return _topk(8)
    if case.question.seen is not None:
        assert case.question.keep is not None
        return _selecting(case.question.keep)
    if case.name == "softmax":
        return [_flexible("FlexAttention", compiled(_flex_softmax))]
    if case.part == "entmax":
        adasplash = _adasplash(1.5, causal=causal, tuned=tuned)
        return (
            [adasplash]
            if causal
            else [*_materialised("entmax15", ENTMAX_SORTED, length), adasplash]
        )
    if case.part == "sparsemax":
        rows = _materialised("sparsemax", SPARSEMAX_SORTED, length)
        return [*rows, _adasplash(2.0, causal=False, tuned=tuned)]
    if case.part == "statistics":
        flex = _flexible("FlexAttention, two calls", compiled(_flex_statistics), coarse=True)
        return [Contestant("eager matrix", _eager_statistics, coarse=True), flex]
    if case.part == "guidance":
        assert guided is not None
        flex = _flexible("FlexAttention, two calls", _flex_guidance(guided))
        eager = Contestant("eager matrix", partial(_eager_guidance, guided), coarse=True)
        return [eager, flex]
    return []


def versions() -> dict[str, str | None]:
    """Of the peers' packages, None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def one_line(problem: BaseException) -> str:
    """Why something failed, short enough for a table."""
    said = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {said[:160]}"


def eager_topk(q: Tensor, k: Tensor, v: Tensor, *, keep: int) -> Outputs:
    """The usual way: find the keep-th score, mask what is below it, take the dense softmax."""
    scores_BHQK = q @ k.mT * q.shape[-1] ** -0.5
    last_BHQ1 = scores_BHQK.topk(keep, dim=-1).values[..., -1:]
    weights_BHQK = scores_BHQK.masked_fill(scores_BHQK < last_BHQ1, -math.inf).softmax(dim=-1)
    return (weights_BHQK @ v,)


def _imported(name: str) -> tuple[ModuleType | None, str]:
    """The module, or why it cannot be had."""
    package = name.partition(".")[0]
    return (None, "not installed") if find_spec(package) is None else _tried(name)


@cache
def _tried(name: str) -> tuple[ModuleType | None, str]:
    """Once only: a part of what failed stays in Python's memory, and would be found there."""
    try:
        return import_module(name), ""
    except FAILURES as problem:
        return None, one_line(problem)


def _flexible(name: str, attend: Attend, *, coarse: bool = False) -> Contestant:
    return Contestant(name, attend, coarse=coarse, compiles=True)


def _topk(keep: int) -> list[Contestant]:
    def eager(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return eager_topk(q, k, v, keep=keep)

    return [
        Contestant("eager", eager, coarse=True),
        _x_transformers(keep),
        Contestant("eager, compiled", compiled(eager), coarse=True, compiles=True),
    ]


def _selecting(keep: int) -> list[Contestant]:
    """Keys and weights, from the matrix of weights and from that of scores."""

    def from_weights(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        weights_BHQK = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        weights_BHQR, keys_BHQR = weights_BHQK.topk(keep, dim=-1)
        return keys_BHQR, weights_BHQR / weights_BHQR.sum(dim=-1, keepdim=True)

    def from_scores(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        scores_BHQR, keys_BHQR = (q @ k.mT * q.shape[-1] ** -0.5).topk(keep, dim=-1)
        return keys_BHQR, scores_BHQR.softmax(dim=-1)

    return [
        Contestant("eager softmax, topk", from_weights, coarse=True),
        Contestant("topk of scores", from_scores, coarse=True),
    ]


def _x_transformers(keep: int) -> Contestant:
    module, reason = _imported("x_transformers.attend")
    if module is None:
        return Contestant("x-transformers", None, reason)
    attend = module.Attend(sparse_topk=keep)
    return Contestant("x-transformers", lambda q, k, v: (attend(q, k, v)[0],), coarse=True)


def compiled(call: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """For one shape at a time, and not before it is called: that alone takes seconds."""

    @cache
    def made() -> Callable[..., Outputs]:
        return torch.compile(call, dynamic=False)

    return lambda *tensors: made()(*tensors)


def _materialised(op: str, sizes: tuple[int | None, ...], length: int) -> list[Contestant]:
    """A function of rows, with the whole matrix of weights in memory.

    Of scores as they come, and in float32: its sums in bfloat16 are fast, and too coarse for some.
    """
    module, reason = _imported("entmax")
    if module is None:
        return [Contestant(f"entmax.{op}", None, reason)]
    weigh: Callable[..., Tensor] = getattr(module, op)

    def attend(q: Tensor, k: Tensor, v: Tensor, *, size: int | None, single: bool) -> Outputs:
        scores_BHQK = q @ k.mT * q.shape[-1] ** -0.5
        scores_BHQK = scores_BHQK.float() if single else scores_BHQK
        return (weigh(scores_BHQK, dim=-1, k=size).to(v.dtype) @ v,)

    def contestant(size: int | None, *, single: bool) -> Contestant:
        name = f"entmax.{op} k={size}{', float32' if single else ''}"
        if size is None and length > SORTED_LENGTH:
            return Contestant(name, None, "left out: sorting such rows takes seconds")
        call = partial(attend, size=size, single=single)
        return Contestant(name, call, coarse=True, data_matters=size is not None)

    return [contestant(size, single=single) for size in sizes for single in (False, True)]


def _adasplash(alpha: float, *, causal: bool, tuned: bool) -> Contestant:
    name = f"adasplash {'2, causal' if causal else '1'}"
    module, reason = _imported("adasplash")
    if module is None:
        return Contestant(name, None, reason)
    if causal and not tuned:
        return Contestant(name, None, TUNES)
    splash: Callable[..., Tensor] = module.adasplash

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return (splash(q, k, v, alpha=alpha, is_causal=causal),)

    # its rounding is not ours to know: it stops at a tolerance of its own
    return Contestant(name, attend, coarse=True, compiles=True, data_matters=True)


def _flex_lse(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    out, aux = flex_attention(q, k, v, scale=scale, return_aux=AuxRequest(lse=True))
    return out, aux.lse


def _flex_lse_alone(q: Tensor, k: Tensor, *, scale: float) -> Tensor:
    out, lse = _flex_lse(q, k, k, scale=scale)
    # a backward pass to which nothing comes from the output cannot be compiled
    return lse + 0 * out[..., 0]


def _flex_softmax(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
    from torch.nn.attention.flex_attention import flex_attention

    return (flex_attention(q, k, v),)


def _flex_statistics(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
    """Entropy is lse minus the mean score, which is scale q.(weights k). No peak, no peak_key."""
    scale = q.shape[-1] ** -0.5
    mean_BHQD, lse_BHQ = _flex_lse(q, k, k, scale=scale)
    # only entropy gets a gradient
    _, twice_BHQ = _flex_lse(q.detach(), k.detach(), k.detach(), scale=2 * scale)
    entropy_BHQ = lse_BHQ - scale * (q.float() * mean_BHQD.float()).sum(dim=-1)
    return entropy_BHQ, lse_BHQ, (twice_BHQ - 2 * lse_BHQ).exp()


def _eager_statistics(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
    scores_BHQK = q @ k.mT * q.shape[-1] ** -0.5
    lse_BHQ = scores_BHQK.float().logsumexp(dim=-1)
    weights_BHQK = scores_BHQK.softmax(dim=-1, dtype=torch.float32)
    entropy_BHQ = torch.special.entr(weights_BHQK).sum(dim=-1)
    return entropy_BHQ, lse_BHQ, weights_BHQK.square().sum(dim=-1), weights_BHQK.amax(dim=-1)


def _flex_guidance(guided: GuidedHeads) -> Attend:
    def loss(q: Tensor, k: Tensor, key_NQ: Tensor, there_NQ: Tensor) -> Outputs:
        """sum_j (H - P)^2 = sum H^2 - 2 sum H P + sum P^2; sum H^2 = exp(lse(2s) - 2 lse(s))."""
        scale, even = q.shape[-1] ** -0.5, 1 / q.shape[2]
        lse_BNQ = _flex_lse_alone(q, k, scale=scale)
        twice_BNQ = _flex_lse_alone(q, k, scale=2 * scale)
        at = key_NQ[None, :, :, None].expand(len(q), -1, -1, q.shape[-1])
        target_BNQ = scale * (q.float() * k.gather(2, at).float()).sum(dim=-1)
        # where there is no such key the target is 1/n everywhere: both sums are 1/n
        weight_BNQ = torch.where(there_NQ, (target_BNQ - lse_BNQ).exp(), even)
        squared_NQ = torch.where(there_NQ, 1.0, even)
        loss_BNQ = (twice_BNQ - 2 * lse_BNQ).exp() - 2 * weight_BNQ + squared_NQ
        return (loss_BNQ.sum(dim=(0, 2)),)

    compiled_loss, count = compiled(loss), len(guided.heads)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        aims = _aims(guided, q.shape[2], q.device)
        (loss_N,) = compiled_loss(q[:, :count], k[:, :count], *aims)
        return sdpa(q, k, v), loss_N[None, :, None]

    return attend


def _eager_guidance(guided: GuidedHeads, q: Tensor, k: Tensor, v: Tensor) -> Outputs:
    count = len(guided.heads)
    scores_BNQK = q[:, :count] @ k[:, :count].mT * q.shape[-1] ** -0.5
    weights_BNQK = scores_BNQK.softmax(dim=-1, dtype=torch.float32)
    target_NQK = target_matrix(guided, k.shape[2], q.device)
    loss_N = (weights_BNQK - target_NQK).square().sum(dim=(0, 2, 3))
    return sdpa(q, k, v), loss_N[None, :, None]


def target_matrix(guided: GuidedHeads, length: int, device: torch.device) -> Tensor:
    """The weights that guided heads should have; even ones where there is no such key."""
    key_NQ, there_NQ = _aims(guided, length, device)
    at_NQK = torch.arange(length, device=device) == key_NQ[..., None]
    return torch.where(there_NQ[..., None], at_NQK.float(), 1 / length)


def _aims(guided: GuidedHeads, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The key each query of a guided head should look at, and whether there is one."""
    slope_N1, place_N1 = (guided.plan[:, column, None].long() for column in (1, 2))
    key_NQ = slope_N1 * torch.arange(length, device=device) + place_N1
    there_NQ = (key_NQ >= 0) & (key_NQ < length)
    return key_NQ.clamp(0, length - 1), there_NQ
