"""What is kept of a run: the folder, the table of heads, and the recorders that fill them."""

from headwise.recording.heads import HeadTable
from headwise.recording.run import Run

__all__ = ["HeadTable", "Run"]
