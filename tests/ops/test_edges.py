"""Edge cases: scores of any size, constant weights, and bad numbers in hidden keys."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headwise.ops import topk_attention
from headwise.ops._impl import HAS_TRITON
from headwise.ops.guidance import NEXT, guidance_loss, guided_heads
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores
from headwise.ops.topk import topk_selected
from headwise_papers.ops.lstm import lstm
from tests.ops.attention_cases import ALL, LEARNED, WITH_KERNELS, inputs

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
kernels = pytest.mark.skipif(
    not HAS_TRITON or torch.cuda.is_available(), reason="kernels are interpreted here"
)
ANY_IMPL = ["reference", "torch", pytest.param("triton", marks=kernels)]
every_impl = pytest.mark.parametrize("impl", ANY_IMPL)
# numbers of keys for which top-k has a plan of its own: in a tile, swept, gathered
PLANS = (20, 40, 1024)


@every_impl
@pytest.mark.parametrize("size", [1e4, 1e9, 1e20])
def test_statistics_of_any_scores(impl, size):
    q, k, _ = inputs(5, 7, width=16)
    q = (size * q).requires_grad_()
    exact = row_sweep(Scores(q.double(), k.double()), offset=0, impl="reference")
    rows = row_sweep(Scores(q, k), offset=0, impl=impl)
    for name in ("peak", "peak_key", "entropy", "sum_squares", "mass_at"):
        torch.testing.assert_close(getattr(rows, name), getattr(exact, name).to(rows.peak_key.dtype
            if name == "peak_key" else torch.float32), atol=1e-6, rtol=0)  # fmt: skip
    torch.testing.assert_close(rows.lse, exact.lse.float(), rtol=1e-6, atol=0)
    (rows.peak + rows.entropy + rows.sum_squares + rows.mass_at).sum().backward()
    assert (q.grad == 0).all()


@every_impl
@pytest.mark.parametrize("size", [1e4, 1e9])
def test_guidance_of_any_scores(impl, size):
    q, k, _ = inputs(5, width=16)
    q = (size * q).requires_grad_()
    guided = guided_heads({0: NEXT}, num_heads=2)
    exact = guidance_loss(q.double(), k.double(), guided, impl="reference")
    loss = guidance_loss(q, k, guided, impl=impl)
    torch.testing.assert_close(loss, exact.float())
    loss.sum().backward()
    assert (q.grad == 0).all()


def large_scores(n_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Make scores about 250,000 that differ by quarters: all are exact in float32."""
    q = torch.randint(-2, 3, (1, 1, 6, 16)).float()
    k = torch.randint(-2, 3, (1, 1, n_keys, 16)).float()
    q[..., 0] = k[..., 0] = 1000
    return q, k, torch.randn(1, 1, n_keys, 16)


@every_impl
@pytest.mark.parametrize("ties", ["all", "first"])
@pytest.mark.parametrize("n_keys", PLANS)
def test_gradients_of_top_k_are_as_exact_as_large_scores(impl, ties, n_keys):
    upstream = torch.randn(1, 1, 6, 16)
    tensors = large_scores(n_keys)

    def gradients(dtype: torch.dtype, impl: str) -> tuple[Tensor, ...]:
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        out = topk_attention(*leaves, keep=3, ties=ties, scale=0.25, impl=impl).out
        return torch.autograd.grad(out, leaves, upstream.to(dtype))

    _, dk, dv = gradients(torch.float32, impl)
    _, exact_dk, exact_dv = gradients(torch.float64, "reference")
    for got, exact in ((dk, exact_dk), (dv, exact_dv)):
        assert (got - exact).abs().max() <= 1e-5 * exact.abs().max()


