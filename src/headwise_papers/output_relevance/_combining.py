"""Training many combinations of heads that share everything else: `output_relevance/multihead`.

S models   H heads of each   P heads in a pool
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise_papers.models.rnn import Heads, Seq2Seq, Seq2SeqConfig
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.output_relevance._copying import (
    Settings,
    at_step,
    model_config,
    release,
    train,
)
from headwise_papers.output_relevance._stacks import drawn

# What an update holds of a model, in numbers a position and unit of the width: about 17 and 2.3 a
# head are kept for the backward pass, which needs as many again while it runs.
KEPT, KEPT_A_HEAD = 36, 5
CPU_BYTES = 2**31  # held at once on a CPU
GPU_SHARE = 0.7  # of a GPU's free memory


@dataclass(frozen=True)
class Pool:
    """Heads to combine, and the one model that all combinations start from but for its heads."""

    rest: dict[str, Tensor]  # parameters, none of heads
    heads: dict[str, Tensor]  # "score_weight", ..., each (P, …)

    @staticmethod
    def drawn(
        settings: Settings, seeds: Sequence[int], *, seed: int, device: torch.device
    ) -> "Pool":
        """A pool whose heads are drawn by `seeds`, and everything else by `seed`."""
        config = model_config(settings)
        model = drawn(lambda: Seq2Seq(config), seed=seed, device=device)
        alone = [
            drawn(lambda: Heads(1, hidden=config.hidden, width=config.width), seed=s, device=device)
            for s in seeds
        ]
        states = [one.state_dict() for one in alone]
        return Pool(
            {name: x for name, x in model.state_dict().items() if not name.startswith("heads.")},
            {name: torch.cat([state[name] for state in states]) for name in states[0]},
        )

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.rest["embed.weight"].device

    def stack(self, config: Seq2SeqConfig, members: Sequence[Sequence[int]]) -> Seq2SeqStack:
        """One model for each combination of heads, which are all of the same size."""
        one = drawn(lambda: Seq2Seq(config), seed=0, device=self.device)
        one.load_state_dict(self.rest, strict=False)
        # one model, copied: building each by itself would draw what is then overwritten
        stack = Seq2SeqStack([one] * len(members))
        chosen_SH = torch.tensor(members, device=self.device)
        with torch.no_grad():
            for name, pool_P in self.heads.items():
                stack.weights[f"heads.{name}"].copy_(pool_P[chosen_SH])
        return stack


@dataclass(frozen=True)
class Outcome:
    """One training of one combination."""

    good: int  # heads of each kind
    bad: int
    fails: bool


def fails(outcomes: Sequence[Outcome]) -> list[float]:
    """Whether each fails, as a share has it."""
    return [float(outcome.fails) for outcome in outcomes]


@dataclass(frozen=True)
class Trained:
    """How some combinations did."""

    accuracy: list[float]  # at the last update
    loss: float  # their mean there
    seconds: float  # that training took


def train_combinations(
    pool: Pool,
    members: Sequence[Sequence[int]],
    data_seeds: Sequence[int],
    settings: Settings,
    *,
    updates: int,
    sum_heads: Literal["sum", "mean"] = "sum",
) -> Trained:
    """Train combinations of one size on permutations, each on the data of its seed."""
    config = model_config(settings, heads=len(members[0]), sum_heads=sum_heads)
    started = time.perf_counter()
    stack = pool.stack(config, members)
    curves = train(stack, "permutation", data_seeds, settings, updates=updates)
    accuracy_S = at_step(curves, "accuracy", updates)
    seconds = time.perf_counter() - started
    return Trained(accuracy_S.tolist(), curves["loss"][-1].mean().item(), seconds)


def chunks(
    combinations: Sequence[int], settings: Settings, *, most: int, device: torch.device
) -> Iterator[list[int]]:
    """Combinations of one size at a time, as many as the device has memory for and at most `most`.

    Sizes are looked at as the chunks are asked for, so that each is fitted to what is free then.

    Args:
        combinations: sets of heads, head number n in a set as bit n.
        settings: of the models.
        most: more are not trained faster.
        device: whose memory counts.
    """
    for heads in sorted({one.bit_count() for one in combinations}):
        left = [one for one in combinations if one.bit_count() == heads]
        while left:
            fits = free_bytes(device) // bytes_of_model(settings, heads)
            size = max(1, min(most, fits))
            yield left[:size]
            left = left[size:]


def free_bytes(device: torch.device) -> int:
    """Memory that training may take."""
    if device.type != "cuda":
        return CPU_BYTES
    release(device)
    return int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])


def bytes_of_model(settings: Settings, heads: int) -> int:
    """About what training takes for one model of a stack."""
    with torch.device("meta"):
        model = Seq2Seq(model_config(settings, heads=heads))
    parameters = sum(math.prod(x.shape) for x in model.parameters())
    positions = settings.batch * (settings.types + 1)
    numbers = positions * settings.hidden * (KEPT + KEPT_A_HEAD * heads)
    return 4 * (4 * parameters + numbers)  # a parameter has a gradient and Adam's two means


def members_of(combination: int) -> list[int]:
    """The numbers of the heads in a combination.

    >>> members_of(0b1011)
    [0, 1, 3]
    """
    return [head for head in range(combination.bit_length()) if combination >> head & 1]
