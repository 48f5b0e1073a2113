"""Lines of any length: what the model does not read takes neither memory nor changes a number."""

from pathlib import Path

import pytest

from headwise.recording import Run
from headwise.text.words import words_in
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect import corpus as module
from headwise.workflows.inspect.corpus import corpus_of
from headwise.workflows.inspect.sentence import Linked, Sentence
from tests.workflows.small_hosts import LINES, host, save, tokenizer_for
from tests.workflows.small_trees import write_treebank

MEGABYTE = 10**6
RESET = Path("/proc/self/clear_refs")  # lets Linux measure the peak of memory anew


def peak() -> int:
    """The most memory this process has had, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def inspected(folder: Path, lines: list[str], out: Path) -> Run:
    text = out.with_suffix(".txt")
    text.write_text("\n".join(lines) + "\n")
    inspect_folder(InspectConfig(str(folder), str(text), sample=2, ablation_lines=0), out)
    return Run.open(out)


@pytest.mark.skipif(not RESET.exists(), reason="only Linux says how much memory was used")
@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
@pytest.mark.parametrize("line", [", dog " * (5 * MEGABYTE // 6), "a" * 5 * MEGABYTE])
def test_a_line_of_megabytes_takes_little_memory(name, line, tmp_path):
    folder = save(host(name), tokenizer_for(name), tmp_path / "model")
    inspected(folder, LINES, tmp_path / "before")
    RESET.write_text("5")
    before = peak()
    figures = inspected(folder, [*LINES, line], tmp_path / "run").figures()
    assert peak() - before < 150
    assert figures["truncated_lines"] == 1


def test_what_is_cut_off_changes_nothing(tmp_path):
    folder = save(host("GPT-2"), tokenizer_for("GPT-2"), tmp_path / "model")
    short = [*LINES, "the dog saw some cats , " * 20]
    long = [*LINES, "the dog saw some cats , " * 5000]
    runs = [inspected(folder, lines, tmp_path / f"run {len(lines[-1])}") for lines in (short, long)]
    columns = runs[0].heads().columns.keys()
    other = {name for name in columns if "rarest" in name}  # more words change which are rare
    assert columns - other
    for name in columns - other:
        assert runs[0].heads()[name] == runs[1].heads()[name]


def test_words_of_long_lines_are_counted_in_parts(monkeypatch):
    text = "one two  three\tfour's don't " * 30
    monkeypatch.setattr(module, "PART", 10)
    counted = corpus_of([text, "é" * 50]).count()
    assert counted is not None and counted.sentences == 2
    assert sum(counted.ranks.counts.values()) == len(words_in(text)) + 1
    assert counted.ranks.counts["do"] == 30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one two three", ("one", "two")),
        ("one two! three", ("one",)),  # the eighth character is none that parts words
        ("onetwothree", ("onetwot",)),
        (" " * 20 + "one", ()),
    ],
)
def test_texts_are_cut_between_words(text, words):
    sentence = Sentence.of_text(text, longest=7)
    assert sentence.words == words and sentence.cut
    assert text.startswith(sentence.text) and len(sentence.text) <= 7
    assert not Sentence.of_text(text).cut and not Sentence.of_text(text, longest=100).cut


def test_trees_and_translations_are_cut_as_texts_are(tmp_path):
    trees = corpus_of(write_treebank(tmp_path / "trees.conllu"))
    for sentence, cut in zip(trees.read(), trees.within(9).read(), strict=True):
        assert cut.words == sentence.words[: len(cut.words)] and cut.tree == sentence.tree
        assert len(cut.text) <= 9
    linked = Linked("one two three", ((0, 0), (2, 1)))
    both = Sentence("eins zwei", ((0, 4), (5, 9)), linked=linked).within(7)
    assert both.words == ("eins",) and both.linked == Linked("one two", linked.links)
