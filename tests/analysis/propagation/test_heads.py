"""head_relevance: hand-derived shares, conservation, and a model that is left as it was."""

from functools import partial

import pytest
import torch
from torch import nn

from headwise.analysis.propagation import Propagation, head_relevance, linearised, top_class
from headwise.ops import topk_attention
from headwise.sites import find_sites, gated, masked, replace
from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.transformer import Transformer, TransformerConfig
from tests.analysis.propagation.tracing import relevances, shares, without_biases

SITE = "encoder.0.self"
X = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]]).double()
TOP = torch.tensor([[0, 0]])
EXACT = Propagation(eps=0.0)


class OneLayer(nn.Module):
    """x_0 + the mean of all x, through two heads of width one, and one logit for each read-out."""

    def __init__(self, *read_outs):
        super().__init__()
        self.attention = MultiHeadAttention(2, heads=2, name=SITE)
        self.read_out = nn.Linear(2, len(read_outs), bias=False)
        with torch.no_grad():
            for part in (self.attention.query, self.attention.key):
                part.weight.zero_()  # so that attention is uniform
            for part in (self.attention.value, self.attention.out):
                part.weight.copy_(torch.eye(2))
            self.read_out.weight.copy_(torch.tensor(read_outs))
        without_biases(self).double().eval()

    def forward(self, x_BTM):
        state_BTM = x_BTM + self.attention(x_BTM, self.attention.keys_values(x_BTM))
        return self.read_out(state_BTM[:, 0])


def translator(**changes):
    config = TransformerConfig(20, 20, width=8, heads=2, feed_forward=16, **changes)
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    source, target = torch.randint(20, (3, 6)), torch.randint(20, (3, 5))
    lengths = torch.tensor([6, 4, 5])
    return model, lambda: model(source, lengths, target)


def test_shares_of_two_heads_are_those_derived_by_hand():
    # heads say (2, 0.5), the state is (1, 2) + (2, 0.5), the logit 1 * 3 + 2 * 2.5 = 8
    model = OneLayer([1.0, 2.0])
    found = head_relevance(model, lambda: model(X), TOP, normalise=False)[SITE]
    torch.testing.assert_close(found, torch.tensor([[2 / 8, 2 * 0.5 / 8]]).double())
    shared = head_relevance(model, lambda: model(X), TOP)[SITE]
    torch.testing.assert_close(shared, torch.tensor([[2 / 3, 1 / 3]]).double())


def test_alpha_beta_shares_of_two_heads_are_those_derived_by_hand():
    # 3 for and 2.5 against: half of the relevance each; then 2 of 3 and 0.5 of 2.5 are the heads'
    model = OneLayer([1.0, -1.0])
    found = head_relevance(
        model, lambda: model(X), TOP, rule="alpha_beta", eps=0.0, normalise=False
    )[SITE]
    torch.testing.assert_close(found, torch.tensor([[0.5 * 2 / 3, 0.5 * 0.5 / 2.5]]).double())


def test_a_head_that_speaks_against_a_logit_has_negative_relevance():
    up, down = OneLayer([1.0, 2.0]), OneLayer([-1.0, -2.0])
    for normalise in (True, False):
        a = head_relevance(up, lambda: up(X), TOP, normalise=normalise)[SITE]
        b = head_relevance(down, lambda: down(X), TOP, normalise=normalise)[SITE]
        torch.testing.assert_close(a, -b)


def shifted_by(shift, **options):
    """Relevance for the same choice, with a number added to all logits by the output bias."""
    torch.manual_seed(0)
    model, forward = translator()
    model.read_out.bias = nn.Parameter(torch.full((20,), shift).double())
    return head_relevance(model, forward, top_class(torch.tensor([[0, 4], [2, 1]])), **options)


def test_a_number_added_to_all_logits_changes_no_relevance_but_its_scale():
    plain = shifted_by(0.0)
    scaled = shifted_by(0.0, normalise=False)
    assert any((values < 0).any() for values in plain.values())
    for shift in (30.0, -30.0):
        there = shifted_by(shift)
        unscaled = shifted_by(shift, normalise=False)
        for name, values in plain.items():
            torch.testing.assert_close(there[name], values)
            assert torch.equal(unscaled[name].sign(), scaled[name].sign())
            assert torch.equal(unscaled[name].argsort(1), scaled[name].argsort(1))


