"""Labelled texts and pairs: parts that do not leak, and files that are what they should be."""

import lzma
from collections import Counter

import pytest

from headwise_papers.data.tasks import (
    TEXT_TASKS,
    in_checksum_order,
    read_text_files,
    read_text_task,
    task_files,
    tied,
)

HEADER = "index\tsentence1\tsentence2\tlabel\n"


def written(folder, name, text):
    path = folder / f"{name}.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()))


@pytest.fixture
def small(tmp_path):
    rows = [f"{n}\tFirst {n // 2}.\tSecond\u0085 {n}.\t{n % 2}\n" for n in range(60)]
    written(tmp_path, "glue/wnli.train.tsv", HEADER + "".join(rows))
    written(tmp_path, "glue/wnli.dev.tsv", HEADER + "0\tNew.\tText.\t1\n0\tFirst 0.\tSecond.\t0\n")
    questions = [  # each twice, of two passages
        f"{n}\tQ{n // 2}?\tPassage {n // 6}{n % 2}.\t{'not_' * (n % 2)}entailment\n"
        for n in range(90)
    ]
    written(tmp_path, "glue/qnli.dev.tsv", HEADER + "".join(questions))
    return tmp_path


def test_the_published_dev_part_is_what_models_are_judged_by(small):
    task = read_text_task("wnli", folder=small, verify=False)
    assert [example.text for example in task.test] == ["New.", "First 0."]
    assert task.test[0] == (1, "New.", "Text.")
    assert task.train[0].second == "Second\u0085 0."  # no line break to us
    assert task.classes == ("not_entailment", "entailment") and task.metric == "accuracy"


def texts_of(part):
    return {text for example in part for text in example[1:] if text is not None}


def test_pairs_that_share_a_text_are_not_parted(small):
    task = read_text_task("wnli", folder=small, verify=False)
    assert not texts_of(task.train) & texts_of(task.dev)
    assert len(task.train) + len(task.dev) == 60 and 6 <= len(task.dev) <= 8
    assert Counter(task.groups(task.dev)).most_common()[-1][1] == 2


def test_no_question_and_no_passage_of_qnli_is_in_two_parts(small):
    task = read_text_task("qnli", folder=small, verify=False)
    train, dev, test = (texts_of(part) for part in (task.train, task.dev, task.test))
    assert not train & dev and not (train | dev) & test
    assert [len(part) for part in (task.train, task.dev, task.test)] == [
        66,
        12,
        12,
    ]  # whole groups of 6
    assert read_text_task("qnli", folder=small, verify=False) == task


def test_texts_are_tied_over_others_whichever_side_they_stand_on():
    assert tied([("d", "c"), ("e", "f"), ("b", "d"), ("x",), ("b", "a")]) == [*"aeaxa"]
    assert tied([("b", "a"), ("c", "b"), ("a",)]) == ["a"] * 3


def test_what_is_judged_by_is_not_learnt(small):
    learnt = "a\t1\t\tGood one.\n" * 3 + "".join(f"a\t0\t\tOne {n}.\n" for n in range(20))
    written(small, "glue/cola.train.tsv", learnt)
    written(small, "glue/cola.dev.tsv", "b\t1\t\tGood one.\nb\t0\t*\tBad one.\n")
    task = read_text_task("cola", folder=small, verify=False)
    assert "Good one." not in {row.text for row in task.train}
    assert task.test == [(1, "Good one.", None), (0, "Bad one.", None)]


def test_the_order_looks_random_and_is_the_same_everywhere():
    assert in_checksum_order(["a", "b", "c", "d", "a"]) == [3, 2, 1, 0, 4]


def test_files_of_ones_own(tmp_path):
    paths = [tmp_path / name for name in ("train.tsv", "dev.tsv", "test.tsv")]
    for path in paths:
        path.write_text("neg\tbad\npos\tgood\tvery\n")
    task = read_text_files(*paths)
    assert task.classes == ("neg", "pos") and task.train == [(0, "bad", None), (1, "good", "very")]
    paths[1].write_text("neutral\tso so\n")
    with pytest.raises(ValueError, match=r"dev.tsv has the label 'neutral', which .*train.tsv has"):
        read_text_files(*paths)
    paths[0].write_text("neg\tbad\n")
    with pytest.raises(ValueError, match="has one class, 'neg'"):
        read_text_files(*paths)
    paths[0].write_text("neg\tbad\nno tab\n")
    with pytest.raises(ValueError, match=r"train.tsv, line 2: a label and one text or two"):
        read_text_files(*paths)
    with pytest.raises(ValueError, match=r"There is no text file .*none.tsv"):
        read_text_files(tmp_path / "none.tsv", *paths[1:])
    paths[0].write_bytes(b"\xef\xbb\xbfneg\tbad\r\npos\tgo\xe2\x80\xa8od\n\n")
    paths[1].write_text("pos\tgood\n")
    assert read_text_files(*paths).train == [(0, "bad", None), (1, "go\u2028od", None)]
    paths[0].write_bytes(b"neg\tbad\npos\tg\xf6d\n")
    with pytest.raises(ValueError, match=r"train.tsv, line 2: UTF-8 text was wanted, but byte 6"):
        read_text_files(*paths)


def test_bad_names_and_broken_lines_are_told(small, monkeypatch):
    with pytest.raises(ValueError, match=r"There is no task 'rtee'. Did you mean 'rte'"):
        read_text_task("rtee")
    with pytest.raises(ValueError, match="no labelled Filipino set here"):
        read_text_task("filipino-sentiment")
    with pytest.raises(ValueError, match="damaged or another version"):
        read_text_task("wnli", folder=small)
    written(small, "glue/wnli.dev.tsv", HEADER + "0\tNew.\tText.\tmaybe\n")
    with pytest.raises(ValueError, match=r"wnli.dev.tsv, line 2: .* label one of 0, 1"):
        read_text_task("wnli", folder=small, verify=False)
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    with pytest.raises(ValueError, match="Specialized-Transformers"):
        read_text_task("rte")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("cola", (7682, 855, 1043)),
        ("rte", (2241, 249, 277)),
        ("wnli", (570, 65, 71)),
        ("mrpc", (3668, 408, 1725)),
        ("qnli", (4365, 552, 546)),
        ("sst2", (6917, 872, 1821)),
        ("masakhanews-orm", (1128, 162, 325)),
    ],
)
def test_the_sets_at_hand_have_their_known_sizes(name, sizes, data_folder):
    task = read_text_task(name, folder=data_folder)
    assert tuple(len(part) for part in (task.train, task.dev, task.test)) == sizes
    for part in (task.train, task.dev, task.test):
        assert {example.label for example in part} == set(range(len(task.classes)))
    if "dev" not in TEXT_TASKS[name].parts:
        assert not texts_of(task.train) & texts_of(task.dev)
    if "test" not in TEXT_TASKS[name].parts:
        assert not texts_of([*task.train, *task.dev]) & texts_of(task.test)
    assert {len(file.sha256) for file in task_files(name)} == {64}
    assert len(TEXT_TASKS[name].classes) == len(task.classes)
