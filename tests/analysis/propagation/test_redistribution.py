"""The rules one by one, against their formulas written out."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.analysis.propagation import Propagation, linearised
from headwise.analysis.propagation.redistribution import Rescaling, passed_on, shared_out
from headwise.analysis.propagation.rules import Norm, _signed_norm
from headwise.analysis.propagation.signed_linear import signed_linear
from headwise.models.attention import MultiHeadAttention


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
    y = shared_out(
        x.sum(1), lambda x: (x.sum(1),), x, eps=0.0, rescaling=lambda: Rescaling(True, 3)
    )
    with pytest.raises(ValueError, match=r"an activation of shape \(5,\) in a batch of 3"):
        y.sum().backward()


def test_the_signed_parts_of_a_layer_norm_are_those_of_its_matrix():
    x, weight = torch.randn(3, 5).double(), torch.randn(5).double()
    norm = Norm.of(x, (5,), weight, None, 1e-5)
    matrix_OI = torch.eye(5).double() - 1 / 5
    z_XOI = norm.scale[..., None] * matrix_OI * x[:, None]
    positive, negative = _signed_norm(norm, None, x)
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
        torch.tanh,
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
    start = torch.randn(3, 5).double().requires_grad_()
    wanted = torch.randn(3, 5).double()
    with linearised(Bare()):
        x = start * 1
        y = activation(x)
    torch.testing.assert_close(relevance(start, y, wanted), wanted)


def test_no_relevance_passes_through_zero():
    x = torch.tensor([0.0, 2.0, -1.0]).double().requires_grad_()
    passed_on(x, x.relu()).sum().backward()
    assert x.grad.tolist() == [0, 1, 0]


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
