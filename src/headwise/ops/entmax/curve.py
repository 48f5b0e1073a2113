# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Functions shared by the kernels of sparsemax and entmax: weights, Newton's step, dropout.

With p = 1 / (alpha - 1), z = (alpha - 1) (score - largest score of the row) and x = max(0, z - tau)

    weight  w = x^p          dL/dz's factor  u = w^(2 - alpha) = x^(p - 1)

so that one power gives both, and none is needed for POWER = 1 (sparsemax, u is 0 or 1) and
POWER = 2 (alpha = 1.5). POWER = 0 stands for any p, one per head, from a tensor of alphas.

tau is the root of F(tau) = ||x||_p - 1, convex and falling. Newton's steps from tau = -1 go up and
never too far. If F and its slope G become F' and G' by a step, convexity gives F'/F + G'/G <= 1,
hence F' G' <= F G / 4; at the start F G <= n^(2/p) and always G >= 1. So F < 2^-24 after at most
12 + log2(n) / p steps for any scores; random ones need 4 to 9, because digits double at the end,
or the end is exact (p = 1). Programs take their last step when the weights of all their rows sum to
1 +- NEAR, or when no step would change tau any more.
"""

from typing import no_type_check

import triton
import triton.language as tl

MOST_STEPS = tl.constexpr(40)
TINY = tl.constexpr(1e-30)
HUGE = tl.constexpr(1e30)
SPREAD = tl.constexpr(1.65)  # of random scores
STILL = tl.constexpr(2.0**-23)  # relative to tau: a step this short is lost in rounding


@triton.jit
@no_type_check
def alpha_of_head(alpha, head, POWER: tl.constexpr):
    """Return alpha - 1, which multiplies the scores, and p. NaN if alpha is not in (1, 2]."""
    if POWER == 0:
        rise = tl.load(alpha + head) - 1.0
        rise = tl.where((rise > 0.0) & (rise <= 1.0), rise, float("nan"))
        power = 1.0 / rise
    else:
        rise = 1.0 / POWER
        power = 1.0 * POWER
    return rise, power


@triton.jit
@no_type_check
def above(z, tau):
    """Compute max(0, z - tau), with NaN for NaN, so that a bad score stays visible."""
    return tl.maximum(z - tau, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def seen_tile(rows, keys, sight, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Mark the keys that rows may attend. `sight` holds the inputs, in the order unpacked here.

    Args: indices of rows and keys, one of them along each axis; MASKED: see `Call.masked`.
    """
    length, first, n_queries, mask, mask_row, mask_key = sight
    seen = (keys < length) & (rows >= 0)
    if CAUSAL:
        seen = seen & (keys <= rows + first)
    if MASKED == 2:
        seen = seen & (
            tl.load(mask + keys.to(tl.int64) * mask_key, mask=keys < length, other=0) != 0
        )
    elif MASKED == 1:
        at = mask + rows.to(tl.int64) * mask_row + keys.to(tl.int64) * mask_key
        seen = seen & (tl.load(at, mask=seen & (rows < n_queries), other=0) != 0)
    return seen


