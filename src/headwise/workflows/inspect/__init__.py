"""Inspection: what each head of a model does and how much it matters.

sentence, corpus, sampling   what is read
subject,                     how a model reads it
hugging_face_subject,
at_hand, text_alone
annotating, passing, rules   one pass: where heads attend
asking, worth, importance,   a sample in detail: how much heads matter
means
identity, columns            what an inspection is of, and what its table may hold
examining                    all of it
"""

from headwise.workflows.inspect.inspection import InspectConfig, inspect, inspect_folder

__all__ = ["InspectConfig", "inspect", "inspect_folder"]
