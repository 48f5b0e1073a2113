"""Target: how many heads to keep is given, and the penalty's coefficient is steered there.

A gate counts as open by (P(g > 0) + P(g = 1)) / 2, which is above one half exactly when the gate
is open in eval mode. The sum of that over heads, after `reach` the number of open heads itself, is
compared with a goal that falls in a straight line from where the gates stood after the warmup to
the heads to keep, and the coefficient follows the error:

    error_t  = (open_t - goal_t) / heads, or 0 where it is less than half a head
    I_t      = I_(t-1) + integral / steps * error_t     while the gates can follow
             = I_(t-1) - EASE / steps                   too many open, but they all fall already
                                                        (after `reach` it waits: EASE is 0)
    lambda_t = initial * exp(I_t + proportional * error_t)

The exponential makes the control the same for losses of any scale, and keeps lambda above 0: too
few open heads lower it, and the loss opens the gates it needs.

An optimiser such as Adam moves a gate by no more than its learning rate an update. When nearly all
open gates fall, a larger lambda makes none of them faster: it only drowns what the loss says of
each, and which are left would be chance. So lambda grows only while some open gates still rise.

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
TOGETHER = 0.85  # gates cannot follow when more than this share of the open ones falls
EASE = 20.0  # by how much log lambda would fall over all steps while they cannot
MEMORY = 0.1  # weight of the newest update in the share that falls, a mean over some ten updates
FAR = 0.1  # settling this share of the heads away from those to keep is worth a note
UNSURE = 0.5  # and so is settling when this share of the heads is undecided


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
        """What to add to the loss now: lambda times the gates' penalty."""
        return self.coefficient.clone() * self.gates.penalty()

    def goal(self) -> Float[Tensor, ""]:
        """How many heads should be open by now."""
        share = self.updates.float() / self.steps
        done = ((share - self.warmup) / max(self.reach - self.warmup, 1e-9)).clamp(0, 1)
        return self.start - (self.start - self.heads_to_keep) * done

    @torch.no_grad()
    def step(self) -> None:
        """Begin an update: move lambda, and hold the gates once they are settled.

        Everything stays on the gates' device; nothing waits for it.
        """
        self.updates.add_(1)
        log_alpha_N = self.gates.log_alpha().float()
        self._steer(log_alpha_N, self._openness(log_alpha_N))
        self._settle(log_alpha_N)
        self._hold()

    def _openness(self, log_alpha_N: Tensor) -> Tensor:
        """Between 0 and 1 for each gate; above one half if it is open in the paper's sense."""
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
        """How many heads too many are open. Counts whether the number is right, too."""
        reached = self.updates >= self.reach * self.steps
        number = (open_N >= 0.5).sum() * self.gates.group
        is_right = reached & (number == self.heads_to_keep)
        self.right.copy_(torch.where(is_right, self.right + 1, 0))
        self.left.copy_(torch.where(self.settled, self.left, number))
        return torch.where(reached, number, open_N.sum() * self.gates.group) - self.goal()

    def _all_fall(self, log_alpha_N: Tensor, open_N: Tensor) -> Tensor:
        """Whether nearly all open gates have been falling of late."""
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
        """Keep settled gates where they were put; leave others alone."""
        parts = [self.gates.of(site) for site in self.gates.sites]
        chosen = self.chosen.split([len(part.log_alpha) for part in parts])
        for part, chosen_G in zip(parts, chosen, strict=True):
            part.hold(chosen_G, at=HELD, when=self.settled)

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
        """How the control stands, to be logged; the coefficient in both countings of the penalty.

        Once gates are settled, `open_when_settled` is how many heads steering had left open: the
        further from those to keep, the more of the choice was made by settling alone.
        """
        rows = self.gates.coefficients(self.coefficient.item())
        rows["goal_heads"] = self.goal().item()
        return rows | ({"open_when_settled": float(self.left)} if self.settled else {})

    def note(self) -> str | None:
        """A sentence for a report where settling moved many gates, or unsure ones, else None."""
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
        raise ValueError("These gates have a target already; make new gates for another.")


__all__ = ["Target"]
