"""Statistics of rows in one sweep equal those of the written-out weights, forward and backward."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from headwise.ops import softmax_attention, topk_attention
from headwise.ops.row_sweep import SweptRows, row_sweep
from headwise.ops.scores import Scores
from tests.ops.attention_cases import make_blocks_tiny
from tests.ops.sweep_cases import (
    OPTIONS,
    assert_no_worse,
    draw,
    interpret_bfloat16,
    options,
    use_tiles,
)

triton = pytest.importorskip("triton", reason="Triton is not installed")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DIFFERENTIABLE = [name for name in SweptRows._fields if name != "peak_key"]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, 16, 16)


def swept(q: Tensor, k: Tensor, impl: str, *, read=DIFFERENTIABLE, **given) -> dict[str, Tensor]:
    """Compute all statistics, and the gradients of a fixed random sum of those that are read."""
    sweep_options = {name: given.pop(name) for name in ("offset", "keys") if name in given}
    rows = row_sweep(Scores(q, k, **given), **sweep_options, impl=impl)
    rng = torch.Generator().manual_seed(1)
    total = torch.zeros((), device=q.device)
    for name in DIFFERENTIABLE:
        row = getattr(rows, name)
        if row is None:
            continue
        upstream = torch.randn(row.shape, generator=rng, dtype=torch.float64).to(row)
        if name in read:
            total = total + (row * upstream).masked_fill(row == -torch.inf, 0).sum()
    dq, dk = torch.autograd.grad(total, (q, k))
    found = {name: row.detach() for name, row in rows._asdict().items() if row is not None}
    return found | {"dq": dq, "dk": dk}


def assert_kernel_is_right(q: Tensor, k: Tensor, **given) -> None:
    exact_q, exact_k = (x.detach().double().requires_grad_() for x in (q, k))
    exact = swept(exact_q, exact_k, "reference", **given)
    definition, got = (swept(q, k, impl, **given) for impl in ("reference", "triton"))
    at_peak = exact.pop("peak_key")
    slack = max(1.0, exact["lse"].where(at_peak >= 0, 0).abs().max().item())
    assert torch.equal(got["peak_key"] == -1, at_peak == -1)
    for name, wanted in exact.items():
        seen = wanted > -torch.inf
        assert torch.equal(got[name] > -torch.inf, seen), name
        assert_no_worse(
            name, *(x[name].where(seen, 0) for x in (got, definition, exact)), slack=slack
        )


def test_the_definition_is_what_softmax_attention_says():
    q, k = draw(7, 9)
    keys = torch.rand(2, 9) > 0.5
    attended = softmax_attention(q, k, k, causal=True)
    rows = row_sweep(attended.scores, offset=-1, keys=keys, impl="reference")
    for name in ("lse", "peak", "peak_key", "entropy", "sum_squares"):
        torch.testing.assert_close(getattr(rows, name), getattr(attended, name), msg=name)
    torch.testing.assert_close(rows.mass_at, attended.mass(offset=-1))
    torch.testing.assert_close(rows.mass_on, attended.mass(keys=keys))


@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_right(name, impl, monkeypatch):
    make_blocks_tiny(monkeypatch)
    q, k = (x.detach().double().requires_grad_() for x in draw(3, 5, groups=1, width=2))
    keys = torch.rand(2, 5) > 0.5

    def read(q, k):
        rows = row_sweep(Scores(q, k, causal=True), offset=0, keys=keys, impl=impl)
        return getattr(rows, name)

    assert gradcheck(read, (q, k), fast_mode=True)


@interpreted
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        *product(OPTIONS, [(1, 1), (7, 7), (33, 17)]),
        ("causal mask lengths", (1, 63)),
        *(
            pytest.param(case, (1, 63), marks=pytest.mark.slow)
            for case in OPTIONS
            if case != "causal mask lengths"
        ),
    ],
    ids=str,
)
def test_one_sweep_gives_the_statistics_and_their_gradients(case, sizes):
    q, k = draw(*sizes)
    keys = torch.rand(2, sizes[1]) > 0.5
    assert_kernel_is_right(q, k, offset=-1, keys=keys, **options(case, *sizes))


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_each_gradient_alone_is_right(name):
    q, k = draw(9, 20)
    keys = torch.rand(2, 2, 1, 20) > 0.5
    assert_kernel_is_right(q, k, offset=2, keys=keys, read=[name])


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_keys_add_their_gradients(groups):
    q, k = draw(7, 19, heads=4, groups=groups)
    assert_kernel_is_right(q, k, causal=True)


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 48])
def test_half_precision(dtype, width, monkeypatch):
    interpret_bfloat16(monkeypatch)
    q, k = draw(9, 33, width=width, dtype=dtype)
    keys = torch.rand(1, 33) > 0.5
    assert_kernel_is_right(q, k, offset=1, keys=keys)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_tiles_that_a_device_gets(dtype):
    q, k = draw(65, 129, heads=1, groups=1, width=32, dtype=dtype)
    assert_kernel_is_right(q, k, causal=True, offset=-3)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_scores_of_any_size_give_finite_results():
    q, k = draw(7, 33)
    with torch.no_grad():
        q *= 200
    found = swept(q, k, "triton", offset=0)
    assert all(x.isfinite().all() for x in found.values())
    # scores of some thousands are known to some 1e-4, and so is exp of them
    torch.testing.assert_close(found, swept(q, k, "reference", offset=0), atol=1e-2, rtol=1e-2)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_padded_keys_change_nothing_and_get_no_gradient():
    q, k = draw(20, 24)
    with torch.no_grad():
        k[:, :, 18:] *= 1e3  # scores far above all that are seen
    short = k[:, :, :18].detach().requires_grad_()
    found = swept(q, k, "triton", lengths=torch.tensor([18, 18]), offset=-1)
    wanted = swept(q, short, "triton", offset=-1)
    assert (found["dk"][:, :, 18:] == 0).all()
    found["dk"] = found["dk"][:, :, :18]
    torch.testing.assert_close(found, wanted, atol=0, rtol=0)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_of_equal_scores_the_first_is_the_peak():
    q, k = draw(5, 40)
    rows = row_sweep(Scores(q, k[:, :, :1].expand(-1, -1, 40, -1)), impl="triton")
    assert (rows.peak_key == 0).all()


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("middle", [-700.0, -1.0, 0.0, 1e-6, 1.0, 700.0])
def test_the_peak_is_the_largest_product_however_close_others_are(middle):
    step = max(abs(middle), 1.0) * torch.finfo(torch.float32).eps
    k = middle + step * torch.randperm(40).float().repeat(1, 1, 1, 1).mT
    rows = row_sweep(Scores(torch.ones(1, 1, 1, 1), k, scale=0.3), impl="triton")
    assert rows.peak_key.item() == k.argmax()


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_of_tied_scores_the_first_is_the_peak_also_across_tiles():
    k = torch.zeros(1, 1, 50, 1)
    k[..., [3, 5, 6, 12, 20, 49], :] = 0.1
    for first in (3, 5, 6, 12, 20, 49):
        rows = row_sweep(Scores(torch.ones(1, 1, 1, 1), k, scale=0.7), impl="triton")
        assert rows.peak_key.item() == first
        k[..., first, :] = 0


@interpreted
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
@pytest.mark.parametrize("scale", [-0.3, -1e-25, 0.0, 1e-25, 40.0])
def test_any_scale(scale):
    q, k = draw(20, 17)
    with torch.no_grad():
        q /= max(abs(scale), 1.0)  # the definition in float32 is no measure of scores of thousands
    assert_kernel_is_right(q, k, scale=scale, causal=True, offset=-1)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_a_single_key_gets_all():
    q, k = (x.detach() for x in draw(6, 9))
    rows = row_sweep(Scores(q, k, lengths=torch.tensor([1, 1]), scale=0.37), impl="triton")
    assert (rows.peak == 1).all()
    assert (rows.peak_key == 0).all()
    torch.testing.assert_close(rows.entropy, torch.zeros_like(rows.entropy), atol=1e-6, rtol=0)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_attended_can_be_asked_for_the_fused_sweep():
    q, k = draw(7, 9)
    keys = torch.rand(2, 9) > 0.5
    blocked, fused = (softmax_attention(q, k, k, causal=True) for _ in range(2))
    fused.statistics_impl = "triton"
    for name in ("lse", "peak", "peak_key", "entropy", "sum_squares"):
        torch.testing.assert_close(getattr(fused, name), getattr(blocked, name), msg=name)
    for asked in ({"keys": keys}, {"offset": -1}):
        torch.testing.assert_close(fused.mass(**asked), blocked.mass(**asked))
    (gradient,) = torch.autograd.grad(fused.entropy.sum() + fused.mass(offset=0).sum(), q)
    wanted = torch.autograd.grad(blocked.entropy.sum() + blocked.mass(offset=0).sum(), q)
    torch.testing.assert_close(gradient, wanted[0])


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
def test_a_score_that_is_not_a_number_shows():
    q, k = (x.detach() for x in draw(6, 9))
    q[0, 0, 2, 0] = torch.nan
    rows = row_sweep(Scores(q, k), impl="triton")
    for statistic in (rows.lse, rows.peak, rows.entropy, rows.sum_squares):
        assert statistic[0, 0, 2].isnan()
        assert statistic.isnan().sum() == 1


def test_auto_takes_blocks_on_a_cpu():
    q, k = draw(3, 3)
    attended = softmax_attention(q, k, k)
    attended.statistics_impl = "auto"
    torch.testing.assert_close(attended.peak, row_sweep(Scores(q, k)).peak)


def test_what_the_kernel_cannot_do_is_said():
    q, k = draw(3, 3)
    keys = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    refused = [
        (topk_attention(q, k, k), lambda attended: attended.peak, "softmax weights only"),
        (
            softmax_attention(q, k, k, bias=torch.zeros(3, 3)),
            lambda attended: attended.lse,
            "without a bias",
        ),
        (
            softmax_attention(*(x.double() for x in (q, k, k))),
            lambda attended: attended.lse,
            "float32, and the tensors are float64|needs a CUDA device",
        ),
        (
            softmax_attention(q, k, k),
            lambda attended: attended.mass(keys=keys),
            "same for all queries",
        ),
    ]
    for attended, read, message in refused:
        attended.statistics_impl = "triton"
        with pytest.raises(ValueError, match=f"impl='triton' cannot run this call.*({message})"):
            read(attended)


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("statistics", [True, False])
def test_it_is_a_good_citizen_of_torch(statistics):
    from headwise.ops.row_sweep.triton import _sweep_op

    q, k = draw(3, 5)
    keys = torch.rand(1, 2, 5) > 0.5
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    given = (q, k, None, torch.tensor([5, 3]), keys, 0.5, 2, True, -1, statistics)
    torch.library.opcheck(_sweep_op, given, test_utils=checks)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [32, 48, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_random_shapes_on_a_device(dtype, width, causal):
    for _ in range(20):
        n_queries, n_keys = (int(n) for n in torch.randint(1, 400, (2,)))
        groups = int(torch.randint(1, 3, ()))
        q, k = draw(
            n_queries, n_keys, heads=4, groups=groups, width=width, dtype=dtype, device="cuda"
        )
        keys = torch.rand(2, n_keys, device="cuda") > 0.5
        lengths = torch.randint(0, n_keys + 1, (2,), device="cuda")
        run = partial(assert_kernel_is_right, q, k, causal=causal, offset=-1, keys=keys)
        run(lengths=lengths)
        run(mask=torch.rand(2, 1, n_queries, n_keys, device="cuda") > 0.3)


@pytest.mark.gpu
@needs_cuda
def test_both_passes_give_the_same_every_time():
    q, k = draw(300, 300, heads=4, groups=2, width=64, dtype=torch.bfloat16, device="cuda")
    first, second = (swept(q, k, "triton", offset=1) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
