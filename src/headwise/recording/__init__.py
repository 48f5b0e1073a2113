"""What is kept of a run: the folder, the table of heads, and the recorders that fill them."""

from headwise.recording.heads import HeadTable
from headwise.recording.pointing import Gold, Pointing
from headwise.recording.profile import Profile
from headwise.recording.run import Run
from headwise.recording.samples import Samples

__all__ = ["Gold", "HeadTable", "Pointing", "Profile", "Run", "Samples"]
