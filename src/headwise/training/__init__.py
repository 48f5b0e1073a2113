"""Training: one loop for all models, learning-rate schedules, and losses."""

from headwise.training.averaging import average_checkpoints
from headwise.training.checkpoint import BEST
from headwise.training.fit import fit
from headwise.training.loss import Summed, label_smoothed_loss, label_smoothed_sum
from headwise.training.progress import progress_bar
from headwise.training.schedule import constant, cosine, inverse_square_root, linear
from headwise.training.settings import FitConfig

__all__ = [
    "BEST",
    "FitConfig",
    "Summed",
    "average_checkpoints",
    "constant",
    "cosine",
    "fit",
    "inverse_square_root",
    "label_smoothed_loss",
    "label_smoothed_sum",
    "linear",
    "progress_bar",
]