def test_no_output_bias_makes_alpha_beta_shares_negative():
    plain = shifted_by(0.0, rule="alpha_beta", bias="spread")
    for shift in (30.0, -30.0):
        there = shifted_by(shift, rule="alpha_beta", bias="spread")
        kept = shifted_by(shift, rule="alpha_beta")
        for name, values in plain.items():
            assert (values >= 0).all() and (kept[name] >= 0).all()
            torch.testing.assert_close(there[name], values)


def test_the_only_head_of_a_site_has_its_share_of_the_logit():
    config = TransformerConfig(20, 20, width=8, heads=1, feed_forward=16)
    model = Transformer(config).double().eval()
    source, target, lengths = (
        torch.randint(20, (1, 6)),
        torch.randint(20, (1, 5)),
        torch.tensor([6]),
    )
    forward = lambda: model(source, lengths, target)  # noqa: E731
    row = torch.tensor([[0, 4, 7]])
    found = head_relevance(model, forward, row)
    plain = head_relevance(model, forward, row, normalise=False)
    for name, values in plain.items():
        assert torch.equal(found[name], values) and 0 < values.abs().item() != 1


def test_what_is_not_a_number_is_not_taken_for_nothing():
    model = OneLayer([1.0, 2.0])
    with torch.no_grad():
        model.attention.value.weight[0, 0] = torch.nan
    for options in ({}, {"normalise": False}, {"rule": "alpha_beta"}, {"bias": "spread"}):
        found = head_relevance(model, lambda: model(X), TOP, **options)[SITE]
        assert found[0, 0].isnan(), options


def test_a_share_of_a_logit_of_zero_is_not_a_number():
    model = OneLayer([5.0, -6.0])  # 5 * 3 - 6 * 2.5
    found = head_relevance(model, lambda: model(X), TOP, normalise=False)[SITE]
    assert found.isnan().all()
    normalised = head_relevance(model, lambda: model(X), TOP)[SITE]
    torch.testing.assert_close(normalised, torch.tensor([[10 / 13, -3 / 13]]).double())


def test_centred_logits_lose_what_they_have_in_common():
    model, shifted = OneLayer([1.0, 2.0], [-1.0, -2.0]), OneLayer([6.0, 5.0], [4.0, 1.0])
    plain = head_relevance(model, lambda: model(X), TOP, centred=True)[SITE]
    common = head_relevance(shifted, lambda: shifted(X), TOP, centred=True)[SITE]
    torch.testing.assert_close(plain, common)  # each read-out minus the mean of both


def test_a_bias_keeps_its_share_or_leaves_it_to_the_others():
    model = OneLayer([1.0, 2.0])
    with torch.no_grad():
        model.attention.out.bias.copy_(torch.tensor([1.0, 0.0]))  # the logit is 9
    options = {"normalise": False, "eps": 0.0}
    kept = head_relevance(model, lambda: model(X), TOP, **options)[SITE]
    torch.testing.assert_close(kept, torch.tensor([[2 / 9, 1 / 9]]).double())
    spread = head_relevance(model, lambda: model(X), TOP, bias="spread", **options)[SITE]
    torch.testing.assert_close(spread, torch.tensor([[3 / 9, 1 / 9]]).double())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_heads_and_what_goes_round_them_sum_to_the_logit(norm):
    model, forward = translator(norm=norm)
    without_biases(model)
    for place in ((0, 4, 7), (2, 1, 3)):
        found = shares(model, forward, place)
        # in the last decoder layer: self-attention, cross-attention, and the two states they join
        last = model.decoder[-1]
        (before,) = relevances(model, forward, place, [model.decoder[0]], EXACT)
        (memory,) = relevances(model, forward, place, [model.encoder_norm], EXACT)
        ends = [model.embed_target, model.embed_source]
        (words, source) = relevances(model, forward, place, ends, EXACT)
        assert words.sum() + source.sum() == pytest.approx(1)
        written = relevances(model, forward, place, [last.attention.out, last.cross.out], EXACT)
        for name, part in zip(("self", "cross"), written, strict=True):
            assert found[f"decoder.1.{name}"].sum() == pytest.approx(part.sum().item())
        # the rest of the state went round the last layer's cross-attention, whose part is memory's
        upper = found["decoder.1.cross"].sum()
        assert before.sum() + upper == pytest.approx(1)
        assert memory.sum() == pytest.approx((upper + found["decoder.0.cross"].sum()).item())


