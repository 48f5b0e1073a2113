"""Reports made of Run folders, without a model: one HTML file that needs nothing else."""

from headwise.reporting.pruning import SPEED_SHAPE
from headwise.reporting.report import write_report
from headwise.reporting.role_groups import group_of, short_name

__all__ = ["SPEED_SHAPE", "group_of", "short_name", "write_report"]
