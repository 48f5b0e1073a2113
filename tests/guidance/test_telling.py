"""What the handle of `guide` is told, and what it tells, in the course of a training."""

import pickle

import pytest
import torch

import headwise as hw
from headwise.guidance import Plan, pattern
from headwise.guidance import loss as guidance_loss
from headwise.hf import backends
from tests.guidance.test_guiding import IDS, PLAN, REAL, host, inputs
from tests.guidance.toy import Toy


def test_alpha_can_be_set_by_hand():
    model = Toy()
    guidance = hw.guide(model, PLAN, alpha=8, schedule="constant")
    model(torch.randint(1, 8, (2, 5)))
    whole = guidance.loss()
    guidance.alpha = 2
    torch.testing.assert_close(guidance.loss(), whole / 4)
    assert guidance.log()["guidance_alpha"] == 2.0
    for bad in (torch.nan, -1.0):
        with pytest.raises(ValueError, match="alpha must be a finite number of at least 0"):
            guidance.alpha = bad
    assert guidance.alpha == 2.0


def test_the_loss_is_told_pattern_by_pattern():
    ids = torch.randint(1, 8, (2, 5), generator=torch.Generator().manual_seed(0))
    plans = {"next=1": 1, "next=1,prev=2,first=1": 3}
    for text, number in plans.items():
        model = Toy()
        with hw.guide(model, text, schedule="constant") as guidance:
            model(ids)
            found = guidance.by_pattern
            assert len(found) == number and min(found.values()) > 0
            torch.testing.assert_close(torch.tensor(sum(found.values())), guidance.unscaled)
    for name, loss in found.items():
        assert loss == pytest.approx(_alone(model, ids, name), rel=1e-5)


def _alone(model, ids, name):
    """The loss of one pattern of the plan "next=1,prev=2,first=1", its heads guided alone."""
    heads = {"next": (0,), "prev": (1, 2), "first": (3,)}[name]
    plan = Plan({head: pattern(name) for head in heads})
    with hw.guide(model, plan, schedule="constant") as guidance:
        model(ids)
        return guidance.unscaled.item()


def test_an_alpha_that_should_fall_and_never_does_is_noticed():
    model = Toy()
    guidance = hw.guide(model, PLAN, steps=10)
    model(torch.randint(1, 8, (2, 5)))
    with pytest.raises(ValueError, match=r"falls by the schedule 'linear'.* call guidance.at_step"):
        guidance.loss()
    assert guidance.unscaled > 0
    guidance.at_step(0)
    assert guidance.loss() > 0


def test_an_alpha_that_would_never_fall_is_refused_when_the_length_is_known():
    short = {"convention": "reference_code", "steps": 3000}
    with pytest.raises(ValueError, match="after 20000 updates, but there are 3000, so that it nev"):
        hw.guide(Toy(), PLAN, **short)
    assert hw.guide(Toy(), PLAN, **short, constant_for=1000).strength(2000) == 5.0
    guidance = hw.guide(Toy(), PLAN, convention="reference_code")
    with pytest.raises(ValueError, match="make constant_for smaller than that"):
        guidance.for_steps(3000)  # as the Trainer's callback does


def test_a_plan_may_be_text():
    model = Toy()
    ids = torch.randint(1, 8, (2, 5))
    losses = []
    for plan in (Plan(next=1, prev=1), "next=1,prev=1", {"encoder.*": "next=1,prev=1"}):
        with hw.guide(model, plan) as guidance:
            model(ids)
            losses.append(guidance.unscaled)
    assert losses[0] == losses[1] == losses[2]


def test_padding_that_cannot_be_told_is_noticed():
    model = host("bart")
    guidance = hw.guide(hw.adopt(model), Plan(prev=1), where="decoder.*.self", padding=1)
    model(input_ids=IDS, attention_mask=REAL.long(), labels=IDS)  # it makes the ids itself
    with pytest.raises(ValueError, match=r"padding=1 needs the token of each of the decoder's"):
        guidance.unscaled  # noqa: B018


@pytest.mark.parametrize("where", ["decoder.*.self", "*.cross"])
def test_labels_say_which_positions_of_a_second_stack_are_padding(where):
    """As the Trainer calls such models: they make their inputs and masks of labels."""
    model = hw.adopt(host("bart"))
    labels = IDS.masked_fill(~REAL, -100)
    given = {"input_ids": IDS, "attention_mask": REAL.long()}
    losses = []
    with hw.guide(model, Plan(prev=1, first=1), where=where) as guidance:
        for more in (
            {"labels": labels},
            {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels),
             "decoder_attention_mask": REAL.long()},
            {"labels": IDS},
        ):  # fmt: skip
            model(**given, **more)
            losses.append(guidance.unscaled)
    torch.testing.assert_close(losses[0], losses[1])
    assert losses[2] != pytest.approx(losses[0].item(), rel=1e-3)


def test_labels_of_one_stack_may_hide_what_is_real():
    model = hw.adopt(host("gpt2"))
    with hw.guide(model, Plan(prev=1), where="*") as guidance:
        model(input_ids=IDS)
        wanted = guidance.unscaled
        model(input_ids=IDS, labels=IDS.masked_fill(torch.arange(7) < 4, -100))
        assert guidance.unscaled == wanted


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_masks_are_not_looked_at_where_there_are_no_gradients(backend, monkeypatch):
    model = hw.adopt(host("roberta", backend)).train()
    looked = []
    real = backends.visibility
    monkeypatch.setattr(backends, "visibility", lambda call: looked.append(call) or real(call))
    with hw.guide(model, PLAN):
        with torch.no_grad():
            model(**inputs("roberta"))
        assert not looked
        model.gradient_checkpointing_enable()
        model(**inputs("roberta")).logits.sum().backward()
    assert len(looked) == 2  # once a layer


