"""Batches to guess from: one shape, the right shares, and the same number, the same batch."""

import pytest
import torch

from headwise_papers.data.masking import (
    MaskedBatches,
    PackedBlocks,
    PairBatches,
    ReplacedBatches,
    SegmentPairs,
    choose_places,
    encode_documents,
    hide,
    replace_tokens,
)
from headwise_papers.data.subword import train_byte_level
from headwise_papers.data.toy import ToyLanguage


@pytest.fixture(scope="module")
def text():
    pairs = ToyLanguage(nouns=6).pairs(300, seed=0)
    documents = [[" ".join(p.source) for p in pairs[i : i + 5]] for i in range(0, 300, 5)]
    pieces = train_byte_level([line for lines in documents for line in lines], size=320)
    return encode_documents(documents, pieces), pieces


@pytest.fixture(scope="module")
def blocks(text):
    return PackedBlocks(*text, 40)


def test_every_block_has_as_many_places_and_none_is_a_mark(blocks):
    ids = blocks(torch.arange(20))
    random = torch.Generator().manual_seed(0)
    places = choose_places(ids, marks=5, share=0.15, generator=random)
    assert (torch.bincount(places // 40, minlength=20) == 6).all()
    assert len(places.unique()) == len(places) and (ids.flatten()[places] >= 5).all()


def test_of_hidden_pieces_eight_in_ten_are_masked_and_one_is_any(text):
    pieces = text[1]
    ids = torch.full((200, 100), 300)
    places = torch.arange(20_000)
    batch = hide(ids, places, pieces=pieces, generator=torch.Generator().manual_seed(0))
    assert (batch.targets == 300).all() and (ids == 300).all()
    masked = (batch.ids == pieces.mask).float().mean()
    kept = (batch.ids == 300).float().mean()
    assert masked == pytest.approx(0.8, abs=0.01) and kept == pytest.approx(0.1, abs=0.01)
    others = batch.ids[(batch.ids != pieces.mask) & (batch.ids != 300)]
    assert others.min() >= 5 and len(others.unique()) > 250


def test_what_is_not_hidden_stays(blocks):
    batch, other = MaskedBatches(blocks, 4)(0), MaskedBatches(blocks, 4, seed=1)(0)
    before = blocks(MaskedBatches(blocks, 4).block_numbers(0)).flatten()
    kept = torch.ones(160, dtype=torch.bool)
    kept[batch.places] = False
    assert torch.equal(batch.ids.flatten()[kept], before[kept])
    assert torch.equal(batch.targets, before[batch.places])
    assert not torch.equal(other.ids, batch.ids)


def test_replacements_follow_the_distribution_and_equal_ones_do_not_count():
    ids = torch.full((100, 100), 6)
    cumulative = torch.tensor([0, 0, 0, 0, 0, 1, 4, 4, 8], dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    batch = replace_tokens(ids, torch.arange(10_000), cumulative, generator=random)
    shares = torch.bincount(batch.ids.flatten(), minlength=9) / 10_000
    assert torch.allclose(shares[5:], torch.tensor([0.125, 0.375, 0.0, 0.5]), atol=0.02)
    assert torch.equal(batch.replaced, batch.ids != 6)


@pytest.mark.parametrize("kind", ["masked", "pairs", "replaced"])
def test_a_number_gives_the_same_batch_and_another_another(kind, text, blocks):
    def made():
        if kind == "pairs":
            return PairBatches(SegmentPairs(*text, 40), 7)
        if kind == "replaced":
            return ReplacedBatches(blocks, 7, counts=text[0].counts(320))
        return MaskedBatches(blocks, 7)

    first, again, other = made()(3), made()(3), made()(4)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first.ids, other.ids)
    assert [tensor.shape for tensor in first] == [tensor.shape for tensor in other]


def test_each_pass_has_every_block_once_in_a_new_order(blocks):
    batches = MaskedBatches(blocks, 7)
    count = len(blocks)
    seen = torch.cat([batches.block_numbers(number) for number in range(2 * count)])
    passes = seen[: 7 * (2 * count)][: 6 * count].view(6, count)
    assert torch.equal(passes.sort(dim=1).values, torch.arange(count).expand(6, count))
    assert not torch.equal(passes[0], passes[1])


def test_a_batch_may_be_larger_than_the_text(text):
    few = PackedBlocks(*text, 1000)
    assert MaskedBatches(few, len(few) + 3)(0).ids.shape == (len(few) + 3, 1000)


def test_in_order_every_block_comes_once(blocks):
    batches = MaskedBatches(blocks, 7, shuffled=False)
    sizes = [len(batches(number).ids) for number in range(len(batches))]
    assert sum(sizes) == len(blocks) and set(sizes[:-1]) == {7}


@pytest.mark.parametrize("kind", ["masked", "pairs", "replaced"])
def test_in_order_a_block_is_the_same_whatever_stands_beside_it(kind, text, blocks):
    def made(size):
        if kind == "pairs":
            return PairBatches(SegmentPairs(*text, 40), size, shuffled=False)
        if kind == "replaced":
            return ReplacedBatches(blocks, size, counts=text[0].counts(320), shuffled=False)
        return MaskedBatches(blocks, size, shuffled=False)

    large, small = made(7)(0), [made(3)(number) for number in range(3)]
    for name in {*large._fields} - {"places", "replaced"}:
        joined = torch.cat([getattr(batch, name) for batch in small])
        whole = getattr(large, name)
        assert torch.equal(joined[: len(whole)], whole)
    if kind != "replaced":
        hidden = [small[at].ids.flatten()[small[at].places] for at in range(3)]
        found = large.ids.flatten()[large.places]
        assert torch.equal(torch.cat(hidden)[: len(found)], found)
        assert (torch.bincount(large.places // 40) == 6).all()
