"""The rules one by one, against their formulas written out."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.analysis.propagation import Propagation, linearised
from headwise.analysis.propagation.redistribution import (
    Rescaling,
    pass_through,
    ratio,
    redistribute,
    signed_linear,
)
from headwise.analysis.propagation.rules import Norm, signed_norm
from headwise_papers.models.attention import MultiHeadAttention


class Bare(nn.Module):
    """Something with a site, as rules are tested on calls of PyTorch alone."""

    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(2, heads=1, name="encoder.0.self")


def relevance(x, y, relevance_of_y):
    (coefficient,) = torch.autograd.grad(y, x, relevance_of_y / y.detach())
    return (x * coefficient).detach()


def alpha_beta_by_hand(z_XOI, relevance_XO, bias_O, eps):
    """Half by positive and half by negative contributions z, (..., outputs, inputs)."""
    positive_XO = z_XOI.clamp(min=0).sum(-1) + bias_O.clamp(min=0) + eps
    negative_XO = z_XOI.clamp(max=0).sum(-1) + bias_O.clamp(max=0) - eps
    gain_XOI = z_XOI.clamp(min=0) / positive_XO[..., None]
    loss_XOI = z_XOI.clamp(max=0) / negative_XO[..., None]
    share_XOI = (gain_XOI.nan_to_num(0) + loss_XOI.nan_to_num(0)) / 2  # of nothing, nothing
    return (share_XOI * relevance_XO[..., None]).sum(-2)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_alpha_beta_of_a_linear_layer_is_the_formula(eps):
    x = torch.randn(3, 4, 5).double().requires_grad_()
    weight, bias = torch.randn(6, 5).double(), torch.randn(6).double()
    wanted = torch.randn(3, 4, 6).double()
    wanted[0, 1] = 0  # a row, and below a column, that have none
    wanted[..., 2] = 0
    y = signed_linear(
        x, weight, bias=bias, counted=True, eps=eps, rescaling=lambda: Rescaling(False)
    )
    torch.testing.assert_close(y, functional.linear(x, weight, bias))
    by_hand = alpha_beta_by_hand(weight * x.detach()[..., None, :], wanted, bias, eps)
    torch.testing.assert_close(relevance(x, y, wanted), by_hand)


def test_rescaling_keeps_the_absolute_sum_of_each_item():
    x = torch.randn(3, 4, 5).double().requires_grad_()
    weight, wanted = torch.randn(6, 5).double(), torch.rand(3, 4, 6).double()
    y = signed_linear(
        x, weight, bias=None, counted=True, eps=0.1, rescaling=lambda: Rescaling(True, 3)
    )
    found = relevance(x, y, wanted)
    torch.testing.assert_close(found.abs().sum((1, 2)), wanted.sum((1, 2)))
    assert (found >= 0).all()


def test_rescaling_refuses_what_is_no_batch():
    x = torch.randn(5, 4).double().requires_grad_()
    y = redistribute(
        x.sum(1), lambda x: (x.sum(1),), x, eps=0.0, rescaling=lambda: Rescaling(True, 3)
    )
    with pytest.raises(ValueError, match=r"an activation of shape \(5,\) in a batch of 3"):
        y.sum().backward()


def test_the_signed_parts_of_a_layer_norm_are_those_of_its_matrix():
    x, weight = torch.randn(3, 5).double(), torch.randn(5).double()
    norm = Norm.of(x, (5,), weight, None, 1e-5)
    matrix_OI = torch.eye(5).double() - 1 / 5
    z_XOI = norm.scale[..., None] * matrix_OI * x[:, None]
    positive, negative = signed_norm(norm, None, x)
    torch.testing.assert_close(positive, z_XOI.clamp(min=0).sum(-1))
    torch.testing.assert_close(negative, z_XOI.clamp(max=0).sum(-1))
    torch.testing.assert_close(positive + negative, functional.layer_norm(x, (5,), weight))


def test_a_layer_norm_passes_all_but_the_share_of_its_bias_on():
    x, norm = torch.randn(3, 5).double().requires_grad_(), nn.LayerNorm(5).double()
    with torch.no_grad():
        norm.bias.normal_()
    wanted = torch.randn(3, 5).double()
    with linearised(Bare()):
        y = norm(x)
    left = (wanted * (y.detach() - norm.bias.detach()) / y.detach()).sum(-1)
    torch.testing.assert_close(relevance(x, y, wanted).sum(-1), left)
    with linearised(Bare(), Propagation(bias="spread", eps=0.0)):
        y = norm(x)
    torch.testing.assert_close(relevance(x, y, wanted).sum(-1), wanted.sum(-1))


@pytest.mark.parametrize(
    "activation",
    [
        functional.gelu,
        functional.celu,
        functional.softsign,
        torch.tanh,
        torch.log1p,
        torch.expm1,
        lambda x: x**2,
        lambda x: 2**x,
        lambda x: x.abs() ** 0.5,
        lambda x: functional.silu(x, inplace=True),
        lambda x: functional.leaky_relu(x, 0.1, True),
        lambda x: functional.rms_norm(x, (5,)),
        lambda x: functional.normalize(x, dim=-1),
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * x.square().mean(-1, keepdim=True).rsqrt(),
        lambda x: x / x.std(-1, keepdim=True),
        lambda x: torch.mul(input=x, other=torch.tensor(3.0)),
    ],
)
def test_what_is_ignored_or_held_constant_leaves_relevance_as_it_is(activation):
    start = (torch.rand(3, 5) - 0.5).double().requires_grad_()
    wanted = torch.randn(3, 5).double()
    with linearised(Bare(), Propagation(eps=0.0)):
        x = start * 1
        y = activation(x)
    torch.testing.assert_close(relevance(start, y, wanted), wanted)


def test_no_relevance_passes_through_zero():
    x = torch.tensor([0.0, 2.0, -1.0]).double().requires_grad_()
    pass_through(x, x.relu(), eps=0.0).sum().backward()
    assert x.grad.tolist() == [0, 1, 0]


@pytest.mark.parametrize("function", [torch.sigmoid, nn.Softplus(), torch.exp])
def test_coefficients_stay_finite_where_a_function_of_nearly_nothing_is_something(function):
    parts = torch.tensor([1.0, -1.0 + 1e-9], dtype=torch.float64, requires_grad=True)
    with linearised(Bare(), Propagation(eps=0.1)):
        y = function(parts.sum())  # of 1e-9
    y.backward()
    assert (parts.grad.abs() > 0).all() and (parts.grad.abs() <= 1.1 / 0.1).all()


def test_the_stabiliser_absorbs_its_share():
    x = torch.tensor([0.4, -0.1]).double().requires_grad_()
    y = pass_through(x, x.sigmoid(), eps=0.1)
    left = torch.tensor([0.4 / 0.5, 0.1 / 0.2]).double()
    torch.testing.assert_close(relevance(x, y, torch.ones(2).double()), left)


def test_what_is_not_a_number_stays_so_in_ratios():
    nan = torch.nan
    found = ratio(torch.tensor([nan, 1.0, nan, 2.0]), torch.tensor([1.0, nan, 0.0, 0.0]), eps=0.1)
    assert found.isnan().tolist() == [True, True, True, False] and found[3] == 0


BATCH = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)).double()
WEIGHT = BATCH[0] + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        lambda a, b: torch.einsum("bij,bjk->bik", [a, b]),
        lambda a, b: torch.einsum(a, [0, 1, 2], b, [0, 2, 3], [0, 1, 3]),
        lambda a, b: torch.baddbmm(torch.zeros(2, 3, 3).double(), a, b),
        lambda a, b: torch.zeros(2, 3, 3).double().baddbmm(batch1=a, batch2=b, beta=1.0, alpha=0.5),
        lambda a, b: torch.addcmul(torch.zeros(2, 3, 3).double(), a, b, value=2.0),
        lambda a, b: torch.addmm(torch.zeros(3, 3).double(), a[0], b[0]),
        lambda a, b: torch.addmm(torch.zeros(3, 3).double(), a[0], b[0], alpha=2.0),
        lambda a, b: functional.linear(a, b[0]),
        lambda a, b: functional.linear(input=a, weight=b[0]),
        lambda a, b: functional.conv1d(a, b),
        lambda a, b: torch.inner(a[0], b[0]),
        lambda a, b: a * b,
    ],
)
@pytest.mark.parametrize("settings", [Propagation(), Propagation("alpha_beta", eps=0.0)])
def test_products_of_two_activations_keep_their_relevance_in_all_and_double_none(call, settings):
    a, b = BATCH.clone().requires_grad_(), (BATCH.flip(0) + 1).requires_grad_()
    with linearised(Bare(), settings):
        y = call(a * 1, b * 1)
    found = torch.autograd.grad(y.sum(), (a, b))
    halves = [(u * c).sum() for u, c in zip((a, b), found, strict=True)]
    for half in halves:
        torch.testing.assert_close(half, y.sum() / 2)


@pytest.mark.parametrize("settings", [Propagation(), Propagation("alpha_beta", eps=0.0)])
def test_constant_factors_get_no_relevance_however_they_are_multiplied(settings):
    for call in (
        lambda x: torch.einsum("bij,jk->bik", x, WEIGHT),
        lambda x: torch.einsum("jk,bij->bik", [WEIGHT, x]),
        lambda x: torch.einsum("bij,jk,k->bik", x, WEIGHT, WEIGHT[0]),
        lambda x: torch.baddbmm(torch.zeros(2, 3, 3).double(), x, WEIGHT.expand(2, 3, 3)),
    ):
        x = BATCH.clone().requires_grad_()
        with linearised(Bare(), settings) as mode:
            y = call(x * 1)
        mode.items = 2
        (coefficient,) = torch.autograd.grad(y.square().sum(), x)  # y has the relevance 2 y^2
        assert (x * coefficient).sum().item() == pytest.approx(2 * y.square().sum().item())


@pytest.mark.parametrize("settings", [Propagation(bias="spread"), Propagation("alpha_beta")])
def test_what_a_product_is_added_to_in_one_call_has_its_relevance(settings):
    x, state = BATCH[0].clone().requires_grad_(), BATCH[1].clone().requires_grad_()
    with linearised(Bare(), settings):
        y = torch.addmm(state * 1, x * 1, WEIGHT)
    (coefficient,) = torch.autograd.grad(y.sum(), state)
    torch.testing.assert_close(coefficient, torch.ones(3, 3).double())


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("logsumexp", lambda x: x.logsumexp(-1)),
        ("log_softmax", lambda x: x.log_softmax(-1)),
        ("cumprod", lambda x: x.cumprod(-1)),
        ("prod", lambda x: torch.prod(x, -1)),
        ("relu_", lambda x: x.relu_()),
        ("arctan", torch.arctan),
        ("pow", lambda x: torch.pow(x, x)),
        ("glu", lambda x: functional.glu(x, 0)),
        ("einsum", lambda x: torch.einsum("ij,ij,ij->i", x, x, x)),
        ("addcdiv", lambda x: torch.addcdiv(x, x, x)),
        ("cosine_similarity", lambda x: functional.cosine_similarity(x, x)),
        ("tensordot", lambda x: torch.tensordot(x, x)),
        ("var_mean", torch.var_mean),
    ],
)
def test_a_call_without_a_rule_is_refused_by_name(name, call):
    x = (torch.rand(4, 4) + 1).requires_grad_()
    with linearised(Bare()), pytest.raises(ValueError, match=f"cannot be .* through {name}:"):
        call(x * 1)
    with linearised(Bare()):
        call(torch.rand(4, 4))  # nothing has relevance


def test_a_product_in_place_is_refused():
    x = torch.randn(3).double().requires_grad_()
    with linearised(Bare()), pytest.raises(ValueError, match="cannot be propagated through mul_"):
        y, z = x * 1, x * 2
        y *= z


def test_recurrent_layers_are_refused():
    x, lstm = torch.randn(2, 3, 4).requires_grad_(), nn.LSTM(4, 5)
    with linearised(Bare()), pytest.raises(ValueError, match="cannot be propagated through lstm"):
        lstm(x * 1)


@pytest.mark.usefixtures("unchecked")
def test_settings_say_what_they_want():
    with pytest.raises(ValueError, match="bias must be 'neuron' or 'spread', got 'none'"):
        Propagation(bias="none")
    with pytest.raises(ValueError, match="eps must be 0 or more, got -1"):
        Propagation(eps=-1.0)
