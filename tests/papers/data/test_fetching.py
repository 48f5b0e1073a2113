import gzip
import hashlib
import http.server
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headwise_papers.data.provenance import fetch, unzipped
from headwise_papers.data.source import DataFile

TEXT = b"1\tgood\n" * 50_000


class _Handler(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self):
        self.asked.append(self.path)
        body = gzip.compress(TEXT) if self.path.endswith(".gz") else TEXT
        self.send_response(404 if self.path == "/absent" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:-10] if self.path == "/short" else body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def host():
    _Handler.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def file(host):
    checksum = hashlib.sha256(TEXT).hexdigest()
    return DataFile("set/part.tsv", checksum, "the origin", (f"{host}/x.gz",), unzipped)


def _everything(folder: Path):
    return [path for path in folder.rglob("*") if path.is_file() or path.name.startswith(".")]


def test_a_file_is_downloaded_made_checked_and_put_in_its_place(file, tmp_path):
    told = []
    paths = fetch([file], tmp_path / "new", progress=lambda *state: told.append(state))
    assert paths == [tmp_path / "new/set/part.tsv"] == _everything(tmp_path / "new")
    assert file.read(tmp_path / "new") == TEXT
    size = len(gzip.compress(TEXT))
    assert told[-1] == ("x.gz", size, size)


def test_what_is_there_is_not_asked_for_again(file, tmp_path):
    fetch([file], tmp_path)
    fetch([file], tmp_path)
    assert _Handler.asked == ["/x.gz"]
    (tmp_path / "set/part.tsv").write_bytes(b"damaged")
    fetch([file], tmp_path)
    assert file.read(tmp_path) == TEXT


def test_two_files_of_one_archive_ask_for_it_once(file, tmp_path):
    fetch([file, replace(file, name="set/other.tsv")], tmp_path)
    assert _Handler.asked == ["/x.gz"]
    assert len(_everything(tmp_path)) == 2


def test_several_downloads_make_one_file(file, host, tmp_path):
    twice = replace(file, urls=(f"{host}/a", f"{host}/b"), make=lambda parts: parts[1])
    fetch([twice], tmp_path)
    assert twice.read(tmp_path) == TEXT and _Handler.asked == ["/a", "/b"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/plain", r"set/part.tsv cannot be made of what .*/plain gave"),
        ("/absent", r"/absent could not be downloaded \(HTTP Error 404.*take the origin"),
        ("/short", "/short (broke off after|could not be downloaded)"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(file, host, tmp_path, address, said):
    with pytest.raises(ValueError, match=said):
        fetch([replace(file, urls=(host + address,))], tmp_path)
    assert not _everything(tmp_path)


def test_a_wrong_checksum_leaves_nothing_behind_and_keeps_what_was_there(file, tmp_path):
    wrong = replace(file, sha256="0" * 64)
    with pytest.raises(ValueError, match="has not the known checksum, so it was not kept"):
        fetch([wrong], tmp_path)
    assert not _everything(tmp_path)
    (tmp_path / "set").mkdir(exist_ok=True)
    (tmp_path / "set/part.tsv").write_bytes(b"mine")
    with pytest.raises(ValueError, match="take it from the origin and read it with verify=False"):
        fetch([wrong], tmp_path)
    assert (tmp_path / "set/part.tsv").read_bytes() == b"mine"


def test_an_address_that_does_not_answer_is_said(file, tmp_path):
    with pytest.raises(ValueError, match="could not be downloaded"):
        fetch([replace(file, urls=("http://127.0.0.1:9/x",))], tmp_path)


def test_a_file_without_an_address_is_refused_before_anything_is_asked(file, tmp_path):
    with pytest.raises(ValueError, match=r"set/b cannot be downloaded as it is; take the origin."):
        fetch([file, DataFile("set/b", "", "the origin")], tmp_path / "new")
    assert not _Handler.asked and not (tmp_path / "new").exists()
