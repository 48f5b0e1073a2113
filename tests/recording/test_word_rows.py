"""word_rows: pieces merged to words, against loops and against values worked out by hand."""

import pytest
import torch

from headwise.ops import (
    entmax_attention,
    gaussian_attention,
    softmax_attention,
    sparsemax_attention,
    topk_attention,
    uniform_attention,
)
from headwise.ops import scores as scores_module
from headwise.recording.reading import Words, word_rows
from tests.recording.planted_heads import attended_by, with_weights

PIECES = [[-1, 0, 0, 1, 2, 2, 2, 3, -1], [-1, 0, 1, 1, 1, 1, 2, -1, -1]]  # the last is padding


def words(*rows):
    return Words(torch.tensor(rows))


def by_hand(weights_BHQK, query_words, key_words):
    """The definition, word by word: {(item, head, word): (weights by key, special weight)}."""
    found = {}
    for item, head in torch.cartesian_prod(*map(torch.arange, weights_BHQK.shape[:2])).tolist():
        asks, looked_at = query_words.of[item], key_words.of[item]
        for word in set(asks.tolist()) - {-1}:
            mean_K = weights_BHQK[item, head, asks == word].mean(dim=0)
            on = {w: mean_K[looked_at == w].sum().item() for w in set(looked_at.tolist()) - {-1}}
            found[item, head, word] = on, mean_K[looked_at == -1]
    return found


def check_by_hand(attended, query_words, key_words):
    rows = word_rows(attended, query_words, key_words)
    weights_BHQK = attended.weights
    truth = by_hand(weights_BHQK, query_words, key_words)
    assert int(rows.queries.present.sum()) * weights_BHQK.shape[1] == len(truth)
    for place, (on, special) in truth.items():
        peak = max(on.values(), default=0)
        assert rows.peak[place].item() == pytest.approx(peak, abs=1e-12)
        strongest = rows.strongest[place].item()
        assert strongest == -1 if peak == 0 else on[strongest] == pytest.approx(peak, abs=1e-12)
        assert rows.special[place].item() == pytest.approx(special.sum().item(), abs=1e-12)
        parts = torch.cat([torch.tensor(list(on.values()), dtype=torch.float64), special])
        entropy = torch.special.entr(parts).sum().item()
        assert rows.entropy[place].item() == pytest.approx(entropy, abs=1e-9)
        assert rows.seen[place].item() == (peak + special.sum().item() > 0)


def random_call(op=softmax_attention, *, queries=9, keys=9, heads=3, **options):
    q = torch.randn(2, heads, queries, 4, dtype=torch.float64)
    k = torch.randn(2, heads, keys, 4, dtype=torch.float64)
    return op(q, k, k, **options)


def test_key_pieces_are_summed_and_query_pieces_averaged():
    # a word of two pieces, then one of one piece
    weights = torch.tensor([[[[0.5, 0.3, 0.2], [0.1, 0.4, 0.5], [0.2, 0.2, 0.6]]]]).double()
    rows = word_rows(with_weights(weights), words([0, 0, 1]), words([0, 0, 1]))
    assert rows.peak[0, 0].tolist() == pytest.approx([(0.8 + 0.5) / 2, 0.6])
    assert rows.strongest[0, 0].tolist() == [0, 1]
    assert rows.special.abs().max() == 0


def test_the_strongest_word_need_not_hold_the_strongest_piece():
    weights = torch.tensor([[[[0.3, 0.3, 0.4]]]]).double()
    rows = word_rows(with_weights(weights), words([0]), words([0, 0, 1]))
    assert (rows.strongest.item(), rows.peak.item()) == (0, pytest.approx(0.6))


@pytest.mark.parametrize("causal", [False, True])
def test_rows_are_those_of_the_definition(causal):
    check_by_hand(random_call(causal=causal), words(*PIECES), words(*PIECES))


@pytest.mark.parametrize(
    "op",
    [topk_attention, sparsemax_attention, entmax_attention, uniform_attention, gaussian_attention],
)
def test_rows_of_every_op_are_those_of_the_definition(op):
    options = {"keep": 2} if op is topk_attention else {}
    check_by_hand(random_call(op, **options), words(*PIECES), words(*PIECES))


@pytest.mark.parametrize("op", [softmax_attention, topk_attention, sparsemax_attention])
def test_a_sink_takes_weight_from_words(op):
    options = {"keep": 2} if op is topk_attention else {}
    sink = torch.tensor([0.5, -0.5, 1.0], dtype=torch.float64)
    attended = random_call(op, cap=2.0, sink=sink, **options)
    check_by_hand(attended, words(*PIECES), words(*PIECES))


