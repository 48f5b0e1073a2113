"""Cases of `tests.ops.fuzz` for ops that sweep rows: statistics and the guidance loss."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headwise.ops.guidance import FIRST, NEXT, PREVIOUS, Pattern, guidance_rows, guided_heads
from headwise.ops.row_sweep import SweptRows, row_sweep
from headwise.ops.scores import Scores
from tests.ops.fuzz_checks import Check, Judged, close, floors_of, is_clear, largest_score, same
from tests.ops.fuzz_inputs import Case
from tests.ops.fuzz_tiles import poisoned_memory

DIFFERENTIABLE = tuple(name for name in SweptRows._fields if name != "peak_key")
SOME = ("lse", "sum_squares", "mass_at", "mass_on")  # these need no second look at each weight
DOUBT = 1e-4

Results = dict[str, Tensor]
Run = Callable[[Scores, str], Results]


def check_statistics(case: Case) -> Judged:
    """Check all statistics, and the gradient of a random sum of those that the variant reads."""
    first = _draw_first(case)
    scores = case.scores(first=first)
    rows = scores.rows()
    asked: dict[str, object] = {"offset": case.rng.choice((-300, -2, -1, 0, 1, 2))}
    if case.variant.sets:
        shape = _draw_set_shape(case)
        asked["keys"] = case.rand(*shape) > case.rng.choice((0.1, 0.5, 1.0))
    names = DIFFERENTIABLE if case.variant.read == "all" else SOME
    shape = rows.shape[:3]
    upstream = {name: case.randn(*shape) for name in names}
    if "peak" in upstream:
        upstream["peak"] = upstream["peak"] * is_clear(case, rows, 1)

    def run(scores: Scores, impl: str) -> Results:
        q, k = (x.detach().clone().requires_grad_() for x in (scores.q, scores.k))
        swept = row_sweep(replace(scores, q=q, k=k), **asked, impl=impl)._asdict()
        found = {name: row for name, row in swept.items() if row is not None}
        read = {name: row for name, row in found.items() if name in upstream}
        return _with_gradients(found, read, upstream, q, k)

    got, definition, exact = _three(case, scores, run)
    seen = exact["peak_key"] >= 0
    slack = largest_score(exact["lse"])
    floors = floors_of(case, 1.0)
    checks = [same(f"{name} where nothing is seen", *pair) for name, *pair in (
        ("lse", got["lse"] == -torch.inf, ~seen), ("peak_key", got["peak_key"] == -1, ~seen),
    )]  # fmt: skip
    checks.append(_check_peak_key(case, rows, got["peak_key"], exact["peak_key"]))
    for name in (name for name in exact if name != "peak_key"):
        three = [x[name] for x in (got, definition, exact)]
        if name == "lse":
            three = [x.where(seen, 0) for x in three]
        checks.append(close(name, *three, slack=slack, floor=floors.get(name, 1.0)))
    return Judged(checks)


def check_guidance(case: Case) -> Judged:
    """Check each row's loss and visible keys, and the gradient of a random sum of losses."""
    scores = case.scores(first=_draw_first(case))
    heads, device = case.sizes.heads, case.q.device
    chosen = case.rng.sample(range(heads), case.rng.randint(1, heads))
    guided = guided_heads(
        {head: _draw_pattern(case) for head in chosen}, num_heads=heads, device=device
    )
    sets = None
    if case.variant.sets:
        sets = case.rand(2, case.sizes.batch, case.sizes.n_keys) > 0.6
        sets[0, -1] = False
    upstream = {"loss": case.randn(case.sizes.batch, len(chosen), case.sizes.n_queries)}

    def run(scores: Scores, impl: str) -> Results:
        q, k = (x.detach().clone().requires_grad_() for x in (scores.q, scores.k))
        rows = guidance_rows(replace(scores, q=q, k=k), guided, key_sets=sets, impl=impl)
        return _with_gradients(rows._asdict(), {"loss": rows.loss}, upstream, q, k)

    got, definition, exact = _three(case, scores, run)
    slack = largest_score(scores.rows())
    floors = floors_of(case, 1.0)
    checks = [same("seen", got["seen"].double(), exact["seen"])]
    for name in ("loss", "dq", "dk"):
        three = (x[name] for x in (got, definition, exact))
        checks.append(close(name, *three, slack=slack, floor=floors.get(name, 1.0)))
    return Judged(checks)


def _three(case: Case, scores: Scores, run: Run) -> tuple[Results, Results, Results]:
    """Compute by the kernel, by the definition, and by the definition in float64."""
    given = replace(scores, q=case.q, k=case.k)
    with poisoned_memory():
        got = run(given, "triton")
    return got, run(given, "reference"), run(scores, "reference")


def _with_gradients(
    found: Results, read: Results, upstream: Results, q: Tensor, k: Tensor
) -> Results:
    """Detach the results, and compute dq and dk of the sum of those read; -inf has no gradient."""
    parts = [
        (row * upstream[name].to(row.dtype)).masked_fill(row == -torch.inf, 0).sum()
        for name, row in read.items()
    ]
    dq, dk = torch.autograd.grad(torch.stack(parts).sum(), (q, k))
    return {name: row.detach() for name, row in found.items()} | {"dq": dq, "dk": dk}


def _check_peak_key(case: Case, rows: Tensor, got: Tensor, exact: Tensor) -> Check:
    """Check for the first of the largest scores; any of those that rounding could exchange."""
    if case.exact:
        return same("peak_key", got, exact)
    at = rows.gather(-1, got.clamp(min=0)[..., None])[..., 0]
    return same("peak_key", at >= rows.amax(dim=-1) - DOUBT, torch.ones_like(got, dtype=torch.bool))


def _draw_first(case: Case) -> int | None:
    """Draw the position of the first query, or None for the default."""
    if case.rng.random() < 0.7:
        return None
    return case.rng.randint(-case.sizes.n_queries, case.sizes.n_keys)


def _draw_set_shape(case: Case) -> tuple[int, ...]:
    batch, heads, _, _, n_keys = case.sizes
    return case.rng.choice(((batch, n_keys), (1, heads, 1, n_keys), (batch, heads, 1, n_keys)))


def _draw_pattern(case: Case) -> Pattern:
    edges = case.rng.choice(("uniform", "nothing"))
    patterns = [
        NEXT,
        PREVIOUS,
        FIRST,
        Pattern(offset=case.rng.randint(-70, 70), edges=edges),
        Pattern(column=case.rng.randrange(case.sizes.n_keys + 2), edges=edges),
    ]
    if case.variant.sets:
        normalised = case.rng.random() < 0.5
        patterns += [Pattern(key_set=case.rng.randrange(2), edges=edges, normalised=normalised)] * 2
    return case.rng.choice(patterns)
