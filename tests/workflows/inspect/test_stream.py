"""Passes that are killed go on, and end with the very same table."""

import subprocess
import sys
from pathlib import Path

import pytest

from headwise.recording import Run
from headwise.workflows.inspect import InspectConfig, corpus, inspect_folder, stream
from tests.workflows.small_hosts import LINES, host, save, tokenizer_for

KILLING = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from headwise.workflows.inspect import InspectConfig, corpus, inspect_folder, stream

corpus.CHUNK, stream.SECONDS = 4, 0.0
save, calls = stream.Bookmark.save, []

def save_and_die(self, *arguments):
    save(self, *arguments)
    calls.append(self.name)
    if calls.count(sys.argv[4]) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

stream.Bookmark.save = save_and_die
config = InspectConfig(sys.argv[1], sys.argv[2], sample=6, ablation_lines=2, batch_size=2)
inspect_folder(config, Path(sys.argv[3]))
"""


@pytest.fixture
def material(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A model, a text of three chunks, and bookmarks after each of them."""
    monkeypatch.setattr(corpus, "CHUNK", 4)
    monkeypatch.setattr(stream, "SECONDS", 0.0)
    model = save(host("BERT"), tokenizer_for("BERT"), tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in [*LINES, *LINES[::-1][:4]]))
    config = InspectConfig(str(model), str(text), sample=6, ablation_lines=2, batch_size=2)
    return config, tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("where", ["reading", "importance"])
def test_a_killed_inspection_goes_on_to_the_same_table(where, material):
    config, folder = material
    whole = inspect_folder(config, folder / "whole")
    arguments = [config.model, config.data, str(folder / "killed"), where]
    done = subprocess.run([sys.executable, "-c", KILLING, *arguments], capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    run = Run.open(folder / "killed")
    assert run.has(f"state/{where}.safetensors") and not run.has("heads.json")
    read: list[int] = []
    real = stream._read
    stream._read = lambda *a: (read.append(len(a[1])), real(*a))[1]
    try:
        table = inspect_folder(config, folder / "killed")
    finally:
        stream._read = real
    assert table == whole  # every number, every bit
    assert list(table.columns) == list(whole.columns)
    heads = [folder / name / "heads.json" for name in ("killed", "whole")]
    assert heads[0].read_bytes() == heads[1].read_bytes()
    assert sum(read) == (3 if where == "reading" else 0)  # the rest, and nothing twice
    assert not run.names("state/*")
    names = ("attention", "baselines", "offsets", "inspection")
    for name in (f"trace/{name}.json" for name in names):
        assert run.read_json(name) == Run.open(folder / "whole").read_json(name)


def test_an_inspection_goes_on_only_with_the_data_it_began_with(material, monkeypatch):
    config, folder = material

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.workflows.inspect.importance._Batch.add_to", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inspect_folder(config, folder / "run")
    Path(config.data).write_text("the dog ran .\n")
    with pytest.raises(ValueError, match="The data have changed since the inspection"):
        inspect_folder(config, folder / "run")


def test_an_inspection_goes_on_only_with_the_model_it_began_with(material, monkeypatch):
    config, folder = material

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headwise.workflows.inspect.importance._Batch.add_to", interrupted)
        with pytest.raises(KeyboardInterrupt):
            inspect_folder(config, folder / "run")
    model = host("BERT")
    model.bert.encoder.layer[0].output.dense.bias.data[0] += 1
    save(model, tokenizer_for("BERT"), folder / "model")
    with pytest.raises(ValueError, match="The model, its settings or its tokenizer have changed"):
        inspect_folder(config, folder / "run")
