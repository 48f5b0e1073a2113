"""Target: how many heads to keep is given, and the penalty's coefficient is steered there.

A gate counts as open by (P(g > 0) + P(g = 1)) / 2, which is above one half exactly when the gate
is open in eval mode. The sum of that over heads is compared with a goal that falls in a straight
line from all heads to those to keep, and the coefficient follows the error:

    error_t  = (open_t - goal_t) / heads, or 0 where it is less than half a head
    I_t      = I_(t-1) + integral * error_t
    lambda_t = initial * exp(I_t + proportional * error_t)

The exponential makes the control the same for losses of any scale, and keeps lambda above 0: too
few open heads lower it, and the loss opens the gates it needs.

    steps x   0 ... warmup ........ reach ........ settle ........ 1
    lambda    0     steered, the    steered, the   0; the chosen gates are held
              |     goal falls      goal stands    open and the others closed

Gates are settled from `settle` on, or as soon as after `reach` the right number has been open for
`patience` updates in a row, so that a number hit by chance does not count. Settled means that the
heads with the largest log_alpha are held at 5 or more and all others at -5 or less: the number is
exact from then on, and the weights learn to do with what is left.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.pruning.choosing import Keep
from headwise.pruning.gates import Gates

HELD = 5.0  # log_alpha of a settled gate; 98.5 % of its draws are exactly 1, or exactly 0


class Target(nn.Module):
    """Keep so many heads; call `step()` once an update and add `loss()` to the loss.

        target = Target(gates, keep=12, steps=2000)
        for batch in batches:
            target.step()
            loss = task_loss(model, batch) + target.loss()
            ...
        keep = gates.keep()  # exactly 12 heads

    It is a part of the gates, `gates.target`, so that it is saved and resumed with the model.

    Args:
        gates: on a model.
        keep: how many heads to keep.
        steps: how many updates there will be.
        warmup: share of the steps with no penalty.
        reach: share of the steps after which the goal is `keep`.
        settle: share of the steps after which gates are settled at the latest.
        patience: updates in a row with the right number of open heads that settle them earlier.
        initial: lambda at the start, of the penalty in the paper's normalisation. Too low costs
            steps, too high closes heads before the loss could say which.
        integral: how fast lambda grows with the error, over all steps: a tenth of the heads
            too many throughout would multiply it by exp(integral / 10).
        proportional: how much lambda answers to the error at once.
    """

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
        proportional: float = 20.0,
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
        self._gates = (gates,)  # in a tuple: the gates hold this, and not the other way round
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
        self.register_buffer("chosen", torch.zeros_like(log_alpha_N, dtype=torch.bool))

    @property
    def gates(self) -> Gates:
        """The gates that are steered."""
        return self._gates[0]

    def loss(self) -> Float[Tensor, ""]:
        """What to add to the loss now: lambda times the gates' penalty."""
        return self.coefficient.clone() * self.gates.penalty()

    def goal(self) -> Float[Tensor, ""]:
        """How many heads should be open by now."""
        share = self.updates.float() / self.steps
        done = ((share - self.warmup) / max(self.reach - self.warmup, 1e-9)).clamp(0, 1)
        return self.gates.heads - (self.gates.heads - self.heads_to_keep) * done

    @torch.no_grad()
    def step(self) -> None:
        """Begin an update: move lambda, and hold the gates once they are settled.

        Everything stays on the gates' device; nothing waits for it.
        """
        self.updates.add_(1)
        log_alpha_N = self.gates.log_alpha().float()
        self._steer(self._openness(log_alpha_N))
        self._settle(log_alpha_N)
        self._hold()

    def _openness(self, log_alpha_N: Tensor) -> Tensor:
        """Between 0 and 1 for each gate; above one half if it is open in the paper's sense."""
        distribution = self.gates.distribution
        return (distribution.prob_open(log_alpha_N) + distribution.prob_one(log_alpha_N)) / 2

    def _steer(self, open_N: Tensor) -> None:
        excess = open_N.sum() * self.gates.group - self.goal()
        error = torch.where(excess.abs() < 0.5, 0.0, excess) / self.gates.heads
        started = self.updates > self.warmup * self.steps
        self.growth.add_(torch.where(started, self.integral / self.steps * error, 0.0))
        exponent = (self.growth + self.proportional * error).clamp(-20, 20)
        steering = started & ~self.settled
        self.coefficient.copy_(torch.where(steering, self.initial * exponent.exp(), 0.0))
        reached = self.updates >= self.reach * self.steps
        number = (open_N >= 0.5).sum() * self.gates.group
        is_right = reached & (number == self.heads_to_keep)
        self.right.copy_(torch.where(is_right, self.right + 1, 0))

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
        """Keep settled gates where they were put; leave others alone."""
        parts = [self.gates.of(site).log_alpha for site in self.gates.sites]
        chosen = self.chosen.split([len(part) for part in parts])
        for part, chosen_G in zip(parts, chosen, strict=True):
            held_G = torch.where(chosen_G, part.clamp(min=HELD), part.clamp(max=-HELD))
            part.copy_(torch.where(self.settled, held_G, part))

    def keep(self) -> Keep:
        """Exactly the heads to keep, whether settled or not: those of the largest log_alpha."""
        chosen = self.chosen if self.settled else self._best(self.gates.log_alpha().detach())
        parts = [self.gates.of(site) for site in self.gates.sites]
        split = chosen.split([len(part.log_alpha) for part in parts])
        return {
            site.name: part.by_head(chosen_G).nonzero().flatten().tolist()
            for site, part, chosen_G in zip(self.gates.sites, parts, split, strict=True)
        }

    def log(self) -> dict[str, float]:
        """How the control stands, to be logged."""
        return {"penalty_coefficient": self.coefficient.item(), "goal_heads": self.goal().item()}


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
        raise ValueError("These gates have a target already; make new gates for another.")


__all__ = ["Target"]
