"""A treebank of a few sentences, in words that the small hosts know."""

from pathlib import Path

# of each word: what it is, the number of its head, and the relation to it
SENTENCES = (
    "the:2:det dog:3:nsubj saw:0:root some:5:det cats:3:obj .:3:punct",
    "a:2:det cat:3:nsubj slept:0:root .:3:punct",
    "the:3:det small:3:amod dog:5:nsubj often:5:advmod chased:0:root the:7:det birds:5:obj "
    ".:5:punct",
    "horses:2:nsubj ran:0:root .:2:punct",
)


def write_treebank(path: Path) -> Path:
    """A CoNLL-U file; the mark at the end follows its word without a space."""
    blocks = ["".join(_rows(sentence)) for sentence in SENTENCES]
    path.write_text("\n".join(blocks) + "\n")
    return path


def _rows(sentence):
    words = [word.split(":") for word in sentence.split()]
    for place, (word, head, relation) in enumerate(words, start=1):
        remark = "SpaceAfter=No" if place == len(words) - 1 else "_"
        yield f"{place}\t{word}\t_\tX\t_\t_\t{head}\t{relation}\t_\t{remark}\n"
