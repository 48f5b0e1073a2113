"""Callback that adds guidance to the Trainer of Hugging Face transformers.

hw.adopt(model)
guidance = hw.guide(model, Plan(next=1, prev=1, first=4), alpha=10.0)
Trainer(model, args, ..., callbacks=[GuidanceCallback(guidance)]).train()
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import TrainerState, TrainingArguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

from headwise.guidance.guiding import IGNORED, Guidance, check_finite
from headwise.hf.callback import MetricsCallback
from headwise.ops._impl import outside_compilation
from headwise.sites import in_backward

ITEMS = "num_items_in_batch"  # the argument with the number of labels of an update
CALLBACK = "headwise_callback"  # the attribute of a hook that names its callback

LossFunction = Callable[..., Tensor]  # (outputs, labels, *, num_items_in_batch) -> loss


class Sums(NamedTuple):
    """Sums of losses since the last log."""

    own: Tensor | float = 0.0  # the model's own loss
    guidance: Tensor | float = 0.0  # without alpha
    batches: Tensor | float = 0.0  # or updates, where a batch counts by its share of labels


class GuidanceCallback(MetricsCallback):
    """Callback that adds the guidance loss to the model's loss in training and logs both.

    In training, the `loss` in the model's output is the sum; `eval_loss` is the model's own. With
    gradient accumulation the guidance loss is weighted like the model's own: by the batch's share
    of the labels of the update if the model divides by their number, else equally.

    It logs `own_loss` and `guidance_loss` (without alpha), both means over batches, and
    `guidance_alpha`; with several devices those of the first. For TensorBoard and other reporters,
    which run before callbacks, see `first_in`.

    If your Trainer has a `compute_loss_func`, give it `callback.adding_to(yours)` instead. If a
    training is interrupted, undo the guidance before the model is used otherwise.
    """

    def __init__(self, guidance: Guidance) -> None:
        self.guidance = guidance
        self._hooks: list[Any] = []  # RemovableHandles
        self._state: TrainerState | None = None  # of the current training
        self._in_update = False
        self._divides: bool | None = None  # whether the model divides its loss by ITEMS
        self._sums = Sums()
        self._added = False  # whether guidance was added since the last update

    def adding_to(self, own: LossFunction) -> LossFunction:
        """Return a `compute_loss_func` for the Trainer: your own plus the guidance loss.

        Args:
            own: (outputs, labels, num_items_in_batch=...) -> loss, as the Trainer wants it.
        """

        def compute(
            outputs: Any, labels: Any, num_items_in_batch: Tensor | int | None = None
        ) -> Tensor:
            loss = own(outputs, labels, num_items_in_batch=num_items_in_batch)
            return self._with_guidance(loss, labels, num_items_in_batch)

        return compute

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **parts: Any
    ) -> None:
        """Start adding the guidance loss."""
        if args.n_gpu > 1:
            raise ValueError(
                "The Trainer has put one model on several GPUs, where guidance cannot follow it; "
                "start a process for each with torchrun."
            )
        model, self._state = self.guidance.model, state
        for other in (self, *_callbacks_at(model)):
            if other is self or other._state is not state:
                other._remove_hooks()  # left by an interrupted training
        self.guidance.for_steps(state.max_steps)
        self._divides, self._in_update, self._added, self._sums = None, False, False, Sums()
        # compiled models break their graph here; transformers does not compile full graphs
        track, add = outside_compilation(self._track_items), outside_compilation(self._add)
        setattr(add, CALLBACK, self)
        self._hooks = [
            model.register_forward_pre_hook(track, with_kwargs=True),
            model.register_forward_hook(add, with_kwargs=True),
        ]

    def on_train_end(self, *_: Any, **parts: Any) -> None:
        """Stop adding the guidance loss."""
        self._remove_hooks()

    def on_step_begin(self, args: Any, state: TrainerState, *_: Any, **parts: Any) -> None:
        """Set alpha, and add the guidance loss until the update."""
        self.guidance.at_step(state.global_step)
        self._in_update = True

    def on_step_end(self, *_: Any, **parts: Any) -> None:
        """Add nothing until the next update begins."""
        self._in_update = False

    def on_pre_optimizer_step(self, args: TrainingArguments, *_: Any, **parts: Any) -> None:
        """Raise if no guidance loss was added."""
        if not self._added and not self.guidance.undone:
            if args.label_smoothing_factor:
                raise ValueError(
                    "With label_smoothing_factor the Trainer computes the loss itself, so guidance "
                    "was added to none; smooth in a loss function of yours, and give the Trainer "
                    "compute_loss_func=callback.adding_to(that)."
                )
            raise ValueError(
                "Guidance was added to no loss: the guided model was not called as a whole, but "
                "its parts or its forward were, or its output held no loss. Guide the model that "
                "the Trainer calls, or give the Trainer "
                "compute_loss_func=callback.adding_to(your loss function)."
            )
        self._added = False

    def on_log(self, args: Any, state: TrainerState, *_: Any, **parts: Any) -> None:
        """Add both losses to the Trainer's log of training."""
        logs: dict[str, float] = parts.get("logs") or {}
        if "loss" not in logs or not isinstance(self._sums.batches, Tensor):
            return
        own, guidance, batches = map(float, self._sums)
        self._sums = Sums()
        metrics = {
            "own_loss": own / batches,
            "guidance_loss": check_finite(guidance / batches),
            "guidance_alpha": self.guidance.alpha,
        }
        self.add_metrics(metrics, logs, state)

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _track_items(
        self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Give the number of labels a gradient once, so that `_add` sees whether it was used."""
        items = named.get(ITEMS)
        if self._divides is not None or not isinstance(items, Tensor) or not self._adds_to(model):
            return None
        return args, {**named, ITEMS: items.detach().float().requires_grad_()}

    def _adds_to(self, model: nn.Module) -> bool:
        """Return whether this is a training pass of the guided model, not of a copy of it."""
        mine = model is self.guidance.model and not self.guidance.undone
        return mine and self._in_update and model.training and torch.is_grad_enabled()

    def _add(
        self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> Any:
        if not self._adds_to(model) or in_backward():
            return None
        loss = _loss_in(output)
        if loss is None:
            return None
        labels, items = named.get("labels"), named.get(ITEMS)
        if isinstance(items, Tensor) and items.requires_grad:
            self._divides, items = _is_made_of(loss, items), items.detach()
        ignored = self._divides is False  # some models sum the means of batches
        whole = self._with_guidance(loss, labels, None if ignored else items)
        if isinstance(output, tuple):
            return whole, *cast("tuple[Any, ...]", output)[1:]
        output["loss"] = whole
        return output

    def _with_guidance(self, loss: Tensor, labels: Any, items: Tensor | int | None) -> Tensor:
        if not torch.is_grad_enabled() or self.guidance.undone:
            return loss
        guidance = self.guidance.loss()
        share = torch.ones_like(guidance)
        if items is not None and isinstance(labels, Tensor):
            share = self._labels(labels).ne(IGNORED).sum() / items
        new = (loss.detach(), self.guidance.unscaled * share, share)
        self._sums = Sums(*(a + b for a, b in zip(self._sums, new, strict=True)))
        self._added = True
        return loss + guidance * share

    def _labels(self, labels: Tensor) -> Tensor:
        """Return the labels that the Trainer counts; causal models shift out the first."""
        model: Any = self.guidance.model
        config = getattr(model, "config", None)
        causal = LOSS_MAPPING.get(getattr(model, "loss_type", None) or "") is ForCausalLMLoss
        shifted = causal and not getattr(config, "is_encoder_decoder", False)
        return labels[..., 1:] if shifted else labels


def _callbacks_at(model: nn.Module) -> list[GuidanceCallback]:
    """Return the callbacks that add to the output of a model."""
    hooks = model._forward_hooks.values()  # pyright: ignore[reportPrivateUsage]
    found = (getattr(hook, CALLBACK, None) for hook in hooks)
    return [one for one in found if isinstance(one, GuidanceCallback)]


def _loss_in(output: Any) -> Tensor | None:
    """Return the loss in a model's output, found as the Trainer does."""
    if isinstance(output, dict):  # a ModelOutput is one
        return cast("dict[str, Any]", output).get("loss")
    first = cast("tuple[Any, ...]", output)[0] if isinstance(output, tuple) and output else None
    return first if isinstance(first, Tensor) and not first.dim() else None


def _is_made_of(result: Tensor, leaf: Tensor) -> bool:
    """Return whether a tensor was computed from a leaf."""
    seen: set[Any] = set()
    ahead: list[Any] = [result.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", None) is leaf:
            return True
        seen.add(node)
        ahead += [before for before, _ in node.next_functions]
    return False
