"""Sites of one's own module: watching, replacing, gating and masking, and undoing it."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headwise.ops import softmax_attention, topk_attention, uniform_attention
from headwise.ops.attended import Attended
from headwise.sites import Change, Head, Site, find_sites, gated, masked, observe, replace, tapped


class Layer(nn.Module):
    """One attention computation of three heads over its own input, mixed by a projection."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.project = nn.Linear(12, 12, bias=False)
        self.mix = nn.Linear(12, 12, bias=False)
        self.site = Site(name, 3, softmax_attention)

    def forward(self, x_BTM: Tensor, causal: bool = False) -> Tensor:
        x_BHTD = self.project(x_BTM).unflatten(-1, (3, 4)).transpose(1, 2)
        out_BHTD = self.site(x_BHTD, x_BHTD, x_BHTD, causal=causal)
        return x_BTM + self.mix(out_BHTD.transpose(1, 2).flatten(2))


def two_layers() -> nn.Sequential:
    return nn.Sequential(Layer("encoder.0.self"), Layer("encoder.1.self"))


@pytest.fixture
def model() -> nn.Sequential:
    return two_layers()


@pytest.fixture
def x_BTM(model: nn.Sequential) -> Tensor:
    return torch.randn(2, 5, 12)


def test_a_head_is_written_and_read_back():
    head = Head("decoder.3.cross", 11)
    assert str(head) == "decoder.3.cross.11" and Head.parse(str(head)) == head
    assert sorted([Head("a", 10), Head("a", 9)]) == [Head("a", 9), Head("a", 10)]


@pytest.mark.parametrize("text", ["", "3", ".3", "encoder", "encoder.x", "encoder.-1", "encoder."])
def test_what_is_no_head_is_refused(text):
    with pytest.raises(ValueError, match=r"written like encoder\.3\.self\.5"):
        Head.parse(text)


def test_a_site_knows_its_heads_and_which_stacks_ask_and_answer(model):
    site = find_sites(model)[1]
    assert site.heads == [Head("encoder.1.self", index) for index in range(3)]
    assert (site.queries, site.keys) == ("encoder", "encoder")
    cross = Site("decoder.2.cross", 3, softmax_attention)
    assert (cross.queries, cross.keys) == ("decoder", "encoder")
    assert Site("pool", 1, softmax_attention).queries == "pool"


def test_sites_are_found_in_order_and_once_though_layers_are_shared(model):
    assert [site.name for site in find_sites(model)] == ["encoder.0.self", "encoder.1.self"]
    assert len(find_sites(nn.Sequential(model[0], model[0]))) == 1


def test_a_model_without_sites_is_told_what_to_do():
    with pytest.raises(ValueError, match=r"Linear has no attention sites.*headwise\.adopt"):
        find_sites(nn.Linear(2, 2))


@pytest.mark.parametrize("act", [find_sites, observe, lambda model: masked(model, {})])
def test_different_sites_of_one_name_are_ambiguous(model, act):
    with pytest.raises(
        ValueError, match=r"2 different sites called 'encoder\.0\.self'.*separately"
    ):
        act(nn.Sequential(model, two_layers()))
    assert len(find_sites(model)) == 2  # the parts by themselves are not


def test_an_attribute_called_site_that_is_no_site_is_passed_over(model):
    model.add_module("other", nn.Identity())
    model.other.site = "a web page"
    assert len(find_sites(model)) == 2


@pytest.mark.parametrize("act", [find_sites, observe])
def test_choosing_nothing_is_refused_with_the_names_there_are(model, act):
    with pytest.raises(ValueError, match=r"'decoder\.\*' chooses none.*encoder\.0\.self, encoder"):
        act(model, where="decoder.*")
    with pytest.raises(ValueError, match="chooses none"):
        replace(model, topk_attention, where=lambda site: False)


def test_watchers_see_each_call_and_change_no_output(model, x_BTM):
    wanted, seen = model(x_BTM), []
    with observe(model, lambda site, attended: seen.append((site.name, attended.peak.shape))):
        assert torch.equal(model(x_BTM), wanted)
    model(x_BTM)
    assert seen == [("encoder.0.self", (2, 3, 5)), ("encoder.1.self", (2, 3, 5))]


def test_several_watchers_are_called_in_order_where_they_are_put(model, x_BTM):
    seen: list[str] = []
    first, second = (lambda site, attended, mark=mark: seen.append(mark) for mark in "ab")
    with observe(model, first, second, where="*.1.*"):
        model(x_BTM)
    assert seen == ["a", "b"]


