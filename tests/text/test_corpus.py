"""Text files are streamed, and bad ones are reported with the place of the trouble."""

import gzip
import lzma
import tracemalloc
from itertools import islice

import pytest

from headwise.text.corpus import all_lines, read_lines

TEXT = "\ufeffone\r\n\ntwo\u2028and a half\x85\n\n"


def test_lines_are_stripped_and_blank_ones_skipped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffone  \r\n\n \t \n  zwölf\u2028dreizehn\nlast".encode())
    assert list(read_lines(path)) == ["one", "zwölf\u2028dreizehn", "last"]


def test_a_missing_file_and_a_folder_are_reported_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"no text file .*nowhere\.txt"):
        read_lines(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="is a folder"):
        read_lines(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n"])
def test_a_file_without_text_is_reported(tmp_path, content):
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="holds no text"):
        list(read_lines(path))


def test_invalid_utf8_is_reported_with_its_line_after_the_good_lines(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\n\nna\xefve\n")
    lines = read_lines(path)
    assert next(lines) == "fine"
    with pytest.raises(ValueError, match=r"line 3: UTF-8 text was wanted, but byte 3 .* 0xef"):
        next(lines)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("some words of a long text\n" * 100_000)  # 2.6 MB
    tracemalloc.start()
    assert sum(1 for _ in islice(read_lines(path), 5000)) == 5000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300_000


@pytest.mark.parametrize(("suffix", "packed"), [("", bytes), (".xz", lzma.compress),
                                                (".gz", gzip.compress)])  # fmt: skip
def test_lines_end_at_line_feeds_alone(suffix, packed, tmp_path):
    path = tmp_path / f"mine.txt{suffix}"
    path.write_bytes(packed(TEXT.encode()))
    assert all_lines(path) == ["one", "", "two\u2028and a half\x85", ""]
    assert all_lines(path, trailing=False) == ["one", "", "two\u2028and a half\x85"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("odd.txt", b"fine\nb\xe4d", r"odd.txt, line 2: UTF-8 .* byte 2 of the line is 0xe4"),
        ("blank.txt", b"\n \n", r"blank.txt holds no text"),
        ("empty.txt", b"", r"empty.txt holds no text"),
        ("torn.txt.xz", lzma.compress(b"text")[:-4], r"torn.txt.xz is not a whole .xz file"),
        ("torn.txt.gz", b"text", r"torn.txt.gz is not a whole .gz file"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        all_lines(tmp_path / name)


def test_folders_and_what_is_missing_are_told(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        all_lines(tmp_path)
    with pytest.raises(ValueError, match=r"There is no text file .*none.txt"):
        all_lines(tmp_path / "none.txt")
