"""Output relevance and its measures, against the definitions written out row by row."""

import math

import pytest
import torch

from headwise_papers.ops.relevance import (
    expected_floor,
    highly_ranked,
    holds,
    mode_match,
    output_relevance,
    output_relevance_of_each,
    packed,
    peak_positions,
    shuffled,
    top_positions,
    unpacked,
)


def _by_hand(theta_KO, target):
    others = [o for o in range(theta_KO.shape[1]) if o != target]
    return torch.stack([row[target] - row[others].logsumexp(0) for row in theta_KO])


def _rows(*shape, values=5):
    """Scores with many ties, and lengths with every remainder."""
    scores = torch.randint(values, shape).double()
    return scores, torch.randint(1, shape[-1] + 1, shape[:-1])


@pytest.mark.parametrize("outputs", [2, 3, 50])
def test_relevance_is_the_logit_less_the_logsumexp_of_the_others(outputs):
    theta, target = torch.randn(4, 3, 7, outputs).double(), torch.randint(outputs, (4, 3))
    beta = output_relevance(theta, target)
    for i in range(4):
        for j in range(3):
            torch.testing.assert_close(beta[i, j], _by_hand(theta[i, j], target[i, j]))


def test_with_two_outputs_it_is_their_difference():
    theta = torch.randn(5, 6, 2).double()
    beta = output_relevance(theta, torch.ones(5, dtype=torch.long))
    torch.testing.assert_close(beta, theta[..., 1] - theta[..., 0], rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_target_with_nearly_all_probability_keeps_its_digits(dtype):
    theta = torch.tensor([[900.0, 1.0, 2.0], [-900.0, 1.0, 2.0]], dtype=dtype)
    wanted = torch.tensor([900.0, -900.0], dtype=dtype) - math.log(math.e + math.e**2)
    torch.testing.assert_close(output_relevance(theta, torch.tensor(0)), wanted)
    each = output_relevance_of_each(theta, torch.tensor([0]))[0]
    torch.testing.assert_close(each, wanted)


def test_it_is_the_log_odds_of_one_positions_softmax():
    theta, target = torch.randn(9, 4, 6).double(), torch.randint(6, (9,))
    p = theta.softmax(-1).gather(-1, target[:, None, None].expand(9, 4, 1))[..., 0]
    torch.testing.assert_close(output_relevance(theta, target), torch.logit(p))


def test_several_targets_are_each_as_if_alone():
    theta, targets = 5 * torch.randn(3, 4, 6).double(), torch.randint(6, (3, 8))
    theta[0, 0, :2] = 20.0  # two share the largest logit
    each = output_relevance_of_each(theta, targets)
    assert each.shape == (3, 8, 4)
    for t in range(8):
        torch.testing.assert_close(each[:, t], output_relevance(theta, targets[:, t]))


def test_gradients_are_right_and_finite():
    theta = torch.randn(2, 3, 4).double().requires_grad_()
    target = torch.tensor([0, 3])
    torch.autograd.gradcheck(lambda x: output_relevance(x, target), theta)
    torch.autograd.gradcheck(lambda x: output_relevance_of_each(x, target[:, None] % 2), theta)
    certain = torch.tensor([[[800.0, 0.0, 0.0]]], requires_grad=True)
    for beta in (
        output_relevance(certain, torch.tensor([0])),
        output_relevance_of_each(certain, torch.tensor([[0, 1]])),
    ):
        (grad,) = torch.autograd.grad(beta.sum(), certain)
        assert grad.isfinite().all()


def test_the_dtype_stays():
    theta = torch.randn(2, 3, 4).bfloat16()
    assert output_relevance(theta, torch.tensor([0, 1])).dtype == torch.bfloat16


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("outputs", "target", "message"),
    [
        (3, torch.tensor([0, 3]), "between 0 and 2, got 0 to 3"),
        (3, torch.tensor([-1, 0]), "between 0 and 2, got -1 to 0"),
        (3, torch.tensor([0]), r"must have shape \(2,\), got \(1,\)"),
        (3, torch.tensor([0.0, 1.0]), "number of an output, got torch.float32"),
        (1, torch.tensor([0, 0]), "at least two outputs"),
    ],
)
def test_a_wrong_target_is_refused(outputs, target, message):
    with pytest.raises(ValueError, match=message):
        output_relevance(torch.zeros(2, 5, outputs), target)


@pytest.mark.parametrize("keys", [1, 7, 19, 20, 21, 40, 41, 63])
def test_measures_are_those_of_the_definition(keys):
    alpha, lengths = _rows(30, keys)
    beta, _ = _rows(30, keys)
    acc, hr, top = (f(*x) for f, x in (
        (mode_match, (alpha, beta, lengths)),
        (highly_ranked, (alpha, beta, lengths)),
        (top_positions, (beta, lengths)),
    ))  # fmt: skip
    for n, length in enumerate(lengths.tolist()):
        a, b = alpha[n, :length].tolist(), beta[n, :length].tolist()
        mode = a.index(max(a))
        assert acc[n] == (mode == b.index(max(b)))
        larger = [sum(other > value for other in b) for value in b]
        assert hr[n] == (20 * larger[mode] < length)
        assert top[n].tolist() == [20 * c < length for c in larger] + [False] * (keys - length)


