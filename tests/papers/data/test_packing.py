"""Blocks of a text: full, in order, and with every piece where it belongs."""

import pytest
import torch

from headwise_papers.data.masking import EncodedText, PackedBlocks, SegmentPairs, encode_documents
from headwise_papers.data.subword import train_byte_level

DOCUMENTS = [["one two three", "four five"], ["six"], ["seven eight", "nine ten", "eleven"]] * 5


@pytest.fixture(scope="module")
def pieces():
    return train_byte_level([line for lines in DOCUMENTS for line in lines], size=300)


@pytest.fixture(scope="module")
def text(pieces):
    return encode_documents(DOCUMENTS, pieces)


def test_lines_and_documents_end_where_they_should(text, pieces):
    starts = [0, *text.line_ends[:-1].tolist()]
    lines = [line for document in DOCUMENTS for line in document]
    spans = zip(starts, text.line_ends.tolist(), strict=True)
    assert [pieces.decode(text.ids[a:b].tolist()) for a, b in spans] == lines
    assert text.document_ends.tolist() == text.line_ends[[1, 2, 5, 7, 8, 11, 13, 14, 17, 19, 20,
                                                          23, 25, 26, 29]].tolist()  # fmt: skip
    again = EncodedText.of(text.tensors("train"), "train")
    assert torch.equal(again.line_ends, text.line_ends)
    assert text.counts(300).sum() == len(text.ids)


def test_empty_lines_leave_nothing(pieces):
    found = encode_documents([["", "one"], [""], ["two", ""]], pieces)
    assert found.line_ends.tolist() == found.document_ends.tolist()
    assert len(found.line_ends) == 2
    with pytest.raises(ValueError, match="no text to encode"):
        encode_documents([[""]], pieces)


def test_packed_blocks_hold_the_whole_text_in_order_and_documents_apart(text, pieces):
    blocks = PackedBlocks(text, pieces, 12)
    all_blocks = blocks(torch.arange(len(blocks)))
    assert (all_blocks[:, 0] == pieces.begin).all() and (all_blocks[:, -1] == pieces.end).all()
    stream = all_blocks[:, 1:-1].flatten().tolist()
    wanted, end = [], pieces.end
    for lines in DOCUMENTS:
        wanted += [number for line in lines for number in pieces.encode(line)] + [end]
    assert stream == wanted[: len(stream)] and len(wanted) - 1 - len(stream) < 10


def test_segments_follow_or_come_from_elsewhere_and_say_so(text, pieces):
    pairs = SegmentPairs(text, pieces, 16)
    numbers = torch.arange(len(pairs)).repeat(40)
    found = pairs(numbers, torch.Generator().manual_seed(0))
    ids, room = text.ids.tolist(), 13
    for number, row, types, follows in zip(numbers.tolist(), *map(torch.Tensor.tolist, found),
                                           strict=True):  # fmt: skip
        cut = types.index(1) - 1
        first, second = row[1:cut], row[cut + 1 : -1]
        start = number * room
        assert row[0] == pieces.begin and row[cut] == row[-1] == pieces.end and first
        assert first == ids[start : start + len(first)] and len(first) + len(second) == room
        assert not follows or second == ids[start + len(first) : start + room]
    assert 0.35 < found.follows.float().mean() < 0.65


def test_a_first_segment_ends_with_a_line_of_a_document_that_goes_on(text, pieces):
    pairs = SegmentPairs(text, pieces, 24)
    numbers = torch.arange(len(pairs)).repeat(10)
    found = pairs(numbers, torch.Generator().manual_seed(0))
    ends = set(text.line_ends.tolist()) - set(text.document_ends.tolist())
    cuts = (found.token_types == 0).sum(dim=1) - 2
    assert {int(end) for end in numbers * 21 + cuts} <= ends


def test_text_of_one_line_documents_is_cut_in_the_middle(pieces):
    text = encode_documents([["one two three four"], ["five six seven eight"]] * 4, pieces)
    found = SegmentPairs(text, pieces, 13)(torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    assert ((found.token_types == 0).sum(dim=1) == 5 + 2).all()


def test_a_text_too_short_for_a_block_is_refused(text, pieces):
    with pytest.raises(ValueError, match="fewer than a block of 4096"):
        PackedBlocks(text, pieces, 4096)
    with pytest.raises(ValueError, match="at least 8 tokens"):
        SegmentPairs(text, pieces, 4)
