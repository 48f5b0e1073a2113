"""The distribution of gates: closed forms, figures of the paper's constants, and sampling."""

import pytest
import torch

from headwise.pruning.gates import HardConcrete, counted_uniform, logistic

LOG_ALPHA = torch.tensor([-2.0, 0.0, 1.0, 2.5], dtype=torch.float64)
# for temperature 0.33 and limits -0.1 and 1.1
ZERO = torch.tensor([0.7701, 0.3119, 0.1429, 0.0359], dtype=torch.float64)
ONE = torch.tensor([0.0578, 0.3119, 0.5520, 0.8467], dtype=torch.float64)
MEAN = torch.tensor([0.1251, 0.5000, 0.7245, 0.9197], dtype=torch.float64)


def drawn(gate, count=400_000):
    generator = torch.Generator().manual_seed(0)
    return gate.sample(LOG_ALPHA.expand(count, -1), generator=generator)


def test_probabilities_are_those_of_the_papers_constants():
    gate = HardConcrete()
    torch.testing.assert_close(gate.prob_zero(LOG_ALPHA), ZERO, atol=5e-5, rtol=0)
    torch.testing.assert_close(gate.prob_one(LOG_ALPHA), ONE, atol=5e-5, rtol=0)
    torch.testing.assert_close(gate.prob_open(LOG_ALPHA), 1 - gate.prob_zero(LOG_ALPHA))


@pytest.mark.parametrize("gate", [HardConcrete(), HardConcrete(2 / 3, (-0.3, 1.2))])
def test_draws_are_zero_and_one_as_often_as_the_closed_forms_say(gate):
    samples = drawn(gate)
    three_deviations = 3 * 0.5 / 400_000**0.5
    for measured, wanted in (
        (samples == 0, gate.prob_zero(LOG_ALPHA)),
        (samples == 1, gate.prob_one(LOG_ALPHA)),
    ):
        found = measured.double().mean(0)
        torch.testing.assert_close(found, wanted, atol=three_deviations, rtol=0)


def test_draws_have_the_papers_mean_and_stay_between_0_and_1():
    samples = drawn(HardConcrete())
    torch.testing.assert_close(samples.mean(0), MEAN, atol=2.5e-3, rtol=0)
    assert samples.min() == 0 and samples.max() == 1


def test_a_generator_makes_the_draws_repeat():
    gate = HardConcrete()
    first, again, other = (
        gate.sample(torch.zeros(50), generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_gradients_go_through_a_sample():
    gate, noise = HardConcrete(), torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    log_alpha = torch.tensor([0.1, -0.1, 0.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: gate.with_noise(a, noise), log_alpha)
    far = torch.tensor([40.0, -40.0], requires_grad=True)
    gate.sample(far).sum().backward()
    assert torch.equal(far.grad, torch.zeros(2))  # clipped: no gradient


def test_without_chance_a_gate_is_what_is_likelier():
    gate = HardConcrete()
    log_alpha = torch.tensor([-3.0, -1e-3, 0.0, 1e-3, 3.0], dtype=torch.float64)
    assert gate.deterministic(log_alpha).tolist() == [0, 0, 1, 1, 1]
    lopsided = HardConcrete(limits=(-0.5, 1.01))  # zero is far likelier than one
    assert lopsided.deterministic(torch.tensor([0.5])).item() == 0
    assert lopsided.prob_one(torch.tensor([0.5])) < lopsided.prob_zero(torch.tensor([0.5]))


def test_the_reference_codes_gates_are_a_clipped_sigmoid():
    gate = HardConcrete()
    log_alpha = torch.tensor([-2.3979, -2.3978, 0.0, 2.3978, 2.3979], dtype=torch.float64)
    found = gate.deterministic(log_alpha, mode="reference_code")
    assert found[0] == 0 and found[4] == 1
    assert 0 < found[1] < 1e-5 and abs(found[2] - 0.5) < 1e-15 and 1 - 1e-5 < found[3] < 1
    wanted = (torch.sigmoid(log_alpha) * 1.2 - 0.1).clamp(0, 1)
    torch.testing.assert_close(found, wanted)


def test_noise_is_finite_for_any_uniform_number():
    noise = logistic(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    bound = torch.log(torch.tensor(1e-6 / (1 - 1e-6), dtype=torch.float64))
    torch.testing.assert_close(noise, torch.stack([bound, torch.zeros_like(bound), -bound]))
    assert logistic(torch.tensor([0.0, 1.0])).isfinite().all()


def test_bad_settings_are_refused(unchecked):
    with pytest.raises(ValueError, match="limits must reach below 0 and above 1"):
        HardConcrete(limits=(0.0, 1.1))
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        HardConcrete(temperature=0)
    with pytest.raises(ValueError, match="mode must be 'paper' or 'reference_code', got 'code'"):
        HardConcrete().deterministic(torch.zeros(1), "code")


def draws(seed, count=48, times=2000):
    return torch.stack([counted_uniform(seed, torch.tensor(t), count) for t in range(times)])


def test_numbers_are_uniform_and_strictly_inside():
    numbers = draws(0)
    assert numbers.min() > 0 and numbers.max() < 1
    shares = torch.histc(numbers, bins=20, min=0, max=1) / numbers.numel()
    torch.testing.assert_close(shares, torch.full((20,), 0.05), atol=3e-3, rtol=0)


def test_draws_places_and_seeds_are_not_correlated():
    numbers_TN = draws(0)
    together = torch.corrcoef(numbers_TN.T) - torch.eye(48)
    assert together.abs().max() < 5 / 2000**0.5  # of 1128 pairs the largest is about 3.5 of these
    others = draws(1)
    for first, second in (
        (numbers_TN[:-1], numbers_TN[1:]),  # from draw to draw
        (numbers_TN, others),  # from seed to seed
        (numbers_TN[1:], others[:-1]),
    ):
        pair = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))
        assert pair[0, 1].abs() < 5 / first.numel() ** 0.5


def test_seed_and_draw_decide():
    first, again = (counted_uniform(7, torch.tensor(3), 5) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, counted_uniform(7, torch.tensor(4), 5))
    assert not torch.equal(first, counted_uniform(8, torch.tensor(3), 5))
    assert torch.equal(first, counted_uniform(7, torch.tensor(3), 9)[:5])
    assert counted_uniform(-1, torch.tensor(2**40), 3).isfinite().all()
