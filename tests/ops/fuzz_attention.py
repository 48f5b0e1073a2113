"""Cases of `tests.ops.fuzz` for ops with an output: top-k and entmax attention, with dropout."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from headwise.ops import entmax_attention, sparsemax_attention, topk_attention
from headwise.ops.scores import multiply_groups
from headwise.ops.topk import topk_selected
from tests.ops.fuzz_checks import (
    DOUBT,
    SINGLE_EPS,
    Check,
    Judged,
    Run,
    compare,
    floors_of,
    is_clear,
    largest_score,
    rounding_of_scores,
    same,
    upstream_of,
    worst,
)
from tests.ops.fuzz_inputs import Case

Attend = Callable[..., object]
DROPOUT = 0.3
STEEPEST = 8.0  # a row whose gradient is steeper in its scores is not looked at


def check_topk(case: Case) -> Judged:
    """Check top-k attention, for some variants also certificates and `topk_selected`."""
    variant, (q, k, v) = case.variant, (case.q, case.k, case.v)
    low, high = variant.keep
    keep = case.rng.randint(low, max(low, min(high, case.sizes.n_keys)))
    attend = partial(topk_attention, keep=keep, ties=variant.ties, **case.options)
    scores = case.scores().rows()
    clear = is_clear(case, scores, keep)
    kernel, flags = partial(attend, impl="triton"), []

    def watched(*tensors: Tensor, **options: float) -> Tensor:
        out = kernel(*tensors, **options).out
        if out.requires_grad:  # the flags are the last that is kept for the backward pass
            flags.append(out.grad_fn.saved_tensors[-1])
        return out

    weights = attend(q.double(), k.double(), v.double(), impl="reference").weights
    checks = _checks(
        case, watched, attend, [q, k, v], clear, weights, shown=clear[..., None],
        times=4,  # the backward pass recomputes weights from sums that were rounded
        slack=rounding_of_scores(scores, q.dtype), floors=_floors(case),
    )  # fmt: skip
    if variant.ties == "first" and variant.values == variant.width:
        checks.append(_check_selected(case, attend, keep, clear))
    return Judged(checks, (flags[0] > 0).sum(), flags[0].numel())


def _check_selected(case: Case, attend: Attend, keep: int, clear: Tensor) -> Check:
    """Check that listed keys and weights equal the attention map."""
    listed = topk_selected(case.q, case.k, keep=keep, impl="triton", **case.options)
    wanted = attend(case.q, case.k, case.v, impl="reference").weights
    at = listed.keys.clamp(min=0).long()
    got = torch.zeros_like(wanted).scatter_add(-1, at, listed.weights)
    allowed = 32 * SINGLE_EPS * largest_score(case.scores().rows())
    return Check("selected", worst(got * clear[..., None], wanted * clear[..., None]), allowed)


def check_entmax(case: Case) -> Judged:
    """Check entmax with alpha 1.5, 2, another number, or one per head with a gradient."""
    tensors, number = [case.q, case.k, case.v], case.variant.alpha
    if number == "any":
        number = case.rng.choice((1.1, 1.25, 1.75, case.rng.uniform(1.1, 2)))
    if number == "learned":
        alpha = (1.1 + 0.9 * case.rand(case.sizes.heads)).clamp(max=2)
        alpha[0] = case.rng.choice((1.5, 2.0, 1.3))
        tensors.append(alpha)

        def attend(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, **options: object) -> object:
            return entmax_attention(q, k, v, alpha=alpha, **case.options, **options)

    else:
        alpha = torch.full((case.sizes.heads,), float(number), device=case.q.device)
        named = sparsemax_attention if number == 2 else partial(entmax_attention, alpha=number)
        attend = partial(named, **case.options)

    def kernel(*given: Tensor, **options: float) -> Tensor:
        return attend(*given, impl="triton", **options).out

    scores = case.scores().rows()
    weights = attend(*(x.double() for x in tensors), impl="reference").weights
    clear = _far_from_the_threshold(scores, weights, alpha.double()[:, None, None])
    slack = rounding_of_scores(scores, case.q.dtype)
    floors = _floors(case) | {"dalpha": _floor_of_alpha(case, alpha)}
    least = alpha.min().double()
    power = 2 / (least - 1)  # a weight is a power of what was rounded
    floors |= {"out": power, "dv": power * _lookers(case) ** 0.5}
    steep = ((2 - least) / (least - 1)).clamp(min=1)  # and so is p^(2 - alpha)
    floors |= {name: steep * floors[name] for name in ("dq", "dk")}
    given = {"slack": slack, "floors": floors, "times": 2, "shown": None}
    return Judged(_checks(case, kernel, attend, tensors, clear, weights, **given))


def _lookers(case: Case) -> int:
    """Count the queries that may attend to a key, in all heads that share it."""
    return max(1, case.sizes.n_queries * case.sizes.heads // case.sizes.groups)


def _floors(case: Case) -> dict[str, Tensor]:
    """Scale the floors: changes of weights, and their mean, are products with v."""
    return floors_of(case, case.variant.values**0.5)


def _cancelling(case: Case, floors: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """Compute the floors in float32, where only cancellation loses digits.

    Gradients of scores are u_ij (dout_i . v_j - mean_i), and 0 where a query sees one key. Both
    terms are as large as the largest of these products, not as most of them.
    """
    if case.q.dtype != torch.float32 or not case.v.numel() or not upstream.numel():
        return floors
    products = multiply_groups(upstream.double(), case.v.double().mT)
    exact = floors_of(case, products.abs().max().item())
    return floors | {name: torch.maximum(floors[name], exact[name]) for name in ("dq", "dk")}


def _adding_up(
    case: Case, floors: dict[str, Tensor], weights: Tensor, upstream: Tensor, slack: Tensor
) -> dict[str, Tensor]:
    """Raise the floor of dv if many queries attend to a key: a float32 sum in any order.

    Each of its n additions rounds what there is so far, which is about as large as the root of the
    sum of squares; and n roundings add up like the root of n. So a sum of w_ij dout_i may be off by
    eps (n sum_i (w_ij dout_i)^2)^(1/2), however well scores are known: `slack` has no part in it.
    """
    if not weights.numel() or not upstream.numel():
        return floors
    squares_BHKE = weights.square().mT @ upstream.double().square()
    number_BHK1 = (weights > 0).sum(dim=2)[..., None]
    number, squares = (
        x.unflatten(1, (case.sizes.groups, -1)).sum(dim=2) for x in (number_BHK1, squares_BHKE)
    )
    single = SINGLE_EPS / torch.finfo(case.v.dtype).eps / slack
    return floors | {"dv": torch.maximum(floors["dv"], single * (number * squares).max().sqrt())}


def _floor_of_alpha(case: Case, alpha: Tensor) -> Tensor:
    """Bound the gradient of alpha: a sum over rows whose weights sum to 1 up to v's rounding.

    Weights of a 16-bit call may be off by that; the sums that are taken of them are float32.
    """
    precision = torch.finfo(case.v.dtype).eps / SINGLE_EPS
    terms = max(1, case.sizes.batch * case.sizes.n_queries * case.variant.values)
    return 2 * precision * terms**0.5 / (alpha.min().double() - 1)


def _far_from_the_threshold(scores: Tensor, weights: Tensor, alpha_H11: Tensor) -> Tensor:
    """Mark queries whose gradient cannot jump: above 1.5 it does if a key enters the support.

    Near it, at a distance d, it is d^e with e = (2 - alpha) / (alpha - 1) below 1, and what was
    rounded in d shows e d^(e - 1) times.
    """
    seen = scores > -torch.inf
    rise = (alpha_H11 - 1) * scores.masked_fill(~seen, 0)
    top = weights.argmax(dim=-1, keepdim=True)
    tau = rise.gather(-1, top) - weights.gather(-1, top) ** (alpha_H11 - 1)
    distance = (rise - tau).abs().masked_fill(~seen, torch.inf).amin(dim=-1)
    doubt = (8 * SINGLE_EPS * largest_score(scores)).clamp(min=DOUBT)
    exponent = (2 - alpha_H11[..., 0]) / (alpha_H11[..., 0] - 1)
    steep = exponent * distance ** (exponent - 1) > STEEPEST
    return ((distance > doubt) & ~steep) | (alpha_H11[..., 0] <= 1.5)


def _checks(
    case: Case,
    kernel: Run,
    attend: Attend,
    tensors: list[Tensor],
    clear: Tensor,
    weights: Tensor,
    *,
    shown: Tensor | None,
    times: float,
    slack: Tensor,
    floors: dict[str, Tensor],
) -> list[Check]:
    """Compare out and gradients; with dropout, against a definition that drops the same weights.

    `weights` are those of the definition in float64, before dropout.
    """
    upstream = upstream_of(case, clear)
    floors = _cancelling(case, floors, upstream)
    floors = _adding_up(case, floors, weights, upstream, slack)
    judge = partial(
        compare, upstream=upstream, shown=shown, times=times, slack=slack, floors=floors
    )
    if not case.variant.dropout:
        return judge(kernel, lambda *given: attend(*given, impl="reference").out, tensors)

    def dropped(*given: Tensor) -> Tensor:
        torch.manual_seed(case.seed)
        return kernel(*given, dropout=DROPOUT)

    single = attend(*tensors, impl="reference").weights
    stays = _shown_weights(case, dropped) > single / 2

    def definition(*given: Tensor) -> Tensor:
        left = attend(*given, impl="reference").weights * stays / (1 - DROPOUT)
        return multiply_groups(left, given[2].to(left.dtype)).to(given[2].dtype)

    once, again = dropped(*tensors), dropped(*tensors)
    return [
        *judge(dropped, definition, tensors),
        _check_share(stays & clear[..., None], (single > 1e-3) & clear[..., None]),
        same("out of one seed, twice", once.detach(), again.detach()),
    ]


def _shown_weights(case: Case, run: Run) -> Tensor:
    """Return weights after dropout, (B, H, Q, K), read through values that are unit vectors."""
    parts, width, n_keys = [], case.variant.values, case.sizes.n_keys
    for start in range(0, n_keys, width):
        v = torch.zeros_like(case.v)
        end = min(start + width, n_keys)
        v[:, :, torch.arange(start, end), torch.arange(end - start)] = 1
        parts.append(run(case.q, case.k, v)[..., : end - start])
    return torch.cat(parts, dim=-1).float()


def _check_share(stays: Tensor, there: Tensor) -> Check:
    """Check the share of kept weights by the binomial distribution."""
    count = there.sum().double().clamp(min=1)
    share = (stays & there).sum() / count
    wanted = (1 - DROPOUT) * there.any()
    deviation = (DROPOUT * (1 - DROPOUT) / count).sqrt()
    return Check("share that stays", (share - wanted).abs(), 6 * deviation)
