import copy
import pickle

import pytest
import torch

from headwise.ops import entmax_attention, softmax_attention, topk_attention
from headwise.sites import replace
from headwise_papers.models import Cache, MultiHeadAttention
from headwise_papers.models.cache import MORE_ROOM, KeysValues


def make(attention="softmax", **settings):
    return MultiHeadAttention(8, heads=2, name="encoder.0.self", attention=attention, **settings)


def attend(module, x):
    return module(x, module.keys_values(x))


def keys_values(rows, positions):
    return KeysValues(*torch.randn(2, rows, 2, positions, 4))


def test_a_named_op_is_what_replacing_softmax_by_it_gives():
    module, x = make("topk:2").eval(), torch.randn(3, 6, 8)
    plain = make().eval()
    plain.load_state_dict(module.state_dict())
    with replace(plain, lambda *qkv, **options: topk_attention(*qkv, keep=2, **options)):
        assert torch.equal(attend(module, x), attend(plain, x))
    assert not torch.allclose(attend(module, x), attend(plain, x))


def test_learned_alphas_start_at_entmax_15_and_learn():
    module, x = make("entmax:learned"), torch.randn(3, 6, 8)
    plain = make()
    plain.load_state_dict(module.state_dict(), strict=False)
    with replace(plain, entmax_attention):
        torch.testing.assert_close(attend(module, x), attend(plain, x), atol=1e-5, rtol=1e-4)
    before = module.chosen.alpha
    optimizer = torch.optim.SGD(module.parameters(), lr=100.0)
    attend(module, x).square().sum().backward()
    optimizer.step()
    assert before.tolist() == [1.5, 1.5]
    assert not torch.isclose(module.chosen.alpha, before).any()


def test_learned_alphas_stay_between_one_and_two():
    module = make("entmax:learned")
    with torch.no_grad():
        module.chosen.sharpness.copy_(torch.tensor([-1e4, 1e4]))
    low, high = module.chosen.alpha.tolist()
    assert 1 < low < high < 2
    assert attend(module, torch.randn(3, 6, 8)).isfinite().all()


@pytest.mark.parametrize("attention", ["topk:1", "sparsemax", "entmax:learned"])
def test_sparse_in_training_is_softmax_in_eval_mode(attention):
    module, x = make(attention, sparse_in="training"), torch.randn(3, 6, 8)
    both = make(attention)
    both.load_state_dict(module.state_dict())
    assert torch.equal(attend(module.train(), x), attend(both.train(), x))
    with replace(both, softmax_attention):
        assert torch.equal(attend(module.eval(), x), attend(both.eval(), x))
    assert not torch.allclose(attend(both, x), attend(module, x))


def test_a_copy_has_alphas_of_its_own():
    module, x = make("entmax:learned"), torch.randn(3, 6, 8)
    wanted = attend(module, x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(attend(other, x), wanted)
        with torch.no_grad():
            other.chosen.sharpness += 3
        assert not torch.allclose(attend(other, x), wanted)
        assert torch.equal(attend(module, x), wanted)


def test_an_unknown_op_is_refused():
    with pytest.raises(ValueError, match="Attention must be softmax"):
        make("topk")


def test_a_cache_gives_all_positions_however_they_come(poisoned_memory):
    chunks = [keys_values(3, n) for n in (1, 2, MORE_ROOM, 1, 3 * MORE_ROOM, 1)]
    cache = Cache()
    for chunk in chunks:
        seen = cache.extend("decoder.0.self", chunk)
        cache.length += chunk.k.shape[2]
    for place in (0, 1):
        wanted = torch.cat([chunk[place] for chunk in chunks], dim=2)
        assert torch.equal(seen[place], wanted)


def test_a_cache_is_written_where_it_is_and_seldom_made_anew():
    cache, places = Cache(), set()
    for _ in range(100):
        cache.extend("decoder.0.self", keys_values(2, 1))
        cache.length += 1
        places.add(cache.growing["decoder.0.self"].data_ptr())
    assert len(places) < 6


def test_beams_change_places_in_all_layers_and_the_source_stays(poisoned_memory):
    cache, index = Cache(beams=2), torch.tensor([1, 1, 2, 3])
    before = {name: keys_values(4, 3) for name in ("decoder.0.self", "decoder.1.self")}
    source = cache.once("decoder.0.cross", lambda: keys_values(2, 5))
    cache.known["decoder.state"] = state = keys_values(4, 1)
    for name, new in before.items():
        cache.extend(name, new)
    cache.length = 3
    for _ in range(3):  # the third time, rows 0 and 1 are what row 1 was
        cache.swap_beams(index)
    for name, old in before.items():
        new = keys_values(4, 1)
        k, v = cache.extend(name, new)
        assert torch.equal(k, torch.cat([old.k[index], new.k], dim=2))
        assert torch.equal(v, torch.cat([old.v[index], new.v], dim=2))
    assert cache.known["decoder.0.cross"] is source
    assert torch.equal(cache.known["decoder.state"].v, state.v[index])


def test_sentences_leave_a_cache_with_all_their_beams():
    cache, new = Cache(beams=2), keys_values(6, 1)
    source = cache.once("decoder.0.cross", lambda: keys_values(3, 5))
    cache.extend("decoder.0.self", new)
    cache.length = 1
    cache.reorder(torch.tensor([0, 1, 4, 5]))
    assert torch.equal(cache.known["decoder.0.cross"].k, source.k[[0, 2]])
    seen = cache.extend("decoder.0.self", KeysValues(*(x[:, :, :0] for x in keys_values(4, 1))))
    assert torch.equal(seen.v, new.v[[0, 1, 4, 5]])
