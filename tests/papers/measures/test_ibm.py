"""IBM Model 1: the EM that the formulas describe, worked out densely and by hand."""

import dataclasses

import pytest
import torch

from headwise_papers.data.batches import pad
from headwise_papers.measures import ibm
from headwise_papers.measures.ibm import IbmModel1

DAS, HAUS, BUCH, EIN = range(4)
THE, HOUSE, BOOK, A = range(4)
KOEHN = [((DAS, HAUS), (THE, HOUSE)), ((DAS, BUCH), (THE, BOOK)), ((EIN, BUCH), (A, BOOK))]


def random_pairs(number, *, words=12, seed=0):
    """Sentences of different lengths, with words that come twice."""
    generator = torch.Generator().manual_seed(seed)

    def sentence():
        length = int(torch.randint(1, 9, (), generator=generator))
        return torch.randint(0, words, (length,), generator=generator).tolist()

    return [(sentence(), sentence()) for _ in range(number)]


def dense(model, *, sources):
    """(source, target) probabilities of all words."""
    source, target = torch.arange(sources)[None], torch.arange(model.target_words)[None]
    return model.scores(source, target)[0].exp().T


def slow_em(pairs, *, iterations, null, smoothing=0.0):
    """The definition, a word at a time: table (source + 1, target) and likelihood and posterior."""
    sources = max(max(source) for source, _ in pairs) + 2
    targets = max(max(target) for _, target in pairs) + 1
    table = torch.full((sources, targets), 1 / targets, dtype=torch.float64)
    curve = []
    for step in range(iterations + 1):
        counts, likelihood, words = torch.full_like(table, smoothing), 0.0, 0
        for source, target in pairs:
            rows = [0] * null + [word + 1 for word in source]
            for word in target:
                column = table[rows, word]
                likelihood += column.mean().log().item()
                words += 1
                for row, share in zip(rows, column / column.sum(), strict=True):
                    counts[row, word] += share
        prior = smoothing * table.log().sum().item() if smoothing else 0.0
        curve.append((likelihood / words, likelihood + prior))
        if step < iterations:
            table = counts / counts.sum(dim=1, keepdim=True)
    return table, torch.tensor(curve, dtype=torch.float64).T


def test_the_first_iteration_is_what_co_occurrence_says():
    # das stands with the, house, the, book; each shares its word with one other
    table = dense(IbmModel1.train(KOEHN, iterations=1, null=False), sources=4)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[DAS, [THE, HOUSE, BOOK]] = torch.tensor([2, 1, 1], dtype=torch.float64) / 4
    expected[HAUS, [THE, HOUSE]] = 1 / 2
    expected[BUCH, [BOOK, THE, A]] = torch.tensor([2, 1, 1], dtype=torch.float64) / 4
    expected[EIN, [A, BOOK]] = 1 / 2
    torch.testing.assert_close(table, expected)


def test_in_the_first_iteration_a_longer_source_sentence_counts_less_a_word():
    model = IbmModel1.train([((0,), (0,)), ((0, 1, 2), (1,))], iterations=1, null=False)
    torch.testing.assert_close(
        dense(model, sources=1), torch.tensor([[3 / 4, 1 / 4]], dtype=torch.float64)
    )


def test_das_buch_finds_the_book():
    table = dense(IbmModel1.train(KOEHN, iterations=200, null=False), sources=4)
    assert table.argmax(dim=1).tolist() == [THE, HOUSE, BOOK, A]
    assert table.amax(dim=1).min() > 0.99


@pytest.mark.parametrize("null", [True, False])
@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_it_is_the_em_of_the_definition(null, smoothing):
    pairs = random_pairs(25)
    model = IbmModel1.train(pairs, iterations=5, null=null, smoothing=smoothing)
    table, (likelihood, _) = slow_em(pairs, iterations=5, null=null, smoothing=smoothing)
    torch.testing.assert_close(dense(model, sources=len(table) - 1), table[1:])
    torch.testing.assert_close(model.log_likelihood, likelihood)
    torch.testing.assert_close(model.perplexity, (-likelihood).exp())


def test_the_likelihood_never_falls_and_starts_from_a_uniform_table():
    model = IbmModel1.train(random_pairs(60), iterations=30)
    assert model.perplexity[0].item() == pytest.approx(model.target_words)
    assert len(model.log_likelihood) == 31
    assert model.log_likelihood.diff().min() > -1e-12


def test_with_smoothing_the_likelihood_times_the_prior_never_falls():
    _, (_, posterior) = slow_em(random_pairs(20), iterations=8, null=True, smoothing=0.5)
    assert posterior.diff().min() > -1e-9


@pytest.mark.parametrize("smoothing", [0, 0.3])
def test_the_words_of_a_source_word_sum_to_one(smoothing):
    pairs = [*random_pairs(30), ((20,), (3,))]  # 12 to 19 are never seen
    table = dense(IbmModel1.train(pairs, smoothing=smoothing, iterations=3), sources=30)
    seen = sorted({word for source, _ in pairs for word in source})
    torch.testing.assert_close(table[seen].sum(dim=1), torch.ones(len(seen), dtype=torch.float64))
    unseen = table[[word for word in range(30) if word not in seen]]
    nothing_known = 1 / table.shape[1] if smoothing else 0.0
    torch.testing.assert_close(unseen, torch.full_like(unseen, nothing_known))


