import lzma

import pytest
import torch

from headwise_papers.data.glove import COMMONEST, read_glove
from headwise_papers.data.vocabulary import Vocabulary

VOCABULARY = Vocabulary.from_sentences([["the", "dog", "xyzzy"]])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "glove").mkdir()
    row = " ".join(["0.5", "-0.5"] * 25)
    text = f"the {row}\n<unk> {row}\ndog {' '.join(['1'] * 50)}\n"
    path = tmp_path / "glove/glove.6B.50d.top40k.txt.xz"
    path.write_bytes(lzma.compress(text.encode()))
    return tmp_path


def test_words_get_their_vectors_and_the_others_random_ones_alike_in_size(folder):
    many = Vocabulary.from_sentences([["the", "dog", *(f"x{number}" for number in range(500))]])
    vectors = read_glove(many, folder=folder, verify=False)
    assert vectors.matrix.dtype == torch.float32 and vectors.matrix.shape == (506, 50)
    the, dog = many.encode(["the", "dog"])
    assert vectors.found.nonzero().flatten().tolist() == sorted((the, dog))  # no mark
    assert vectors.matrix[the][:2].tolist() == [0.5, -0.5] and (vectors.matrix[dog] == 1).all()
    wanted = vectors.matrix[vectors.found].std()
    assert vectors.matrix[~vectors.found].std().item() == pytest.approx(wanted.item(), rel=0.05)


def test_the_seed_decides_the_random_vectors(folder):
    drawn = [read_glove(VOCABULARY, folder=folder, seed=n, verify=False) for n in (0, 0, 1)]
    assert torch.equal(drawn[0].matrix, drawn[1].matrix)
    differ = (drawn[0].matrix != drawn[2].matrix).any(dim=1)
    assert torch.equal(differ, ~drawn[0].found)


def test_the_published_file_is_read_where_it_is_there(folder):
    (folder / "glove/glove.6B.100d.txt").write_text(f"dog{' 2' * 100}\n")
    vectors = read_glove(VOCABULARY, width=100, folder=folder)
    assert (vectors.matrix[VOCABULARY.encode(["dog"])[0]] == 2).all()
    with pytest.raises(ValueError, match=r"no .*glove.6B.200d.txt; make it from glove.6B.zip"):
        read_glove(VOCABULARY, width=200, folder=folder)


@pytest.mark.parametrize("line", ["dog 1 2", "dog" + " x" * 50])
def test_a_broken_line_is_named(folder, line):
    (folder / "glove/glove.6B.50d.txt").write_text(f"the{' 0' * 50}\n{line}\n")
    with pytest.raises(ValueError, match="GloVe, line 2: a word and 50 numbers were wanted"):
        read_glove(VOCABULARY, folder=folder)


def test_wrong_widths_foreign_words_and_other_files_are_refused(folder):
    with pytest.raises(ValueError, match="got 64"):
        read_glove(VOCABULARY, width=64, folder=folder)
    with pytest.raises(ValueError, match="No word of the vocabulary has a vector"):
        read_glove(Vocabulary.from_sentences([["THE"]]), folder=folder, verify=False)
    with pytest.raises(ValueError, match="damaged or another version"):
        read_glove(VOCABULARY, folder=folder)


def test_the_commonest_words_can_be_fetched():
    assert COMMONEST.urls and COMMONEST.make is not None


def test_the_real_vector_of_the_is_the_published_one(data_folder):
    vectors = read_glove(VOCABULARY, folder=data_folder)
    the = vectors.matrix[VOCABULARY.encode(["the"])[0]]
    assert the[:3].tolist() == pytest.approx([0.418, 0.24968, -0.41242], abs=6e-4)
    assert vectors.found.sum() == 2
