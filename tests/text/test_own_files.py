"""Files that users bring: lines as they are, and troubles with their place."""

import gzip
import lzma

import pytest

from headwise.text.own_files import own_lines

TEXT = "\ufeffone\r\n\ntwo\u2028and a half\x85\n\n"


@pytest.mark.parametrize(("suffix", "packed"), [("", bytes), (".xz", lzma.compress),
                                                (".gz", gzip.compress)])  # fmt: skip
def test_lines_end_at_line_feeds_alone(suffix, packed, tmp_path):
    path = tmp_path / f"mine.txt{suffix}"
    path.write_bytes(packed(TEXT.encode()))
    assert own_lines(path) == ["one", "", "two\u2028and a half\x85", ""]
    assert own_lines(path, trailing=False) == ["one", "", "two\u2028and a half\x85"]


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
        own_lines(tmp_path / name)


def test_folders_and_what_is_missing_are_told(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        own_lines(tmp_path)
    with pytest.raises(ValueError, match=r"There is no text file .*none.txt"):
        own_lines(tmp_path / "none.txt")
