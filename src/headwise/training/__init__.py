"""Training: one loop for all models, learning-rate schedules, and losses."""

from headwise.training.fit import FitConfig, fit
from headwise.training.loss import label_smoothed_loss
from headwise.training.progress import progress_bar
from headwise.training.schedule import constant, cosine, inverse_square_root, linear

__all__ = [
    "FitConfig",
    "constant",
    "cosine",
    "fit",
    "inverse_square_root",
    "label_smoothed_loss",
    "linear",
    "progress_bar",
]
