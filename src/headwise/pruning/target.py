"""Target: keep a given number of heads by steering the coefficient of the penalty.

The openness of a gate is (P(g > 0) + P(g = 1)) / 2, which is above one half exactly if the gate is
open in eval mode. Its sum over heads, or after `reach` the number of open heads, is compared with a
goal. The goal falls linearly from the sum after the warmup to the number of heads to keep, and the
coefficient follows the error:

    error_t  = (open_t - goal_t) / heads, or 0 where it is less than half a head
    I_t      = I_(t-1) + integral / steps * error_t     while the gates can follow
             = I_(t-1) - EASE / steps                   if too many are open, but all fall already
                                                        (after `reach` EASE is 0)
    lambda_t = initial * exp(I_t + proportional * error_t)

The exponential makes the control independent of the scale of the loss, and keeps lambda positive:
too few open heads lower it, and the loss opens the gates it needs.

An optimiser such as Adam moves a gate by no more than its learning rate in an update. If nearly all
open gates fall, a larger lambda makes none of them faster; it only drowns the loss, and which gates
stay open becomes random. So lambda grows only while some open gates still rise.

    steps x   0 ... warmup ........ reach ........ settle ........ 1
    lambda    0     steered, the    steered, the   0; the chosen gates are held
              |     goal falls      goal stands    open and the others closed

Gates are settled from `settle` on, or earlier: after `reach`, once the right number has been open
for `patience` updates in a row. Settled means that the heads with the largest log_alpha are held at
5 or more and all others at -5 or less. The number is exact from then on, and the weights adapt.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.pruning.choosing import Keep
from headwise.pruning.gates import Gates, Normalise

HELD = 5.0  # log_alpha of a settled gate; 98.5 % of its draws are exactly 1, or exactly 0
TOGETHER = 0.85  # gates cannot follow if more than this share of the open ones falls
EASE = 20.0  # the fall of log lambda over all steps while they cannot
MEMORY = 0.1  # weight of the newest update in the moving average of the share that falls
FAR = 0.1  # `note` tells if the number of open heads was off by more than this share
UNSURE = 0.5  # `note` tells if more than this share of the heads was undecided


class Target(nn.Module):
    """A controller that keeps exactly so many heads.

    Call `step()` once per update and add `loss()` to the loss:

        target = Target(gates, keep=12, steps=2000)
        for batch in batches:
            target.step()
            loss = task_loss(model, batch) + target.loss()
            ...
        keep = gates.keep()  # exactly 12 heads

    It is the submodule `gates.target`, so that it is saved and resumed with the model.

    Args:
        gates: the gates on a model.
        keep: the number of heads to keep.
        steps: the number of updates.
        warmup: share of the steps without penalty.
        reach: share of the steps after which the goal is `keep`.
        settle: share of the steps after which gates are settled at the latest.
        patience: updates in a row with the right number of open heads that settle gates earlier.
        initial: lambda at the start, for the penalty in the paper's normalisation. A low value
            costs steps; a high one closes heads before the loss could decide which.
        integral: growth of lambda with the error over all steps: a constant excess of a tenth of
            the heads multiplies it by exp(integral / 10).
        proportional: immediate response of lambda to the error.
    """

    start: Tensor
    falling: Tensor
    previous: Tensor
    left: Tensor

    updates: Tensor
    growth: Tensor
    coefficient: Tensor
    right: Tensor
    settled: Tensor
    chosen: Tensor

    def __init__(
        self,
        gates: Gates,
        keep: int,
        *,
        steps: int,
        warmup: float = 0.05,
        reach: float = 0.6,
        settle: float = 0.8,
        patience: int = 20,
        initial: float = 1e-3,
        integral: float = 300.0,
        proportional: float = 8.0,
    ) -> None:
        super().__init__()
        _check_heads(gates, keep)
        if not 0 <= warmup <= reach <= settle < 1:
            raise ValueError(
                "warmup, reach and settle must be shares of the steps in that order, below 1; got "
                f"{warmup}, {reach} and {settle}."
            )
        if steps < 1 or initial <= 0:
            raise ValueError(
                f"steps must be at least 1 and initial above 0, got {steps} and {initial}."
            )
        self.heads_to_keep, self.steps, self.patience = keep, steps, patience
        self.warmup, self.reach, self.settle = warmup, reach, settle
        self.initial, self.integral, self.proportional = initial, integral, proportional
        self._gates = (gates,)  # a tuple, so that the gates are not registered as a submodule
        self._register_state(gates)
        gates.add_module("target", self)

    def _register_state(self, gates: Gates) -> None:
        log_alpha_N = gates.log_alpha().detach()
        number = torch.zeros((), device=log_alpha_N.device)
        self.register_buffer("updates", number.long())
        self.register_buffer("growth", number.clone())  # I_t
        self.register_buffer("coefficient", number.clone())  # lambda_t
        self.register_buffer("right", number.long())  # updates in a row with the right number
        self.register_buffer("settled", number.bool())
        self.register_buffer("start", number + gates.heads)  # how open gates were after the warmup
        self.register_buffer("falling", number + 0.5)  # share of the open gates, smoothed
        self.register_buffer("previous", log_alpha_N.clone())  # log_alpha one update ago
        self.register_buffer("left", number.long())  # heads open when gates were settled
        self.register_buffer("chosen", torch.zeros_like(log_alpha_N, dtype=torch.bool))

    @property
    def gates(self) -> Gates:
        """The gates that are steered."""
        return self._gates[0]

    def loss(self) -> Float[Tensor, ""]:
        """Return lambda times the gates' penalty, to be added to the loss."""
        return self.coefficient.clone() * self.gates.penalty()

    def goal(self) -> Float[Tensor, ""]:
        """Return the number of heads that should be open now."""
        share = self.updates.float() / self.steps
        done = ((share - self.warmup) / max(self.reach - self.warmup, 1e-9)).clamp(0, 1)
        return self.start - (self.start - self.heads_to_keep) * done

    @torch.no_grad()
    def step(self) -> None:
        """Start an update: adjust lambda, and hold the gates once they are settled.

        Nothing waits for the gates' device.
        """
        self.updates.add_(1)
        log_alpha_N = self.gates.log_alpha().float()
        self._steer(log_alpha_N, self._openness(log_alpha_N))
        self._settle(log_alpha_N)
        self._hold()

    def _openness(self, log_alpha_N: Tensor) -> Tensor:
        """Return the openness of each gate; above one half if it is open in the mode "paper"."""
        distribution = self.gates.distribution
        return (distribution.prob_open(log_alpha_N) + distribution.prob_one(log_alpha_N)) / 2

    def _steer(self, log_alpha_N: Tensor, open_N: Tensor) -> None:
        started = self.updates > self.warmup * self.steps
        self.start.copy_(torch.where(started, self.start, open_N.sum() * self.gates.group))
        excess = self._excess(open_N)
        error = torch.where(excess.abs() < 0.5, 0.0, excess) / self.gates.heads
        stuck = self._all_fall(log_alpha_N, open_N) & (error > 0)
        ease = torch.where(self.updates < self.reach * self.steps, EASE, 0.0)
        growth = torch.where(stuck, -ease, self.integral * error) / self.steps
        self.growth.add_(torch.where(started, growth, 0.0)).clamp_(-20, 20)
        exponent = (self.growth + self.proportional * error).clamp(-20, 20)
        steering = started & ~self.settled
        self.coefficient.copy_(torch.where(steering, self.initial * exponent.exp(), 0.0))

    def _excess(self, open_N: Tensor) -> Tensor:
        """Return the excess of open heads; count updates in a row with the right number."""
        reached = self.updates >= self.reach * self.steps
        number = (open_N >= 0.5).sum() * self.gates.group
        is_right = reached & (number == self.heads_to_keep)
        self.right.copy_(torch.where(is_right, self.right + 1, 0))
        self.left.copy_(torch.where(self.settled, self.left, number))
        return torch.where(reached, number, open_N.sum() * self.gates.group) - self.goal()

    def _all_fall(self, log_alpha_N: Tensor, open_N: Tensor) -> Tensor:
        """Return whether nearly all open gates have been falling recently."""
        is_open_N = open_N >= 0.5
        falls_N = (log_alpha_N < self.previous) & is_open_N
        share = falls_N.sum() / is_open_N.sum().clamp(min=1)
        self.falling.lerp_(share.to(self.falling.dtype), MEMORY)
        self.previous.copy_(log_alpha_N)
        return self.falling > TOGETHER

    def _settle(self, log_alpha_N: Tensor) -> None:
        """Choose the heads to keep, once."""
        due = (self.right >= self.patience) | (self.updates >= self.settle * self.steps)
        best_N = self._best(log_alpha_N)
        self.chosen.copy_(torch.where(due & ~self.settled, best_N, self.chosen))
        self.settled.logical_or_(due)

    def _best(self, log_alpha_N: Tensor) -> Tensor:
        places = log_alpha_N.topk(self.heads_to_keep // self.gates.group).indices
        return torch.zeros_like(self.chosen).index_fill_(0, places, True)

    def _hold(self) -> None:
        """Keep settled gates in place."""
        parts = [self.gates.of(site) for site in self.gates.sites]
        chosen = self.chosen.split([len(part.log_alpha) for part in parts])
        for part, chosen_G in zip(parts, chosen, strict=True):
            part.hold(chosen_G, at=HELD, when=self.settled)

    def keep(self) -> Keep:
        """Return exactly the heads to keep: those with the largest log_alpha."""
        chosen = self.chosen if self.settled else self._best(self.gates.log_alpha().detach())
        parts = [self.gates.of(site) for site in self.gates.sites]
        split = chosen.split([len(part.log_alpha) for part in parts])
        return {
            site.name: part.by_head(chosen_G).nonzero().flatten().tolist()
            for site, part, chosen_G in zip(self.gates.sites, parts, split, strict=True)
        }

    def log(self) -> dict[str, float]:
        """Return metrics: the coefficient in both normalisations, and the goal.

        Once gates are settled, `open_when_settled` is the number of heads that steering had left
        open. If it is far from the heads to keep, settling made part of the choice.
        """
        rows = self.gates.coefficients(self.coefficient.item())
        rows["goal_heads"] = self.goal().item()
        return rows | ({"open_when_settled": float(self.left)} if self.settled else {})

    def note(self) -> str | None:
        """Return a sentence if settling moved many or undecided gates, else None."""
        if not self.settled:
            return None
        left, heads = int(self.left), self.gates.heads
        if abs(left - self.heads_to_keep) > FAR * heads:
            return (
                f"{left} heads were open when the gates were settled at {self.heads_to_keep}, so "
                "settling made part of the choice; more steps let the gates make all of it."
            )
        undecided = int(self.gates.log()["undecided_heads"])
        if undecided > UNSURE * heads and self.heads_to_keep < heads:
            return (
                f"{undecided} of {heads} heads were undecided when the gates were settled, so that "
                "heads which were in use are cut; with more steps they are not."
            )
        return None


def _check_heads(gates: Gates, keep: int) -> None:
    if not 0 <= keep <= gates.heads:
        raise ValueError(
            f"keep must be between 0 and the {gates.heads} heads with gates, got {keep}."
        )
    if keep % gates.group:
        raise ValueError(
            f"keep must be a multiple of the {gates.group} heads that share a gate, got {keep}."
        )
    if hasattr(gates, "target"):
        raise ValueError("These gates have a target already; create new gates for another.")


Batch = TypeVar("Batch")
Value = Tensor | tuple[Tensor, Tensor | int]  # a loss, or a sum and the number of its terms


def penalised(
    loss: Callable[[nn.Module, Batch], Value],
    gates: Gates,
    penalty: float | Target,
    *,
    normalise: Normalise = "paper",
    every: int = 1,
) -> Callable[[nn.Module, Batch], Any]:
    """Add the gates' penalty to a loss, for `headwise.training.fit` or a loop of your own.

    Args:
        loss: from model and batch to a scalar, or to a sum and the number of its terms. The penalty
            is then multiplied by that number, so that it is added to the mean.
        gates: the gates on the model.
        penalty: the coefficient, or a `Target`, whose `step` is then called here.
        normalise: the normalisation of the penalty; see `Gates.penalty`.
        every: batches per update, as `accumulate` of FitConfig; a target steps once per update.
    """
    calls = 0

    def with_penalty(model: nn.Module, batch: Batch) -> Value:
        nonlocal calls
        if isinstance(penalty, Target) and calls % every == 0:
            penalty.step()
        calls += 1
        value = loss(model, batch)
        added = penalty_loss(gates, penalty, normalise=normalise)
        if isinstance(value, Tensor):
            return value + added
        total, number = value
        return total + added * number, number

    return with_penalty


def penalty_loss(gates: Gates, penalty: float | Target, *, normalise: Normalise) -> Tensor:
    """Return what a coefficient or a target adds to the loss now."""
    if isinstance(penalty, Target):
        return penalty.loss()
    return penalty * gates.penalty(normalise)
