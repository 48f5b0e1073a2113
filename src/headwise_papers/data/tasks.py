"""Tasks to fine-tune on: labelled texts, pairs of texts and tagged words, as published.

- `cola`, `rte`, `wnli`: GLUE. Its test labels are secret, so the published dev part is our test
  part, and a tenth of train is our dev part.
- `mrpc`: the original Microsoft split, not GLUE's; a tenth of train is our dev part.
- `qnli`: only the published dev part (5,463 pairs) could be had. 80 % of it are train, 10 % dev and
  10 % test: results say whether one model beats another, and compare with no published result.
- `sst2`: the roots of the treebank, published in three parts.
- `masakhanews-orm`: topics of BBC news in Afaan Oromoo, published in three parts.

Where we split, a checksum of a text decides and nothing random, and pairs that share a text stay
together, whichever of the two it is, and with them those that share another one with these: WNLI
asks two questions of each sentence, and QNLI has a question twice, with opposite labels. Parts that
were published stay as they are. There is no Filipino sentiment set, and neither MNLI nor QQP: they
could not be had.

Named entities are tagged word by word, as B-PER, I-PER … and O for none:
`conll2003` (PER, ORG, LOC, MISC), written as IOB1 and read as BIO, and `masakhaner-LANGUAGE` (PER,
ORG, LOC, DATE): 20 African languages of MasakhaNER 2.0, and Amharic (`amh`) of 1.0. There is no
tagged Oromo, which the attention guidance paper uses: its set is licensed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from headwise.text import all_lines
from headwise_papers.data.bags import sst_file
from headwise_papers.data.provenance import entry, known_file, read_lines, read_table, tied
from headwise_papers.data.source import DataFile, data_folder

__all__ = [
    "TAGGING_SETS",
    "TEXT_TASKS",
    "Example",
    "TaggedSentence",
    "TaggedTask",
    "TextMetric",
    "TextTask",
    "bio",
    "in_checksum_order",
    "read_tagged_files",
    "read_tagged_task",
    "read_text_files",
    "read_text_task",
    "tagging_files",
    "task_files",
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
    metric: TextMetric  # the usual one; for F1 the last class is the positive one

    def groups(self, examples: Sequence[Example]) -> list[str]:
        """Return for each example a name that it shares with those it is `tied` to."""
        return _groups(examples)


class Layout(NamedTuple):
    """Format of the files of a set, and their parts."""

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
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown.
    """
    if "filipino" in name or name.endswith("-tl"):
        raise ValueError(
            "There is no labelled Filipino set here: the sentiment set of Cruz and Cheng could not "
            "be had. Give files of your own, or take masakhanews-orm for a small language."
        )
    layout = entry(TEXT_TASKS, name, "task")
    found = data_folder(folder, wanted=name, origin=ORIGINS.get(name, "the public sets"))
    rows = {
        part: list(_rows(file, found, layout, verify=verify))
        for part, file in zip(layout.parts, task_files(name), strict=True)
    }
    return _task(name, rows, layout)


def read_text_files(train: Path, dev: Path, test: Path) -> TextTask:
    """Read a set of one's own: files of `label TAB text` or `label TAB text TAB second text`.

    Args:
        train: its labels, sorted, are the classes.
        dev: for early stopping.
        test: to score.
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
    """Return the files of a set, in the order of its parts."""
    if name == "sst2":
        return tuple(sst_file("sst2", part) for part in TEXT_TASKS[name].parts)
    parts = TEXT_TASKS[name].parts.values()
    return tuple(known_file(file, ORIGINS[name]) for file in parts)


def in_checksum_order(texts: Sequence[str]) -> list[int]:
    """Return places of texts in the order of their checksums; equal texts are neighbours."""
    sums = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return sorted(range(len(texts)), key=lambda place: (sums[place], place))


def _rows(file: DataFile, folder: Path, layout: Layout, *, verify: bool) -> Iterator[Example]:
    header, labels = layout.header, layout.labels
    table = read_table(
        file, folder, columns=layout.columns, labels=labels, header=header, verify=verify
    )
    for fields in table:
        row = dict(zip(layout.columns, fields, strict=True))
        text = f"{row['headline']} {row['text']}" if "headline" in row else row["text"]
        yield Example(labels.index(row["label"]), text, row.get("second"))


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
    """Make three parts; what is missing is pulled out of train."""
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
    """Return two parts in published order, the second with about a share of the examples."""
    groups = _groups(rows)
    ordered = in_checksum_order(groups)
    last = groups[ordered[max(1, round(share * len(rows))) - 1]]
    # to the end of the group that the cut falls into
    ends = max(place for place, at in enumerate(ordered) if groups[at] == last) + 1
    taken = set(ordered[:ends])
    kept = [example for place, example in enumerate(rows) if place not in taken]
    return kept, [example for place, example in enumerate(rows) if place in taken]


PARTS = ("train", "dev", "test")
MASAKHANER = "github.com/masakhane-io/masakhane-ner at ba5843cd"
CONLL = (  # the text is Reuters', for research only
    "corpus/CoNLL-2003/eng.{train,testa,testb} of github.com/synalp/NER at c0ea07c8"
)
LANGUAGES = (  # 20 of MasakhaNER 2.0, and Amharic of 1.0
    "amh", "bam", "bbj", "ewe", "fon", "hau", "ibo", "kin", "lug", "luo", "mos", "nya", "pcm",
    "sna", "swa", "tsn", "twi", "wol", "xho", "yor", "zul",
)  # fmt: skip
TAGGING_SETS = ("conll2003", *(f"masakhaner-{language}" for language in LANGUAGES))


def tagging_files(name: str) -> tuple[DataFile, ...]:
    """Return the train, dev and test file of a set.

    Args:
        name: "conll2003", or "masakhaner-" and a language: of the 20 of MasakhaNER 2.0, or "amh",
            which MasakhaNER 1.0 has.
    """
    entry(dict.fromkeys(TAGGING_SETS), name, "tagged set")
    language = name.removeprefix("masakhaner-")
    if name == "conll2003":
        place, origin = "conll2003/eng", CONLL
    elif language == "amh":
        place, origin = "masakhaner1/amh", f"data/amh of {MASAKHANER}"
    else:
        place, origin = f"masakhaner2/{language}", f"MasakhaNER2.0/data/{language} of {MASAKHANER}"
    return tuple(known_file(f"{place}.{part}.conll", origin) for part in PARTS)


OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"


class TaggedSentence(NamedTuple):
    """Words and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class TaggedTask:
    """A set in three parts."""

    name: str
    train: list[TaggedSentence]
    dev: list[TaggedSentence]
    test: list[TaggedSentence]
    classes: tuple[str, ...]  # the tags; O first
    metric: Literal["span_f1"] = "span_f1"

    def groups(self, sentences: Sequence[TaggedSentence]) -> list[str]:
        """Return for each sentence its words: equal sentences must be in one fold."""
        return [" ".join(sentence.words) for sentence in sentences]