def test_cross_attention_has_words_of_its_own_on_either_side():
    target = words([0, 1, 1, 2, -1], [0, 0, 0, 0, 1])
    check_by_hand(random_call(queries=5), target, words(*PIECES))


def test_queries_of_a_cached_step_are_the_last_words():
    check_by_hand(random_call(queries=3, causal=True), words([2, 3, -1], [2, -1, -1]),
                  words(*PIECES))  # fmt: skip


def test_lengths_and_whole_words_among_special_tokens():
    real = torch.tensor([[False] + [True] * 7 + [False], [False] + [True] * 4 + [False] * 4])
    attended = random_call(lengths=torch.tensor([9, 6]))
    check_by_hand(attended, Words.each(real), Words.each(real))


def test_a_query_that_sees_nothing_is_not_seen():
    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    mask[0, :, 3] = False  # the only piece of word 1
    mask[1, :, 2:6] = False  # all pieces of word 1
    attended = random_call(mask=mask)
    check_by_hand(attended, words(*PIECES), words(*PIECES))
    rows = word_rows(attended, words(*PIECES), words(*PIECES))
    assert not rows.seen[:, :, 1].any() and rows.seen[0].sum() == 3 * 3


def test_pieces_apart_from_each_other_are_one_word():
    apart = words([0, -1, 0, 1, 1, -1, 1, 2, -1], PIECES[1])
    check_by_hand(random_call(), apart, apart)


@pytest.mark.parametrize("rows_at_once", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_that_cut_words_give_what_the_whole_gives(rows_at_once, causal, monkeypatch):
    attended = random_call(causal=causal)
    whole = word_rows(attended, words(*PIECES), words(*PIECES))
    monkeypatch.setattr(scores_module, "BLOCK_ELEMENTS", rows_at_once * 9)
    monkeypatch.setattr(scores_module, "BLOCK_ROWS", rows_at_once)
    assert len(list(attended.scores.parts())) >= 2 * 3 * 3
    parts = word_rows(attended, words(*PIECES), words(*PIECES))
    for name in ("peak", "strongest", "special", "entropy", "seen"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_the_short_way_where_all_are_words_gives_what_the_long_way_gives():
    attended, all_words = random_call(), words(*[list(range(9))] * 2)
    short = word_rows(attended, all_words, all_words)
    padded = softmax_attention(
        *(torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (attended.scores.q, attended.scores.k)),
        torch.nn.functional.pad(attended.scores.k, (0, 0, 0, 1)),
        lengths=torch.tensor([9, 9]),
    )
    wider = words(*[[*range(9), -1]] * 2)
    long = word_rows(padded, wider, wider)
    for name in ("peak", "strongest", "special", "entropy", "seen"):
        torch.testing.assert_close(getattr(short, name), getattr(long, name))
    assert all_words.are_everything and not wider.are_everything


def test_the_first_of_equally_strong_words_is_taken():
    rows = word_rows(attended_by(torch.zeros(1, 1, 1, 5)), words([0]), words([-1, 0, 1, 1, 2]))
    assert rows.strongest.item() == 1
    rows = word_rows(attended_by(torch.zeros(1, 1, 1, 4)), words([0]), words([-1, 0, 1, 2]))
    assert rows.strongest.item() == 0


def test_no_whole_matrix_is_built_and_no_gradient_kept(monkeypatch):
    monkeypatch.setattr(scores_module, "BLOCK_ELEMENTS", 128 * 40)
    q = torch.randn(1, 2, 400, 4, requires_grad=True)
    attended = softmax_attention(q, q, q)
    largest = 0

    def weigh(scores):
        nonlocal largest
        largest = max(largest, scores.numel())
        return scores.softmax(-1)

    attended.row_function = weigh
    pieces = Words((torch.arange(400) // 3)[None])
    rows = word_rows(attended, pieces, pieces)
    assert largest <= 128 * 40 + 2 * 400 and not rows.peak.requires_grad


def test_words_know_where_they_are():
    found = words(*PIECES)
    assert found.most == 4
    assert found.present.tolist() == [[True] * 4, [True, True, True, False]]
    assert found.last[0].tolist() == [2, 3, 6, 7] and found.last[1, :3].tolist() == [1, 5, 6]
    assert not found.are_whole and words([0, -1, 1]).are_whole
    assert words([-1, -1]).most == 0
    assert words([2, 2, 4]).present.tolist() == [[False, False, True, False, True]]


def test_a_batch_without_words_has_no_rows():
    none = words(*[[-1] * 9] * 2)
    assert word_rows(random_call(), none, none).peak.shape == (2, 3, 0)
