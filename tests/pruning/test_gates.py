"""Gates on a model: what they compute, when they are drawn, and what they leave behind."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headwise.pruning import Gates, HardConcrete
from headwise.pruning.cutting import prune
from headwise.sites import find_sites, gated
from tests.pruning.worth import Worth
from tests.support.small_transformer import SmallConfig, SmallTransformer

SHAPE = SmallConfig()
HEADS = 16
LENGTHS = torch.tensor([5, 3])
INPUTS = (torch.randint(9, (2, 5)), LENGTHS, torch.randint(9, (2, 4)))


class Compiled(nn.Module):
    """As torch.compile wraps a model."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model


def make(**changes):
    return SmallTransformer(SmallConfig(**changes)).double()


def set_log_alpha(gates, values):
    with torch.no_grad():
        for site, row in zip(gates.sites, torch.as_tensor(values), strict=True):
            gates.of(site).log_alpha.copy_(row)


def test_in_training_a_forward_pass_is_that_of_the_gates_it_drew():
    model = make().train()
    gates = Gates(model, initial=0.3)
    scores = model(*INPUTS)
    drawn = {site.name: gates.of(site)().detach() for site in gates.sites}
    assert 0 < sum((gate_H == 0).sum() for gate_H in drawn.values()) < HEADS
    gates.undo()
    with gated(model, drawn):
        torch.testing.assert_close(model(*INPUTS), scores, rtol=0, atol=0)


def test_gradients_of_gates_are_those_of_differences():
    model = make().train()
    gates = Gates(model, initial=0.3)
    loss = model(*INPUTS).square().sum()
    loss.backward()
    noise = {site.name: gates.of(site).noise.clone() for site in gates.sites}
    gates.undo()
    for site in gates.sites[:2]:
        for head in range(4):
            values = []
            for shift in (1e-6, -1e-6):
                moved = {
                    each.name: gates.distribution.with_noise(
                        gates.of(each).log_alpha.detach()
                        + shift * (each is site) * torch.eye(4, dtype=torch.float64)[head],
                        noise[each.name],
                    )
                    for each in gates.sites
                }
                with torch.no_grad(), gated(model, moved):
                    values.append(model(*INPUTS).square().sum())
            slope = (values[0] - values[1]) / 2e-6
            torch.testing.assert_close(
                gates.of(site).log_alpha.grad[head], slope, rtol=1e-5, atol=1e-6
            )


def test_every_forward_pass_in_training_draws_and_no_other():
    model = make().train()
    gates = Gates(model, initial=0.0)
    seen = [model(*INPUTS) for _ in range(3)]
    assert int(gates.draws) == 3 and not torch.equal(seen[0], seen[1])
    model.eval()
    assert torch.equal(model(*INPUTS), model(*INPUTS)) and int(gates.draws) == 3


def test_draws_come_from_the_seed_and_go_on_after_loading():
    first, again, other = (make().train() for _ in range(3))
    again.load_state_dict(first.state_dict())
    other.load_state_dict(first.state_dict())
    for model, seed in ((first, 4), (again, 4), (other, 5)):
        Gates(model, initial=0.0, seed=seed)
    torch.rand(7)  # torch's own random numbers do not matter
    whole = [first(*INPUTS) for _ in range(4)]
    assert torch.equal(again(*INPUTS), whole[0])
    assert not torch.equal(other(*INPUTS), whole[0])
    resumed = make().train()
    Gates(resumed, seed=4)
    again(*INPUTS)
    resumed.load_state_dict(again.state_dict())
    assert torch.equal(resumed(*INPUTS), whole[2]) and torch.equal(resumed(*INPUTS), whole[3])