def test_a_twentieth_is_counted_in_whole_numbers():
    # 0.05 * 140 is more than 7 in binary, so that a ceiling of it would let an eighth rank in
    beta = torch.arange(140.0)[None]
    assert top_positions(beta, torch.tensor([140])).sum() == 7
    for rank, wanted in ((7, True), (8, False)):
        alpha = torch.zeros(1, 140)
        alpha[0, 140 - rank] = 1
        assert highly_ranked(alpha, beta, torch.tensor([140])).item() is wanted


def test_tied_relevance_has_the_highest_rank_of_its_ties():
    assert highly_ranked(torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2), torch.tensor([2])).all()
    assert top_positions(torch.zeros(1, 30), torch.tensor([30])).all()


def test_the_first_of_several_largest_entries_is_the_mode():
    row = torch.tensor([[0.0, 4.0, 4.0]])
    assert peak_positions(row, torch.tensor([3])).item() == 1
    assert mode_match(row, torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([3])).item()


@pytest.mark.parametrize("filling", [1e30, -1e30, math.inf, math.nan])
def test_padding_never_counts(filling):
    (alpha, lengths), (beta, _) = _rows(40, 30), _rows(40, 30)
    clean = [f(alpha, beta, lengths) for f in (mode_match, highly_ranked)]
    padding = torch.arange(30) >= lengths[:, None]
    dirty = [x.masked_fill(padding, filling) for x in (alpha, beta)]
    for f, wanted in zip((mode_match, highly_ranked), clean, strict=True):
        assert torch.equal(f(*dirty, lengths), wanted)
    assert torch.equal(top_positions(dirty[1], lengths), top_positions(beta, lengths))
    assert not top_positions(dirty[1], lengths)[padding].any()


def test_scores_of_minus_infinity_are_real_positions():
    row = torch.full((1, 4), -math.inf)
    assert peak_positions(row, torch.tensor([2])).item() == 0
    assert top_positions(row, torch.tensor([2])).tolist() == [[True, True, False, False]]


def test_seeds_share_the_lengths_of_their_rows():
    alpha, beta = torch.randn(3, 5, 9), torch.randn(5, 9)
    lengths = torch.tensor([1, 3, 5, 7, 9])
    for f in (mode_match, highly_ranked):
        together = f(alpha, beta, lengths)
        assert together.shape == (3, 5)
        assert torch.equal(together[1], f(alpha[1], beta, lengths))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([0, 3]), "between 1 and the 4 positions of a row, got 0 to 3"),
        (torch.tensor([1, 5]), "got 1 to 5"),
        (torch.tensor([1, 2, 3]), r"each row of shape \(2,\), got shape \(3,\)"),
        (torch.ones(2, 1, dtype=torch.long), r"got shape \(2, 1\)"),
    ],
)
def test_lengths_that_fit_no_row_are_refused(lengths, message):
    rows = torch.zeros(2, 4)
    for call in (
        lambda: mode_match(rows, rows, lengths),
        lambda: highly_ranked(rows, rows, lengths),
        lambda: top_positions(rows, lengths),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_shuffle_moves_real_positions_among_themselves():
    beta, lengths = torch.arange(60.0).view(3, 20), torch.tensor([1, 12, 20])
    mixed = shuffled(beta, lengths, torch.Generator().manual_seed(0))
    for row, other, length in zip(beta, mixed, lengths.tolist(), strict=True):
        assert torch.equal(other[:length].sort().values, row[:length])
        assert torch.equal(other[length:], row[length:])
    assert not torch.equal(mixed[2], beta[2])
    again = shuffled(beta, lengths, torch.Generator().manual_seed(0))
    assert torch.equal(mixed, again)


def test_shuffled_relevance_is_highly_ranked_as_often_as_expected():
    lengths = torch.randint(1, 64, (40_000,))
    alpha, beta = torch.rand(40_000, 63), torch.rand(40_000, 63)
    mixed = shuffled(beta, lengths, torch.Generator().manual_seed(0))
    found = highly_ranked(alpha, mixed, lengths).double().mean().item()
    floor = expected_floor(lengths)
    assert abs(found - floor) < 4 * math.sqrt(floor * (1 - floor) / 40_000)


def test_the_floor_is_a_twentieth_for_long_rows_and_more_for_short_ones():
    assert expected_floor(torch.tensor([200])) == pytest.approx(0.05)
    assert expected_floor(torch.tensor([140])) == pytest.approx(0.05)
    assert expected_floor(torch.tensor([8])) == pytest.approx(1 / 8)
    with pytest.raises(ValueError, match="at least one real position, got 0"):
        expected_floor(torch.tensor([0, 3]))


@pytest.mark.parametrize("keys", [1, 7, 8, 9, 40])
def test_packed_booleans_come_back(keys):
    chosen = torch.rand(3, 5, keys) < 0.3
    bytes_ = packed(chosen)
    assert bytes_.shape == (3, 5, -(-keys // 8))
    assert torch.equal(unpacked(bytes_)[..., :keys], chosen)
    assert not unpacked(bytes_)[..., keys:].any()
    for key in range(keys):
        place = torch.full((3, 5), key, dtype=torch.int32)
        assert torch.equal(holds(bytes_, place), chosen[..., key])


@pytest.mark.parametrize("measure", [mode_match, highly_ranked])
def test_a_model_that_diverged_agrees_with_nothing(measure):
    scores, broken = torch.randn(3, 5), torch.randn(3, 5)
    broken[1, 4] = torch.nan
    with pytest.raises(ValueError, match="hold NaN"):
        measure(scores, broken, torch.tensor([5, 5, 5]))
    measure(scores, broken, torch.tensor([5, 4, 5]))  # padding may hold anything
