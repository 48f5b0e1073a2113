"""Hugging Face models as hosts: `adopt` gives them sites, `release` takes them away again.

The host goes on computing with its own backend (sdpa stays sdpa, with its own mask), so outputs
are equal to the unmodified model's, bit by bit. `check_parity` proves it on your model.
"""

from headwise.hf.adoption import adopt, release
from headwise.hf.parity import Parity, check_parity
from headwise.hf.projections import (
    InputProjection,
    Projection,
    input_projections,
    output_projection,
)

__all__ = [
    "InputProjection",
    "Parity",
    "Projection",
    "adopt",
    "check_parity",
    "input_projections",
    "output_projection",
    "release",
]
