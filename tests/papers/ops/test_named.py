import doctest
from functools import partial

import pytest
import torch

from headwise.ops import (
    entmax_attention,
    gaussian_attention,
    softmax_attention,
    sparsemax_attention,
    topk_attention,
)
from headwise_papers.ops import named
from headwise_papers.ops.named import LEARNED, attention_op, check_attention
from tests.ops.attention_cases import inputs

OPS = {
    "softmax": softmax_attention,
    "sparsemax": sparsemax_attention,
    "topk:1": partial(topk_attention, keep=1),
    "topk:8": partial(topk_attention, keep=8),
    "entmax:1.25": partial(entmax_attention, alpha=1.25),
    "entmax:2": partial(entmax_attention, alpha=2.0),
    "gaussian:-1,1": partial(gaussian_attention, offset=(-1.0, 1.0), std=1.0),
    "gaussian:0": partial(gaussian_attention, offset=(0.0,), std=1.0),
    "gaussian:-1,0,2.5:0.5": partial(gaussian_attention, offset=(-1.0, 0.0, 2.5), std=0.5),
}


@pytest.mark.parametrize("spec", OPS)
def test_a_name_gives_an_op_with_its_settings(spec):
    found, wanted = attention_op(spec), OPS[spec]
    for part in ("func", "keywords"):
        assert getattr(found, part, found) == getattr(wanted, part, wanted)
    check_attention(spec)


def test_the_number_is_what_the_op_is_called_with():
    q, k, v = inputs(5, 7)
    for spec, wanted in (
        ("topk:3", topk_attention(q, k, v, keep=3)),
        ("entmax:1.3", entmax_attention(q, k, v, alpha=1.3)),
    ):
        assert torch.equal(attention_op(spec)(q, k, v).out, wanted.out)
    wanted = gaussian_attention(k, k, v, offset=(-1, 2), std=0.5)
    assert torch.equal(attention_op("gaussian:-1,2:0.5")(k, k, v).out, wanted.out)


def test_heads_take_turns_with_the_distances_of_a_gaussian():
    q, k, v = (tensor.repeat(1, 2, 1, 1)[:, :3] for tensor in inputs(9))
    peak_BHQ = attention_op("gaussian:-1,1", heads=3)(q, k, v).peak_key
    place_Q = torch.arange(9)
    assert (peak_BHQ[:, 0] == (place_Q - 1).clamp(min=0)).all()
    assert (peak_BHQ[:, 1] == (place_Q + 1).clamp(max=8)).all()
    assert torch.equal(peak_BHQ[:, 2], peak_BHQ[:, 0])


def test_a_gaussian_is_for_a_text_that_looks_at_itself():
    with pytest.raises(
        ValueError, match="'gaussian:0', which attends to distances within one text"
    ):
        check_attention("gaussian:0", within=False)


@pytest.mark.parametrize(
    "spec",
    (
        *("", "Softmax", "softmax:1", "topk", "topk:0", "topk:-1", "topk:2.5", "sparsemax:2"),
        *("entmax", "entmax:1", "entmax:0.5", "entmax:inf", "entmax:nan", "entmax:x", "uniform"),
        *("gaussian", "gaussian:", "gaussian:x", "gaussian:1,,2", "gaussian:inf", "gaussian:1:0"),
    ),
)
def test_an_unknown_name_is_answered_with_the_choices(spec):
    for use in (attention_op, check_attention):
        with pytest.raises(ValueError, match=r"must be softmax, topk:8 .*entmax:learned; got"):
            use(spec)


def test_learned_alphas_belong_to_a_model():
    check_attention(LEARNED)
    with pytest.raises(ValueError, match="give it to a model instead"):
        attention_op(LEARNED)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(named, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
