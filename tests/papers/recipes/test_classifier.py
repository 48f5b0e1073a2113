"""What models read: marks, pairs, words in pieces, and what does not fit."""

import subprocess
import sys

import torch

from headwise_papers.data.subword import train_byte_level
from headwise_papers.data.tasks import Example
from headwise_papers.recipes.classifier import (
    IGNORED,
    TruncatingTokenizer,
    batch_of,
    batches,
    read_example,
    read_sentence,
)

TEXTS = ["the film was long", "the long film"] * 3


def pieces(style="roberta", length=16):
    made = train_byte_level(TEXTS, size=300, style=style)
    return made, TruncatingTokenizer(made.definition, made.pad, length)


def test_pairs_have_the_marks_of_their_family():
    made, reader = pieces()
    film = made.encode("film")
    alone, pair = reader.read([read_example("film"), read_example("film", "film")])
    assert alone.ids == [made.begin, *film, made.end]
    assert pair.ids == [made.begin, *film, made.end, made.end, *film, made.end]
    assert not any(pair.types) and not pair.cut
    made, reader = pieces("bert")
    (pair,) = reader.read([Example(1, "film", "film")])
    assert pair.ids == [made.begin, *film, made.end, *film, made.end]
    assert pair.types == [0] * (len(film) + 2) + [1] * (len(film) + 1)


def test_the_first_piece_of_a_word_carries_its_tag():
    made, reader = pieces()
    words = ("the", "xq", "film")
    (row,) = reader.read([read_sentence(words)])
    sizes = [len(made.encode(word)) for word in words]
    assert sizes[1] > 1
    assert row.firsts == [1, 1 + sizes[0], 1 + sizes[0] + sizes[1]]
    # the pieces are those of the running text
    assert row.ids[1:-1] == made.encode(" ".join(words))
    labels = batch_of(reader, [row], [[3, 4, 5]])["labels"]
    assert labels.shape[1] == 8 * -(-len(row.ids) // 8)
    assert {place: int(labels[0, place]) for place in row.firsts} == dict(
        zip(row.firsts, (3, 4, 5), strict=True)
    )
    assert (labels != IGNORED).sum() == 3


def test_what_a_text_says_is_no_mark():
    made, reader = pieces()
    (row,) = reader.read([read_example("film</s>")])
    assert row.ids == [made.begin, *made.encode("film</s>"), made.end]
    assert row.ids.count(made.end) == 1


def test_what_does_not_fit_is_cut_and_said():
    made, reader = pieces(length=8)
    long, short = reader.read([read_example("film " * 20, "the " * 20), read_example("film")])
    assert len(long.ids) == 8 and long.ids[-1] == made.end and long.cut and not short.cut
    (row,) = reader.read([read_sentence(["film"] * 20)])
    inside = sum(place >= 0 for place in row.firsts)
    assert row.cut and 0 < inside < 20 and row.firsts[inside:] == [-1] * (20 - inside)
    labels = batch_of(reader, [row], [[1] * 20])["labels"]
    assert labels.shape == (1, 8) and int((labels == 1).sum()) == inside


def test_batches_have_few_widths_and_none_that_a_model_has_no_room_for():
    _, reader = pieces(length=20)
    rows = reader.read([read_example("film " * number) for number in range(1, 31)])
    epochs = batches(reader, rows, [[0]] * len(rows), size=4, seed=0)
    made = [epochs(number) for number in range(3 * len(epochs))]
    assert {batch["ids"].shape[1] for batch in made} == {8, 16, 20}
    assert all(batch["types"].shape == batch["ids"].shape for batch in made)
    sizes = [len(batch["ids"]) for batch in made]
    assert set(sizes) == {4, 2} and sizes.count(2) == 3  # one smaller batch an epoch


def test_batches_hold_every_example_once_with_its_label():
    _, reader = pieces()
    rows = reader.read([read_example("film " * (1 + number % 5)) for number in range(11)])
    epoch = batches(reader, rows, [[number] for number in range(11)], size=4, seed=0)
    seen = [epoch(number) for number in range(len(epoch))]
    assert sorted(torch.cat([batch["labels"] for batch in seen]).tolist()) == list(range(11))
    for batch in seen:
        for label, length in zip(batch["labels"], batch["lengths"], strict=True):
            assert int(length) == len(rows[int(label)].ids)


LONG_LINES = """
import resource
from types import SimpleNamespace
from headwise.workflows.prune.task import _encoded
from headwise_papers.recipes.classifier import read_example, read_sentence
from tests.workflows.small_hosts import tokenizer_for
from tests.papers.recipes.test_classifier import pieces

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
reader, line = pieces()[1], "the long film " * 200_000
subject = SimpleNamespace(max_tokens=16, tokenizer=tokenizer_for("BERT"))


def read(line):
    (row,) = reader.read([read_example(line)])
    assert row.cut and len(row.ids) == 16
    (row,) = reader.read([read_sentence(line.split())])
    assert row.cut and len(row.firsts) == len(line.split())
    (ids,) = _encoded(SimpleNamespace(length=16), subject, [line])
    assert len(ids) == 16


read(line[:1400])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read(line)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_long_lines_take_little_memory():
    done = subprocess.run([sys.executable, "-c", LONG_LINES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150  # MiB
