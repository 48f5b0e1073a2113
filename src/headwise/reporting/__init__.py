"""Reports made of Run folders, without a model: one HTML file that needs nothing else."""

from headwise.reporting.report import write_report

__all__ = ["write_report"]
