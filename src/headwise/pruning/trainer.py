"""A callback that trains gates with the Trainer of Hugging Face transformers.

    hw.adopt(model)
    gates = Gates(model, where="encoder.*")
    optimizer = AdamW(gates.parameter_groups(model, learning_rate=0.05), lr=3e-5)
    callback = GatesCallback(gates, penalty=0.05)
    Trainer(model, args, ..., optimizers=(optimizer, None), callbacks=[callback]).train()

Gates are a submodule of the model, so the Trainer's checkpoints hold them, and resuming restores
them.
"""

from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import TrainerState, TrainingArguments

from headwise.hf.callback import MetricsCallback
from headwise.pruning.gates import Gates, Normalise
from headwise.pruning.target import Target, penalty_loss


class GatesCallback(MetricsCallback):
    """A callback that adds the gates' penalty in each update, steers a target, and logs the gates.

    - The penalty's gradient is added to that of the loss just before the optimiser's step, once per
      update, whatever the number of batches and processes.
    - Gradients are clipped before that, so clipping does not change how fast gates close.
    - The logged `loss` is the model's own; the penalty is logged separately. Reporters such as
      TensorBoard are called before callbacks; see `first_in`.
    - Where the Trainer sums losses over batches or processes, as transformers 5.17 does for BERT's
      classifiers, the same coefficient has less effect relative to that sum.

    Args:
        gates: the gates on the model that is trained.
        penalty: the coefficient, or a `Target`.
        normalise: the normalisation of the penalty; see `Gates.penalty`.
        every_head: log P(g > 0) of every head.
    """

    def __init__(
        self,
        gates: Gates,
        penalty: float | Target,
        *,
        normalise: Normalise = "paper",
        every_head: bool = False,
    ) -> None:
        self.gates, self.penalty, self.every_head = gates, penalty, every_head
        self.normalise: Normalise = normalise

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **parts: Any
    ) -> None:
        """Check that the optimiser trains the gates, and print the coefficient."""
        _check_optimizer(parts.get("optimizer"), self.gates)
        if args.fp16 and not args.max_grad_norm:
            raise ValueError(
                "With fp16 gradients are scaled until they are clipped, and the penalty would be "
                "negligible beside them; use bf16, or max_grad_norm above 0."
            )
        if state.is_world_process_zero:
            tqdm.write(self._summary())  # print, but not into the progress bar

    def _summary(self) -> str:
        if not isinstance(self.penalty, Target):
            return f"Gates, {self.gates.lambda_in_both(self.penalty, self.normalise)}."
        return (
            f"Gates, {self.penalty.heads_to_keep} of {self.gates.heads} heads to keep; the log has "
            "lambda as it is steered, as penalty_coefficient (paper) and "
            "penalty_coefficient_reference_code."
        )

    def on_step_begin(self, *_: Any, **parts: Any) -> None:
        """Let a target adjust the coefficient."""
        if isinstance(self.penalty, Target):
            self.penalty.step()

    def on_pre_optimizer_step(self, *_: Any, **parts: Any) -> None:
        """Add the gradient of the penalty to that of the loss."""
        with torch.enable_grad():
            added = penalty_loss(self.gates, self.penalty, normalise=self.normalise)
        parameters = list(self.gates.parameters())
        gradients = torch.autograd.grad(added, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            _add(parameter, gradient)

    def on_log(self, args: Any, state: TrainerState, *_: Any, **parts: Any) -> None:
        """Add metrics of the gates to the Trainer's log of training."""
        logs: dict[str, float] = parts.get("logs") or {}
        if "loss" not in logs:
            return
        with torch.no_grad():
            added = penalty_loss(self.gates, self.penalty, normalise=self.normalise).item()
        rows = {**self.gates.log(every_head=self.every_head), "penalty": added}
        if isinstance(self.penalty, Target):
            rows |= self.penalty.log()
        else:
            rows |= self.gates.coefficients(self.penalty, self.normalise)
        self.add_metrics(rows, logs, state)


def _check_optimizer(optimizer: torch.optim.Optimizer | None, gates: Gates) -> None:
    groups = optimizer.param_groups if optimizer else []
    learning = [{id(parameter) for parameter in group["params"]} for group in groups]
    own = {id(parameter) for parameter in gates.parameters()}
    if not own <= set[int]().union(*learning):
        raise ValueError(
            "The optimiser does not know these gates; create them before the Trainer, and build "
            "the optimiser from gates.parameter_groups(...)."
        )
    if any(group & own and group - own for group in learning):
        raise ValueError(
            "The gates share a parameter group with weights, whose learning rate would hardly move "
            "them; give the Trainer an optimiser built from gates.parameter_groups(...)."
        )


def _add(parameter: nn.Parameter, gradient: torch.Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)
