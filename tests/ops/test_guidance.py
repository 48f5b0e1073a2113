"""The guidance loss is the squared distance from written-out targets, in O(n) memory."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from headwise.ops import softmax_attention
from headwise.ops.guidance import (
    FIRST,
    NEXT,
    PREVIOUS,
    Pattern,
    guidance_loss,
    guidance_rows,
    guided_heads,
)
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
from tests.ops.test_memory import extra_mb

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
PATTERNS = {
    "next": NEXT,
    "previous": PREVIOUS,
    "first": FIRST,
    "far": Pattern(offset=-3, edges="nothing"),
    "column": Pattern(column=2),
    "set": Pattern(key_set=0),
    "set as in the code": Pattern(key_set=1, normalised=False, edges="nothing"),
    "set without normalising": Pattern(key_set=1, normalised=False),
}
HALF = dict(zip((0, 1, 3, 4, 6, 7), list(PATTERNS.values())[:6], strict=True))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    use_tiles(monkeypatch, 16, 16)


def sets(n_keys: int, device: str = "cpu") -> Tensor:
    """Return two sets of keys; the first is empty in the second batch item."""
    chosen = torch.rand(2, 2, n_keys, device=device) > 0.6
    chosen[0, 1] = False
    return chosen


def results(q: Tensor, k: Tensor, patterns: dict[int, Pattern], impl: str, **given):
    """Compute the loss of each guided head, dq and dk."""
    guided = guided_heads(patterns, num_heads=q.shape[1], device=q.device)
    loss = guidance_loss(q, k, guided, impl=impl, **given)
    upstream = torch.linspace(0.5, 2, len(loss), dtype=loss.dtype, device=loss.device)
    return {"loss": loss.detach()} | dict(
        zip(("dq", "dk"), torch.autograd.grad((loss * upstream).sum(), (q, k)), strict=True)
    )


def assert_as_defined(q: Tensor, k: Tensor, patterns: dict[int, Pattern], impl: str, **given):
    exact_q, exact_k = (x.detach().double().requires_grad_() for x in (q, k))
    exact = results(exact_q, exact_k, patterns, "reference", **given)
    definition, got = (results(q, k, patterns, name, **given) for name in ("reference", impl))
    largest_score = Scores(q, k, scale=given.get("scale")).rows().abs().max()
    for name in exact:
        slack = max(1.0, largest_score.item())
        assert_no_worse(name, got[name], definition[name], exact[name], slack=slack)


def test_next_and_previous_are_diagonals_with_even_edge_rows():
    """Figure 2 of the paper, for four tokens."""
    q, k = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 4, 3)
    guided = guided_heads({0: NEXT, 1: PREVIOUS}, num_heads=2)
    weights = softmax_attention(q, k, k).weights[0]
    following = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0.25] * 4])
    before = torch.tensor([[0.25] * 4, [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    wanted = [((weights[0] - following) ** 2).sum(), ((weights[1] - before) ** 2).sum()]
    got = guidance_loss(q, k, guided, impl="reference")
    torch.testing.assert_close(got, torch.stack(wanted))


def by_hand(q: Tensor, k: Tensor, pattern: Pattern, key_sets: Tensor, visible: Tensor) -> Tensor:
    """Compute the loss one entry at a time."""
    weights = softmax_attention(q, k, k, mask=visible).weights
    total = torch.zeros(())
    for b in range(q.shape[0]):
        for i in range(q.shape[2]):
            seen = [j for j in range(k.shape[2]) if visible[b, 0, i, j]]
            if pattern.offset is not None:
                aimed = [j for j in seen if j == i + pattern.offset]
            elif pattern.column is not None:
                aimed = [j for j in seen if j == pattern.column]
            else:
                aimed = [j for j in seen if key_sets[pattern.key_set, b, j]]
            target = torch.zeros(k.shape[2])
            if aimed:
                target[aimed] = 1 / len(aimed) if pattern.normalised else 1.0
            elif pattern.edges == "uniform" and seen:
                target[seen] = 1 / len(seen)
            total = total + ((weights[b, 0, i] - target) ** 2).sum()
    return total


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_the_loss_is_the_distance_from_the_written_out_target(impl, name, monkeypatch):
    make_blocks_tiny(monkeypatch)
    q, k = draw(5, 7, heads=1, groups=1)
    visible = torch.rand(2, 1, 5, 7) > 0.4
    visible[1, 0, 2] = False
    key_sets = sets(7)
    guided = guided_heads({0: PATTERNS[name]}, num_heads=1)
    got = guidance_loss(q, k, guided, key_sets=key_sets, mask=visible, impl=impl)
    torch.testing.assert_close(got[0], by_hand(q, k, PATTERNS[name], key_sets, visible))


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_gradients_are_right(impl, name, monkeypatch):
    make_blocks_tiny(monkeypatch)
    q, k = (x.detach().double().requires_grad_() for x in draw(4, 5, groups=1, width=2))
    guided, key_sets = guided_heads({1: PATTERNS[name]}, num_heads=2), sets(5)

    def loss(q, k):
        return guidance_loss(q, k, guided, key_sets=key_sets, causal=True, impl=impl)

    assert gradcheck(loss, (q, k), fast_mode=True)


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("groups", [2, 8])
def test_blocks_give_what_the_definition_gives(case, groups, monkeypatch):
    make_blocks_tiny(monkeypatch)
    q, k = draw(5, 9, heads=8, groups=groups)
    assert_as_defined(q, k, HALF, "torch", key_sets=sets(9), **options(case, 5, 9))


@interpreted
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
@pytest.mark.parametrize(
    "sizes", [(1, 1), (7, 7), pytest.param((1, 63), marks=pytest.mark.slow), (33, 17)], ids=str
)
@pytest.mark.parametrize("case", OPTIONS)
def test_the_kernel_gives_what_the_definition_gives(case, sizes):
    q, k = draw(*sizes, heads=3, groups=3)
    patterns = {0: NEXT, 2: Pattern(key_set=0)}
    assert_as_defined(q, k, patterns, "triton", key_sets=sets(sizes[1]), **options(case, *sizes))


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    "case",
    ["padding mask", *(pytest.param(each, marks=pytest.mark.slow) for each in ("plain", "causal"))],
)
def test_the_kernel_knows_all_patterns_and_shared_keys(case):
    q, k = draw(17, 17, heads=8, groups=2)
    assert_as_defined(q, k, HALF, "triton", key_sets=sets(17), **options(case, 17, 17))


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, reduction, monkeypatch):
    interpret_bfloat16(monkeypatch)
    q, k = draw(9, 33, width=48, dtype=dtype)
    patterns = {0: NEXT, 1: PATTERNS["set as in the code"]}
    given = {"key_sets": sets(33), "reduction": reduction}
    assert_as_defined(q, k, patterns, "triton", **given)


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-25, 40.0])
def test_any_scale(scale):
    q, k = draw(20, 17)
    with torch.no_grad():
        q /= max(abs(scale), 1.0)  # the definition in float32 is no measure of scores of thousands
    patterns = {0: NEXT, 1: PATTERNS["set as in the code"]}
    mask = torch.rand(2, 1, 20, 17) > 0.4
    assert_as_defined(q, k, patterns, "triton", scale=scale, mask=mask, key_sets=sets(17))


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_small_gradients_do_not_vanish_in_float16():
    """A mean over many keys, times a small factor: 1e-7 is below what float16 can hold well."""
    q, k = draw(8, 33, heads=1, groups=1, dtype=torch.float16)
    small = results(q, k, {0: NEXT}, "triton", query_weights=torch.full((2, 8), 1e-5))
    large = results(q, k, {0: NEXT}, "triton")
    torch.testing.assert_close(small["dk"].double(), large["dk"].double() * 1e-5, atol=1e-7, rtol=0)
    assert small["dk"].any()


@interpreted
def test_the_tiles_that_a_device_gets():
    q, k = draw(65, 129, heads=1, groups=1, width=32)
    assert_as_defined(q, k, {0: PREVIOUS}, "triton", causal=True)


@pytest.mark.parametrize("impl", ["reference", "torch", pytest.param("triton", marks=interpreted)])
@pytest.mark.usefixtures("small_tiles")
def test_heads_that_are_not_guided_get_no_gradient(impl):
    q, k = draw(5, 5, heads=4, groups=2)
    found = results(q, k, {1: NEXT}, impl)
    assert found["dq"][:, 1].any() and found["dk"][:, 0].any()
    assert not found["dq"][:, [0, 2, 3]].any() and not found["dk"][:, 1].any()


@pytest.mark.parametrize("impl", ["reference", "torch", pytest.param("triton", marks=interpreted)])
@pytest.mark.usefixtures("small_tiles")
def test_padded_queries_count_for_nothing_and_padded_keys_are_no_target(impl):
    """A short text in a batch with a long one is guided as if it were alone."""
    q, k = draw(6, 6, heads=1, groups=1)
    lengths = torch.tensor([6, 4])
    real = torch.arange(6) < lengths[:, None]
    given = {"lengths": lengths, "query_weights": real, "reduction": "sum"}
    together = results(q, k, {0: NEXT}, impl, **given)
    guided = guided_heads({0: NEXT}, num_heads=1)
    alone = [
        guidance_loss(q[b : b + 1, :, :n], k[b : b + 1, :, :n], guided)
        for b, n in enumerate(lengths.tolist())
    ]
    torch.testing.assert_close(together["loss"], sum(alone))
    assert not together["dq"][1, :, 4:].any() and not together["dk"][1, :, 4:].any()


@pytest.mark.parametrize("impl", ["torch", pytest.param("triton", marks=interpreted)])
@pytest.mark.usefixtures("small_tiles")
def test_texts_packed_together_are_guided_as_if_alone(impl):
    q, k = draw(7, 7, heads=2, groups=2)
    text = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    starts = torch.tensor([1, 0, 0, 1, 0, 0, 0]).bool().expand(1, 2, 7)
    packed = guidance_loss(
        q,
        k,
        guided_heads({0: NEXT, 1: Pattern(key_set=0)}, num_heads=2),
        key_sets=starts,
        mask=text[:, None] == text,
        impl=impl,
    )
    guided = guided_heads({0: NEXT, 1: FIRST}, num_heads=2)
    parts = [guidance_loss(q[:, :, at], k[:, :, at], guided) for at in (slice(3), slice(3, 7))]
    torch.testing.assert_close(packed, parts[0] + parts[1])


@pytest.mark.parametrize("impl", ["reference", "torch", pytest.param("triton", marks=interpreted)])
@pytest.mark.usefixtures("small_tiles")
def test_queries_that_see_nothing_have_no_loss_and_no_gradient(impl):
    q, k = draw(5, 6, heads=1, groups=1)
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2] = False
    guided = guided_heads({0: NEXT}, num_heads=1)
    rows = guidance_rows(Scores(q, k, mask=mask), guided, impl=impl)
    assert not rows.loss[:, :, 2].any() and not rows.seen[:, :, 2].any()
    dq, dk = torch.autograd.grad(rows.loss.sum(), (q, k))
    assert not dq[:, :, 2].any() and dq[:, :, 1].any()
    assert dk.isfinite().all()


@pytest.mark.parametrize("impl", ["reference", "torch", pytest.param("triton", marks=interpreted)])
@pytest.mark.usefixtures("small_tiles")
def test_the_mean_is_over_seen_pairs_and_weights_multiply(impl):
    q, k = draw(4, 6, heads=2, groups=2)
    one, many = (
        guided_heads({0: NEXT, 1: FIRST}, num_heads=2, weights=weights)
        for weights in (1.0, [2.0, 5.0])
    )
    total = guidance_loss(q, k, one, causal=True, impl=impl)
    seen = 2 * (3 + 4 + 5 + 6)  # two batch items; the queries are the last four positions
    mean = guidance_loss(q, k, many, causal=True, reduction="mean", impl=impl)
    torch.testing.assert_close(mean, total / seen * torch.tensor([2.0, 5.0]))


def test_weights_follow_their_heads_whatever_the_order():
    guided = guided_heads({3: NEXT, 1: FIRST}, num_heads=4, weights=[3.0, 1.0])
    assert guided.heads == (1, 3) and guided.patterns == (FIRST, NEXT)
    assert guided.weights.tolist() == [1.0, 3.0]


def test_a_bias_is_part_of_the_scores():
    q, k = draw(4, 4)
    bias = torch.randn(2, 4, 4, requires_grad=True)
    guided = guided_heads({1: NEXT}, num_heads=2)
    losses = [guidance_loss(q, k, guided, bias=bias, impl=impl) for impl in ("reference", "torch")]
    torch.testing.assert_close(*losses)
    for loss in losses:
        (gradient,) = torch.autograd.grad(loss.sum(), bias)
        assert gradient[1].any() and not gradient[0].any()


def layers(count: int, *, groups: int = 2) -> list[tuple[Tensor, Tensor]]:
    """Draw q and k of layers of four heads; q has the memory layout of a host model."""
    return [draw(17, 17, heads=4, groups=groups) for _ in range(count)]


@pytest.mark.parametrize("impl", ["reference", "torch", pytest.param("triton", marks=interpreted)])
@pytest.mark.parametrize("groups", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_several_calls_at_once_give_what_each_gives_alone(impl, groups):
    """The second layer has no guided head; heads are numbered across layers."""
    given, mask = layers(3, groups=groups), torch.rand(2, 1, 17, 17) > 0.3
    patterns = {1: NEXT, 2: PREVIOUS, 8: Pattern(key_set=0), 11: FIRST}
    calls = [Scores(q, k, mask=mask) for q, k in given]
    asked = {"key_sets": sets(17), "impl": impl}
    rows = guidance_rows(calls, guided_heads(patterns, num_heads=12), **asked)
    upstream = torch.randn_like(rows.loss)
    both = [x for pair in given for x in pair]
    got = torch.autograd.grad((rows.loss * upstream).sum(), both, allow_unused=True)
    for number, call in ((0, calls[0]), (2, calls[2])):
        own = {head - 4 * number: p for head, p in patterns.items() if head // 4 == number}
        alone = guidance_rows(call, guided_heads(own, num_heads=4), **asked)
        part = slice(number, number + 2)  # two of the four guided heads
        torch.testing.assert_close(rows.loss[:, part], alone.loss)
        torch.testing.assert_close(rows.seen[:, part], alone.seen)
        wanted = torch.autograd.grad((alone.loss * upstream[:, part]).sum(), given[number])
        torch.testing.assert_close(got[2 * number : 2 * number + 2], wanted)
    assert not any(x is not None and x.any() for x in got[2:4])


@interpreted
@pytest.mark.usefixtures("small_tiles", "poisoned_memory")
def test_calls_that_lie_otherwise_in_memory_can_be_guided_at_once():
    (q, k), (other_q, other_k) = layers(2)
    other_q = other_q.detach().contiguous().requires_grad_()
    guided = guided_heads({0: NEXT, 5: FIRST}, num_heads=8)
    calls = [Scores(q, k), Scores(other_q, other_k)]
    losses = [guidance_rows(calls, guided, impl=impl).loss for impl in ("reference", "triton")]
    torch.testing.assert_close(*losses)
    wanted, got = (torch.autograd.grad(x.sum(), (q, k, other_q, other_k)) for x in losses)
    torch.testing.assert_close(got, wanted)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_gradients_lie_in_memory_as_queries_and_keys_do():
    """Tensors from a projection and gradients for it are then never copied."""
    q, k = draw(17, 19, heads=4, groups=4)
    packed = torch.randn(2, 17, 3, 4, 5).unbind(2)[0].transpose(1, 2).requires_grad_()
    for given in ((q, k), (packed, k)):
        found = results(*given, {1: NEXT}, "triton")
        assert found["dk"].stride() == k.stride()
        assert found["dq"].stride() == q.stride()  # of a part of something packed, without gaps


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loss_of_a_long_call_takes_a_few_blocks():
    """The matrix of the four guided heads would take 256 MB, and autograd would keep several."""
    assert extra_mb("softmax", 4096, "guidance") <= 200


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_it_is_a_good_citizen_of_torch():
    from headwise.ops.guidance.triton import _guidance_op

    q, k = draw(3, 5)
    guided = guided_heads({1: NEXT}, num_heads=2)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    given = ([q], [k], None, torch.tensor([5, 3]), None, guided.plan, guided.numbers, 0.5, 0, False)
    torch.library.opcheck(_guidance_op, given, test_utils=checks)


BAD = {
    "no calls": (
        lambda q, k: guidance_rows([], guided_heads({0: NEXT}, num_heads=2)),
        "at least one attention call to guide, got none",
    ),
    "unlike": (
        lambda q, k: guidance_rows(
            [Scores(q, k), Scores(q, k, causal=True)], guided_heads({0: NEXT}, num_heads=4)
        ),
        "must differ in q and k alone",
    ),
    "no pattern": (lambda q, k: Pattern(), "exactly one of offset, column and key_set, got none"),
    "two": (lambda q, k: Pattern(offset=1, column=0), "exactly one .* got offset, column"),
    "column": (lambda q, k: Pattern(column=-1), "column must be at least 0, got -1"),
    "float": (lambda q, k: Pattern(offset=1.5), "offset must be a whole number"),
    "edges": (lambda q, k: Pattern(offset=1, edges="zero"), "edges must be 'uniform' or 'nothing'"),
    "no heads": (
        lambda q, k: guided_heads({}, num_heads=2),
        "at least one head to guide, got none",
    ),
    "head": (lambda q, k: guided_heads({2: NEXT}, num_heads=2), "from 0 to 1, got 2"),
    "weights": (
        lambda q, k: guided_heads({0: NEXT}, num_heads=2, weights=[1, 2]),
        "one number per guided head, 1, got 2",
    ),
    "heads": (
        lambda q, k: guidance_loss(q, k, guided_heads({0: NEXT}, num_heads=3)),
        r"made for the 2 heads of q, got 3.*num_heads=2",
    ),
    "no sets": (
        lambda q, k: guidance_loss(q, k, guided_heads({0: Pattern(key_set=1)}, num_heads=2)),
        "the 2 sets that the patterns name, got None",
    ),
    "sets": (
        lambda q, k: guidance_loss(
            q,
            k,
            guided_heads({0: Pattern(key_set=0)}, num_heads=2),
            key_sets=torch.ones(1, 2, 4).bool(),
        ),
        r"\(sets, batch, keys\) = \(1 or more, 2, 3\), got \(1, 2, 4\)",
    ),
    "queries": (
        lambda q, k: guidance_loss(
            q, k, guided_heads({0: NEXT}, num_heads=2), query_weights=torch.ones(3)
        ),
        r"\(batch, queries\) = \(2, 3\), got \(3,\)",
    ),
    "reduction": (
        lambda q, k: guidance_loss(q, k, guided_heads({0: NEXT}, num_heads=2), reduction="max"),
        "reduction must be 'sum' or 'mean', got 'max'",
    ),
    "bias": (
        lambda q, k: guidance_loss(
            q, k, guided_heads({0: NEXT}, num_heads=2), bias=torch.zeros(3, 3), impl="triton"
        ),
        "impl='triton' cannot run this call: its scores are q.k alone",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD.keys())
@pytest.mark.usefixtures("unchecked")
def test_bad_input_gets_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call(*draw(3, 3))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [32, 48, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_random_shapes_on_a_device(dtype, width, causal):
    for _ in range(20):
        n_queries, n_keys = (int(n) for n in torch.randint(1, 400, (2,)))
        groups = 2 ** int(torch.randint(0, 4, ()))
        q, k = draw(
            n_queries, n_keys, heads=8, groups=groups, width=width, dtype=dtype, device="cuda"
        )
        given = {"key_sets": sets(n_keys, "cuda"), "causal": causal}
        lengths = torch.randint(0, n_keys + 1, (2,), device="cuda")
        assert_as_defined(q, k, HALF, "triton", lengths=lengths, **given)
        mask = torch.rand(2, 1, n_queries, n_keys, device="cuda") > 0.3
        assert_as_defined(q, k, HALF, "triton", mask=mask, **given)


@pytest.mark.gpu
@needs_cuda
def test_both_passes_give_the_same_every_time():
    q, k = draw(300, 300, heads=8, groups=2, width=64, dtype=torch.bfloat16, device="cuda")
    key_sets = sets(300, "cuda")
    first, second = (results(q, k, HALF, "triton", key_sets=key_sets) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