def read_tagged_task(name: str, *, folder: Path | None = None, verify: bool = True) -> TaggedTask:
    """Read a set whole, in its published parts.

    Args:
        name: "conll2003", or "masakhaner-" and a language, e.g. "masakhaner-yor".
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown.
    """
    files = tagging_files(name)
    texts = read_lines(files, name=name, folder=folder, verify=verify)
    parts = [
        _sentences(lines, where=file.name, iob1=name == "conll2003")
        for lines, file in zip(texts, files, strict=True)
    ]
    return _tagged_task(name, parts)


def read_tagged_files(train: Path, dev: Path, test: Path) -> TaggedTask:
    """Read a set of one's own in CoNLL's form: a word a line, its tag last, blank lines between.

    Args:
        train: tags are BIO or IOB1: a span that starts with I is read as if it started with B.
        dev: for early stopping.
        test: to score.
    """
    parts: list[list[TaggedSentence]] = []
    for path in (train, dev, test):
        lines = (line.replace("\t", " ") for line in all_lines(path))
        parts.append(_sentences(lines, where=str(path), iob1=True))
    return _tagged_task(train.name, parts)


def bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Turn IOB1 into BIO: every span starts with B, not only one that follows another of its type.

    >>> bio(["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-ORG"])
    ('B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC', 'B-ORG')
    """
    before = [OUTSIDE, *tags[:-1]]
    return tuple(
        f"B-{tag[2:]}" if tag.startswith("I-") and last[2:] != tag[2:] else tag
        for last, tag in zip(before, tags, strict=True)
    )


def _tagged_task(name: str, parts: list[list[TaggedSentence]]) -> TaggedTask:
    kinds = sorted({tag[2:] for part in parts for row in part for tag in row.tags if tag[2:]})
    if not kinds:
        raise ValueError(f"{name} has no tag but {OUTSIDE}; B-PER, I-PER and such were wanted.")
    tags = (OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
    return TaggedTask(name, parts[0], parts[1], parts[2], tags)


def _sentences(lines: Iterable[str], *, where: str, iob1: bool) -> list[TaggedSentence]:
    found = [
        TaggedSentence(tuple(words), bio(tags) if iob1 else tuple(tags))
        for words, tags in _blocks(lines, where=where)
    ]
    if not found:
        raise ValueError(f"{where} holds no tagged sentence; get it again.")
    return found


def _blocks(lines: Iterable[str], *, where: str) -> Iterator[tuple[list[str], list[str]]]:
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        word, tag = line.split(" ", 1)[0] if line else "", line.rpartition(" ")[2]
        if not line.strip():
            if words:
                yield words, tags
            words, tags = [], []
        elif tag != OUTSIDE and not (tag[:2] in ("B-", "I-") and tag[2:]):
            raise ValueError(
                f"{where}, line {number}: a word and, last, a tag such as O or B-PER were wanted "
                f"between spaces, got {line[:40]!r}; get the file again."
            )
        # MasakhaNER has two tags without a word
        elif word and word != DOCUMENT:
            words.append(word)
            tags.append(tag)
