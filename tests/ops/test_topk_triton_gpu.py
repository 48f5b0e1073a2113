"""Top-k attention by Triton kernels on a CUDA device; run with `pytest -m gpu` where one is."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.ops.scores import Scores

pytest.importorskip("triton", reason="Triton is not installed")
from tests.ops.test_topk_ties import IN_DOUBT, KEEP, chosen, tied
from tests.ops.test_topk_triton import (
    PLANS,
    TIES,
    assert_nearly_as_close,
    by_definition,
    by_kernel,
    kernels,
    with_ties,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture
def follow(monkeypatch) -> Callable[[str], None]:
    """Force one plan for rows of any length."""

    def set_plan(plan: str) -> None:
        monkeypatch.setattr(kernels, "GATHER_KEYS", 1 if plan == "gather" else 10**9)
        monkeypatch.setattr(kernels, "MOST_KEYS", dict.fromkeys((2, 4), 128 * (plan == "resident")))

    return set_plan


# What makes another kernel: width, value width, keep, ties, causal, masked. All else is any number.
VARIANTS = [
    (64, 64, 8, "all", False, False),
    (48, 32, 3, "first", True, False),
    (128, 128, 16, "all", False, True),
    (32, 64, 33, "first", True, True),
]


def random_call(seed: int, dtype: torch.dtype) -> tuple[list[Tensor], dict[str, object]]:
    """Draw queries, keys and values on the device, and options, of any size and kind."""
    rng = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=rng))

    width, value_width, keep, ties, causal, masked = VARIANTS[seed % len(VARIANTS)]
    batch, groups, members = draw(1, 3), draw(1, 3), draw(1, 3)
    n_queries, n_keys = (draw(1, 40) if draw(0, 3) == 0 else draw(41, 700) for _ in range(2))
    heads = groups * members
    shapes = [(heads, n_queries, width), (groups, n_keys, width), (groups, n_keys, value_width)]
    tensors = [torch.randn(batch, *shape, generator=rng) for shape in shapes]
    options: dict[str, object] = {"keep": keep, "ties": ties, "causal": causal}
    if draw(0, 1):
        options["lengths"] = torch.randint(n_keys + 1, (batch,), generator=rng).cuda()
    if masked:
        options["mask"] = (torch.rand(batch, 1, n_queries, n_keys, generator=rng) > 0.2).cuda()
    if draw(0, 1):  # ties, exact in every dtype
        tensors[:2] = with_ties(*tensors)[:2]
        options["scale"] = 0.25
    return [x.to("cuda", dtype) for x in tensors], options


def clear_rows(q: Tensor, k: Tensor, options: dict[str, object]) -> Tensor:
    """Mark queries for which rounding cannot change the choice, (B, H, Q, 1)."""
    keep = options["keep"]
    visible = {name: x for name, x in options.items() if name not in ("keep", "ties")}
    ordered = Scores(q.double(), k.double(), **visible).rows().sort(dim=-1, descending=True).values
    if ordered.shape[-1] <= keep:
        return torch.ones_like(ordered[..., :1], dtype=torch.bool)
    gap = ordered[..., keep - 1] - ordered[..., keep]
    tied_or_apart = (gap == 0) & ("scale" in options) | (gap > 1e-4) | gap.isnan()
    return tied_or_apart[..., None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", range(40))
def test_random_calls_on_the_device_equal_the_definition(follow, dtype, plan, seed):
    follow(plan)
    tensors, options = random_call(seed, dtype)
    clear = clear_rows(*tensors[:2], options)

    def run(attend: Callable[..., object], *given: Tensor) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in given]
        out = attend(*leaves, **options).out
        rng = torch.Generator("cuda").manual_seed(1)
        up = torch.randn(out.shape, generator=rng, device="cuda").to(dtype) * clear
        grads = torch.autograd.grad(out, leaves, up.to(out.dtype))
        return [out.detach() * clear, *grads]

    got, reference = run(by_kernel, *tensors), run(by_definition, *tensors)
    exact = run(by_definition, *(x.double() for x in tensors))
    assert_nearly_as_close(got, reference, exact, of=f" of seed {seed}")


@pytest.mark.parametrize("kind", ["period", "equal", "one column", "random"])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("plan", PLANS)
def test_hard_scores_on_the_device_are_selected_exactly(follow, kind, ties, plan):
    follow(plan)
    q = torch.ones(2, 2, 70, 32, device="cuda")
    k = torch.zeros(2, 2, 1500, 32, device="cuda")
    k[..., 0] = torch.randint(1000, (2, 2, 1500), device="cuda") / 8
    if kind == "period":
        k[:, :, 5::64, 0] += 200
    elif kind == "equal":
        k[:] = 1
    elif kind == "one column":
        k[:, :, 700, 0] = 300
    v = torch.randn(2, 2, 1500, 32, device="cuda")
    for dtype in (torch.float16, torch.float32):
        got, wanted = (
            attend(q.to(dtype), k.to(dtype), v.to(dtype), keep=8, ties=ties, scale=0.125).out
            for attend in (by_kernel, by_definition)
        )
        torch.testing.assert_close(got, wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float16, 2e-2), (torch.float32, 1e-4)])
@pytest.mark.parametrize("ties", TIES)
def test_ties_on_the_device_are_listed_where_they_have_places(dtype, atol, ties):
    tensors = [x.to("cuda", dtype) for x in tied(torch.arange(64) % 5, 1500)]
    assert IN_DOUBT not in chosen(*tensors, ties)[1]
    results = []
    for attend in (by_kernel, by_definition):
        leaves = [x.clone().requires_grad_() for x in tensors]
        out = attend(*leaves, keep=KEEP, ties=ties, scale=1.0).out
        results.append([out, *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    torch.testing.assert_close(*results, atol=atol, rtol=1e-3)


def test_gradients_on_the_device_are_the_same_at_every_run_if_asked_for():
    q, k, v = torch.randn(3, 1, 4, 3000, 64, device="cuda", dtype=torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            out = by_kernel(*leaves).out
            runs.append([out, *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


@pytest.mark.parametrize("plan", PLANS)
def test_a_captured_graph_gives_the_same_and_drops_anew(follow, plan):
    follow(plan)
    leaves = [torch.randn(2, 2, 100, 64, device="cuda").requires_grad_() for _ in range(3)]

    def step(dropout: float) -> list[Tensor]:
        out = by_kernel(*leaves, dropout=dropout).out
        return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    for dropout in (0.0, 0.5):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            wanted = step(dropout)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step(dropout)
        results = []
        for _ in range(2):
            graph.replay()
            results.append([x.clone() for x in captured])
        if dropout:
            assert not torch.equal(results[0][0], results[1][0])
        else:
            torch.testing.assert_close(results[0], wanted)


@pytest.mark.parametrize("plan", PLANS)
def test_the_operation_compiles_on_the_device(follow, plan):
    follow(plan)
    leaves = [torch.randn(2, 2, 100, 64, device="cuda").requires_grad_() for _ in range(3)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = (None, None, None, 0.125, 0, True, 8, False, 0.0)
        return kernels._forward(q, k, v, *given)[0].square().sum()

    compiled = torch.compile(attend, fullgraph=True)
    # Plans are not among what torch tells compiled graphs apart by.
    with torch._inductor.config.patch(force_disable_caches=True):
        got, wanted = (torch.autograd.grad(run(*leaves), leaves) for run in (compiled, attend))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
