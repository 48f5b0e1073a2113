"""Sparsemax and entmax attention by Triton kernels, compared with the reference.

Without a GPU, kernels run in Triton's interpreter with small tiles.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from headwise.ops import entmax_attention, sparsemax_attention
from tests.ops.attention_cases import assert_no_worse, inputs, out_and_grads

pytest.importorskip("triton", reason="Triton is not installed")
triton = pytest.importorskip("headwise.ops.entmax.triton")
Tile = triton.Tile

ALPHAS = (1.25, 1.5, pytest.param(1.75, marks=pytest.mark.slow), 2.0)  # 1.25 goes the same way
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"
)
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)


@pytest.fixture(params=["resident", "streaming"])
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use 16 x 32 tiles, with all keys in one tile or without resident tiles."""
    tile = Tile(rows=16, keys=32, warps=1, stages=1)
    all_keys = tuple(tile._replace(keys=keys) for keys in (16, 64, 256))
    tiles = triton.Tiles(all_keys if request.param == "resident" else (), tile, tile, tile)
    for name in ("NARROW", "WIDE", "FULL"):
        monkeypatch.setattr(triton, name, tiles)


def compare(attend, *tensors: Tensor, **options: object) -> list[Tensor]:
    """Hold the kernels to the accuracy of the reference; their output and gradients."""
    exact = out_and_grads(attend, *(x.double() for x in tensors), impl="reference", **options)
    wanted = out_and_grads(attend, *tensors, impl="reference", **options)
    got = out_and_grads(attend, *tensors, impl="triton", **options)
    for name, *three in zip(("out", "q", "k", "v"), got, wanted, exact, strict=True):
        assert_no_worse(name, *three)
    return got


