import pytest

from headwise_papers.data.subword import SubwordModel, train_subwords
from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

LINES = [f"the {size} dog ran to the {colour} house" for size in ("big", "small", "tiny")
         for colour in ("red", "green", "blue", "grey")]  # fmt: skip


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def pieces(kind):
    return train_subwords(LINES, size=60, kind=kind)


def test_text_comes_back_from_its_pieces(pieces):
    for line in LINES:
        ids = pieces.encode(line)
        assert min(ids) > UNK and pieces.decode(ids) == line
    assert pieces.encode_all(LINES) == [pieces.encode(line) for line in LINES]


def test_the_marks_are_the_first_four_and_never_come_from_text(pieces):
    assert tuple(map(pieces.piece, range(4))) == SPECIALS
    assert {PAD, BOS, EOS}.isdisjoint(pieces.encode("<pad> <bos> the </s> <eos>"))


def test_decoding_stops_at_the_end_mark_and_names_the_unknown(pieces):
    dog = pieces.encode("dog")
    assert pieces.decode([BOS, *dog, EOS, *dog, PAD]) == "dog"
    assert pieces.decode(pieces.encode("☃")) == "<unk>"
    for number in (-1, len(pieces)):
        with pytest.raises(ValueError, match=f"got {number}"):
            pieces.decode([number])
        with pytest.raises(ValueError, match=f"got {number}"):
            pieces.piece(number)


def test_small_texts_get_fewer_pieces_than_asked_for(pieces, kind):
    assert len(pieces) <= 60
    assert len(train_subwords(LINES, size=8000, kind=kind)) < 100


def test_the_same_text_gives_the_same_model(pieces, kind):
    assert train_subwords(iter(LINES), size=60, kind=kind) == pieces


def test_byte_pairs_join_the_commonest_neighbours_first():
    learnt = train_subwords(["abab cd"] * 3 + ["ef"], size=13, kind="bpe")
    assert learnt.piece(len(SPECIALS)) == "ab"


def test_an_unknown_kind_is_refused(unchecked):
    with pytest.raises(ValueError, match="kind must be 'unigram' or 'bpe', got 'words'"):
        train_subwords(LINES, kind="words")


def test_a_saved_model_is_the_same(pieces, tmp_path):
    pieces.save(tmp_path / "run" / "pieces.model")
    assert SubwordModel.load(tmp_path / "run" / "pieces.model") == pieces
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["pieces.model"]


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no subword model .*absent"):
        SubwordModel.load(tmp_path / "absent")
    (tmp_path / "broken").write_bytes(b"no model")
    with pytest.raises(ValueError, match="8 bytes are no SentencePiece model"):
        SubwordModel.load(tmp_path / "broken")


def test_a_model_with_other_marks_is_refused():
    import io

    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=written, vocab_size=30, minloglevel=2
    )
    with pytest.raises(ValueError, match="starts with <pad>, <bos>, <eos>, <unk>, but this one"):
        SubwordModel(written.getvalue())


@pytest.mark.parametrize(
    ("lines", "size", "said"),
    [([], 50, "there is none"), ([" "], 50, "there is none"), (LINES, 4, "size must be 5 or more"),
     (LINES, 10, "No 10 tokens can be learnt from these 12 lines")],
)  # fmt: skip
def test_what_cannot_be_learnt_is_said(lines, size, said):
    with pytest.raises(ValueError, match=said):
        train_subwords(lines, size=size)
