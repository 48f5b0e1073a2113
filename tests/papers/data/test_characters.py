import io
import lzma
import zipfile

import pytest
import torch

from headwise_papers.data.characters import (
    CHARACTER_FILES,
    CharacterStream,
    as_text,
    read_characters,
)


def test_enwik8_is_cut_at_90_and_95_hundredths(tmp_path):
    (tmp_path / "enwik8").mkdir()
    text = bytes(range(200))
    (tmp_path / "enwik8/enwik8.xz").write_bytes(lzma.compress(text))
    data = read_characters("enwik8", folder=tmp_path, verify=False)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [180, 10, 10]
    assert bytes(torch.cat([data.train, data.valid, data.test]).tolist()) == text
    with pytest.raises(ValueError, match="damaged or another version; take it from mattmahoney"):
        read_characters("enwik8", folder=tmp_path)


def test_enwik8_is_made_of_its_archive():
    (file,) = CHARACTER_FILES["enwik8"]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("enwik8", b"<mediawiki>")
    assert file.make([packed.getvalue()]) == b"<mediawiki>"
    with pytest.raises(ValueError, match="no zip archive"):
        file.make([b"<html>"])


@pytest.mark.parametrize("name", ["enwiki-xml-6mb", "ptb", "wikitext-2"])
def test_parts_are_files_of_their_own(tmp_path, name):
    for number, file in enumerate(CHARACTER_FILES[name]):
        path = tmp_path / file.name
        path.parent.mkdir(exist_ok=True)
        path.write_text("ü" * (number + 1))
    data = read_characters(name, folder=tmp_path, verify=False)
    assert [as_text(part) for part in (data.train, data.valid, data.test)] == ["ü", "üü", "üüü"]
    assert data.train.tolist() == list("ü".encode())
    path.write_text("")
    with pytest.raises(ValueError, match="is empty; get it again"):
        read_characters(name, folder=tmp_path, verify=False)
    path.unlink()
    with pytest.raises(ValueError, match="make it from"):
        read_characters(name, folder=tmp_path, verify=False)


def test_a_wrong_name_is_said(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'enwik8'"):
        read_characters("enwik", folder=tmp_path)


def test_rows_go_on_from_segment_to_segment_and_predict_the_next_symbol():
    ids = torch.randint(256, (101,), dtype=torch.uint8)
    stream = CharacterStream(ids, batch_size=3, length=4)
    segments = [stream(number) for number in range(stream.per_epoch)]
    for row in range(3):
        read = torch.cat([segment.inputs[row] for segment in segments])
        assert torch.equal(read, ids[row * 33 : row * 33 + 32].long())
        after = torch.cat([segment.targets[row] for segment in segments])
        assert torch.equal(after, ids[row * 33 + 1 : row * 33 + 33].long())
    assert stream.per_epoch == 8


def test_the_text_begins_again_and_a_segment_depends_on_its_number_alone():
    stream = CharacterStream(torch.arange(50), batch_size=2, length=5)
    for number in (0, 3):
        later = stream(number + 7 * stream.per_epoch)
        assert torch.equal(later.inputs, stream(number).inputs)


@pytest.mark.parametrize(
    ("batch_size", "length", "said"),
    [(0, 1, "must be 1 or more"), (2, 5, "but the text has 10"), (11, 1, "but the text has 10")],
)
def test_a_stream_too_short_is_refused(batch_size, length, said):
    with pytest.raises(ValueError, match=said):
        CharacterStream(torch.arange(10), batch_size=batch_size, length=length)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("enwiki-xml-6mb", [5_489_021, 322_051, 278_674]),
        ("ptb", [5_101_618, 399_782, 449_945]),
        ("wikitext-2", [10_797_148, 1_121_681, 1_256_449]),
    ],
)
def test_real_texts_have_their_sizes(data_folder, name, sizes):
    data = read_characters(name, folder=data_folder)
    assert [len(part) for part in (data.train, data.valid, data.test)] == sizes