def some_options(names: str, n_queries: int, n_keys: int) -> dict[str, object]:
    """Build the options of these names; some queries see nothing."""
    mask = torch.rand(2, 1, n_queries, n_keys) > 0.4
    mask[:, :, n_queries // 2] = False
    every = {
        "causal": True,
        "lengths": torch.tensor([n_keys, n_keys // 3]),
        "mask": mask,
        "key-mask": torch.rand(n_keys) > 0.3,
        "scale": 0.7,
    }
    return {name.removeprefix("key-"): every[name] for name in names.split()}


@interpreted
@every_alpha
@pytest.mark.parametrize("sizes", [(1, 1), (7, 63), (33, 7)], ids=str)
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_kernels_are_as_accurate_as_the_reference(alpha, sizes):
    tensors = inputs(*sizes, batch=1, width=20, value_width=12)
    compare(partial(entmax_attention, alpha=alpha), *tensors)


@interpreted
@pytest.mark.parametrize("sizes", [(3, 129), (129, 3), (63, 65)], ids=str)
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_sizes_need_not_fit_the_tiles(sizes):
    compare(sparsemax_attention, *inputs(*sizes, batch=1, heads=1, width=48))


@interpreted
@pytest.mark.parametrize(
    ("names", "alpha"),
    [
        ("causal", 1.5),
        ("lengths", 2.0),
        ("mask", 1.5),
        ("key-mask", 2.0),
        ("causal lengths mask scale", 1.5),
        pytest.param("causal lengths mask scale", 2.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_masks_and_grouped_heads_are_those_of_the_reference(names, alpha):
    q, k, v = inputs(19, 33, groups=1, width=8)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)  # heads and rows interleaved
    options = some_options(names, 19, 33)
    compare(partial(entmax_attention, alpha=alpha), q, k, v, **options)


@interpreted
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_half_precision_loses_no_more_than_the_reference(alpha):
    tensors = inputs(17, 33, batch=1, width=32, dtype=torch.float16)
    compare(partial(entmax_attention, alpha=alpha), *tensors, causal=True)


@interpreted
@every_alpha
@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.usefixtures("small_tiles")
def test_wide_and_narrow_supports(alpha, spread):
    q, k, v = inputs(5, 60, batch=1, heads=1, width=16)
    compare(partial(entmax_attention, alpha=alpha), q / 2, k, v, scale=spread / 4)


@interpreted
@every_alpha
@pytest.mark.usefixtures("small_tiles")
def test_weights_sum_to_one_and_are_exactly_zero_outside_the_support(alpha):
    q, k, _ = inputs(6, 40, width=8)
    attended = entmax_attention(q, k, values_that_show_weights(k), alpha=alpha, impl="triton")
    exact = entmax_attention(q.double(), k.double(), k.double(), alpha=alpha).weights
    assert (exact == 0).any()
    torch.testing.assert_close(attended.out.sum(-1), torch.ones(2, 2, 6))
    torch.testing.assert_close(attended.out, exact.float(), atol=2e-6, rtol=0)
    assert (attended.out[exact == 0] == 0).all()
    torch.testing.assert_close(attended.out, attended.weights, atol=2e-6, rtol=0)


@interpreted
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_rows_that_see_many_more_keys_than_the_first_sweep_remembers(alpha):
    q, k, v = inputs(5, 200, batch=1, heads=1, width=16, dtype=torch.float16)
    attend = partial(entmax_attention, alpha=alpha)
    out, *_ = compare(attend, q / 4, k, v)
    assert torch.equal(attend((q / 4).detach(), k, v, impl="triton").out, out)  # no gradient


@interpreted
@pytest.mark.parametrize("small_tiles", ["streaming"], indirect=True)
@pytest.mark.parametrize("alpha", [1.25, 1.5])
@pytest.mark.usefixtures("small_tiles")
def test_values_are_summed_again_until_the_weights_sum_to_one(monkeypatch, alpha):
    near = {"NEAR": 1e9, "ENOUGH": 2.0**-18}  # one step only before values are summed
    monkeypatch.setattr(triton, "_near_and_enough", lambda *_: near)
    tensors = [x / 2 for x in inputs(5, 200, batch=1, heads=1, width=16)]
    compare(partial(entmax_attention, alpha=alpha), *tensors)


@interpreted
@pytest.mark.parametrize("small_tiles", ["streaming"], indirect=True)
@pytest.mark.usefixtures("small_tiles")
def test_a_tau_that_is_too_high_comes_down(monkeypatch):
    near = {"NEAR": 1e9, "ENOUGH": 2.0**-18}
    monkeypatch.setattr(triton, "_near_and_enough", lambda *_: near)
    leaving = torch.linspace(-0.95, -0.65, 120)  # some leave the support at the first step
    k = torch.cat([torch.zeros(1), leaving])[None, None, :, None]
    weights = entmax_attention(
        torch.ones(1, 1, 3, 1), k, torch.ones_like(k), scale=1, impl="triton"
    )
    torch.testing.assert_close(weights.out, torch.ones(1, 1, 3, 1), atol=4e-6, rtol=0)


@interpreted
@pytest.mark.parametrize("small_tiles", ["streaming"], indirect=True)
@pytest.mark.usefixtures("small_tiles")
def test_a_step_that_was_a_little_too_long_is_followed_by_another():
    n_keys = torch.arange(66, 90)  # in blocks of rows that need few sweeps, and that need more
    mask = torch.arange(96) < n_keys.repeat_interleave(16)[:, None]
    k = torch.zeros(1, 1, 96, 16)
    weights = entmax_attention(
        torch.zeros(1, 1, len(mask), 16), k, torch.ones_like(k), mask=mask, impl="triton"
    )
    torch.testing.assert_close(weights.out, torch.ones_like(weights.out), atol=6e-7, rtol=0)


@interpreted
@pytest.mark.parametrize("small_tiles", ["streaming"], indirect=True)
@every_alpha
@pytest.mark.usefixtures("small_tiles")
def test_a_first_tau_that_rounding_made_too_high_comes_down(monkeypatch, alpha):
    solve = triton.kernels.solve
    monkeypatch.setattr(triton.kernels, "solve", lambda *given: solve(*given) + 1e-3)
    k = torch.zeros(1, 1, 48, 16)  # no more than the first sweep remembers
    weights = entmax_attention(k, k, torch.ones_like(k), alpha=alpha, impl="triton")
    torch.testing.assert_close(weights.out, torch.ones_like(weights.out), atol=4e-6, rtol=0)


@interpreted
@pytest.mark.parametrize("small_tiles", ["streaming"], indirect=True)
@every_alpha
@pytest.mark.usefixtures("small_tiles")
def test_steps_end_where_tau_cannot_be_told_more_exactly(monkeypatch, alpha):
    step, taken = triton.kernels.newton_step, []
    monkeypatch.setattr(
        triton.kernels, "newton_step", lambda *given: taken.append(1) or step(*given)
    )
    q = torch.linspace(0.6, 0.9, 16)[None, None, :, None]
    k = torch.full((1, 1, 512, 1), -1.0)  # a sum of weights changes by 511 roundings of tau
    k[:, :, 0] = 0
    out = entmax_attention(q, k, torch.ones_like(k), alpha=alpha, scale=1, impl="triton").out
    torch.testing.assert_close(out, torch.ones_like(out), atol=5e-5, rtol=0)
    assert len(taken) < 8


def values_that_show_weights(k: Tensor) -> Tensor:
    """Return unit vectors as values: each output is the row of weights."""
    batch, groups, n_keys, _ = k.shape
    return torch.eye(n_keys, dtype=k.dtype, device=k.device).expand(batch, groups, -1, -1)


@interpreted
@every_alpha
@pytest.mark.usefixtures("small_tiles")
def test_equal_scores_share_the_weight(alpha):
    q, k, _ = inputs(5, 24, batch=1, width=8)
    k = k[:, :, :12].repeat(1, 1, 2, 1)
    weights = entmax_attention(
        q, k, values_that_show_weights(k), alpha=alpha, scale=3, impl="triton"
    ).out
    assert torch.equal(weights[..., :12], weights[..., 12:])
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 5))
    same = entmax_attention(0 * q, k, values_that_show_weights(k), alpha=alpha, impl="triton").out
    torch.testing.assert_close(same, torch.full_like(same, 1 / 24))


HARD_SCORES = {
    "one by one": -1 + 0.5 ** torch.arange(48.0),  # each step takes the next from the support
    "all at once": -1 + torch.cat([torch.ones(1), torch.full((47,), 1e-3)]),
}


@interpreted
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("leaving", HARD_SCORES)
@pytest.mark.usefixtures("small_tiles")
def test_keys_that_leave_the_support_late_are_followed_to_the_end(alpha, leaving):
    q, k = torch.ones(1, 1, 1, 1), HARD_SCORES[leaving][None, None, :, None] / (alpha - 1)
    out = entmax_attention(
        q, k, values_that_show_weights(k), alpha=alpha, scale=1, impl="triton"
    ).out
    exact = entmax_attention(q.double(), k.double(), k.double(), alpha=alpha, scale=1).weights
    torch.testing.assert_close(out, exact.float(), atol=1e-6, rtol=0)


@interpreted
@pytest.mark.parametrize("how", ["mask", "lengths", "causal"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_rows_that_see_nothing_are_zero_and_give_no_gradient(how):
    if how == "causal":  # the first two of seven queries stand before all five keys
        tensors, options = inputs(7, 5), {"causal": True}
        empty = torch.arange(7).expand(2, 2, 7) < 2
    elif how == "mask":
        tensors, mask = inputs(5), torch.ones(2, 1, 5, 5, dtype=torch.bool)
        mask[0, 0, 3] = mask[1] = False
        options, empty = {"mask": mask}, ~mask.any(-1).expand(2, 2, 5)
    else:
        tensors, options = inputs(5), {"lengths": torch.tensor([0, 3])}
        empty = torch.tensor([True, False])[:, None, None].expand(2, 2, 5)
    out, grad_q, *_ = compare(entmax_attention, *tensors, **options)
    assert (out[empty] == 0).all() and (grad_q[empty] == 0).all()


@interpreted
@pytest.mark.parametrize("shape", [(), (4,)], ids=["one", "one a head"])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_alpha_can_be_learned(shape):
    q, k, v = inputs(9, 23, batch=2, heads=4, groups=2, width=8)
    alpha = torch.tensor([1.2, 1.5, 1.75, 2.0]) if shape else torch.tensor(1.3)

    def attend(q, k, v, alpha, impl):
        return entmax_attention(q, k, v, alpha=alpha, causal=True, impl=impl)

    wide = (x.double() for x in (q, k, v, alpha))
    exact = out_and_grads(attend, *wide, impl="reference")
    wanted = out_and_grads(attend, q, k, v, alpha, impl="reference")
    got = out_and_grads(attend, q, k, v, alpha, impl="triton")
    for name, *three in zip(("out", "q", "k", "v"), got, wanted, exact, strict=False):
        assert_no_worse(name, *three)
    assert got[-1].shape == shape
    torch.testing.assert_close(got[-1].double(), exact[-1], rtol=1e-4, atol=1e-3)


@interpreted
@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("n_keys", [70, 300])  # resident and streaming
@pytest.mark.parametrize("alpha", [1.02, 1.05, 1.1, 1.25])
def test_small_alphas_are_learned_in_16_bits_too(n_keys, alpha):
    """Saved tensors are rounded, and p^2 would amplify that."""
    q, k, v = (x.half() for x in inputs(33, n_keys, batch=1, heads=2, groups=2, width=32))
    alphas = torch.full((2,), alpha)

    def attend(q, k, v, alpha, impl):
        return entmax_attention(q, k, v, alpha=alpha, impl=impl)

    exact = out_and_grads(attend, *(x.double() for x in (q, k, v, alphas)), impl="reference")
    got = out_and_grads(attend, q, k, v, alphas, impl="triton")
    torch.testing.assert_close(got[-1].double(), exact[-1], rtol=1e-3, atol=2e-2)


@interpreted
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_dropped_weights_are_dropped_in_the_gradient_too():
    """Seen through the unit vectors, a call shows what it dropped; then it is a plain product."""
    q, k, _ = inputs(20, 40, batch=1, groups=1, width=8)
    leaves = [x.requires_grad_() for x in (q, k, values_that_show_weights(k).clone())]
    out = entmax_attention(*leaves, dropout=0.3, causal=True, impl="triton").out
    upstream = torch.randn_like(out)
    got = torch.autograd.grad((out * upstream).sum(), leaves)
    plain = entmax_attention(*leaves, causal=True, impl="reference")
    kept = (out != 0).float() / 0.7
    torch.testing.assert_close(out, plain.weights * kept)
    dropped = plain.weights * kept @ leaves[2].repeat_interleave(2, dim=1)
    wanted = torch.autograd.grad((dropped * upstream).sum(), leaves)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_dropout_keeps_as_many_as_it_should_and_others_in_every_call():
    q, k, _ = inputs(32, width=4)
    v = values_that_show_weights(k)
    first, second = (
        entmax_attention(0 * q, k, v, dropout=0.25, impl="triton").out != 0 for _ in range(2)
    )
    assert abs(first.float().mean() - 0.75) < 5 * (0.25 * 0.75 / first.numel()) ** 0.5
    for one in (first[0, 0], first[1, 0], first[0, 1], second[0, 0]):
        assert abs((one == first[1, 1]).float().mean() - 0.625) < 0.05  # as if independent
    assert (first[0, 0, :, :-4] == first[0, 0, :, 4:]).float().mean() < 0.7


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
@pytest.mark.usefixtures("small_tiles")
def test_what_is_not_a_number_shows():
    q, k, v = inputs(5, 20, batch=1, width=8)
    q[0, 0, 3] = torch.nan
    out = entmax_attention(q, k, v, impl="triton").out
    assert out[0, 0, 3].isnan().all() and out.isnan().sum() == out.shape[-1]
    k[0, 1, 7, 0] = torch.nan
    assert entmax_attention(q, k, v, impl="triton").out[0, 1].isnan().all()


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
@pytest.mark.usefixtures("small_tiles")
def test_a_head_with_an_alpha_out_of_range_is_not_a_number():
    q, k, v = inputs(3, heads=4, width=8)
    out = entmax_attention(q, k, v, alpha=torch.tensor([1.5, 2.5, 1.0, 2.0]), impl="triton").out
    assert out[:, [1, 2]].isnan().all() and out[:, [0, 3]].isfinite().all()


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("width", [16, 80])
def test_the_tiles_of_every_day(dtype, width):
    compare(entmax_attention, *inputs(70, batch=1, heads=1, width=width, dtype=dtype), causal=True)


@interpreted
def test_no_queries_give_nothing():
    q, k, v = (x.requires_grad_() for x in inputs(5, width=8))
    out = entmax_attention(q[:, :, :0], k, v, impl="triton").out
    assert out.shape == (2, 2, 0, 8)
    out.sum().backward()
    assert (k.grad == 0).all() and (v.grad == 0).all()


@interpreted
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": torch.zeros(3)}, "without a bias"),
        ({"alpha": 2.5}, "alpha from 1.1 to 2"),
        ({"alpha": 1.01}, "alpha from 1.1 to 2"),
    ],
)
def test_what_kernels_cannot_do_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        entmax_attention(*inputs(3), **options, impl="triton")
    entmax_attention(*inputs(3), **options)


@interpreted
def test_wide_heads_and_other_dtypes_are_left_to_others():
    with pytest.raises(ValueError, match="heads up to 128 wide"):
        sparsemax_attention(*inputs(3, width=130), impl="triton")
    with pytest.raises(ValueError, match="float64"):
        sparsemax_attention(*inputs(3, dtype=torch.float64), impl="triton")
    with pytest.raises(ValueError, match="interpreter cannot multiply bfloat16"):
        sparsemax_attention(*inputs(3, dtype=torch.bfloat16), impl="triton")


@interpreted
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.usefixtures("small_tiles")
def test_the_operator_keeps_what_custom_operators_promise(training):
    q, k, v = inputs(5, 9, batch=1, width=8)
    leaves = [x.requires_grad_(training) for x in (q, k, v, torch.tensor([1.3, 1.6]))]
    mask, lengths = torch.rand(5, 9) > 0.2, torch.tensor([8])
    arguments = (*leaves, mask, lengths, None, 0.5, 4, True, 0, 0.0, training)
    checks = ["test_schema", "test_faketensor", "test_autograd_registration"]
    torch.library.opcheck(triton._entmax, arguments, test_utils=checks)


@interpreted
def test_a_compiled_operator_gives_the_same_and_breaks_no_graph():
    leaves = [x.requires_grad_() for x in inputs(5, 9, batch=1, width=8)]

    def attend(q, k, v):
        return triton._entmax(
            q, k, v, None, None, torch.tensor([9]), None, 0.5, 4, True, 2, 0.0, True
        )[0].square().sum()  # fmt: skip

    wanted, got = (
        call(*leaves)
        for call in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager"))
    )
    torch.testing.assert_close(got, wanted)
    grads = (torch.autograd.grad(out, leaves) for out in (got, wanted))
    torch.testing.assert_close(*grads)


def random_call(rng: torch.Generator) -> tuple[list[Tensor], dict[str, object]]:
    """Draw float64 tensors and options of any shape, with 1 to 1500 keys."""

    def draw(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=rng))

    batch, groups, group, n_keys = draw(3), draw(2), draw(3), 1 + draw(40) * draw(40) * 15 // 16
    n_queries = n_keys if draw(2) == 1 else draw(300)
    width, value_width = ((32, 32), (48, 48), (64, 64), (128, 128), (64, 32))[draw(5) - 1]
    shapes = (
        (batch, groups * group, n_queries, width),
        (batch, groups, n_keys, width),
        (batch, groups, n_keys, value_width),
    )
    tensors = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]
    tensors[0] *= (0.1, 1.0, 3.0)[draw(3) - 1]
    options: dict[str, object] = {"causal": draw(2) == 1}
    if draw(2) == 1:
        options["lengths"] = torch.randint(0, n_keys + 1, (batch,), generator=rng)
    if draw(2) == 1:
        options["mask"] = torch.rand(batch, 1, n_queries, n_keys, generator=rng) > 0.2
    return tensors, options


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_alpha
def test_random_calls_on_the_device(dtype, alpha):
    seed = int(torch.empty((), dtype=torch.int64).random_())
    for number in range(12):
        rng = torch.Generator().manual_seed(seed + number)
        tensors, options = random_call(rng)
        there = [x.to("cuda", dtype) for x in tensors]
        for name, option in options.items():
            options[name] = option.cuda() if isinstance(option, Tensor) else option
        print(f"seed {seed + number}: {[tuple(x.shape) for x in there]}, {options.keys()}")
        compare_on_device(partial(entmax_attention, alpha=alpha), there, options)


def compare_on_device(attend, tensors: list[Tensor], options: dict[str, object]) -> None:
    """Compare like `compare`, with the upstream gradient on the device."""
    results = {}
    upstream = None
    for name, impl in (("exact", "torch"), ("wanted", "torch"), ("got", "triton")):
        leaves = [(x.double() if name == "exact" else x).clone().requires_grad_() for x in tensors]
        out = attend(*leaves, impl=impl, **options).out
        upstream = torch.randn_like(out).to(tensors[0].dtype) if upstream is None else upstream
        grads = torch.autograd.grad(out, leaves, upstream.to(out.dtype))
        results[name] = [out.detach(), *grads]
    three = [results[name] for name in ("got", "wanted", "exact")]
    assert_no_worse("out", *(result[0] for result in three))
    for name, *grads in zip(("q", "k", "v"), *(result[1:] for result in three), strict=True):
        assert_rows_no_worse(name, *grads)


def assert_rows_no_worse(name: str, got: Tensor, reference: Tensor, exact: Tensor) -> None:
    """Compare like `assert_no_worse`, but one row in 200 may be off.

    Gradients jump where a key enters the support: rounding of scores moves a few across. Near it
    u = w^(2 - alpha) is steep for alpha above 1.5, and which one is nearer is chance: four times.
    """

    def bad_row(x: Tensor) -> float:
        assert x.isfinite().all()
        return (x.double() - exact).abs().amax(-1).flatten().quantile(0.995).item()

    rounding = torch.finfo(got.dtype).eps * max(1.0, exact.abs().max().item())
    allowed = 4 * bad_row(reference) + 4 * rounding
    assert bad_row(got) <= allowed, f"{name}: off by {bad_row(got):.2e}, allowed {allowed:.2e}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_alpha
def test_equal_scores_that_sweeps_round_differently_on_the_device(alpha):
    ones = torch.ones(1, 1, 100, 48, device="cuda")  # a scale that is no power of two
    q = ones * (100 / 48**0.5)
    out = entmax_attention(q, ones, ones, alpha=alpha, impl="triton").out
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_learned_alpha_and_dropout_on_the_device():
    q, k, v = (x.cuda() for x in inputs(200, 300, heads=4, groups=2, width=64))
    alpha = torch.tensor([1.2, 1.5, 1.75, 2.0], device="cuda")
    grads = {}
    for impl in ("torch", "triton"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, alpha)]
        out = entmax_attention(*leaves[:3], alpha=leaves[3], impl=impl).out
        grads[impl] = torch.autograd.grad(out.square().sum(), leaves)
    for got, wanted in zip(grads["triton"], grads["torch"], strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-3)
    k = k[:, :, :128].clone().requires_grad_()
    shown = values_that_show_weights(k).clone().requires_grad_()
    out = entmax_attention(q, k, shown, dropout=0.3, impl="triton").out
    (grad,) = torch.autograd.grad(out.sum(), shown)
    torch.testing.assert_close((grad * shown).sum(), out.sum())  # the same dropped in both passes
    support = entmax_attention(q, k, shown).weights > 1e-4
    assert abs((out != 0)[support].float().mean() - 0.7) < 0.02


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("n", [200, 2000])
def test_both_passes_can_be_captured_in_a_cuda_graph(n):
    q, k, v = (torch.randn(1, 2, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def run() -> tuple[Tensor, ...]:
        out = entmax_attention(*leaves, dropout=0.0, impl="triton").out
        return out, *torch.autograd.grad(out.float().square().sum(), leaves)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        q.copy_(torch.randn_like(q))
    graph.replay()
    torch.testing.assert_close(captured, run())
