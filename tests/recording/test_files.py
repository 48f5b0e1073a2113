import pytest

from headwise.recording import files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_place_is_taken_only_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with files.replacing(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".")
        assert not path.exists()
    assert path.read_text() == "new"


def test_text_is_utf8_with_plain_line_ends(tmp_path):
    files.write_text(tmp_path / "a.txt", "é\n")
    assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa9\n"
