"""The dynamics of training attention (SEN): theory, measures of words, and distance between them.

Formulas of `headwise_papers.ops.sen`, where recorders need them too. They ask for nothing but scores and
vectors of words, so they serve any classifier that has them.
"""

from headwise_papers.ops.sen import (
    Deviation,
    Velocities,
    class_counts,
    companions,
    deviation,
    predicted_velocities,
    theoretical_norm,
    theoretical_score,
    topic_purity,
)

__all__ = [
    "Deviation",
    "Velocities",
    "class_counts",
    "companions",
    "deviation",
    "predicted_velocities",
    "theoretical_norm",
    "theoretical_score",
    "topic_purity",
]