def test_a_watcher_may_stop_watching_while_it_is_called(model, x_BTM):
    changes: list[Change] = []
    seen: list[str] = []

    def once(site: Site, attended: Attended) -> None:
        seen.append(site.name)
        changes[0].undo()

    changes.append(observe(model, once))
    model(x_BTM)
    assert seen == ["encoder.0.self"]
    assert not any(site.watchers for site in find_sites(model))


def test_replacing_reaches_the_chosen_sites_and_the_watchers_see_it(model, x_BTM):
    wanted, peaks = model(x_BTM), {}
    with (
        replace(model, uniform_attention, where="encoder.0.*"),
        observe(model, lambda site, attended: peaks.update({site.name: attended.peak})),
    ):
        assert not torch.allclose(model(x_BTM), wanted)
    torch.testing.assert_close(peaks["encoder.0.self"], torch.full((2, 3, 5), 0.2))
    assert not torch.allclose(peaks["encoder.1.self"], torch.full((2, 3, 5), 0.2))
    assert torch.equal(model(x_BTM), wanted)


def test_arguments_of_the_model_reach_the_replacement(model, x_BTM):
    seen: list[Attended] = []
    with (
        replace(model, uniform_attention),
        observe(model, lambda site, attended: seen.append(attended)),
    ):
        model[0](x_BTM, causal=True)
    torch.testing.assert_close(seen[0].peak[0, 0], 1 / torch.arange(1.0, 6.0))


def test_the_same_change_twice_is_undone_once_at_a_time(model, x_BTM):
    plain = model(x_BTM)
    first, second = replace(model, uniform_attention), replace(model, uniform_attention)
    uniform = model(x_BTM)
    first.undo()
    first.undo()  # a second call does nothing
    assert torch.equal(model(x_BTM), uniform)
    second.undo()
    assert torch.equal(model(x_BTM), plain)


def test_changes_of_all_kinds_are_undone_in_any_order(model, x_BTM):
    plain = model(x_BTM)
    changes = [
        replace(model, topk_attention),
        masked(model, {"encoder.0.self": [0]}),
        replace(model, uniform_attention, where="*.1.self"),
        gated(model, {"encoder.0.self": torch.full((3,), 0.5)}),
        observe(model, lambda site, attended: None),
    ]
    for index in (1, 4, 0, 3, 2):
        assert not torch.equal(model(x_BTM), plain)
        changes[index].undo()
    assert torch.equal(model(x_BTM), plain)
    for site in find_sites(model):
        assert not (site.watchers or site.replacements or site.gates)


def test_a_change_is_undone_when_its_block_fails(model, x_BTM):
    plain = model(x_BTM)
    with pytest.raises(KeyError), replace(model, uniform_attention):
        raise KeyError
    assert torch.equal(model(x_BTM), plain)


def test_a_change_that_was_undone_cannot_be_entered_again(model):
    change = masked(model, {"encoder.0.self": [0]})
    with change:
        pass
    with pytest.raises(ValueError, match="undone already; make a new one"), change:
        pass


def test_a_masked_head_is_a_head_whose_part_of_the_projection_is_zero(model, x_BTM):
    with masked(model, {"encoder.1.self": [0, 2]}):
        got = model(x_BTM)
    with torch.no_grad():
        model[1].mix.weight.unflatten(1, (3, 4))[:, [0, 2]] = 0
    torch.testing.assert_close(got, model(x_BTM))


def test_masking_no_head_changes_nothing(model, x_BTM):
    plain = model(x_BTM)
    for nothing in ({}, {"encoder.0.self": []}):
        with masked(model, nothing):
            assert torch.equal(model(x_BTM), plain)


def test_gates_for_each_item_act_on_that_item_and_carry_gradients(model, x_BTM):
    plain = model(x_BTM)
    gates_BH = torch.tensor([[1.0, 1, 1], [1, 0, 1]], requires_grad=True)
    with gated(model, {"encoder.0.self": gates_BH}):
        got = model(x_BTM)
    assert torch.equal(got[0], plain[0]) and not torch.allclose(got[1], plain[1])
    got.square().sum().backward()
    assert gates_BH.grad is not None and gates_BH.grad.all()


