import hashlib
import lzma
from dataclasses import replace

import pytest

from headwise_papers.data.source import DataFile, data_folder, write_whole

TEXT = b"1\tgood\n"
FILE = DataFile("set/part.tsv", hashlib.sha256(TEXT).hexdigest(), "example.org")


def test_plain_and_packed_files_are_read_alike(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/part.tsv.xz").write_bytes(lzma.compress(TEXT))
    assert FILE.read(tmp_path) == TEXT
    (tmp_path / "set/part.tsv").write_bytes(TEXT)
    assert FILE.read(tmp_path) == TEXT


def test_other_contents_are_refused_unless_asked_for(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/part.tsv").write_bytes(b"0\tbad\n")
    with pytest.raises(ValueError, match="damaged or another version; take it"):
        FILE.read(tmp_path)
    assert FILE.read(tmp_path, verify=False) == b"0\tbad\n"


def test_missing_and_broken_files_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="make it from example"):
        FILE.read(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/part.tsv.xz").write_bytes(b"no xz")
    with pytest.raises(ValueError, match="not a whole xz file"):
        FILE.read(tmp_path)


def test_the_folder_is_the_one_given_or_the_variables(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    with pytest.raises(ValueError, match="HEADWISE_DATA is not set; set it to a folder made from"):
        data_folder(None, wanted="SST2", origin="example.org")
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    assert data_folder(None, wanted="SST2", origin="example.org") == tmp_path
    with pytest.raises(ValueError, match="is not a folder"):
        data_folder(tmp_path / "absent", wanted="SST2", origin="example.org")


def test_another_known_version_is_as_good(tmp_path):
    other = replace(FILE, sha256="0" * 64, other_sha256=(FILE.sha256,))
    assert not other.is_right(tmp_path) and other.path(tmp_path) is None
    write_whole(tmp_path / "set/part.tsv", TEXT)
    assert other.is_right(tmp_path) and other.read(tmp_path) == TEXT
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["part.tsv"]


def test_lines_end_at_line_feeds_only(tmp_path):
    write_whole(tmp_path / "set/part.tsv", "one\u0085more\r\ntwo\n".encode())
    assert FILE.lines(tmp_path, verify=False) == ["one\u0085more\r", "two"]
