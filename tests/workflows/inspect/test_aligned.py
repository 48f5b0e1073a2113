"""Gold alignments in an inspection: whether heads find what the next word translates."""

import lzma

import pytest
import torch
from typer.testing import CliRunner

from headwise.cli import app
from headwise.recording import Run
from headwise.sites import observe
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect.corpus import aligned_corpus
from headwise.workflows.inspect.sentence import Sentence
from headwise_papers.data.batches import parallel_batch
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.recipes.own_subjects import cut_up
from headwise_papers.recipes.translator import Translator

FAST = {"sample": 0, "samples": 0, "ablation_lines": 0, "device": "cpu"}


def write(folder, count=12):
    """Toy sentences, their translations and alignments, a file each, as settings."""
    language = ToyLanguage(nouns=6, transitive_verbs=3, intransitive_verbs=3, adjectives=3)
    pairs = language.pairs(count, seed=5)
    texts = {
        "data": [" ".join(pair.source) for pair in pairs],
        "references": [" ".join(pair.target) for pair in pairs],
        "alignments": [
            " ".join(f"{source}-{target}" for target, source in sorted(pair.alignment))
            for pair in pairs
        ],
    }
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return {name: str(folder / name) for name in texts}


@torch.no_grad()
def cross_weights(model, batch):
    seen = []
    with observe(model, lambda _, attended: seen.append(attended.weights), where="*.cross"):
        model(batch.source, batch.source_lengths, batch.target_in)
    return seen[0]


def by_hand(run, corpus, head):
    """The share of linked target words whose largest weight is on a word they are linked with."""
    translator, hits = Translator.load(run), []
    for sentence in corpus.read():
        source = cut_up(translator.source, sentence)
        target = cut_up(translator.target, sentence.linked.sentence)
        batch = parallel_batch([source.ids], [target.ids])
        weights_QK = cross_weights(translator.model, batch)[0, head]
        for word in {target for target, _ in sentence.linked.links}:
            asking = [place for place, own in enumerate(target.words) if own == word]
            mean_K = weights_QK[asking].mean(dim=0)[: len(source.ids)]
            per_word = torch.zeros(len(sentence.words)).index_add(
                0, torch.tensor(source.words), mean_K
            )
            hits.append((word, per_word.argmax().item()) in sentence.linked.links)
    return sum(hits) / len(hits)


def test_heads_are_asked_for_the_source_of_the_word_to_be_predicted(small_translation, tmp_path):
    files = write(tmp_path)
    config = InspectConfig(str(small_translation), **files, **FAST)
    table = inspect_folder(config, tmp_path / "out")
    corpus = aligned_corpus(*(tmp_path / name for name in files))
    rows = dict(zip(map(str, table.heads), table["alignment"], strict=True))
    for head in range(2):
        wanted = by_hand(Run.open(small_translation), corpus, head)
        assert rows[f"decoder.0.cross.{head}"] == pytest.approx(wanted)
    assert rows["encoder.0.self.0"] is None
    (tmp_path / "alignments").write_text("0-0\n" * 12)
    with pytest.raises(ValueError, match="references or alignments have changed"):
        inspect_folder(config, tmp_path / "out")


def test_the_command_takes_alignments(monkeypatch, tmp_path):
    asked = []

    def inspect(config, folder):
        asked.append(config)
        raise ValueError("enough")

    monkeypatch.setattr("headwise.workflows.inspect.inspect_folder", inspect)
    files = write(tmp_path)
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    CliRunner().invoke(app, ["inspect", "model", *options, "--sort", "alignment"])
    assert (asked[0].references, asked[0].alignments) == (files["references"], files["alignments"])


def test_words_of_alignments_stand_between_spaces(tmp_path):
    for name, line in (("data", "don't go."), ("references", "geh nicht."), ("links", "0-1 1-0")):
        (tmp_path / name).write_text(f"{line}\n\n")
    corpus = aligned_corpus(*(tmp_path / name for name in ("data", "references", "links")))
    (sentence,) = corpus.read()  # the second line is blank
    assert sentence.words == ("don't", "go.")
    assert sentence.linked.sentence == Sentence.of_words(["geh", "nicht."])
    assert sentence.linked.links == ((1, 0), (0, 1))


def test_the_three_files_are_read_alike(tmp_path):
    lines = {"data.xz": "a\u2028b c", "references": "\ufeffd", "links": "1-0"}
    for name, line in lines.items():
        packed = lzma.compress if name.endswith("xz") else bytes
        (tmp_path / name).write_bytes(packed(f"{line}\r\nx\r\n".encode()))
    paths = [tmp_path / name for name in lines]
    paths[2].write_text("1-0\n0-0\n")
    first, second = aligned_corpus(*paths).read()
    assert first.words == ("a", "b", "c") and first.linked.text == "d"
    assert second.linked.links == ((0, 0),)
    with pytest.raises(ValueError, match=r"plain text, but .*trees.conllu.xz is a treebank"):
        aligned_corpus(tmp_path / "trees.conllu.xz", *paths[1:])


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("alignments", "0-0\n", "files of as many lines, got data 12, references 12, alignments 1"),
        ("alignments", "0-0\n" * 11 + "99-0\n", "alignments, line 12: word 99 of"),
        ("alignments", "0-0\n" * 11 + "0:0\n", "alignments, line 12: .*the Pharaoh format"),
        ("references", None, "There is no text file"),
        ("references", "\udcff\n" * 12, "references, line 1: UTF-8 text was wanted"),
    ],
)
def test_files_that_do_not_fit_are_refused(name, text, sentence, small_translation, tmp_path):
    files = write(tmp_path)
    (tmp_path / name).unlink()
    if text:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=sentence):
        inspect_folder(InspectConfig(str(small_translation), **files, **FAST), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_alignments_need_references():
    with pytest.raises(ValueError, match="alignments need references"):
        InspectConfig("model", "data.txt", alignments="links.txt")
