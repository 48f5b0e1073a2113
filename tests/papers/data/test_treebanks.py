from collections import Counter

import pytest

from headwise_papers.data.annotations import TREEBANKS, read_named_treebank, treebank_file


def test_misspelt_names_get_a_suggestion():
    with pytest.raises(ValueError, match="Did you mean 'en_ewt'"):
        read_named_treebank("en_ewd", "dev")
    with pytest.raises(ValueError, match="de_gsd has no part 'train'"):
        treebank_file("de_gsd", "train")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("en_ewt", {"dev": 2001, "test": 2077}),
        ("de_gsd", {"dev": 799, "test": 977}),
        ("ru_gsd", {"dev": 579, "test": 601}),
        ("tl_trg", {"test": 128}),
        ("tl_ugnayan", {"test": 94}),
    ],
)
def test_real_treebanks_have_the_published_sizes(data_folder, name, sizes):
    for part, size in sizes.items():
        assert sum(1 for _ in read_named_treebank(name, part, folder=data_folder)) == size
    assert set(TREEBANKS[name]) - {"train"} == set(sizes)


def test_texts_of_a_real_treebank_are_those_it_states(data_folder):
    lines = treebank_file("en_ewt", "dev").lines(data_folder)
    stated = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    trees = list(read_named_treebank("en_ewt", "dev", folder=data_folder))
    assert [tree.text for tree in trees] == [text.strip() for text in stated]
    assert all(len(tree.spans) == len(tree.words) for tree in trees)


@pytest.mark.slow
def test_relations_of_a_real_treebank_are_as_often_as_published(data_folder):
    trees = list(read_named_treebank("en_ewt", "train", folder=data_folder))
    counts = Counter(relation.partition(":")[0] for tree in trees for relation in tree.relations)
    assert len(trees) == 12_544
    assert [counts[name] for name in ("nsubj", "obj", "amod", "advmod")] == [
        17_377, 9896, 9587, 11_301,
    ]  # fmt: skip
