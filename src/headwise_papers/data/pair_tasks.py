"""Labelled texts and pairs of texts to fine-tune on, as published: no words are cut or lower-cased.

- `cola`, `rte`, `wnli`: GLUE. Its test labels are secret, so the published dev part is our test
  part, and a tenth of train is our dev part.
- `mrpc`: the original Microsoft split, not GLUE's; a tenth of train is our dev part.
- `qnli`: only the published dev part (5,463 pairs) could be had. 80 % of it are train, 10 % dev and
  10 % test: figures say whether one model beats another, and compare with no published figure.
- `sst2`: the roots of the treebank, published in three parts.
- `masakhanews-orm`: topics of BBC news in Afaan Oromoo, published in three parts.

Where we split, a checksum of a text decides and nothing random, and pairs that share a text stay
together, whichever of the two it is, and with them those that share another one with these: WNLI
asks two questions of each sentence, and QNLI has a question twice, with opposite labels. Parts that
were published stay as they are. There is no Filipino sentiment set, and neither MNLI nor QQP: they
could not be had.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from headwise.config import suggestion
from headwise.text.corpus import all_lines
from headwise.text.source import DataFile, data_folder
from headwise_papers.data.sst import sst_file

__all__ = [
    "TEXT_TASKS",
    "Example",
    "TextMetric",
    "TextTask",
    "in_checksum_order",
    "read_text_files",
    "read_text_task",
    "task_files",
    "tied",
]

TextMetric = Literal["accuracy", "f1", "matthews"]
HELD_OUT = 0.1  # of the examples, where a part is ours
GLUE = "github.com/amrnag/Specialized-Transformers at fa673a93, data/, train and val joined"
ORIGINS = {
    "cola": GLUE,
    "rte": GLUE,
    "wnli": GLUE,
    "mrpc": "data/msr_paraphrase_*.txt of github.com/wooque/text-semantic-similarity at fe3bef5d",
    "qnli": "data/QNLI/dev.tsv of github.com/jonny-vr/LLMCBench at 720be179",
    "masakhanews-orm": "data/orm of github.com/masakhane-io/masakhane-news at 819be052: category, "
    "headline and text between tabs, without the other columns and the header",
}
CHECKSUMS = {  # of the unpacked files
    "glue/cola.train.tsv": "5d5b12531cf75ffe24afa0b14019da6dad82fa7b5639eab3f5716e86402ab592",
    "glue/cola.dev.tsv": "fc08f7ca16084543d9222d75eee13f094d738c3a20d874384417f1766197b716",
    "glue/rte.train.tsv": "41e3a9b063433392343fad9e962cf2f58b681c78d8f71592f4186f0837246c5c",
    "glue/rte.dev.tsv": "80230dfa1347282e7b532b06a1004a76a710087541189bf874223ddf0e3819fb",
    "glue/wnli.train.tsv": "9a88e9d54b6861cc796a088e9acf4f5f65064a9ef65ae6fa7a688b28391e5c9a",
    "glue/wnli.dev.tsv": "cba00490596dd14be8cf53b4f53bb744abe3a7b89f81ab210528d80225338ed5",
    "glue/mrpc.train.tsv": "b289e86dd89473a3791f9a6779db02282046521f89b5f567c4481905e8f2618e",
    "glue/mrpc.test.tsv": "0d1a876ed5b29dc9779ec212f0d7a1601caafbc5837cd1200e638f0b0a654562",
    "glue/qnli.dev.tsv": "763e95932dd3578251de71582e06829015f9c3815a518c751dc537219b159de4",
    "oromo-masakhanews/train.tsv": (
        "bb6e1d414e8ed01f34ca9729449a3c4adab90873e0cb1116cf91d3d1d7c3ecc7"
    ),
    "oromo-masakhanews/dev.tsv": "1f388ca42aef92f2fb7481133db70ce03c3de7647fc955465174f3a02a50d178",
    "oromo-masakhanews/test.tsv": (
        "f5b1b6f90ba7e851295e0c32af10edc18b9d98d11d3c5bfebbefb51f5ecc27ef"
    ),
}


class Example(NamedTuple):
    """A text, or a pair of them, and the number of its class."""

    label: int
    text: str
    second: str | None = None


@dataclass(frozen=True)
class TextTask:
    """A set in three parts."""

    name: str
    train: list[Example]
    dev: list[Example]
    test: list[Example]
    classes: tuple[str, ...]
    metric: TextMetric  # the one it is usually judged by; of F1 the last class is the positive one

    def groups(self, examples: Sequence[Example]) -> list[str]:
        """Of each example a name it shares with those it must not be parted from; see `tied`."""
        return _groups(examples)


class Layout(NamedTuple):
    """How the files of a set are written, and what they are for."""

    parts: dict[str, str]  # our part, and the file it is in
    columns: tuple[str, ...]  # between tabs; "label", "text" and "second" are read
    labels: tuple[str, ...]  # as they are written
    classes: tuple[str, ...]
    metric: TextMetric = "accuracy"
    header: bool = True


ENTAILMENT = ("not_entailment", "entailment")
TOPICS = ("entertainment", "health", "politics", "sports", "technology")
TEXT_TASKS: dict[str, Layout] = {
    "cola": Layout(
        {"train": "glue/cola.train.tsv", "test": "glue/cola.dev.tsv"},
        ("source", "label", "mark", "text"),
        ("0", "1"),
        ("unacceptable", "acceptable"),
        "matthews",
        header=False,
    ),
    "rte": Layout(
        {"train": "glue/rte.train.tsv", "test": "glue/rte.dev.tsv"},
        ("index", "text", "second", "label"),
        ENTAILMENT,
        ENTAILMENT,
    ),
    "wnli": Layout(
        {"train": "glue/wnli.train.tsv", "test": "glue/wnli.dev.tsv"},
        ("index", "text", "second", "label"),
        ("0", "1"),
        ENTAILMENT,
    ),
    "mrpc": Layout(
        {"train": "glue/mrpc.train.tsv", "test": "glue/mrpc.test.tsv"},
        ("label", "first id", "second id", "text", "second"),
        ("0", "1"),
        ("different", "paraphrase"),
        "f1",
    ),
    "qnli": Layout(
        {"train": "glue/qnli.dev.tsv"},
        ("index", "text", "second", "label"),
        ENTAILMENT,
        ENTAILMENT,
    ),
    "sst2": Layout(
        {part: f"sst/sst2.{part}.tsv" for part in ("train", "dev", "test")},
        ("label", "text"),
        ("0", "1"),
        ("negative", "positive"),
        header=False,
    ),
    "masakhanews-orm": Layout(
        {part: f"oromo-masakhanews/{part}.tsv" for part in ("train", "dev", "test")},
        ("label", "headline", "text"),
        TOPICS,
        TOPICS,
        header=False,
    ),
}


def read_text_task(name: str, *, folder: Path | None = None, verify: bool = True) -> TextTask:
    """Read a set whole. Training examples that equal one of dev or test are left out.

    Args:
        name: "cola", "rte", "wnli", "mrpc", "qnli", "sst2" or "masakhanews-orm".
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse files that are not the known ones.
    """
    if "filipino" in name or name.endswith("-tl"):
        raise ValueError(
            "There is no labelled Filipino set here: the sentiment set of Cruz and Cheng could not "
            "be had. Give files of your own, or take masakhanews-orm for a small language."
        )
    if name not in TEXT_TASKS:
        raise ValueError(f"There is no task {name!r}. {suggestion(name, TEXT_TASKS)}")
    layout = TEXT_TASKS[name]
    found = data_folder(folder, wanted=name, origin=ORIGINS.get(name, "the public sets"))
    rows = {
        part: list(_rows(file, found, layout, verify=verify))
        for part, file in zip(layout.parts, task_files(name), strict=True)
    }
    return _task(name, rows, layout)


def read_text_files(train: Path, dev: Path, test: Path) -> TextTask:
    """A set of one's own: files of `label TAB text` or `label TAB text TAB second text`.

    Args:
        train: its labels, sorted, are the classes.
        dev: to stop by.
        test: to judge by.
    """
    parts = [_own_rows(path) for path in (train, dev, test)]
    classes = sorted({label for label, *_ in parts[0]})
    if len(classes) < 2:
        raise ValueError(f"{train} has one class, {classes[0]!r}; two or more are needed.")
    number = {label: place for place, label in enumerate(classes)}
    for path, rows in zip((dev, test), parts[1:], strict=True):
        if unknown := sorted({label for label, *_ in rows} - number.keys()):
            raise ValueError(f"{path} has the label {unknown[0]!r}, which {train} has not.")
    kept = [[Example(number[label], *texts) for label, *texts in rows] for rows in parts]
    return TextTask(train.name, kept[0], kept[1], kept[2], tuple(classes), "accuracy")


def task_files(name: str) -> tuple[DataFile, ...]:
    """The files of a set, in the order of its parts."""
    if name == "sst2":
        return tuple(sst_file("sst2", part) for part in TEXT_TASKS[name].parts)
    parts = TEXT_TASKS[name].parts.values()
    return tuple(DataFile(file, CHECKSUMS[file], ORIGINS[name]) for file in parts)


def in_checksum_order(texts: Sequence[str]) -> list[int]:
    """Places of texts in an order that looks random and is the same everywhere; equal ones meet."""
    sums = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return sorted(range(len(texts)), key=lambda place: (sums[place], place))


def tied(examples: Sequence[Sequence[str]]) -> list[str]:
    """Of each example the first text, in alphabetical order, of all that it is tied to.

    Examples that share a text are tied, and so are those that are tied to the same one.

    >>> tied([("q1", "b"), ("q2", "a"), ("q1", "a"), ("q3", "c")])
    ['a', 'a', 'a', 'c']

    Args:
        examples: the texts of each, one or more.
    """
    leader: dict[str, str] = {}

    def find(text: str) -> str:
        leader.setdefault(text, text)
        while leader[text] != text:
            leader[text] = leader[leader[text]]  # halve the way for the next one
            text = leader[text]
        return text

    for texts in examples:
        first, *others = sorted({find(text) for text in texts})
        leader |= dict.fromkeys(others, first)
    return [find(texts[0]) for texts in examples]


def _rows(file: DataFile, folder: Path, layout: Layout, *, verify: bool) -> Iterator[Example]:
    number = {label: place for place, label in enumerate(layout.labels)}
    places = {name: place for place, name in enumerate(layout.columns)}
    lines = file.lines(folder, verify=verify)
    for count, line in enumerate(lines[layout.header :], start=1 + layout.header):
        fields = line.split("\t")
        if len(fields) != len(places) or fields[places["label"]] not in number:
            raise ValueError(
                f"{file.name}, line {count}: {', '.join(places)} were wanted between tabs, the "
                f"label one of {', '.join(number)}, got {line[:40]!r}; get the file again."
            )
        text = fields[places["text"]]
        if "headline" in places:
            text = f"{fields[places['headline']]} {text}"
        second = fields[places["second"]] if "second" in places else None
        yield Example(number[fields[places["label"]]], text, second)


def _own_rows(path: Path) -> list[list[str]]:
    rows = [line.split("\t") for line in all_lines(path, trailing=False)]
    for number, fields in enumerate(rows, start=1):
        if len(fields) not in (2, 3) or not all(map(str.strip, fields)):
            raise ValueError(
                f"{path}, line {number}: a label and one text or two were wanted between tabs, "
                f"got {' '.join(fields)[:40]!r}."
            )
    return rows


def _task(name: str, rows: dict[str, list[Example]], layout: Layout) -> TextTask:
    """Three parts of those there are; what is missing is pulled out of train."""
    for part in ("test", "dev"):
        if part not in rows:
            share = HELD_OUT if part == "test" or "test" in layout.parts else HELD_OUT / 0.9
            rows["train"], rows[part] = _pulled_out(rows["train"], share)
    held_out = {example[1:] for part in ("dev", "test") for example in rows[part]}
    train = [example for example in rows["train"] if example[1:] not in held_out]
    return TextTask(name, train, rows["dev"], rows["test"], layout.classes, layout.metric)


def _groups(examples: Sequence[Example]) -> list[str]:
    return tied([[text for text in example[1:] if text is not None] for example in examples])


def _pulled_out(rows: list[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Two parts of some examples, the second with about a share of them, in published order."""
    groups = _groups(rows)
    ordered = in_checksum_order(groups)
    last = groups[ordered[max(1, round(share * len(rows))) - 1]]
    # to the end of the group that the cut falls into
    ends = max(place for place, at in enumerate(ordered) if groups[at] == last) + 1
    taken = set(ordered[:ends])
    kept = [example for place, example in enumerate(rows) if place not in taken]
    return kept, [example for place, example in enumerate(rows) if place in taken]