@triton.jit
@no_type_check
def above_tile(
    q_QD, k_KD, scale, top_Q, tau_Q, rows, keys, sight,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Compute x, with 0 at hidden keys; only tiles at an EDGE have hidden keys.

    Rows beyond the last have q = 0 and are not stored, so they need no mask.
    """
    z_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee") * scale - top_Q[:, None]
    x_QK = above(z_QK, tau_Q[:, None])
    if EDGE:
        seen_QK = seen_tile(rows[:, None], keys[None, :], sight, CAUSAL, MASKED)
        x_QK = tl.where(seen_QK, x_QK, 0.0)
    return x_QK


@triton.jit
@no_type_check
def whole_and_all(
    block, length, first, ROWS: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the end of the whole tiles that all rows of a block see, and of the keys any sees."""
    whole = length
    stop = length
    if CAUSAL:
        whole = tl.minimum(length, tl.maximum(first + block * ROWS + 1, 0))
        stop = tl.minimum(length, first + (block + 1) * ROWS)
    if MASKED:
        whole = whole * 0
    return whole // KEYS * KEYS, stop


@triton.jit
@no_type_check
def factor_and_weight(x, power, POWER: tl.constexpr, SUMMED: tl.constexpr = False):
    """Compute u = x^(p - 1) on the support and 0 elsewhere, and w = x^p.

    Args: SUMMED: u is summed; then a comparison would compile to more instructions.
    """
    if POWER == 1:
        factor = tl.minimum(x * HUGE, 1.0) if SUMMED else tl.where(x > 0.0, 1.0, 0.0)
        weight = x
    elif POWER == 2:
        factor = x
        weight = x * x
    else:
        factor = tl.where(x > 0.0, tl.exp2((power - 1.0) * tl.log2(tl.maximum(x, TINY))), 0.0)
        weight = factor * x
    return factor, weight


@triton.jit
@no_type_check
def newton_step(total, slope, power, POWER: tl.constexpr):
    """Compute Newton's step, from tau to the zero of F's tangent, by the sums of w and u of a row.

    It is below 0 where tau is too high, which rounding may cause: sweeps round z differently.
    """
    if POWER == 1:
        step = (total - 1.0) / tl.maximum(slope, 1.0)
    elif POWER == 2:
        step = (total - tl.sqrt(total)) / tl.maximum(slope, TINY)
    else:
        root = tl.exp2((1.0 - 1.0 / power) * tl.log2(tl.maximum(total, TINY)))
        step = (total - root) / tl.maximum(slope, TINY)
    return tl.maximum(step, -1.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def farthest(total, step, tau):
    """Return the largest distance from 1 of sums of weights, among rows that can still change.

    A step that is lost in the rounding of tau would be repeated forever.
    """
    moves = (total > 0.0) & (tl.abs(step) > STILL * tl.abs(tau))
    return tl.max(tl.where(moves, tl.abs(total - 1.0), 0.0), axis=0)


@triton.jit
@no_type_check
def guessed_step(total, slope, power):
    """Estimate, for p = 2, a step that is closer than Newton's if weights sum to less than 2.

    With n keys in the support and none that leaves it, they sum to total - 2 slope step + n step^2.
    Newton's step takes n for slope^2 / total, as if all x were equal; it is 4/3 of that where x are
    spread evenly, and twice that where they thin out exponentially. Counting would take as long as
    the rest, so SPREAD is assumed. The step may be too long.
    """
    root = tl.sqrt(tl.maximum(1.0 - SPREAD * (total - 1.0) / tl.maximum(total, TINY), 0.0))
    step = (total - 1.0) / tl.maximum(slope * (1.0 + root), TINY)
    usual = (total > 0.5) & (total < 2.0)
    return tl.where(usual, step, newton_step(total, slope, power, 2))


@triton.jit
@no_type_check
def solve(tiles, tau_Q, power, POWER: tl.constexpr, NEAR: tl.constexpr, MOST: tl.constexpr):
    """Improve tau of the rows whose z are in these tiles, in at most MOST steps."""
    step = 0
    far = True
    while far & (step < MOST):
        total_Q = tau_Q * 0.0
        slope_Q = tau_Q * 0.0
        for tile in tl.static_range(len(tiles)):
            factor_QK, weight_QK = factor_and_weight(
                above(tiles[tile], tau_Q[:, None]), power, POWER, SUMMED=True
            )
            total_Q += tl.sum(weight_QK, axis=1)
            slope_Q += tl.sum(factor_QK, axis=1)
        ahead_Q = newton_step(total_Q, slope_Q, power, POWER)
        far = farthest(total_Q, ahead_Q, tau_Q) > NEAR
        tau_Q += ahead_Q
        step += 1
    return tau_Q


@triton.jit
@no_type_check
def kept(seed, line, rows, start, dropout, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Return 1 / (1 - dropout) where a weight is kept, else 0, (Q, K), equal in every pass.

    The counter-based generator Philox takes the seed, batch * heads + head, the row and the key,
    four keys at a time, in seven rounds, which are enough (Salmon et al., 2011). `start` is the
    first key, a multiple of KEYS.
    """
    fours = start // 4 + tl.arange(0, KEYS // 4)
    nothing = (rows[:, None] + fours[None, :]) * 0
    a, b, c, d = tl.philox(
        tl.load(seed),
        nothing + fours[None, :],
        nothing + rows[:, None],
        nothing + line.to(tl.int32),
        nothing,
        7,
    )
    pairs = tl.join(
        tl.join(_is_kept(a, dropout), _is_kept(b, dropout)),
        tl.join(_is_kept(c, dropout), _is_kept(d, dropout)),
    )
    return tl.where(tl.reshape(pairs, (ROWS, KEYS)) != 0, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
@no_type_check
def _is_kept(random, dropout):
    return (tl.uint_to_uniform_float(random) >= dropout).to(tl.int8)