def test_null_takes_words_that_stand_in_every_sentence():
    pairs = [((word,), (word, 9)) for word in range(9)]
    with_null, without = (
        IbmModel1.train(pairs, null=null, iterations=50) for null in (True, False)
    )
    assert dense(with_null, sources=9)[:, 9].max() < 0.1
    torch.testing.assert_close(dense(without, sources=9)[:, 9], torch.full((9,), 0.5).double())


def test_small_blocks_change_nothing(monkeypatch):
    pairs = random_pairs(40)
    whole = IbmModel1.train(pairs)
    monkeypatch.setattr(ibm, "BLOCK", 16)
    blocks = IbmModel1.train(pairs)
    assert torch.equal(whole.keys, blocks.keys)
    torch.testing.assert_close(whole.probabilities, blocks.probabilities)
    torch.testing.assert_close(whole.log_likelihood, blocks.log_likelihood)


def test_training_again_gives_the_same_bits():
    first, second = (IbmModel1.train(random_pairs(50)) for _ in range(2))
    assert torch.equal(first.probabilities, second.probabilities)
    assert torch.equal(first.log_likelihood, second.log_likelihood)


def test_the_scores_of_a_batch_are_those_of_its_sentences():
    pairs = random_pairs(10)
    model = IbmModel1.train(pairs, iterations=2)
    source, target = pad([source for source, _ in pairs]), pad([target for _, target in pairs])
    scores = model.scores(source.ids, target.ids)
    assert scores.shape == (10, target.ids.shape[1], source.ids.shape[1])
    for row, (source_ids, target_ids) in zip(scores, pairs, strict=True):
        alone = model.scores(torch.tensor([source_ids]), torch.tensor([target_ids]))[0]
        assert torch.equal(row[: len(target_ids), : len(source_ids)], alone)
        assert alone.isfinite().all()


def test_words_that_never_met_score_minus_infinity_unless_smoothed():
    source, target = torch.tensor([[HAUS, 50]]), torch.tensor([[BOOK, 50]])
    plain, smooth = (IbmModel1.train(KOEHN, smoothing=value) for value in (0, 0.01))
    assert (plain.scores(source, target) == -torch.inf).all()
    assert smooth.scores(source, target).isfinite().all()


def test_a_target_word_beyond_the_last_is_no_word_of_the_next_source():
    model = IbmModel1.train(KOEHN, null=False)
    past = torch.tensor([[model.target_words + HOUSE]])  # das + 1 is Haus
    assert model.scores(torch.tensor([[DAS]]), past).item() == -torch.inf


def test_a_saved_table_comes_back_whole(tmp_path):
    model = IbmModel1.train(random_pairs(20), smoothing=0.1)
    model.save(tmp_path / "new" / "ibm.safetensors")
    loaded = IbmModel1.load(tmp_path / "new" / "ibm.safetensors")
    for field in dataclasses.fields(IbmModel1):
        left, right = getattr(model, field.name), getattr(loaded, field.name)
        assert torch.equal(torch.as_tensor(left), torch.as_tensor(right))
        assert type(left) is type(right)


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("no table")
    save_file({"weight": torch.zeros(1)}, tmp_path / "model")
    save_file({"target_words": torch.tensor(1)}, tmp_path / "part")
    for name in ("text", "model", "part"):
        with pytest.raises(ValueError, match="is not a whole table of IBM Model 1"):
            IbmModel1.load(tmp_path / name)


def test_progress_counts_iterations():
    seen = []
    IbmModel1.train(KOEHN, iterations=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_empty_sentences_are_passed_over_where_they_can_be():
    model = IbmModel1.train([*KOEHN, ((DAS,), ()), ((), (A,))])
    assert model.log_likelihood.isfinite().all()
    same = IbmModel1.train([*KOEHN, ((DAS,), ())]).probabilities
    assert torch.equal(same, IbmModel1.train(KOEHN).probabilities)


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([], {}, "got 0 pairs with none"),
        ([((1, 2), ())], {}, "got 1 pairs with none"),
        ([*KOEHN, ((1, -1), (2,))], {}, "0 or more, got -1 in pair 3"),
        ([((1,), (-100,))], {}, "0 or more, got -100 in pair 0"),
        ([*KOEHN, ((), (2,))], {"null": False}, "Pair 3 has target words but no source word"),
        (KOEHN, {"iterations": 0}, "iterations must be at least 1, got 0"),
        (KOEHN, {"smoothing": -0.1}, "smoothing must be 0 or more and finite, got -0.1"),
        (KOEHN, {"smoothing": float("nan")}, "smoothing must be 0 or more and finite, got nan"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_words(pairs, options, message):
    with pytest.raises(ValueError, match=message):
        IbmModel1.train(pairs, **options)


@pytest.mark.parametrize(("source", "target"), [(-1, 0), (0, -1)])
def test_padding_with_negative_ids_is_refused(source, target):
    with pytest.raises(ValueError, match="ids must be 0 or more, got -1; pad with 0"):
        IbmModel1.train(KOEHN).scores(torch.tensor([[source]]), torch.tensor([[target]]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_finds_the_same_table_and_always_the_same_bits():
    pairs = random_pairs(500, words=40)
    here = IbmModel1.train(pairs)
    first, second = (IbmModel1.train(pairs, device="cuda") for _ in range(2))
    assert first.probabilities.is_cuda and torch.equal(first.probabilities, second.probabilities)
    torch.testing.assert_close(first.probabilities.cpu(), here.probabilities)
    words = torch.arange(40)[None]
    torch.testing.assert_close(first.scores(words, words), here.scores(words, words))