@every_impl
@pytest.mark.parametrize("ties", ["all", "first"])
@pytest.mark.parametrize("n_keys", PLANS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_one_key_that_is_kept_gets_no_gradient(impl, ties, n_keys, dropout):
    """Its weight is 1, whatever its score."""
    q, k, v = inputs(6, n_keys, width=16, batch=1, heads=1)
    leaves = [x.requires_grad_() for x in (100 * q, 100 * k, v)]
    out = topk_attention(*leaves, keep=1, ties=ties, dropout=dropout, impl=impl).out
    dq, dk, dv = torch.autograd.grad(out, leaves, torch.randn_like(out))
    assert (dq == 0).all() and (dk == 0).all()
    assert dv.abs().max() > 0


HIDING = ("lengths", "keys", "causal", "queries")
AT = 7  # the key that is not finite, of nine


def hiding(how: str) -> tuple[dict[str, object], Tensor]:
    """Return options, and which of nine queries may not attend the key AT."""
    place = torch.arange(9)
    if how == "lengths":
        return {"lengths": torch.tensor([AT])}, place >= 0
    if how == "keys":
        return {"mask": place != AT}, place >= 0
    if how == "causal":
        return {"causal": True}, place < AT
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[::2, AT] = False
    return {"mask": mask}, place % 2 == 0


def clean_results(attend, q, k, v, clean: Tensor, options: dict[str, object]) -> list[Tensor]:
    """Return output and dq of clean queries; if all are clean, also dk and dv."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves, **options).out
    shown = out[:, :, clean]
    rng = torch.Generator().manual_seed(1)
    upstream = torch.randn(shown.shape, generator=rng)
    grads = torch.autograd.grad(shown, leaves, upstream, materialize_grads=True)
    everything = [shown.detach(), grads[0][:, :, clean]]
    return everything + [*grads[1:]] * bool(clean.all())


# kernels want finite values where only some queries attend them
HIDDEN_FROM_KERNELS = [(how, "key") for how in HIDING] + [("lengths", "value"), ("keys", "value")]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("held", [math.inf, math.nan])
def test_what_a_hidden_key_holds_never_matters(name, impl, how, which, held):
    check_hidden(name, impl, how, which, held)


@kernels
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_what_a_hidden_key_holds_never_matters_to_kernels(name):
    check_hidden(name, "triton", "lengths", "key", math.inf)


@kernels
@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_KERNELS)
@pytest.mark.parametrize(("how", "which"), HIDDEN_FROM_KERNELS)
@pytest.mark.parametrize("held", [math.inf, math.nan])
def test_what_any_hidden_key_holds_never_matters_to_kernels(name, how, which, held):
    check_hidden(name, "triton", how, which, held)


def check_hidden(name: str, impl: str, how: str, which: str, held: float) -> None:
    q, k, v = inputs(9, width=16, batch=1)
    options, clean = hiding(how)
    attend = partial(ALL[name], impl=impl)
    finite = clean_results(attend, q, k, v, clean, options)
    (k if which == "key" else v)[:, :, AT] = held
    for got, wanted in zip(clean_results(attend, q, k, v, clean, options), finite, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("held", [math.inf, math.nan])
def test_a_hidden_key_never_matters_to_capped_scores(name, impl, how, held):
    q, k, v = inputs(9, width=16, batch=1, heads=4, groups=2)
    options, clean = hiding(how)
    attend = partial(LEARNED[name], impl=impl, cap=30.0)
    finite = clean_results(attend, q, k, v, clean, options)
    k[:, :, AT, 3] = held
    for got, wanted in zip(clean_results(attend, q, k, v, clean, options), finite, strict=True):
        torch.testing.assert_close(got, wanted)
    out = attend(q, k, v, **options).out
    assert out[:, :, ~clean].isnan().all()  # those that may attend it


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("cap", [None, 30.0])
def test_a_query_that_sees_nothing_sends_nothing_back(name, cap):
    q, k, v = inputs(9, width=16)
    q[:, :, AT] = math.nan
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[AT] = False
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = LEARNED[name](*leaves, mask=mask, cap=cap, impl="reference").out
    assert (out[:, :, AT] == 0).all()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


@every_impl
@pytest.mark.parametrize("how", HIDING)
def test_a_hidden_key_never_matters_to_statistics_and_guidance(impl, how):
    options, clean = hiding(how)
    guided = guided_heads({0: NEXT}, num_heads=2)
    q, k, _ = inputs(9, width=16, batch=1)
    found = []
    for held in (0.0, math.inf, math.nan):
        k[:, :, AT] = held
        leaf = q.clone().requires_grad_()
        rows = row_sweep(Scores(leaf, k, **options), impl=impl)
        weights = clean[None].to(q.dtype)
        loss = guidance_loss(leaf, k, guided, query_weights=weights, impl=impl, **options)
        total = (rows.entropy + rows.peak)[:, :, clean].sum()
        total = total + (loss.sum() if bool(clean.all()) else 0)
        found.append([rows.entropy[:, :, clean], *torch.autograd.grad(total, leaf)])
        found[-1][1] = found[-1][1][:, :, clean]
    for results in found[1:]:
        torch.testing.assert_close(results, found[0])


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("held", [math.inf, math.nan])
def test_what_a_query_attends_shows(name, impl, held):
    """An infinite value must show if a query gives it weight."""
    q, k, v = inputs(9, width=16)
    options, _ = hiding("queries")
    v[:, :, AT] = held
    attended = LEARNED[name](q, k, v, impl=impl, **options)
    on_it = attended.weights[..., AT] > 0
    assert attended.out[on_it].isnan().all()
    assert attended.out[~on_it].isfinite().all()


OPTIONS = {
    "causal": {"causal": True},
    "mask": {"mask": torch.arange(9) != AT},
    "lengths": {"lengths": torch.tensor([AT, 9])},
    "cap": {"causal": True, "cap": 30.0},
}
any_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
both_impls = pytest.mark.parametrize("impl", ["reference", "torch"])


@both_impls
@any_options
@pytest.mark.parametrize("name", ["softmax", "topk", "topk-first"])
def test_functional_gradients(name, impl, options):
    tensors = inputs(9)
    upstream = torch.randn(2, 2, 9, 4)

    def total(*tensors: Tensor) -> Tensor:
        return (LEARNED[name](*tensors, impl=impl, **options).out * upstream).sum()

    found = torch.func.grad(total, argnums=(0, 1, 2))(*tensors)
    leaves = [x.clone().requires_grad_() for x in tensors]
    wanted = torch.autograd.grad(total(*leaves), leaves)
    torch.testing.assert_close(found, wanted)
    if name == "softmax" and impl == "torch" and "cap" not in options:
        return  # PyTorch's fused attention has no derivatives in forward mode
    directions = tuple(torch.randn_like(x) for x in tensors)
    _, slope = torch.func.jvp(total, tensors, directions)
    along = zip(wanted, directions, strict=True)
    torch.testing.assert_close(slope, sum((x * y).sum() for x, y in along), rtol=1e-4, atol=1e-5)


@both_impls
@any_options
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_softmax_under_vmap(impl, options):
    attend = partial(LEARNED["softmax"], impl=impl, **options)
    calls = [inputs(9) for _ in range(3)]
    stacked = map(torch.stack, zip(*calls, strict=True))
    together = torch.func.vmap(lambda *tensors: attend(*tensors).out)(*stacked)
    for out, tensors in zip(together, calls, strict=True):
        torch.testing.assert_close(out, attend(*tensors).out)


@any_options
@pytest.mark.parametrize(
    ("name", "impl"),
    [(name, "reference") for name in LEARNED if name != "entmax-1.3"]
    + [("softmax", "torch"), ("topk", "auto"), ("softmax", "auto")],
)
def test_fake_tensors(name, impl, options):
    """Fake tensors have shapes but no numbers to read."""
    q, k, v = inputs(9, value_width=5)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        given = {
            key: mode.from_tensor(x) if isinstance(x, Tensor) else x for key, x in options.items()
        }
        out = LEARNED[name](*fakes, impl=impl, **given).out
    assert out.shape == (2, 2, 9, 5)


@both_impls
@any_options
@pytest.mark.parametrize("name", ["softmax", "topk", "topk-first"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("unchecked")  # traced sizes are no ints
def test_traced_calls_take_other_numbers(name, impl, options):
    def attend(*tensors: Tensor) -> Tensor:
        return LEARNED[name](*tensors, impl=impl, **options).out

    traced = torch.jit.trace(attend, inputs(9))
    others = inputs(9)
    torch.testing.assert_close(traced(*others), attend(*others))


@kernels
def test_no_kernel_is_interpreted_with_bfloat16(monkeypatch):
    """Triton's interpreter would multiply the bit patterns of numbers."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    q, k, v = inputs(4, width=16, dtype=torch.bfloat16)
    refused = pytest.raises(ValueError, match="interpreter cannot multiply bfloat16; give it float")
    for name in WITH_KERNELS:
        with refused:
            LEARNED[name](q, k, v, impl="triton")
    with refused:
        topk_selected(q, k, impl="triton")
    with refused:
        row_sweep(Scores(q, k), impl="triton")
    with refused:
        guidance_loss(q, k, guided_heads({0: NEXT}, num_heads=2), impl="triton")
    with refused:
        gates = torch.zeros(1, 2, 3, 8, dtype=torch.bfloat16)
        lstm(gates, torch.zeros(1, 8, 2, dtype=torch.bfloat16), impl="triton")