def test_alpha_beta_relevances_are_positive_and_conserved_at_every_layer():
    model, forward = translator()
    settings = Propagation("alpha_beta", eps=0.0)
    place = (1, 3, 7)
    for layers in (model.decoder, model.encoder):
        totals = []
        for layer in layers:
            (found,) = relevances(model, forward, place, [layer], settings)
            assert (found >= -1e-12).all()
            totals.append(found.sum().item())
        assert 0 < totals[0] <= 1 + 1e-9
    (top,) = relevances(model, forward, place, [model.decoder[-1]], settings)
    assert top.sum() == pytest.approx(1)
    words, source = relevances(
        model, forward, place, [model.embed_target, model.embed_source], settings
    )
    assert words.sum() + source.sum() == pytest.approx(1)


def test_in_a_linear_model_relevance_is_gradient_times_value():
    model = OneLayer([1.0, -2.0])
    with torch.no_grad():
        for part in (model.attention.value, model.attention.out):
            part.weight.normal_()
    gates = {SITE: torch.ones(1, 2, dtype=torch.float64, requires_grad=True)}
    with gated(model, gates):
        logit = model(X)[0, 0]
    (slope,) = torch.autograd.grad(logit, gates[SITE])
    found = head_relevance(model, lambda: model(X), TOP, normalise=False)[SITE]
    torch.testing.assert_close(found, (slope / logit.abs()).detach())


@pytest.mark.parametrize("rule", ["ratio", "alpha_beta"])
def test_a_head_that_is_off_has_no_relevance(rule):
    model, forward = translator()
    with masked(model, {"encoder.0.self": [1], "decoder.1.cross": [0]}):
        found = head_relevance(model, forward, torch.tensor([[0, 4, 7]]), rule=rule)
    assert found["encoder.0.self"][0, 1] == 0 == found["decoder.1.cross"][0, 0]
    assert found["encoder.0.self"][0, 0] != 0 != found["decoder.1.cross"][0, 1]


@pytest.mark.parametrize("rule", ["ratio", "alpha_beta"])
def test_rows_of_one_item_and_copies_of_the_item_say_the_same(rule):
    model, _ = translator()
    source, target = torch.randint(20, (2, 6)), torch.randint(20, (2, 5))
    lengths = torch.tensor([6, 4])
    rows = torch.tensor([[0, 1, 3], [1, 4, 5], [0, 4, 9], [0, 2, 0]])
    of = rows[:, 0]
    once = head_relevance(model, lambda: model(source, lengths, target), rows, rule=rule)
    apart = rows.clone()
    apart[:, 0] = torch.arange(4)
    copied = head_relevance(
        model, lambda: model(source[of], lengths[of], target[of]), apart, rule=rule
    )
    for name in once:
        torch.testing.assert_close(once[name], copied[name])
        torch.testing.assert_close(once[name].abs().sum(1), torch.ones(4).double())


@pytest.mark.parametrize("rule", ["ratio", "alpha_beta"])
def test_nothing_is_left_changed(rule):
    model, forward = translator()
    model.train()
    model.read_out.weight.requires_grad_(False)
    model.decoder[0].cross.dropout = 0.5
    torch.manual_seed(1)
    before = forward()
    asked = [parameter.requires_grad for parameter in model.parameters()]
    head_relevance(model, forward, torch.tensor([[0, 4, 7]]), rule=rule)
    torch.manual_seed(1)
    assert torch.equal(forward(), before)
    assert [parameter.requires_grad for parameter in model.parameters()] == asked
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any(site.changes for site in find_sites(model))


