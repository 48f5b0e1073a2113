"""Sites for Hugging Face models: `adopt` adds them, `release` removes them.

The model keeps computing with its own backend and mask, so its outputs stay equal bit by bit.
`check_parity` proves it on your model.
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
