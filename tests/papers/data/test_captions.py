import io
import tarfile

import pytest
import torch
from PIL import Image

from headwise_papers.data.captions import CaptionStream, caption_words, read_captions
from headwise_papers.data.vocabulary import BOS, EOS, UNK

COLOURS = {"red.jpg": (250, 0, 0), "blue.jpg": (0, 0, 250)}


def archive(names):
    """A tar file of plain images."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for name in names:
            jpeg = io.BytesIO()
            Image.new("RGB", (128, 128), COLOURS[name]).save(jpeg, "JPEG")
            member = tarfile.TarInfo(name)
            member.size = len(jpeg.getvalue())
            tar.addfile(member, io.BytesIO(jpeg.getvalue()))
    return held.getvalue()


@pytest.fixture
def small(tmp_path):
    """A data folder with two images in each part, archived in the other order."""
    folder = tmp_path / "flickr8k"
    folder.mkdir()
    rows = [f"{name}\t{number}\tA {name[:-4]} thing , number {number} ."
            for name in COLOURS for number in range(5)]  # fmt: skip
    for part in ("train", "dev", "test"):
        (folder / f"captions-{part}.tsv").write_text("\n".join(rows) + "\n")
        (folder / f"images128-{part}.tar").write_bytes(archive(reversed(COLOURS)))
    return tmp_path


def test_each_image_has_its_own_captions(small):
    data = read_captions(folder=small, size=8, minimum_count=2, verify=False)
    for part in (data.train, data.valid, data.test):
        assert part.names == list(COLOURS)
        assert [five[4] for five in part.captions] == [
            "A red thing , number 4 .", "A blue thing , number 4 ."
        ]  # fmt: skip
        assert part.images.shape == (2, 3, 8, 8) and part.images.dtype == torch.uint8
        red, blue = part.images.float().mean((2, 3))
        assert red[0] > 200 > 50 > red[2] and blue[2] > 200 > 50 > blue[0]


def test_rare_words_are_unknown(small):
    data = read_captions(folder=small, size=None, minimum_count=3, verify=False)
    assert data.train.images is None
    assert data.vocabulary.encode(["a", "red", "0"])[2] == UNK
    everything = read_captions(folder=small, size=None, minimum_count=1, verify=False)
    assert UNK not in everything.vocabulary.encode(["a", "red", "0"])


def test_captions_are_compared_without_case_and_marks():
    assert caption_words("The T-shirt 's red , isn't it ?") == [
        "the", "t-shirt", "s", "red", "isn't", "it"
    ]  # fmt: skip


def test_features_handed_in_take_the_place_of_images(small):
    features = {"blue.jpg": torch.ones(4, 6), "red.jpg": torch.zeros(4, 6)}
    data = read_captions(folder=small, features=features, verify=False)
    assert torch.equal(data.test.images, torch.stack([torch.zeros(4, 6), torch.ones(4, 6)]))
    with pytest.raises(ValueError, match=r"no features of blue.jpg"):
        read_captions(folder=small, features={"red.jpg": torch.zeros(1)}, verify=False)
    with pytest.raises(ValueError, match="Features of one shape"):
        features["red.jpg"] = torch.zeros(3, 6)
        read_captions(folder=small, features=features, verify=False)


def test_what_is_missing_or_damaged_is_said(small):
    with pytest.raises(ValueError, match="size is 1 to 128, got 256"):
        read_captions(folder=small, size=256, verify=False)
    with pytest.raises(ValueError, match="damaged or another version"):
        read_captions(folder=small, size=None)
    images = small / "flickr8k/images128-dev.tar"
    images.write_bytes(archive(["red.jpg"]))
    with pytest.raises(ValueError, match=r"images128-dev.tar has no image blue.jpg"):
        read_captions(folder=small, verify=False)
    images.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"images128-dev.tar cannot be read"):
        read_captions(folder=small, verify=False)
    images.unlink()
    with pytest.raises(ValueError, match=r"no flickr8k/images128-dev.tar .*make it from Flicker8k"):
        read_captions(folder=small, verify=False)
    captions = small / "flickr8k/captions-test.tsv"
    captions.write_text("red.jpg\t0\tOne\nred.jpg\t2\tThree\n")
    with pytest.raises(ValueError, match=r"captions-test.tsv, line 2: an image, the number"):
        read_captions(folder=small, size=None, verify=False)
    captions.write_text("red.jpg\t0\tOne\n")
    with pytest.raises(ValueError, match=r"has 1 captions of red.jpg, but 5 were wanted"):
        read_captions(folder=small, size=None, verify=False)


CAPTIONS = [[[10 * image + number] * (1 + number) for number in range(3)] for image in range(1, 8)]


def stream(seed=0):
    return CaptionStream(torch.arange(1, 8)[:, None], CAPTIONS, batch_size=3, seed=seed)


def test_every_image_comes_once_an_epoch_and_every_caption_once_in_as_many():
    captions = set()
    for epoch in range(3):
        seen = []
        for number in range(3 * epoch, 3 * epoch + 3):
            batch = stream()(number)
            seen += batch.images[:, 0].tolist()
            captions |= set(batch.target_out[:, 0].tolist())
            assert (batch.target_out[:, 0] // 10).tolist() == batch.images[:, 0].tolist()
        assert sorted(seen) == list(range(1, 8))
    assert captions == {caption[0] for five in CAPTIONS for caption in five}


def test_marks_stand_around_a_caption():
    batch = stream()(0)
    length = batch.target_lengths[0].item()
    assert batch.target_in[0, 0] == BOS and batch.target_out[0, length - 1] == EOS
    assert torch.equal(batch.target_in[0, 1:length], batch.target_out[0, : length - 1])


def test_a_batch_depends_on_its_number_and_seed_alone():
    assert torch.equal(stream()(5).images, stream()(5).images)
    orders = [torch.cat([stream(seed)(n).images for n in range(3)]) for seed in (0, 1)]
    assert not torch.equal(*orders)


def test_a_stream_without_captions_is_refused():
    with pytest.raises(ValueError, match="got 2 images and 1 lists"):
        CaptionStream(torch.zeros(2, 1), [[[5]]], batch_size=1, seed=0)
    with pytest.raises(ValueError, match="batch_size must be 1 or more"):
        CaptionStream(torch.zeros(1, 1), [[[5]]], batch_size=0, seed=0)


def test_real_captions_are_five_for_each_image(data_folder):
    data = read_captions(folder=data_folder, size=None)
    assert [len(part.names) for part in (data.train, data.valid, data.test)] == [6000, 1000, 1000]
    assert not set(data.train.names) & {*data.valid.names, *data.test.names}
    assert len(data.vocabulary) == 2540


@pytest.mark.slow
def test_real_images_are_there(data_folder):
    data = read_captions(folder=data_folder, size=32)
    assert data.train.images.shape == (6000, 3, 32, 32)
    assert 80 < data.test.images.float().mean() < 150
