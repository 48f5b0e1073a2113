"""Runs, tables of heads, and the recorders that fill them."""

from headwise.recording.heads import HeadTable
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
    "Run",
    "Samples",
    "Tally",
    "Words",
    "bootstrap_weights",
]