def test_the_loss_that_is_logged_is_that_of_the_step_replayed_last():
    """As on a GPU, where what is replayed changes tensors in place and runs no Python."""
    model = Toy()
    guidance = hw.guide(model, PLAN, alpha=1.0, schedule="constant")
    for number in range(6):
        left = {
            name: vars(guidance)[name] for name in ("_loss", "_calls", "_arguments", "_in_forward")
        }
        model(torch.randint(1, 8, (2, 5 + number % 2)))  # two shapes in turns
        loss = guidance.loss().detach()
        if number >= 2:
            vars(guidance).update(left)
        assert guidance.unscaled == loss == guidance.log()["guidance_loss"]


def gradients(model, ids, *, look=lambda guidance: None):
    """Those of a guided step, with a look at the guidance before its loss is taken."""
    with hw.guide(model, PLAN, schedule="constant") as guidance:
        own = model(ids).square().mean()
        look(guidance)
        model.zero_grad()
        (own + guidance.loss()).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_whoever_looks_first_changes_no_gradient():
    model, ids = Toy(), torch.randint(1, 8, (2, 5))
    wanted = gradients(model, ids)
    looks = [
        lambda guidance: guidance.log(),
        lambda guidance: guidance.by_pattern,
        lambda guidance: guidance.unscaled,
    ]
    for look in looks:
        assert all(map(torch.equal, gradients(model, ids, look=torch.no_grad()(look)), wanted))


def test_alpha_may_be_set_between_loss_and_backward():
    model, ids = Toy(), torch.randint(1, 8, (2, 5))
    found = []
    for together in (False, True):
        guidance, total = hw.guide(model, PLAN, steps=4), torch.zeros(())
        model.zero_grad()
        for step in (torch.tensor(0), 2):
            guidance.at_step(step)
            loss = model(ids).square().mean() + guidance.loss()
            if not together:
                loss.backward()
            total = total + loss
        if together:
            total.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        guidance.undo()
    torch.testing.assert_close(*found)


def test_an_undone_guidance_says_so():
    model, ids = Toy(), torch.randint(1, 8, (2, 5))
    with hw.guide(model, PLAN, schedule="constant") as guidance:
        model(ids)
        guidance.loss()
    assert guidance.undone
    undone = pytest.raises(ValueError, match="undone already; guide the model again")
    with undone, guidance:
        pass
    for ask in (guidance.loss, guidance.log, lambda: guidance.by_pattern):
        with undone:
            ask()


def test_a_forward_pass_that_failed_has_no_loss():
    model = Toy()
    guidance = hw.guide(model, PLAN, schedule="constant")
    model.layers[1].q, kept = None, model.layers[1].q
    ids = torch.randint(1, 8, (2, 5))
    with pytest.raises(TypeError):
        model(ids)
    with pytest.raises(ValueError, match="The last forward pass did not end"):
        guidance.loss()
    model.layers[1].q = kept
    model(ids)
    assert guidance.loss() > 0


def test_a_wrapper_that_names_no_inputs_has_the_loss_of_what_it_wraps():
    class Wrapper(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, *args, **named):
            return self.model(*args, **named)

    model = hw.adopt(host("bart"))
    given = {"input_ids": IDS, "attention_mask": REAL.long(), "labels": IDS.flip(1)}
    given["labels"] = given["labels"].masked_fill(~REAL, -100)
    losses = []
    for guided in (model, Wrapper(model)):
        with hw.guide(guided, Plan(prev=1, first=1), where="decoder.*.self") as guidance:
            guided(**given)
            losses.append(guidance.unscaled)
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("name", ["bert", "bart", "gpt2", "llama"])
@pytest.mark.parametrize("padded", [True, False])
def test_all_layers_of_a_host_are_one_operation(name, padded, monkeypatch):
    calls = []
    whole = guidance_loss.guidance_rows
    monkeypatch.setattr(
        guidance_loss,
        "guidance_rows",
        lambda scores, *args, **named: calls.append(len(scores)) or whole(scores, *args, **named),
    )
    model = hw.adopt(host(name))
    where = "encoder.*" if name in ("bert", "bart") else "decoder.*"
    given = {key: value for key, value in inputs(name).items() if padded or "mask" not in key}
    with hw.guide(model, Plan(prev=1, first=1), where=where) as guidance:
        model(**given)
        assert guidance.unscaled > 0
    assert calls == [len(hw.find_sites(model, where=where))] and calls[0] > 1


def test_a_guided_model_can_be_pickled():
    model, ids = Toy(), torch.randint(1, 8, (2, 5))
    guidance = hw.guide(model, PLAN, schedule="constant")
    model(ids)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(ids), model(ids))
    assert guidance.loss() > 0


def test_the_backend_may_change_while_a_model_is_guided():
    model = hw.adopt(host("bert"))
    guidance = hw.guide(model, PLAN, schedule="constant")
    losses = []
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        model(**inputs("bert"))
        losses.append(guidance.loss().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0] > 0


def test_tokens_in_another_order_are_the_same_pattern():
    assert pattern("tokens", tokens=[8, 7, 8]) == pattern("tokens", tokens=(7, 8))
