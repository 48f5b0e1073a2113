"""Hosts that compute attention outside the interface, for which there are adapters."""

import copy
import io

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from headwise.guidance import Plan, guide
from headwise.hf import adopt, check_parity, release
from headwise.hf.naming import Adapter, adapter_of, attention_modules, unreachable_attention
from headwise.pruning import prune
from headwise.sites import find_sites, masked, observe, tapped
from tests.hf.families import ADAPTED, SIZES, Watch, batch_of, build, outputs, randomised

every_adapted = pytest.mark.parametrize("name", ADAPTED)


@every_adapted
def test_adopting_changes_the_class_of_attention_alone_and_release_gives_it_back(name):
    model, batch = build(name, "eager"), batch_of(name, padding="right")
    kinds, printed, wanted = classes(model), str(model), outputs(model, batch)
    assert not unreachable_attention(model)
    adopt(model)
    changed = [new for new, old in zip(classes(model), kinds, strict=True) if new is not old]
    assert len(changed) == 2 and all(issubclass(kind, Adapter) for kind in changed)
    assert str(model) == printed
    assert torch.equal(outputs(model, batch), wanted)
    release(model)
    assert classes(model) == kinds
    with pytest.raises(ValueError, match="no attention sites"):
        find_sites(model)


@every_adapted
def test_other_models_of_the_family_are_untouched(name):
    model, other = build(name, "eager"), build(name, "eager")
    batch, watch = batch_of(name), Watch()
    with masked(adopt(model), {"encoder.0.self": [0]}), observe(model, watch):
        wanted = outputs(build(name, "eager"), batch)
        assert torch.equal(outputs(other, batch), wanted)
        assert not watch.seen and not torch.equal(outputs(model, batch), wanted)


@every_adapted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("train", [False, True])
def test_outputs_are_equal_while_observed_in_every_precision(name, dtype, train):
    model = build(name, "eager").to(dtype).train(train)
    batch = {**batch_of(name, padding="left"), "output_attentions": True}
    assert check_parity(model, batch)
    kinds = classes(adopt(model))
    assert check_parity(model, batch) and classes(model) == kinds


@every_adapted
def test_an_adopted_model_can_be_copied_and_pickled(name):
    model, batch = adopt(build(name, "eager")), batch_of(name)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        with masked(twin, {"encoder.1.self": [2]}):
            assert not torch.equal(outputs(twin, batch), outputs(model, batch))
        release(twin)
        assert torch.equal(outputs(twin, batch), outputs(model, batch))
    assert len(find_sites(model)) == 2


@every_adapted
def test_a_loss_on_scores_is_that_of_the_weights_the_host_returns(name):
    batch = batch_of(name)
    model, plain = adopt(build(name, "eager")), build(name, "eager")
    kept: list[Tensor] = []
    with tapped(model, lambda site, scores: kept.append(scores.rows().softmax(-1))):
        model(**batch)
    sum((weights.square().sum() for weights in kept), torch.zeros(())).backward()
    returned = plain(**batch, output_attentions=True).attentions
    sum((weights.square().sum() for weights in returned), torch.zeros(())).backward()
    for (path, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), path
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


@every_adapted
def test_heads_are_guided(name):
    model = adopt(build(name, "eager")).train()
    with guide(model, Plan(prev=2, first=1), schedule="constant") as guidance:
        model(**batch_of(name, padding="right"))
        loss = guidance.loss()
    loss.backward()
    assert loss > 0
    for path, parameter in model.named_parameters():
        if "query" in path or ".q." in path:
            assert parameter.grad is not None and parameter.grad.any(), path


@every_adapted
def test_what_cannot_be_pruned_is_refused_and_stays_as_it_was(name):
    model, batch = adopt(build(name, "eager")), batch_of(name)
    wanted = outputs(model, batch)
    with pytest.raises(ValueError, match="outside transformers' attention interface"):
        prune(model, {"encoder.0.self": [0]})
    assert torch.equal(outputs(model, batch), wanted)


def test_deberta_without_relative_positions_is_observed_without_a_bias():
    model = randomised(hf.DebertaV2Model(hf.DebertaV2Config(**SIZES))).eval()
    batch, watch = batch_of("DeBERTa-v2", padding="right"), Watch()
    with torch.no_grad(), observe(adopt(model), watch):
        weights = model(**batch, output_attentions=True).attentions
    real_BHT = batch["attention_mask"].bool()[:, None].expand(3, 4, 9)
    for (_, attended), weights_BHQK in zip(watch.seen, weights, strict=True):
        assert attended.scores.bias is None
        assert torch.equal(attended.peak > 0, real_BHT)  # a padded query may attend to nothing
        torch.testing.assert_close(attended.weights[real_BHT], weights_BHQK[real_BHT])


def test_attention_that_computes_something_else_has_no_adapter(monkeypatch):
    model = build("MPNet", "eager")
    kind = type(next(iter(attention_modules(model).values())))
    own = type("OwnAttention", (kind,), {"forward": lambda self, states: (states,)})
    assert adapter_of(own) is None
    monkeypatch.setattr(kind, "forward", lambda self, states: (states.relu(),))
    assert adapter_of.__wrapped__(kind) is None


def classes(model: nn.Module) -> list[type[nn.Module]]:
    return [type(module) for module in model.modules()]
