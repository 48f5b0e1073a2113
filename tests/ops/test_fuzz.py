"""The fuzzer finds broken kernels, says how to reproduce a case, and passes correct kernels."""

import re
from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from headwise.ops import entmax_attention
from headwise.ops.row_sweep import row_sweep
from tests.ops import fuzz, fuzz_attention, fuzz_inputs, fuzz_sweeps
from tests.ops.fuzz import Outcome, Plan, main, run_case
from tests.ops.fuzz_inputs import EXACT, Sizes, draw_case
from tests.ops.fuzz_variants import MOST_VARIANTS, VARIANTS, variant_of

pytest.importorskip("triton", reason="Triton is not installed")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"
)


@interpreted
@pytest.mark.parametrize(
    ("op", "seed"),
    [("topk", 9), ("entmax", 0), ("entmax", 7), ("statistics", 0), ("guidance", 0)]
    + [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (("topk", 12), ("entmax", 8), ("statistics", 3), ("guidance", 3))
    ],
)
def test_kernels_pass(op, seed):
    assert run_case(op, seed, "cpu").problem is None


def test_what_cancels_is_allowed_for_in_float32_alone():
    raised = set()
    for seed in range(24):
        case = draw_case("entmax", seed, "cpu")
        batch, heads, _, n_queries, _ = case.sizes
        upstream = 10 * case.randn(batch, heads, n_queries, case.variant.values).to(case.v.dtype)
        floors = fuzz_attention._floors(case)
        higher = fuzz_attention._cancelling(case, floors, upstream)
        assert higher["dq"] >= floors["dq"] and higher["out"] == floors["out"]
        if higher["dq"] > floors["dq"]:
            raised.add(case.q.dtype)
    assert raised == {torch.float32}


class OneKey(torch.autograd.Function):
    """Autograd function for weights @ v of one key, with a choice of how dv is summed."""

    @staticmethod
    def forward(ctx, weights_BHQK, v, add):
        ctx.save_for_backward(weights_BHQK, v)
        ctx.add = add
        return weights_BHQK * v.repeat_interleave(weights_BHQK.shape[1] // v.shape[1], dim=1)

    @staticmethod
    def backward(ctx, dout_BHQE):
        weights_BHQK, v = ctx.saved_tensors
        addends = (weights_BHQK * dout_BHQE).unflatten(1, (v.shape[1], -1)).flatten(2, 3)
        return torch.zeros_like(weights_BHQK), ctx.add(addends)[:, :, None], None


def well(addends):
    return addends.double().sum(dim=2).to(addends.dtype)


def in_order(addends):
    return sum(addends.unbind(dim=2), torch.zeros_like(addends[:, :, 0]))


@pytest.fixture
def problems_of_one_key(monkeypatch):
    """Return the reported problems by the way dv is summed, if 774 queries may see one key."""
    sizes = Sizes(batch=1, heads=6, groups=2, n_queries=258, n_keys=1)
    monkeypatch.setattr(fuzz_inputs, "_draw_sizes", lambda *_, **__: sizes)
    single = range(6, 200, len(VARIANTS["entmax"]))  # seeds of a variant in float32
    rows = {seed: draw_case("entmax", seed, "cpu").scores().rows() for seed in single}
    # Of a score of hundreds so much is rounded that nearly anything is allowed.
    seeds = [seed for seed in single if -torch.inf < rows[seed].max() < 100]

    def problems(add):
        def attend(*given, impl, **options):
            weights = entmax_attention(*given, impl="reference", **options).weights
            out = OneKey.apply(weights, given[2], add if impl == "triton" else well)
            return SimpleNamespace(weights=weights, out=out)

        monkeypatch.setattr(fuzz_attention, "entmax_attention", attend)
        return [run_case("entmax", seed, "cpu").problem for seed in seeds]

    return problems


def test_what_many_queries_send_to_a_key_may_be_added_up_in_any_order(problems_of_one_key):
    assert set(problems_of_one_key(in_order)) == {None}
    assert set(problems_of_one_key(lambda addends: in_order(addends.flip(2)))) == {None}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda addends: addends + 2**12 * addends - 2**12 * addends,  # about as TF32 rounds
        lambda addends: addends * (1 + 1e-4),
        lambda addends: addends[:, :, :-258],  # one head of three is forgotten
        lambda addends: addends[:, :, addends[0, 0].any(dim=-1).nonzero()[1:, 0]],  # one query
    ],
)
def test_what_is_not_the_sum_over_many_queries_is_found(problems_of_one_key, spoil):
    problems = problems_of_one_key(lambda addends: in_order(spoil(addends)))
    assert all(problem and problem.startswith("dv off by") for problem in problems)


@pytest.fixture
def wrong_entropy(monkeypatch):
    """Replace the entropy by a slightly wrong one."""

    def off(scores, *, impl, **asked):
        swept = row_sweep(scores, impl=impl, **asked)
        wrong = impl == "triton"
        return swept._replace(entropy=swept.entropy * 1.01) if wrong else swept

    monkeypatch.setattr(fuzz_sweeps, "row_sweep", off)


