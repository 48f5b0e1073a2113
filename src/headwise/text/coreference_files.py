"""The files of the coreference sets: where they lie, what they must hold, where they come from."""

from typing import NamedTuple

from headwise.config import suggestion
from headwise.text.making import github
from headwise.text.source import DataFile

__all__ = ["COREFERENCE", "coreference_file", "coreference_parts"]


class _Set(NamedTuple):
    path: str  # with {part}
    origin: str
    repository: str
    commit: str
    source: str  # in the repository, with {part}, or {kind} and {split} of a part; "": made of many
    checksums: dict[str, str]  # of the unpacked file, by part


COREFERENCE = {
    "gap": _Set(
        "gap/gap-{part}.tsv",
        "gap-{part}.tsv of github.com/google-research-datasets/gap-coreference at 83135f26",
        "google-research-datasets/gap-coreference",
        "83135f26",
        "gap-{part}.tsv",
        {
            "development": "b9a01434fcf58d8c2f9bc762480c27e58ce466cf1ffe8b09cfecbc7a20d2d634",
            "validation": "2d784f66b390404f554704b9aef6dcde8845e79dda9886b8391cf7e9a24fdb98",
            "test": "1c35e36d5b14f6313ec3f6cd67b275de282595dd59e59390e00cfff9897a6819",
        },
    ),
    "winobias": _Set(
        "winobias/{part}.txt",
        "WinoBias/wino/data/{kind}.txt.{split} of github.com/uclanlp/corefBias at 0bce984d",
        "uclanlp/corefBias",
        "0bce984d",
        "WinoBias/wino/data/{kind}.txt.{split}",
        {
            "pro_stereotyped_type1.dev": (
                "dd55a0d220fe4c0ceb63dd4648223fb4fe1a58d5ad95c116a002ad24b0e292a5"
            ),
            "pro_stereotyped_type1.test": (
                "db7838907238a758eeb5779e48f38c013b892910d6fe864456c59f04245c6689"
            ),
            "pro_stereotyped_type2.dev": (
                "8f0250de723cea9328e3eaf7169e07936f01aa5909ce7aa580db66eb803f4e86"
            ),
            "pro_stereotyped_type2.test": (
                "ea1c1fd94fa612e3cc44d7fa3cc4cb76021bb63fdf94f9826f430051e9052438"
            ),
            "anti_stereotyped_type1.dev": (
                "a4e0ebae344e78b56f657a42e8ae684b9db7747d177c5e7149c0907ebb7f3bf6"
            ),
            "anti_stereotyped_type1.test": (
                "331db5bd74bfefebf146a60b67645152a4a1991570d2a56f57154103ac361dd2"
            ),
            "anti_stereotyped_type2.dev": (
                "763ad829ad724f9a85ead689ba8ca69072020cb1238def6210f0fc6a47b97e59"
            ),
            "anti_stereotyped_type2.test": (
                "336571ac1ea8c06cd2aba8e5dd2bd98e00acc0c48da3e4ec5ec7e54eb2633a8f"
            ),
        },
    ),
    "winogender": _Set(
        "winogender/all_sentences.tsv",
        "data/all_sentences.tsv of github.com/rudinger/winogender-schemas at 1c7f8b48",
        "rudinger/winogender-schemas",
        "1c7f8b48",
        "data/all_sentences.tsv",
        {"": "bd69da16bf228cb8df63fd0843aec2d8b5c36a7f21bf8c7b168bcc83932556c8"},
    ),
    "litbank": _Set(
        "litbank/litbank_coref.conll",
        "coref/conll/*.conll of github.com/dbamman/litbank at 3e50db0f, joined in the order of "
        "their names",
        "dbamman/litbank",
        "3e50db0f",
        "",
        {"": "0377fbb23e6af2d6b76336970257317534ef17d1409318e550e92f1131ffcecf"},
    ),
}


def coreference_parts(name: str) -> tuple[str, ...]:
    """The parts of a set; one that is not divided has one part, without a name."""
    return tuple(COREFERENCE[name].checksums)


def coreference_file(name: str, part: str = "") -> DataFile:
    """The file of a part of a set.

    >>> coreference_file("gap", "test").name
    'gap/gap-test.tsv'
    """
    known = COREFERENCE[name]
    if part not in known.checksums:
        parts = coreference_parts(name)
        raise ValueError(f"{name} has no part {part!r}. {suggestion(part, parts)}")
    kind, _, split = part.partition(".")
    names = {"part": part, "kind": kind, "split": split}
    source = known.source.format(**names)
    return DataFile(
        known.path.format(**names),
        known.checksums[part],
        known.origin.format(**names),
        (github(known.repository, known.commit, source),) if source else (),
    )
