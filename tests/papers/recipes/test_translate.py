"""translate: in order, whatever arrives together, empty lines included."""

import io
import subprocess
import sys

import pytest

from headwise_papers.recipes.translator import arriving_lines, open_translator, translate_stream

LINES = ["the dog saw a cat .", "", "it ran .", "the dogs often saw the cats and it ran .", "  "]


class Pieces(io.RawIOBase):
    """A stream that gives what it was given, a part at each look."""

    def __init__(self, *parts):
        self.parts = list(parts)

    def read1(self, size=-1, /):
        return self.parts.pop(0) if self.parts else b""


@pytest.fixture(scope="module")
def translator(small_translation):
    return open_translator(small_translation)


def translated(translator, stream, **options):
    found = []
    translate_stream(translator, stream, found.append, **options)
    return found


def test_lines_come_as_they_arrive():
    stream = Pieces(b"one\ntw", b"o\n", b"thr", b"ee\r\nf\xc3", b"\xbcnf")
    assert list(arriving_lines(stream)) == [["one"], ["two"], ["three"], ["fünf"]]


def test_a_line_that_is_not_utf8_is_named():
    with pytest.raises(ValueError, match=r"Line 2 is not UTF-8"):
        list(arriving_lines(io.BytesIO(b"one\n\xff\n")))


def test_translations_keep_the_order_and_empty_lines_stay_empty(translator):
    text = io.BytesIO("\n".join(LINES).encode())
    lines = "".join(translated(translator, text)).split("\n")
    assert len(lines) == len(LINES) + 1
    assert [bool(line) for line in lines] == [True, False, True, True, False, False]
    alone = [translator.translate([line], beams=4)[0] for line in LINES]
    assert lines[:-1] == alone


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_the_size_of_a_batch_changes_nothing(translator, batch):
    text = "".join(f"{line}\n" for line in LINES).encode()
    assert translated(translator, io.BytesIO(text), batch=batch) == translated(
        translator, io.BytesIO(text)
    )


def test_what_arrives_alone_is_answered_alone(translator):
    stream = Pieces(*(f"{line}\n".encode() for line in LINES))
    assert len(translated(translator, stream)) == len(LINES)


def test_lines_too_long_are_cut_and_counted(translator):
    long = "the dog " * 100
    text = io.BytesIO(f"{long}\nit ran .\n".encode())
    assert translate_stream(translator, text, lambda text: None, beams=1) == 1


def test_beams_and_batches_that_make_no_sense_are_refused(translator):
    with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
        translator.translate(["it ran ."], beams=0)
    with pytest.raises(ValueError, match="at least one sentence, got 0"):
        translator.translate(["it ran ."], batch=0)


def test_a_sentence_is_answered_before_the_next_one_comes(small_translation):
    command = [sys.executable, "-m", "headwise", "translate", str(small_translation)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    answers = []
    for line in ("the dog saw a cat .", "", "it ran ."):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answers.append(process.stdout.readline())  # hangs, and so fails, if nothing is answered
    process.stdin.close()
    assert process.wait(timeout=30) == 0 and not process.stdout.read()
    process.stdout.close()
    assert [len(answer) > 1 for answer in answers] == [True, False, True]
