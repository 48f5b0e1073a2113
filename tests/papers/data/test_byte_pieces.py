"""Byte-level codecs: every text can be encoded, and comes back as it was."""

import pytest
from transformers import AutoTokenizer

from headwise_papers.data.subword import ByteLevelCodec, train_byte_level

LINES = ["the dog saw the cat .", "a cat slept .", "the dog slept and the cat ran ."] * 4


@pytest.fixture(scope="module")
def pieces():
    return train_byte_level(LINES, size=300)


def test_any_text_comes_back(pieces):
    for text in ("the dog saw the cat .", "Gödel, 犬 ran 🙂", "a  b"):
        assert pieces.decode(pieces.encode(text)) == text
    assert 256 + 5 < len(pieces) <= 300


def test_a_common_word_is_one_piece_wherever_it_stands(pieces):
    (first, *_), (_, second, *_) = pieces.encode("cat ran"), pieces.encode("the cat")
    assert first == second and pieces.piece(first) == "Ġcat"
    assert all(number >= pieces.marks for number in pieces.encode("the cat"))


def test_full_stops_are_found_with_a_space_and_without(pieces):
    found = pieces.written_as(".")
    assert [pieces.piece(number) for number in found] == [".", "Ġ."]
    assert pieces.written_as("slept and") == ()


@pytest.mark.parametrize(
    ("style", "marks", "pair"),
    [
        ("roberta", ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> A </s> </s> B </s>"),
        ("bert", ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), "[CLS] A [SEP] B [SEP]"),
    ],
)
def test_marks_are_those_of_the_style(style, marks, pair):
    pieces = train_byte_level(LINES, size=280, style=style)
    numbers = (pieces.begin, pieces.pad, pieces.end, pieces.unknown, pieces.mask)
    assert tuple(map(pieces.piece, numbers)) == marks and pieces.style == style
    both = pieces.tokenizer.encode("A", "B").tokens
    assert " ".join(token for token in both if token not in ("Ġ",)) == pair
    theirs = pieces.hugging_face()
    ids = (theirs.cls_token_id, theirs.pad_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert ids == (pieces.begin, pieces.pad, pieces.end, pieces.mask)
    assert theirs("the cat").input_ids == [pieces.begin, *pieces.encode("the cat"), pieces.end]
    assert ("token_type_ids" in theirs("the", "cat")) == (style == "bert")


@pytest.mark.parametrize("style", ["roberta", "bert"])
def test_what_a_text_says_is_text_even_if_it_is_called_like_a_mark(style):
    pieces = train_byte_level(LINES, size=280, style=style)
    plain = train_byte_level(LINES, size=280)
    for text in ("a <s>b</s>", "<unk> [MASK]", "the cat [SEP]"):
        ids = pieces.encode(text)
        assert min(ids) >= pieces.marks and pieces.decode(ids) == text
        assert ids == plain.encode(text)  # so rare words of WikiText are the same to all families
    theirs = pieces.hugging_face()
    assert theirs(pieces.piece(pieces.mask)).input_ids.count(pieces.mask) == 1


@pytest.mark.parametrize("style", ["roberta", "bert"])
def test_a_mask_takes_the_space_before_it_as_in_training(style):
    pieces = train_byte_level(LINES, size=280, style=style)
    theirs, mask = pieces.hugging_face(), pieces.piece(pieces.mask)
    ids = theirs(f"the {mask} saw", add_special_tokens=False).input_ids
    assert ids == [*pieces.encode("the"), pieces.mask, *pieces.encode(" saw")]
    assert pieces.encode(f"the {mask}") == train_byte_level(LINES, size=280).encode(f"the {mask}")


def test_a_hugging_face_tokenizer_knows_what_its_model_has_room_for(pieces, tmp_path):
    theirs = pieces.hugging_face(max_length=6)
    assert len(theirs("the cat saw the dog and ran", truncation=True).input_ids) == 6
    theirs.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 6
    assert pieces.hugging_face().model_max_length > 10**9


def test_what_was_saved_is_the_same(pieces, tmp_path):
    pieces.save(tmp_path / "tokenizer.json")
    assert ByteLevelCodec.load(tmp_path / "tokenizer.json") == pieces


def test_what_makes_no_tokenizer_is_said(pieces, tmp_path):
    with pytest.raises(ValueError, match="size must be 261 or more"):
        train_byte_level(LINES, size=200)
    with pytest.raises(ValueError, match="There is no tokenizer"):
        ByteLevelCodec.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="are no tokenizer"):
        ByteLevelCodec("{}")
    for damaged in (pieces.definition[:1000].encode(), b"\xff\xfe"):
        (tmp_path / "cut.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cut\.json cannot be read: "):
            ByteLevelCodec.load(tmp_path / "cut.json")
    with pytest.raises(ValueError, match="begins with <s>"):
        ByteLevelCodec(pieces.definition.replace("<s>", "<b>"))
    with pytest.raises(ValueError, match="Ids run from 0 to"):
        pieces.piece(10_000)
