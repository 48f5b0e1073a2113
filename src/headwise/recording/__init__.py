"""Runs, tables of heads, and the recorders that fill them."""

from headwise.recording.checksums import check_checksums, read_tensors, sealed_note, write_checksums
from headwise.recording.files import recover, replacing_folder, write_text, writing_alone
from headwise.recording.heads import HeadTable, Row
from headwise.recording.pointing import Pointing
from headwise.recording.profile import Profile, Samples
from headwise.recording.reading import Gold, Reading, Words
from headwise.recording.run import NotFinite, Run
from headwise.recording.tally import Tally, bootstrap_weights

__all__ = [
    "Gold",
    "HeadTable",
    "NotFinite",
    "Pointing",
    "Profile",
    "Reading",
    "Row",
    "Run",
    "Samples",
    "Tally",
    "Words",
    "bootstrap_weights",
    "check_checksums",
    "read_tensors",
    "recover",
    "replacing_folder",
    "sealed_note",
    "write_checksums",
    "write_text",
    "writing_alone",
]
