"""Base class of our callbacks for the Trainer of Hugging Face transformers."""

from collections.abc import Mapping

from transformers import Trainer, TrainerCallback, TrainerState


class MetricsCallback(TrainerCallback):
    """Callback that logs metrics of its own alongside the loss."""

    def first_in(self, trainer: Trainer) -> Trainer:
        """Make this the first callback of a Trainer, and return the Trainer.

            callback.first_in(Trainer(model, args, ..., callbacks=[callback])).train()

        Reporters like TensorBoard come before other callbacks, and would not see the metrics.
        """
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(each for each in callbacks if each is not self)]
        return trainer

    def add_metrics(
        self, metrics: Mapping[str, float], logs: dict[str, float], state: TrainerState
    ) -> None:
        """Add metrics to a row of the log, and to the Trainer's own copy of the row."""
        logs.update(metrics)
        state.log_history[-1].update(metrics)
