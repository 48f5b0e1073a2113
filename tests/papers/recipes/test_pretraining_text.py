"""The text of a pre-training: it stays the one it was, and is enough, before there is a folder."""

import pytest
import torch

from headwise.recording import Run
from headwise_papers.data.pretraining import PretrainingTexts
from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain
from headwise_papers.recipes.pretraining_data import read_texts
from tests.papers.recipes.configured import configured

SHORT = {
    "corpus": "file",
    "vocab_size": 300,
    "width": 64,
    "heads": 4,
    "feed_forward": 128,
    "layers": 1,
    "max_length": 16,
    "batch_size": 2,
    "steps": 4,
    "warmup": 1,
    "evaluate_every": 4,
    "checkpoint_every": 2,
}


def written(path, *, cat="cat", lines=60):
    path.write_text("".join(f"the {cat} number {n} ran home .\n" for n in range(lines)))
    return path


@pytest.fixture
def first(tmp_path):
    """A finished run, and its settings."""
    config = configured(PretrainingConfig, **SHORT, file=str(written(tmp_path / "text.txt")))
    return pretrain(config, tmp_path / "first"), config


def test_a_text_that_has_changed_is_not_lent(first, tmp_path):
    run, config = first
    later = configured(config, text_of=str(run.folder), seed=1)
    written(tmp_path / "text.txt", cat="dog")
    with pytest.raises(ValueError, match=r"text\.txt is not the text it was when .*first read it"):
        pretrain(later, tmp_path / "later")
    assert not (tmp_path / "later").exists()
    written(tmp_path / "text.txt")
    assert pretrain(later, tmp_path / "later").read_json("text.json") == run.read_json("text.json")


def test_a_file_that_is_gone_is_lent_by_the_run_that_read_it(first, tmp_path):
    run, config = first
    (tmp_path / "text.txt").unlink()
    later = configured(config, text_of=str(run.folder), seed=1)
    assert pretrain(later, tmp_path / "later").has("figures.json")


def unfinished(run):
    """As after an interruption that lost the numbered text too."""
    for name in ("figures.json", "model.safetensors", "text.safetensors"):
        run.path(name).unlink(missing_ok=True)
    assert run.has("checkpoint.safetensors")


def test_a_training_does_not_go_on_with_another_text(first, tmp_path):
    run, config = first
    unfinished(run)
    written(tmp_path / "text.txt", cat="dog")
    with pytest.raises(ValueError, match=r"first holds a training on another text, of checksum"):
        pretrain(config, run.folder)
    written(tmp_path / "text.txt")
    assert pretrain(config, run.folder).has("figures.json")


def test_nor_where_the_run_that_lends_it_was_made_anew(first, tmp_path):
    run, config = first
    later = configured(config, text_of=str(run.folder), seed=1)
    second = pretrain(later, tmp_path / "later")
    unfinished(second)
    unfinished(run)
    run.path("checkpoint.safetensors").unlink()
    written(tmp_path / "text.txt", cat="dog")
    pretrain(config, run.folder)
    with pytest.raises(ValueError, match="later holds a training on another text"):
        pretrain(later, second.folder)


def test_checksums_tell_lines_documents_and_parts_apart():
    texts = [
        ([["a", "b"]], [["c"]]),
        ([["ab"]], [["c"]]),
        ([["a"], ["b"]], [["c"]]),
        ([["a"]], [["b"], ["c"]]),
        ([["a", "b"], ["c"]], []),
    ]
    found = {PretrainingTexts("", train, valid, []).checksum() for train, valid in texts}
    assert len(found) == len(texts)
    again, named = (PretrainingTexts(name, *texts[0], []).checksum() for name in ("", "other"))
    assert again == named in found


@pytest.mark.parametrize("pairs", [False, True])
def test_a_part_that_does_not_fill_a_block_is_named_before_there_is_a_folder(tmp_path, pairs):
    config = configured(
        PretrainingConfig,
        **{**SHORT, "max_length": 128, "next_sentence": pairs},
        file=str(written(tmp_path / "text.txt", lines=100)),
    )
    short = r"The part held out has \d+ tokens, fewer than a block of 128; make block smaller or g"
    with pytest.raises(ValueError, match=short):
        pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    few = configured(config, max_length=64, train_documents=1, file=str(tmp_path / "few.txt"))
    (tmp_path / "few.txt").write_text("one .\n\n" + "two three four five six .\n" * 200)
    with pytest.raises(ValueError, match=r"The part to train on has \d+ tokens, fewer than"):
        pretrain(few, tmp_path / "run")


def test_the_text_that_is_kept_is_the_one_that_was_numbered(first, tmp_path):
    run, config = first
    assert read_texts(config, run.folder) is None
    again = read_texts(config, tmp_path / "other")
    kept = Run.open(run.folder).load_tensors("text.safetensors")
    assert torch.equal(again.train.ids, kept["train.ids"])
    assert again.checksum == run.read_json("text.json")["sha256"]