@interpreted
def test_a_broken_op_is_found_and_can_be_had_again(wrong_entropy, monkeypatch, capsys):
    arguments = ["--only", "statistics", "--device", "cpu", "--seed", "20", "--count", "2"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    problem = re.search(r"^ +(entropy off by .*)$", printed, re.MULTILINE)[1]
    command = re.search(r"python -m tests.ops.fuzz (.*)$", printed, re.MULTILINE)[1].split()
    assert command[-4:] == ["--count", "1", "--device", "cpu"]
    assert main(command) == 1
    assert problem in capsys.readouterr().out
    monkeypatch.setattr(fuzz_sweeps, "row_sweep", row_sweep)
    assert main(command) == 0
    assert "MISMATCH" not in capsys.readouterr().out


@interpreted
def test_a_crash_is_a_mismatch(monkeypatch, capsys):
    def crash(*_, **__):
        raise RuntimeError("out of shared memory")

    monkeypatch.setattr(fuzz_sweeps, "guidance_rows", crash)
    assert main(["--only", "guidance", "--device", "cpu", "--count", "1"]) == 1
    assert "RuntimeError: out of shared memory" in capsys.readouterr().out


def test_it_stops_after_ten_mismatches_and_counts_them(monkeypatch, capsys):
    def fail(op: str, seed: int, device: str) -> Outcome:
        return Outcome(op, seed, "off", "a case", 0.1, flagged=1, blocks=4)

    monkeypatch.setattr(fuzz, "run_case", fail)
    assert main(["--device", "cpu", "--count", "50"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("MISMATCH") == 10
    assert re.search(r"topk +│ 3 +│ 3 +│ 3 +│ 25.00% of 12", printed)


def test_nothing_is_begun_when_time_is_up(monkeypatch):
    monkeypatch.setattr(fuzz, "run_case", None)
    assert not list(Plan(("topk",), 0, None, "cpu", end=0.0).cases())


def test_there_are_few_variants_and_all_come_up():
    every = [(op, variant) for op, variants in VARIANTS.items() for variant in variants]
    assert len(every) == len(set(every)) <= MOST_VARIANTS
    numbers = {variant_of(op, seed)[0] for op in VARIANTS for seed in range(20)}
    assert numbers == set(range(len(every)))


def test_a_top_k_variant_keeps_numbers_of_one_class():
    selection = pytest.importorskip("headwise.ops.topk.selection")
    for variant in VARIANTS["topk"]:
        low, high = variant.keep
        assert selection.levels_for(low) == selection.levels_for(high)
        if variant.long:  # slots of the gathering kernel
            assert (low + 1).bit_length() == (high + 1).bit_length()


def test_processes_share_the_variants_out():
    plan = Plan(tuple(VARIANTS), 5, 30, "cpu", end=float("inf"))
    parts = [list(plan.cases(job, 3)) for job in range(3)]
    assert sorted(case for part in parts for case in part) == sorted(plan.cases())
    variants = [{variant_of(*case)[0] for case in part} for part in parts]
    assert sum(map(len, variants)) == len(set.union(*variants))


def test_seeds_count_up_from_the_first_for_every_op():
    plan = Plan(("topk", "guidance"), 7, None, "cpu", end=float("inf"))
    first = list(islice(plan.cases(), 4))
    assert first == [("topk", 7), ("guidance", 7), ("topk", 8), ("guidance", 8)]


@pytest.mark.parametrize("op", VARIANTS)
def test_a_seed_draws_the_same_case_and_others_differ(op):
    one, again, other = (draw_case(op, seed, "cpu") for seed in (3, 3, 4))
    assert str(one) == str(again) != str(other)
    assert torch.equal(one.q, again.q) and torch.equal(one.v, again.v)


def test_scores_that_are_called_exact_are_the_same_in_every_precision():
    kinds = set()
    for seed in range(60):
        case = draw_case("topk", seed, "cpu")
        if case.exact:
            kinds.add(case.kind)
            scale = case.scale
            wide, narrow = case.q.double() @ _spread(case).double().mT, case.q @ _spread(case).mT
            assert torch.equal(wide * scale, (narrow * scale).double()), case
    assert len(kinds) > len(EXACT) // 2


def _spread(case):
    return case.k.repeat_interleave(case.sizes.heads // case.sizes.groups, dim=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "softmax"], "invalid choice: 'softmax'"),
        (["--device", "cpu", "--count", "0"], "must be positive"),
        (["--device", "cpu", "--seconds", "-1"], "must be positive"),
        (["--device", "cpu", "--seed", "-1"], "at least 0"),
        pytest.param(["--device", "cuda"], "there is no GPU; --device cpu", marks=interpreted),
    ],
)
def test_what_cannot_be_done_is_said(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_some_cases_of_every_variant_on_the_device():
    assert main(["--count", "28", "--seconds", "200"]) == 0
