import pytest
import torch

from headwise_papers.data.synthetic import PairTask, TopicTask


def test_each_sentence_has_one_topic_word_and_it_tells_the_label():
    task = TopicTask()
    drawn = task.draw([0, 1])
    for bags in (drawn.train, drawn.test):
        is_topic = bags.tokens < task.topic_words
        assert (is_topic.sum(-1) == 1).all()
        word = bags.tokens[is_topic].view(bags.labels.shape)
        assert torch.equal(word // task.words_per_topic, bags.labels)
    assert drawn.train.tokens.shape == (2, 800, 21)
    assert drawn.test.tokens.shape == (2, 200, 21)
    assert int(drawn.train.tokens.max()) < task.vocabulary == 5008


def test_topic_words_and_their_places_are_uniform():
    drawn = TopicTask(train=4000, test=1).draw([0])
    words = drawn.train.tokens[drawn.train.tokens < 8]
    places = (drawn.train.tokens < 8).int().argmax(-1)
    assert torch.bincount(words, minlength=8).float().std() < 60  # 500 each, deviation about 21
    assert torch.bincount(places[0], minlength=21).min() > 100


@pytest.mark.parametrize("task", [TopicTask(), PairTask()])
def test_a_seed_is_the_same_whichever_stand_beside_it(task):
    alone, beside = task.draw([3]), task.draw([1, 3])
    assert torch.equal(alone.train.tokens[0], beside.train.tokens[1])
    assert torch.equal(alone.test.labels[0], beside.test.labels[1])
    assert not torch.equal(beside.train.tokens[0], beside.train.tokens[1])


def test_sentences_of_pairs_start_with_a_pair_of_their_topic():
    drawn = PairTask().draw([0, 1])
    for seed in range(2):
        own = drawn.pairs[seed][drawn.train.labels[seed]]  # sentences, pairs, 2
        start = drawn.train.tokens[seed, :, None, :2]
        assert (own == start).all(-1).any(-1).all()
        assert len(drawn.pairs[seed].unique()) == 8


def test_the_first_word_of_a_pair_is_always_followed_by_the_second_in_its_topic_only():
    drawn = PairTask(train=4000, test=1).draw([0])
    tokens, labels = drawn.train.tokens[0], drawn.train.labels[0]
    first, second = drawn.pairs[0, 0, 0].tolist()
    here, after = tokens[:, :-1] == first, tokens[:, 1:] == second
    assert (after[labels == 0][here[labels == 0]]).all()
    assert (after[labels == 1][here[labels == 1]]).float().mean() < 0.1


def test_more_pairs_than_words_are_refused():
    with pytest.raises(ValueError, match="4 pairs need 8 words"):
        PairTask(dictionary=7)
