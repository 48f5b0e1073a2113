"""Gradient importance and output norms: against definitions written out, item by item."""

import pytest
import torch
from torch.nn import functional

from headwise.analysis.importance import OutputNorms, gradient_importance, output_norms
from headwise.hf import adopt
from headwise.sites import find_sites, gated, masked, observe
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.models.transformer import Transformer, TransformerConfig
from tests.hf.families import FAMILIES, batch_of, build

TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 1, 0]])
LENGTHS, LABELS = torch.tensor([4, 2, 3]), torch.tensor([0, 1, 1])


@pytest.fixture
def classifier():
    return TransformerClassifier(ClassifierConfig(vocabulary=9, width=8, heads=2)).double().eval()


def losses_of(model):
    return functional.cross_entropy(model(TOKENS, LENGTHS), LABELS, reduction="none")


def test_gradient_importance_is_output_times_gradient(classifier):
    outs = {}

    def keep(site, attended):
        attended.out.retain_grad()
        outs[site.name] = attended.out

    with observe(classifier, keep):
        losses_of(classifier).sum().backward()
    classifier.zero_grad()
    found = gradient_importance(classifier, lambda: losses_of(classifier))
    assert list(found) == ["encoder.0.self", "encoder.1.self"]
    for name, out in outs.items():
        torch.testing.assert_close(found[name], (out * out.grad).sum((2, 3)).abs().detach())


def test_gradient_importance_is_the_slope_as_a_head_is_turned_down(classifier):
    found = gradient_importance(classifier, lambda: losses_of(classifier))
    step = 1e-6
    for site in find_sites(classifier):
        for head in range(site.num_heads):
            gate = torch.ones(2, dtype=torch.float64)
            gate[head] -= step
            with torch.no_grad(), gated(classifier, {site.name: gate}):
                lower = losses_of(classifier)
            slope = ((lower - losses_of(classifier)) / step).abs().detach()
            torch.testing.assert_close(found[site.name][:, head], slope, rtol=1e-4, atol=1e-7)


def test_gradient_importance_leaves_the_model_as_it_was(classifier):
    classifier.train()
    gradient_importance(classifier, lambda: losses_of(classifier), where="encoder.1.*")
    assert all(parameter.grad is None for parameter in classifier.parameters())
    assert all(parameter.requires_grad for parameter in classifier.parameters())
    assert all(module.training for module in classifier.modules())
    assert not any(site.changes for site in find_sites(classifier))


def test_losses_must_be_one_number_an_item_and_depend_on_heads(classifier):
    with pytest.raises(ValueError, match=r"one number per item, shape \(3,\), got \(\)"):
        gradient_importance(classifier, lambda: losses_of(classifier).mean())
    with pytest.raises(ValueError, match="losses that depend on the model's heads"):
        gradient_importance(classifier, lambda: losses_of(classifier).detach())


def test_output_norms_are_those_of_what_heads_write(classifier):
    outs = {}
    with torch.no_grad(), observe(classifier, lambda site, a: outs.update({site.name: a.out})):
        classifier(TOKENS, LENGTHS)
    real = torch.arange(4) < LENGTHS[:, None]
    found = output_norms(classifier, lambda: classifier(TOKENS, LENGTHS), counted={"encoder": real})
    for layer, name in enumerate(outs):
        weight = classifier.encoder[layer].attention.out.weight.unflatten(1, (2, 4))
        written = torch.einsum("bhqe,mhe->bhqm", outs[name], weight)
        update = written.sum(1) + classifier.encoder[layer].attention.out.bias
        for item, length in enumerate(LENGTHS):
            heads = written[item, :, :length].norm(dim=-1).sum(-1)
            whole = update[item, :length].norm(dim=-1).sum()
            torch.testing.assert_close(found[name][item], (heads / whole).detach())


def test_a_single_head_without_bias_writes_the_whole_update():
    model = Transformer(TransformerConfig(9, 9, width=8, heads=1, feed_forward=8)).eval()
    found = output_norms(model, lambda: model(TOKENS, LENGTHS, TOKENS))
    assert len(found) == 6
    for values in found.values():
        torch.testing.assert_close(values, torch.ones(3, 1))


def test_a_head_that_is_off_writes_nothing(classifier):
    with masked(classifier, {"encoder.0.self": [1]}):
        found = output_norms(classifier, lambda: classifier(TOKENS, LENGTHS))
    assert (found["encoder.0.self"][:, 1] == 0).all()
    assert (found["encoder.0.self"][:, 0] > 0).all()


def test_a_watcher_adds_calls_up_until_it_is_cleared(classifier):
    norms = OutputNorms(classifier)
    with torch.no_grad(), observe(classifier, norms):
        classifier(TOKENS, LENGTHS)
        once = norms.values
        classifier(TOKENS, LENGTHS)
        torch.testing.assert_close(norms.values, once)
        norms.clear()
        assert norms.values == {}


def test_what_is_not_a_number_is_not_taken_for_nothing_but_at_padding(classifier):
    real = torch.arange(4) < LENGTHS[:, None]
    norms = OutputNorms(classifier)
    plain = output_norms(classifier, lambda: classifier(TOKENS, LENGTHS), counted={"encoder": real})
    norms.counted = {"encoder": real}

    def spoilt(at):
        def watch(site, attended):
            attended.out[at] = torch.nan
            norms(site, attended)

        return watch

    with torch.no_grad(), observe(classifier, spoilt((1, slice(None), 3))):  # behind the second
        classifier(TOKENS, LENGTHS)
    torch.testing.assert_close(norms.values["encoder.0.self"], plain["encoder.0.self"])
    norms.clear()
    with torch.no_grad(), observe(classifier, spoilt((1, 0, 0))):
        classifier(TOKENS, LENGTHS)
    found = norms.values["encoder.0.self"]
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2]], plain["encoder.0.self"][[0, 2]])


def test_positions_that_do_not_fit_are_refused(classifier):
    with pytest.raises(ValueError, match=r"queries of shape \(3, 4\), but counted has \(3, 2\)"):
        output_norms(
            classifier,
            lambda: classifier(TOKENS, LENGTHS),
            counted={"encoder": torch.ones(3, 2).bool()},
        )


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "ViT"])
def test_every_family_is_measured(name):
    model, batch = adopt(build(name)), batch_of(name, padding="right")

    def losses():
        return model(**batch).logits.log_softmax(-1)[..., 3].sum(1)

    by_gradient = gradient_importance(model, losses)
    by_norm = output_norms(model, losses)
    assert by_gradient.keys() == by_norm.keys() == {site.name for site in find_sites(model)}
    for values in (*by_gradient.values(), *by_norm.values()):
        assert values.shape == (3, 4) and torch.isfinite(values).all() and values.sum() > 0