def test_gates_are_read_anew_at_each_call(model, x_BTM):
    plain, gates_H = model(x_BTM), torch.ones(3)
    with gated(model, {"encoder.0.self": gates_H}):
        assert torch.equal(model(x_BTM), plain)
        gates_H[1] = 0
        assert not torch.allclose(model(x_BTM), plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_masks_follow_the_dtype_of_the_model(model, x_BTM, dtype):
    model.to(dtype)
    with masked(model, {"encoder.0.self": [1]}):
        assert model(x_BTM.to(dtype)).dtype == dtype


@pytest.mark.parametrize(("act", "value"), [(masked, [0]), (gated, torch.ones(3))])
def test_a_misspelt_site_is_guessed(model, act, value):
    with pytest.raises(ValueError, match=r"no site 'encoder\.0\.sef'.*mean 'encoder\.0\.self'\?"):
        act(model, {"encoder.0.sef": value})
    with pytest.raises(ValueError, match=r"no site 'zz'\. Known: encoder\.0\.self, encoder"):
        act(model, {"zz": value})


@pytest.mark.parametrize("index", [3, -1, 17])
def test_a_head_that_is_not_there_is_refused_and_nothing_is_changed(model, index):
    with pytest.raises(ValueError, match=rf"encoder\.1\.self has heads 0 to 2, got {index}\."):
        masked(model, {"encoder.0.self": [0], "encoder.1.self": [index]})
    assert not any(site.gates for site in find_sites(model))


@pytest.mark.parametrize(
    "heads",
    [True, [True, False, True], torch.tensor([True, False, True]), 0, torch.tensor(0), "12", [0.5]],
    ids=repr,
)
def test_what_is_no_list_of_head_numbers_is_refused(model, heads, unchecked):
    with pytest.raises(ValueError, match=r"head indices was wanted, e\.g\. \[0, 5\]; got .*gated"):
        masked(model, {"encoder.0.self": heads})
    assert not any(site.gates for site in find_sites(model))


@pytest.mark.parametrize(
    "heads",
    [(0, 2), {0, 2}, range(0, 3, 2), torch.tensor([0, 2]), [torch.tensor(0), 2], np.array([0, 2])],
    ids=repr,
)
def test_head_numbers_may_come_in_any_list(model, heads, x_BTM, unchecked):
    with masked(model, {"encoder.0.self": heads}):
        assert find_sites(model)[0].gates[0].tolist() == [0, 1, 0]
        model(x_BTM)


@pytest.mark.parametrize("gate", [[1, 0, 1], 1.0, True, None], ids=repr)
def test_gates_that_are_no_tensors_are_refused(model, gate, unchecked):
    with pytest.raises(ValueError, match=r"must be a tensor of shape \(3,\).*got "):
        gated(model, {"encoder.0.self": gate})


@pytest.mark.parametrize("shape", [(), (4,), (2, 4), (2, 3, 1)])
def test_gates_of_a_wrong_shape_are_refused(model, shape):
    with pytest.raises(ValueError, match=r"shape \(3,\) or \(batch, 3\), got"):
        gated(model, {"encoder.0.self": torch.ones(shape)})


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_shows_each_computation_once_and_leaves_gradients_equal(use_reentrant):
    layer, watched = Layer("a.0.self"), Layer("a.0.self")
    watched.load_state_dict(layer.state_dict())
    seen: list[Tensor] = []
    x_BTM = torch.randn(2, 5, 12, requires_grad=True)
    layer(x_BTM).square().sum().backward()
    with observe(watched, lambda site, attended: seen.append(attended.entropy)):
        out = torch.utils.checkpoint.checkpoint(watched, x_BTM, use_reentrant=use_reentrant)
        out.square().sum().backward()
    assert len(seen) == 1
    assert torch.equal(layer.project.weight.grad, watched.project.weight.grad)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model_shows_its_calls_and_obeys_masks(model, x_BTM, unchecked):
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    with masked(model, {"encoder.0.self": [0]}):
        wanted = model(x_BTM)
    plain, seen = compiled(x_BTM), []
    with (
        masked(compiled, {"encoder.0.self": [0]}),
        observe(compiled, lambda site, attended: seen.append(attended.peak.shape)),
    ):
        torch.testing.assert_close(compiled(x_BTM), wanted)
        compiled(x_BTM)
    assert len(seen) == 4
    assert torch.equal(compiled(x_BTM), plain)


def test_a_tap_gets_what_is_compared_with_gradients_and_is_undone(model, x_BTM):
    taken = {}
    with tapped(model, lambda site, scores: taken.update({site.name: scores}), where="*.1.self"):
        output = model(x_BTM)
    assert list(taken) == ["encoder.1.self"]
    assert taken["encoder.1.self"].q.requires_grad
    assert torch.equal(model(x_BTM), output) and find_sites(model)[1].changes == 0


def test_a_tap_is_not_called_again_when_a_computation_is_repeated(model, x_BTM):
    taken = []
    with tapped(model, lambda site, scores: taken.append(scores)):
        checkpoint(model, x_BTM, use_reentrant=False).sum().backward()
    assert len(taken) == 2
