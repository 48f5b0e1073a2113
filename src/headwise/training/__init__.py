"""Training: `fit`, its settings, checkpoints, losses and progress."""

from headwise.training.checkpoint import (
    BEST,
    CHECKPOINT,
    CheckpointManager,
    average_checkpoints,
    keep_weights,
    kept_checkpoints,
)
from headwise.training.fit import Diverged, Evaluate, Report, fit, progress_bar
from headwise.training.loss import Summed, label_smoothed_loss, label_smoothed_sum
from headwise.training.settings import (
    FitConfig,
    check_at_least,
    constant,
    cosine,
    inverse_square_root,
    linear,
)

__all__ = [
    "BEST",
    "CHECKPOINT",
    "CheckpointManager",
    "Diverged",
    "Evaluate",
    "FitConfig",
    "Report",
    "Summed",
    "average_checkpoints",
    "check_at_least",
    "constant",
    "cosine",
    "fit",
    "inverse_square_root",
    "keep_weights",
    "kept_checkpoints",
    "label_smoothed_loss",
    "label_smoothed_sum",
    "linear",
    "progress_bar",
]
