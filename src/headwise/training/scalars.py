"""TensorBoard: what is logged, as scalars in the run's folder `tensorboard`."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from headwise.recording.run import Run

FOLDER = "tensorboard"  # of a run


@contextmanager
def tensorboard_scalars(
    run: Run, *, after: int
) -> Generator[Callable[[int, Mapping[str, float]], None]]:
    """What writes metrics of a step to TensorBoard, as long as the block lasts.

    Args:
        run: `tensorboard --logdir` on its folder shows them.
        after: the step from which training goes on; TensorBoard forgets what it has of later ones.
    """
    try:
        # lazy: an optional package, and slow to import
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise ValueError(
            "FitConfig.tensorboard needs the package tensorboard, which is not installed; "
            "install it with `pip install headwise[tensorboard]`."
        ) from None
    with SummaryWriter(str(run.path(FOLDER)), purge_step=after + 1) as writer:

        def write(step: int, metrics: Mapping[str, float]) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        yield write
