"""The weights of the last checkpoints, kept beside the newest whole one, and their mean."""

from collections.abc import Mapping
from pathlib import PurePath

from torch import Tensor

from headwise.recording.run import Run
from headwise.training.checkpoint import checkpoint_weights

FOLDER = "checkpoints"  # of a run; a file a step


def average_checkpoints(run: Run, *, last: int | None = None) -> dict[str, Tensor]:
    """The mean of the weights of the last checkpoints.

    How many there are was decided by `FitConfig.average` while training; with 1 it is the only one.
    Means are taken in float64. What is no floating-point number is that of the newest. Use:
    `model.load_state_dict(average_checkpoints(run, last=5))`.

    Args:
        run: one that `fit` trained into.
        last: how many of the newest; None takes all that were kept.
    """
    names = kept_checkpoints(run)
    count = len(names) if last is None else last
    if names and not 1 <= count <= len(names):
        raise ValueError(
            f"last must be between 1 and the {len(names)} checkpoints that were kept, got {last}; "
            "FitConfig.average says how many are."
        )
    if not names and count > 1:
        raise ValueError(
            f"The run in {run.folder} kept one checkpoint, but last={last} was asked for; "
            "train with a larger FitConfig.average."
        )
    return _mean(run, names[len(names) - count :]) if names else checkpoint_weights(run)


def kept_checkpoints(run: Run) -> list[str]:
    """Names of the files of kept weights, the oldest first."""
    return sorted(run.names(f"{FOLDER}/*.safetensors"), key=_step)


def keep_weights(run: Run, weights: Mapping[str, Tensor], *, step: int) -> None:
    """Write weights as those of a step."""
    run.save_tensors(f"{FOLDER}/{step}.safetensors", weights, {"step": str(step)})


def drop_old(run: Run, *, keep: int, step: int) -> None:
    """Delete all kept weights but the last `keep` up to a step.

    Later ones were written by a process that was killed before its checkpoint; they will be again.
    """
    past = [name for name in kept_checkpoints(run) if _step(name) <= step]
    for name in set(kept_checkpoints(run)) - set(past[-keep:]):
        run.path(name).unlink()


def _mean(run: Run, names: list[str]) -> dict[str, Tensor]:
    newest = run.load_tensors(names[-1])
    sums = {name: value.double() for name, value in newest.items() if value.is_floating_point()}
    for kept in names[:-1]:  # one after the other, so that two at most are in memory
        weights = run.load_tensors(kept)
        for name, total in sums.items():
            total += weights[name]
    means = {name: (total / len(names)).to(newest[name].dtype) for name, total in sums.items()}
    return {**newest, **means}


def _step(name: str) -> int:
    return int(PurePath(name).stem)
