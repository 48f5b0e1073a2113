"""Treebanks of Universal Dependencies in the data folder, by name.

They are in `ud` below the data folder: en_ewt (train, dev, test), de_gsd and ru_gsd (dev, test),
tl_trg and tl_ugnayan (test).
"""

from collections.abc import Iterator
from pathlib import Path

from headwise.config import suggestion
from headwise.text.source import DataFile, data_folder, github
from headwise.text.treebank import Tree, trees_in

_COMMITS = {  # of the repositories github.com/UniversalDependencies/…
    "en_ewt": ("UD_English-EWT", "15d613d8"),
    "de_gsd": ("UD_German-GSD", "297fcf35"),
    "ru_gsd": ("UD_Russian-GSD", "5400f2fd"),
    "tl_trg": ("UD_Tagalog-TRG", "7151bec1"),
    "tl_ugnayan": ("UD_Tagalog-Ugnayan", "5186042b"),
}
TREEBANKS = {  # parts, and the checksums of the unpacked files
    "en_ewt": {
        "train": "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
        "dev": "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
        "test": "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
    },
    "de_gsd": {
        "dev": "00431f2624cbbf66796c097a9303bbc8f8e8ca88ef35c4c5664aa396b2d674c9",
        "test": "bceb8e867ba3ee7f1449d44fb31538d63a514f07e6763e7d9a5ffe794407bed4",
    },
    "ru_gsd": {
        "dev": "e3e3d4e8d1d7544e531b2b81ae64257efacc97f93276ce6d2ce52fd1de052fa2",
        "test": "f26e022329162a1c6306f76644d06f770f1572501755421165387137fe63138d",
    },
    "tl_trg": {"test": "d21eb1072f6da530de2e0e3a9065a76ae36559efd43afc7c6d48264024afa8c1"},
    "tl_ugnayan": {"test": "f48eb82e9baab1bf928330924e45fad2dded3b14b688178be864aa97ea68c9ef"},
}


def read_named_treebank(
    name: str, part: str, *, folder: Path | None = None, verify: bool = True
) -> Iterator[Tree]:
    """Read the sentences of a part of a named treebank.

    Args:
        name: "en_ewt", "de_gsd", "ru_gsd", "tl_trg" or "tl_ugnayan".
        part: "train", "dev" or "test"; only en_ewt has a part "train".
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown.
    """
    file = treebank_file(name, part)
    found = data_folder(folder, wanted=name, origin=file.origin)
    return trees_in(file.lines(found, verify=verify), place=file.name)


def treebank_file(name: str, part: str) -> DataFile:
    """Return the file of a part of a named treebank.

    >>> treebank_file("en_ewt", "dev").name
    'ud/en_ewt-ud-dev.conllu'
    """
    if name not in TREEBANKS:
        raise ValueError(f"There is no treebank {name!r}. {suggestion(name, TREEBANKS)}")
    if part not in TREEBANKS[name]:
        raise ValueError(f"{name} has no part {part!r}. {suggestion(part, TREEBANKS[name])}")
    repository, commit = _COMMITS[name]
    file_name = f"{name}-ud-{part}.conllu"
    return DataFile(
        f"ud/{file_name}",
        TREEBANKS[name][part],
        f"{file_name} of github.com/UniversalDependencies/{repository} at {commit}",
        (github(f"UniversalDependencies/{repository}", commit, file_name),),
    )
