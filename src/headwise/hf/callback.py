"""What our callbacks for the Trainer of Hugging Face transformers share: figures in its log."""

from collections.abc import Mapping

from transformers import Trainer, TrainerCallback, TrainerState

__all__ = ["FigureCallback"]


class FigureCallback(TrainerCallback):
    """A callback that logs figures of its own beside the loss."""

    def first_in(self, trainer: Trainer) -> Trainer:
        """The same Trainer, which tells this callback first of all.

            callback.first_in(Trainer(model, args, ..., callbacks=[callback])).train()

        Reporters like TensorBoard stand before other callbacks, and would not see the figures.
        """
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(each for each in callbacks if each is not self)]
        return trainer

    def add_figures(
        self, figures: Mapping[str, float], logs: dict[str, float], state: TrainerState
    ) -> None:
        """Put figures into a row of the log, and into the row that the Trainer keeps of it."""
        logs.update(figures)
        state.log_history[-1].update(figures)
