"""Questions: every step once, hidden words one at a time, draws that batches do not change."""

import pytest
import torch

from headwise.workflows.inspect.hugging_face import HuggingFaceSubject, padding_right
from headwise.workflows.inspect.importance import predictions_of
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import Output
from tests.workflows.inspect.test_subjects import wordpieces
from tests.workflows.small_hosts import LINES, host, tokenizer_for

SENTENCES = [Sentence.of_text(line) for line in LINES[:3]]


def gpt2():
    subject = HuggingFaceSubject(host("GPT-2"), padding_right(tokenizer_for("GPT-2")))
    return subject, subject.prepare(SENTENCES)


def test_every_word_is_asked_for_what_follows():
    subject, prepared = gpt2()
    asked = predictions_of(subject, prepared, "next", numbers=[0, 1, 2])
    wanted = (prepared.words["decoder"].of >= 0).nonzero()
    assert torch.equal(asked.at, wanted)
    assert list(asked.steps) == [len(sentence.words) for sentence in SENTENCES]


def test_a_class_is_asked_for_once():
    subject, prepared = gpt2()
    asked = predictions_of(subject, prepared, "class", numbers=[0, 1, 2])
    assert asked.at.tolist() == [[0, 0], [1, 0], [2, 0]] and list(asked.steps) == [1, 1, 1]


def test_steps_are_drawn_by_the_number_of_the_sentence_alone():
    subject, prepared = gpt2()
    together = predictions_of(subject, prepared, "next", numbers=[5, 6, 7], steps=2, seed=1)
    assert together.at[:, 0].bincount().tolist() == [2, 2, 2]
    alone = subject.prepare(SENTENCES[1:2])
    one = predictions_of(subject, alone, "next", numbers=[6], steps=2, seed=1)
    assert one.at[:, 1].tolist() == together.at[together.at[:, 0] == 1, 1].tolist()


def test_hidden_words_are_hidden_one_at_a_time():
    subject = HuggingFaceSubject(host("BERT"), wordpieces())
    prepared = subject.prepare([Sentence.of_text("the dogs ran."), Sentence.of_text("the dog")])
    asked = predictions_of(subject, prepared, "masked", numbers=[0, 1])
    ids = asked.inputs["input_ids"]
    assert ids.shape[0] == 5 + 2 and asked.item.tolist() == [0] * 5 + [1] * 2
    hidden = (ids == subject.mask_id).nonzero()
    assert torch.equal(hidden, asked.at)
    assert (prepared.inputs["input_ids"] != subject.mask_id).all()  # left as it was


def test_parts_and_rows_keep_their_questions():
    subject, prepared = gpt2()
    asked = predictions_of(subject, prepared, "next", numbers=[0, 1, 2])
    values = torch.arange(3 * 20 * 2.0).view(3, 20, 2)
    whole = asked.values(Output(values, "next"))
    parts = [
        part.values(Output(values[start : start + 2], "next"))
        for start, part in zip((0, 2), asked.parts(2), strict=True)
    ]
    assert torch.equal(torch.cat(parts), whole)
    rows = torch.tensor([2, 0, 2])
    taken, question = asked.taken(rows)
    assert torch.equal(taken.values(Output(values[rows], "next")), whole[question])


def test_a_batch_without_a_word_is_not_asked():
    subject, prepared = gpt2()
    prepared.words["decoder"].of.fill_(-1)
    assert predictions_of(subject, prepared, "next", numbers=[0, 1, 2]) is None


@pytest.mark.parametrize("steps", [None, 100])
def test_more_steps_than_there_are_takes_all(steps):
    subject, prepared = gpt2()
    asked = predictions_of(subject, prepared, "next", numbers=[0, 1, 2], steps=steps)
    assert len(asked.at) == sum(asked.steps)
