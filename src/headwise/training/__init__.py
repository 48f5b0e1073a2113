"""Training: `fit`, its settings, checkpoints and losses, and the run folder of a training."""

from headwise.training.checkpoint import (
    BEST,
    CHECKPOINT,
    CheckpointManager,
    average_checkpoints,
    keep_weights,
    kept_checkpoints,
)
from headwise.training.fit import Diverged, fit
from headwise.training.loss import RunningLoss, Summed, label_smoothed_loss, label_smoothed_sum
from headwise.training.optimizer import constant, cosine, inverse_square_root, linear
from headwise.training.progress import Report, clock, progress_bar
from headwise.training.run import (
    MINUTES,
    Clock,
    checksum_of,
    choose_weights,
    fit_here,
    in_first_process_first,
    is_first_process,
    logged_rows,
    process_count,
    shared_run,
    training_bar,
    training_figures,
)
from headwise.training.settings import FitConfig, check_at_least

__all__ = [
    "BEST",
    "CHECKPOINT",
    "MINUTES",
    "CheckpointManager",
    "Clock",
    "Diverged",
    "FitConfig",
    "Report",
    "RunningLoss",
    "Summed",
    "average_checkpoints",
    "check_at_least",
    "checksum_of",
    "choose_weights",
    "clock",
    "constant",
    "cosine",
    "fit",
    "fit_here",
    "in_first_process_first",
    "inverse_square_root",
    "is_first_process",
    "keep_weights",
    "kept_checkpoints",
    "label_smoothed_loss",
    "label_smoothed_sum",
    "linear",
    "logged_rows",
    "process_count",
    "progress_bar",
    "shared_run",
    "training_bar",
    "training_figures",
]
