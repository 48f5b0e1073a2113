"""Inspection: what each head of a model does and how much it matters.

config                       settings
sentence, corpus             what is read
subject, hugging_face        how a model reads it
annotation, stream           one pass: what heads attend to
importance                   a sample in detail: how much heads matter
examining, inspection        all of it, and the run that keeps it
"""

from headwise.workflows.inspect.config import InspectConfig
from headwise.workflows.inspect.inspection import inspect, inspect_folder

__all__ = ["InspectConfig", "inspect", "inspect_folder"]