def test_draws_are_distributed_as_the_hard_concrete_says():
    model = Worth(torch.zeros(4, 80))
    gates = Gates(model.train(), initial=0.5)
    seen = []
    for _ in range(50):
        model()
        seen += [gates.of(site)().detach() for site in gates.sites]
    values = torch.cat(seen)  # 16,000 draws
    for measured, wanted in (
        (values == 0, gates.distribution.prob_zero(torch.tensor(0.5))),
        (values == 1, gates.distribution.prob_one(torch.tensor(0.5))),
    ):
        torch.testing.assert_close(measured.float().mean(), wanted, atol=0.012, rtol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_repeats_the_same_draw(reentrant):
    model = make().train()
    gates = Gates(model, initial=0.0)
    twin = copy.deepcopy(model)
    for layer in twin.encoder:
        inner = layer.forward
        layer.forward = lambda x, lengths, inner=inner: checkpoint(
            inner, x, lengths, use_reentrant=reentrant
        )
    for _ in range(2):
        for each in (model, twin):
            each.zero_grad()
            each(*INPUTS).square().sum().backward()
        for site in gates.sites:
            found = twin.head_gates.of(site).log_alpha.grad
            torch.testing.assert_close(found, gates.of(site).log_alpha.grad)
    assert int(twin.head_gates.draws) == 2


def test_a_whole_model_under_checkpointing_draws_once():
    model = make().train()
    gates = Gates(model, initial=0.0)
    checkpoint(model, *INPUTS, use_reentrant=False).sum().backward()
    assert int(gates.draws) == 1


def test_mixed_precision_trains_gates_in_float32():
    model = SmallTransformer(SHAPE).train()
    gates = Gates(model, initial=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(*INPUTS)
    scores.float().square().mean().backward()
    assert gates.of(gates.sites[0]).log_alpha.grad.dtype == torch.float32
    assert all(gates.of(site).log_alpha.grad.isfinite().all() for site in gates.sites)
    half = SmallTransformer(SHAPE).bfloat16()
    assert Gates(half).log_alpha().dtype == torch.float32


def test_in_eval_mode_gates_are_0_or_1_or_the_reference_codes():
    model = make()
    values = torch.linspace(-3, 3, HEADS).view(4, 4)
    with Gates(model) as gates:
        set_log_alpha(gates, values)
        off = {site.name: (row > 0).double() for site, row in zip(gates.sites, values, strict=True)}
        outputs = model.eval()(*INPUTS)
    with gated(model, off):
        assert torch.equal(model(*INPUTS), outputs)
    with Gates(model, mode="reference_code") as gates:
        set_log_alpha(gates, values)
        outputs = model(*INPUTS)
        between = (torch.sigmoid(values.double()) * 1.2 - 0.1).clamp(0, 1)
    with gated(model, {s.name: row for s, row in zip(gates.sites, between, strict=True)}):
        torch.testing.assert_close(model(*INPUTS), outputs)


def test_keep_and_scale_say_what_is_left():
    model = make()
    gates = Gates(model, where="encoder.*")
    set_log_alpha(gates, [[-1.0, 1.0, 3.0, -3.0], [-1.0, -2.0, -3.0, -4.0]])
    assert gates.keep() == {"encoder.0.self": [1, 2], "encoder.1.self": []}
    assert gates.open_heads == 2 and gates.heads == 8
    assert {name: factors.tolist() for name, factors in gates.scale().items()} == {
        "encoder.0.self": [1, 1],
        "encoder.1.self": [],
    }
    gates.undo()
    gates = Gates(model, where="encoder.*", mode="reference_code")
    set_log_alpha(gates, [[-1.0, 1.0, 3.0, -3.0], [-1.0, -2.0, -3.0, -4.0]])
    assert gates.keep() == {"encoder.0.self": [0, 1, 2], "encoder.1.self": [0, 1]}
    wanted = (torch.sigmoid(torch.tensor([-1.0, 1.0])) * 1.2 - 0.1).double()
    torch.testing.assert_close(gates.scale()["encoder.0.self"][:2], wanted, rtol=1e-6, atol=0)
    assert gates.scale()["encoder.0.self"][2] == 1


def test_the_penalty_is_counted_in_two_ways():
    gates = Gates(make(), initial=1.0)
    prob = torch.sigmoid(torch.tensor(1.0 + 0.33 * math.log(11), dtype=torch.float64))
    torch.testing.assert_close(gates.penalty(), 16 * prob)
    torch.testing.assert_close(gates.penalty("reference_code"), 4 * prob)
    both = (
        "lambda 0.025 of the sum over all heads (paper) = 0.1 of the mean over 4 attention layers "
        "(reference code)"
    )
    assert gates.lambda_in_both(0.025) == gates.lambda_in_both(0.1, "reference_code") == both


def test_the_penalty_is_clipped_and_pulls_gates_down():
    gates = Gates(make(), initial=0.0)
    gates.penalty().backward()
    slope = gates.of(gates.sites[0]).log_alpha.grad
    prob = gates.distribution.prob_open(torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(slope, prob * (1 - prob))
    set_log_alpha(gates, torch.full((4, 4), -60.0))
    torch.testing.assert_close(gates.penalty().item(), 16e-6)
    set_log_alpha(gates, torch.full((4, 4), 60.0))
    torch.testing.assert_close(gates.penalty().item(), 16 * (1 - 1e-6))


def test_groups_of_heads_share_a_gate():
    model = make()
    gates = Gates(model, where="encoder.*", group=2)
    set_log_alpha(gates, [[-1.0, 1.0], [2.0, -2.0]])
    assert gates.keep() == {"encoder.0.self": [2, 3], "encoder.1.self": [0, 1]}
    assert gates.heads == 8 and gates.open_heads == 4
    single = sum(prob.sum() for prob in gates.prob_open().values())
    torch.testing.assert_close(gates.penalty(), single)
    model(*INPUTS)
    assert gates.of(gates.sites[0])().view(2, 2).diff(dim=1).eq(0).all()


def test_gates_start_where_they_are_told():
    assert torch.equal(Gates(make()).log_alpha(), torch.full((16,), 2.0, dtype=torch.float64))
    spread = Gates(make(), initial="reference_code", seed=1).log_alpha()
    assert spread.abs().max() <= math.sqrt(3 / 4) and spread.std() > 0.3


def test_undoing_leaves_no_trace():
    model = make().train()
    before, names = model(*INPUTS), list(model.state_dict())
    gates = Gates(model, initial=0.0)
    gates.parameter_groups(model, learning_rate=0.1, freeze="decoder")
    assert "head_gates.encoder_0_self.log_alpha" in model.state_dict()
    model(*INPUTS)
    gates.undo()
    gates.undo()
    assert torch.equal(model(*INPUTS), before) and list(model.state_dict()) == names
    assert not any(site.changes for site in find_sites(model))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert int(gates.draws) == 1
    with pytest.raises(ValueError, match="undone already"), gates:
        pass


def test_a_copy_has_gates_of_its_own():
    model = make().train()
    gates = Gates(model, initial=0.0)
    twin = copy.deepcopy(model)
    twin.head_gates.undo()
    assert all(site.gates for site in find_sites(model))
    assert not any(site.gates for site in find_sites(twin))
    model(*INPUTS)
    twin(*INPUTS)
    assert int(gates.draws) == 1


def test_gates_have_their_own_learning_rate_and_no_decay():
    model = make()
    gates = Gates(model)
    groups = gates.parameter_groups(model, learning_rate=0.05)
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    weights, own = optimizer.param_groups
    assert (weights["lr"], weights["weight_decay"]) == (1e-3, 0.1)
    assert (own["lr"], own["weight_decay"]) == (0.05, 0.0)
    assert {id(p) for p in own["params"]} == {id(p) for p in gates.parameters()}
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize(
    ("shared", "source_learns"), [("target", True), ("none", True), ("all", False)]
)
def test_the_decoder_can_be_frozen(shared, source_learns):
    model = make(share_embeddings=shared)
    gates = Gates(model, where="encoder.*")
    groups = gates.parameter_groups(model, learning_rate=0.1, freeze="decoder")
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert ("embed_source.words.weight" in learning) == source_learns
    assert "encoder_norm.weight" in learning and "encoder.0.attention.out.bias" in learning
    gate_names = {f"head_gates.encoder_{i}_self.log_alpha" for i in range(2)}
    assert gate_names <= learning
    parts = {name.split(".")[0] for name in learning}
    assert parts <= {"embed_source", "encoder", "encoder_norm", "head_gates"}
    assert len(groups[0]["params"]) + len(groups[1]["params"]) == len(learning)


def test_the_log_says_how_gates_stand():
    model = make()
    gates = Gates(model, where="encoder.*")
    set_log_alpha(gates, [[-5.0, 5.0, 0.5, -0.5], [9.0, 9.0, 9.0, -9.0]])
    rows = gates.log(every_head=True)
    assert (rows["open_heads"], rows["undecided_heads"]) == (5, 2)
    prob = HardConcrete().prob_open(torch.tensor(-5.0, dtype=torch.float64)).item()
    assert rows["prob_open.encoder.0.self.0"] == pytest.approx(prob)
    assert rows["expected_open_heads"] == pytest.approx(gates.penalty().item(), abs=1e-3)
    assert len(rows) == 3 + 8 and len(gates.log()) == 3
    table = gates.table()
    assert table["gate"] == (0, 1, 1, 0, 1, 1, 1, 0) and table["log_alpha"][2] == 0.5


def test_what_cannot_be_gated_is_refused(unchecked):
    model = make()
    with pytest.raises(ValueError, match="has 4 heads, which cannot share gates by 3"):
        Gates(model, group=3)
    with pytest.raises(ValueError, match="mode must be"):
        Gates(model, mode="soft")
    with pytest.raises(ValueError, match="initial must be a number or 'reference_code'"):
        Gates(model, initial="glorot")
    with pytest.raises(ValueError, match="chooses none of the model's sites"):
        Gates(model, where="middle.*")
    assert not any(site.changes for site in find_sites(model))
    gates = Gates(model)
    with pytest.raises(ValueError, match="Transformer has gates already; undo those first"):
        Gates(model)
    with pytest.raises(ValueError, match="normalise must be 'paper' or 'reference_code'"):
        gates.penalty("mean")
    with pytest.raises(ValueError, match="not on this SmallTransformer"):
        gates.parameter_groups(make(), learning_rate=0.1)
    with pytest.raises(ValueError, match="freeze must be 'decoder' or None, got 'encoder'"):
        gates.parameter_groups(model, learning_rate=0.1, freeze="encoder")
    with pytest.raises(ValueError, match="give it gates before it is compiled"):
        Gates(Compiled(make()))
    one_stack = Worth(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="freeze='decoder' is for models with encoder and decoder"):
        Gates(one_stack).parameter_groups(one_stack, learning_rate=0.1, freeze="decoder")


@pytest.mark.parametrize("mode", ["paper", "reference_code"])
def test_a_model_pruned_by_its_gates_computes_what_the_gated_one_did(mode):
    model = make().eval()
    gates = Gates(model, mode=mode)
    set_log_alpha(gates, torch.linspace(-4, 4, HEADS)[torch.randperm(HEADS)].view(4, 4))
    wanted, keep, scale = model(*INPUTS), gates.keep(), gates.scale()
    gates.undo()
    assert not torch.allclose(model(*INPUTS), wanted)
    prune(model, keep, scale=scale)
    torch.testing.assert_close(model(*INPUTS), wanted)