def test_an_error_in_the_forward_pass_leaves_nothing_either():
    model, _ = translator()

    def fail():
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        head_relevance(model, fail, TOP)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any(site.changes for site in find_sites(model))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.relu(torch.tensor([-1.0], requires_grad=True)).grad_fn.name() == "ReluBackward0"


@pytest.mark.parametrize("rule", ["ratio", "alpha_beta"])
def test_other_ops_in_the_place_of_softmax_conserve_relevance_too(rule):
    model, forward = translator(encoder_attention="sparsemax", cross_attention="entmax:learned")
    without_biases(model)
    place, settings = (0, 4, 7), Propagation(rule, eps=0.0)
    ends = [model.embed_target, model.embed_source]
    born = relevances(model, forward, place, ends, settings)
    with replace(model, partial(topk_attention, keep=2)):
        other = relevances(model, forward, place, ends, settings)
    assert sum(part.sum() for part in born) == pytest.approx(1)
    assert sum(part.sum() for part in other) == pytest.approx(1)
    assert not torch.allclose(born[1], other[1])


def test_a_recurrent_model_has_relevance_where_nothing_recurrent_follows():
    model = RnnClassifier(RnnClassifierConfig(vocabulary=9)).double()
    tokens, lengths = torch.randint(9, (2, 5)), torch.tensor([5, 3])
    pick = top_class(torch.tensor([[0], [1]]))
    found = head_relevance(model, lambda: model(tokens, lengths), pick, normalise=False)
    logits = model.eval()(tokens, lengths)
    best, bias = logits.max(-1).values, model.output.bias[logits.argmax(-1)]
    torch.testing.assert_close(found["encoder.0.pool"][:, 0], ((best - bias) / best.abs()).detach())


def test_the_top_class_is_picked_at_each_place():
    logits = torch.randn(3, 4, 5)
    places = torch.tensor([[2, 1], [0, 3]])
    rows = top_class(places)(logits)
    assert rows.tolist() == [
        [2, 1, logits[2, 1].argmax().item()],
        [0, 3, logits[0, 3].argmax().item()],
    ]


def test_products_are_shared_half_and_half_or_as_printed():
    model = OneLayer([1.0, 1.0])

    def forward():  # the state is (3, 2.5), the logit its product; heads say (2, 0.5)
        state_BTM = X + model.attention(X, model.attention.keys_values(X))
        return (state_BTM[..., :1] * state_BTM[..., 1:])[:, 0]

    options = {"normalise": False, "eps": 0.0}
    half = head_relevance(model, forward, TOP, **options)[SITE]
    torch.testing.assert_close(half, torch.tensor([[0.5 * 2 / 3, 0.5 * 0.5 / 2.5]]).double())
    printed = head_relevance(model, forward, TOP, product="paper", **options)[SITE]
    torch.testing.assert_close(printed, torch.tensor([[2 / 5.5, 0.5 / 5.5]]).double())


@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_is_said():
    model = OneLayer([1.0, 2.0])
    with pytest.raises(ValueError, match="rule must be 'ratio' or 'alpha_beta', got 'epsilon'"):
        head_relevance(model, lambda: model(X), TOP, rule="epsilon")
    with pytest.raises(ValueError, match=r"2 whole numbers each for logits of shape \(1, 1\)"):
        head_relevance(model, lambda: model(X), torch.tensor([[0, 0, 0]]))
    with pytest.raises(ValueError, match="must give logits that depend on the model's heads"):
        head_relevance(model, lambda: X, TOP)
    with pytest.raises(ValueError, match="cannot be propagated through log_softmax"):
        head_relevance(model, lambda: model(X).log_softmax(-1), TOP)


def test_the_pass_gives_the_model_s_own_logits():
    model, forward = translator()
    whole = forward()
    for rule in ("ratio", "alpha_beta"):
        with torch.enable_grad(), linearised(model, Propagation(rule)):
            torch.testing.assert_close(forward(), whole)
