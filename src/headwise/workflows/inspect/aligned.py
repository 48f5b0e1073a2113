"""Sentences with their translations and gold alignments, from three files of as many lines."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headwise.analysis.gold import links_in
from headwise.text.own_files import own_lines
from headwise.workflows.inspect.corpus import Corpus
from headwise.workflows.inspect.sentence import Linked, Sentence
from headwise.workflows.inspect.subject import Subject

__all__ = ["aligned_corpus", "check_reads_translations"]


def aligned_corpus(data: Path, references: Path, alignments: Path) -> Corpus:
    """Lines, their translations and the links between their words; blank pairs are left out.

    Words are what stands between spaces, as those of gold alignments are.

    Args:
        data: the lines, plain text; packed or not, as the others.
        references: a translation a line.
        alignments: a line of links such as "0-0 1-2" each, in the Pharaoh format: source-target,
            counted from 0.
    """
    files = (data, references, alignments)
    for path in files:
        if ".conllu" in path.suffixes:
            raise ValueError(f"Alignments go with lines of plain text, but {path} is a treebank.")
    lines = [own_lines(path) for path in files]
    if len(set(map(len, lines))) > 1:
        counts = ", ".join(f"{p.name} {len(own)}" for p, own in zip(files, lines, strict=True))
        raise ValueError(f"Alignments need files of as many lines, got {counts}.")
    rows = enumerate(zip(*lines, strict=True), start=1)
    sentences = [
        _sentence(row, f"{alignments}, line {number}")
        for number, row in rows
        if row[0].strip() and row[1].strip()
    ]
    whole = "\0".join("\n".join(own) for own in lines)
    return Corpus(lambda: iter(sentences), fingerprint=hashlib.sha256(whole.encode()).hexdigest())


def check_reads_translations(subject: Subject) -> None:
    """Refuse alignments for a model that cannot be shown a translation beside its source."""
    if not subject.reads_references:
        raise ValueError(
            "alignments are looked for in a translator of Headwise, which reads the references, "
            f"but this model is a {type(subject.model).__name__}; leave them out."
        )


def _sentence(row: Sequence[str], where: str) -> Sentence:
    source, target, links = row
    try:
        linked = tuple(links_in(links))
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from None
    counts = len(target.split()), len(source.split())
    for link in linked:
        if link[0] >= counts[0] or link[1] >= counts[1]:
            raise ValueError(
                f"{where}: word {link[1]} of {counts[1]} is linked with word {link[0]} of "
                f"{counts[0]}; words are counted from 0, source first."
            )
    return replace(Sentence.of_words(source.split(), source), linked=Linked(target, linked))
