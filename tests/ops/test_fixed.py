"""Attention that ignores content."""

import pytest
import torch

from headwise.ops import gaussian_attention, uniform_attention
from tests.ops.attention_cases import SIZES, inputs


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_uniform_averages_the_visible_values(n, impl):
    q, k, v = inputs(n, dtype=torch.float64)
    running_mean = v.cumsum(dim=2) / torch.arange(1, n + 1)[:, None]
    torch.testing.assert_close(uniform_attention(q, k, v, causal=True, impl=impl).out, running_mean)
    everything = uniform_attention(q, k, v, impl=impl).out
    torch.testing.assert_close(everything, v.mean(dim=2, keepdim=True).expand_as(everything))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_gaussian_is_a_bell_around_the_offset(n, impl):
    q, k, v = inputs(n, dtype=torch.float64)
    attended = gaussian_attention(q, k, v, offset=-1.5, std=2.0, impl=impl)
    position = torch.arange(n, dtype=torch.float64)
    bell = torch.exp(-((position - position[:, None] + 1.5) ** 2) / 8)
    weights = (bell / bell.sum(-1, keepdim=True)).expand(2, 2, n, n)
    torch.testing.assert_close(attended.weights, weights)
    torch.testing.assert_close(attended.out, weights @ v)


@pytest.mark.parametrize("offset", [-2.0, 0.0, 1.0])
def test_gaussian_peaks_at_its_offset(offset):
    q, k, v = inputs(9)
    peak_key = gaussian_attention(q, k, v, offset=offset).peak_key
    assert (peak_key == (torch.arange(9) + offset).clamp(0, 8)).all()


def test_every_head_may_have_its_own_offset():
    q, k, v = inputs(9)
    peak_key = gaussian_attention(q, k, v, offset=(-1.0, 1.0), std=0.5).peak_key
    assert (peak_key[:, 0, 1:-1] == torch.arange(7)).all()
    assert (peak_key[:, 1, 1:-1] == torch.arange(2, 9)).all()


def test_a_narrow_bell_looks_at_one_key():
    q, k, v = inputs(9)
    attended = gaussian_attention(q, k, v, offset=-1.0, std=0.05)
    torch.testing.assert_close(attended.out[:, :, 1:], v[:, :, :-1])


@pytest.mark.parametrize("std", [1e-3, 1e-20, 1e-200])
def test_the_narrowest_bell_looks_at_the_nearest_visible_key(std):
    q, k, v = inputs(9)
    mask = torch.arange(9) % 3 == 0
    attended = gaussian_attention(q, k, v, offset=-0.3, std=std, mask=mask)
    nearest = torch.tensor([0, 0, 3, 3, 3, 6, 6, 6, 6])
    assert (attended.peak_key == nearest).all()
    assert torch.equal(attended.out, v[:, :, nearest])


def test_the_widest_bell_is_flat():
    q, k, v = inputs(9)
    torch.testing.assert_close(
        gaussian_attention(q, k, v, std=1e200).out, uniform_attention(q, k, v).out
    )


@pytest.mark.parametrize("attend", [uniform_attention, gaussian_attention])
def test_content_does_not_matter(attend):
    q, k, v = inputs(7)
    assert torch.equal(attend(q, k, v).out, attend(k, -q, v).out)


@pytest.mark.parametrize("attend", [uniform_attention, gaussian_attention])
@pytest.mark.parametrize(
    "option",
    [{"bias": torch.zeros(7, 7)}, {"scale": 1.0}, {"cap": 9.0}, {"sink": torch.zeros(2)}],
    ids=lambda option: next(iter(option)),
)
def test_what_has_no_meaning_is_refused(attend, option):
    q, k, v = inputs(7)
    with pytest.raises(ValueError, match=f"takes no {next(iter(option))}="):
        attend(q, k, v, **option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"std": 0.0}, "std must be above 0 and finite, got 0.0"),
        ({"offset": (1.0, 2.0, 3.0)}, "one for each of the 2 heads, got 3"),
    ],
)
def test_a_bell_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gaussian_attention(*inputs(7), **options)


def test_queries_without_a_position_are_refused():
    with pytest.raises(ValueError, match=r"cannot place 3 queries among 7 keys.*causal=True"):
        gaussian_attention(*inputs(3, 7))


@pytest.mark.parametrize("offset", [(-1.0, 1.0), (0.0,), (2.0, 2.0)])
def test_offsets_are_written_on_the_device_and_not_copied_there(offset, monkeypatch):
    """A copy makes a GPU wait, and cannot be a part of a CUDA graph."""
    q, k, v = inputs(5, dtype=torch.float64)
    one_by_one = [gaussian_attention(q, k, v, offset=x).weights[:, 0] for x in offset * 2][:2]

    def refuse(*_, **__):
        raise AssertionError("made from numbers of the host")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "tensor", refuse)
        weights = gaussian_attention(q, k, v, offset=offset).weights
    torch.testing.assert_close(weights, torch.stack(one_by_one, dim=1))


def test_dropout_in_blocks_is_no_part_of_a_cuda_graph(monkeypatch):
    monkeypatch.setattr("headwise.ops.rows.PLAIN_ELEMENTS", 0)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr("headwise.ops.scores.Scores.parts", lambda scores: iter([None, None]))
    q, k, v = inputs(9)
    with pytest.raises(ValueError, match=r"drop the same weights; train with graphs=False"):
        uniform_attention(q, k, v, dropout=0.5, impl="torch")
