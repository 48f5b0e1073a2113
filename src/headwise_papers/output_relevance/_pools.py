"""Pools of good and bad attention heads, and the training of all their combinations.

S models   H heads of each   P heads in a pool
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from headwise.recording import Run
from headwise_papers.models.rnn import Heads, Seq2Seq, Seq2SeqConfig
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.output_relevance._copying import SUCCESS, Setup, at_step, release, train
from headwise_papers.output_relevance._runs import device_of, drawn

# Numbers per position and unit of the width that an update holds of a model: about 17, and 2.3 per
# head, are kept for the backward pass, which needs as many again while it runs.
KEPT, KEPT_PER_HEAD = 36, 5
CPU_BYTES = 2**31  # that training may take on a CPU
GPU_SHARE = 0.7  # of a GPU's free memory
MAX_MODELS = 128  # of a stack; more are not trained faster
FIRST_HEAD = 1_000_000  # seeds of heads begin here, apart from those of whole models
HEADS_OF_POOL = 100_000  # and are so far apart from pool to pool


@dataclass(frozen=True)
class Pool:
    """Heads to combine, and the one model that all combinations start from but for its heads."""

    rest: dict[str, Tensor]  # parameters, none of heads
    heads: dict[str, Tensor]  # "score_weight", ..., each (P, …)

    @staticmethod
    def drawn(setup: Setup, seeds: Sequence[int], *, seed: int, device: torch.device) -> "Pool":
        """Make a pool with heads initialised by `seeds`, and everything else by `seed`."""
        config = setup.model()
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
        """Device of its tensors."""
        return self.rest["embed.weight"].device

    def stack(self, config: Seq2SeqConfig, members: Sequence[Sequence[int]]) -> Seq2SeqStack:
        """Make one model per combination of heads, which are all of the same size."""
        one = drawn(lambda: Seq2Seq(config), seed=0, device=self.device)
        one.load_state_dict(self.rest, strict=False)
        # one model, copied: building each by itself would initialise what is then overwritten
        stack = Seq2SeqStack([one] * len(members))
        chosen_SH = torch.tensor(members, device=self.device)
        with torch.no_grad():
            for name, pool_P in self.heads.items():
                stack.weights[f"heads.{name}"].copy_(pool_P[chosen_SH])
        return stack


class Trained(NamedTuple):
    """Accuracy of some combinations."""

    accuracy: list[float]  # at the last update
    seconds: float  # that training took


def train_combinations(
    pool: Pool,
    members: Sequence[Sequence[int]],
    data_seeds: Sequence[int],
    setup: Setup,
    *,
    sum_heads: Literal["sum", "mean"] = "sum",
) -> Trained:
    """Train combinations of one size on permutations, each on the data of its seed."""
    started = time.perf_counter()
    stack = pool.stack(setup.model(len(members[0]), sum_heads), members)
    label = f"{len(members)} models with {len(members[0])} heads"
    curves = train(stack, "permutation", data_seeds, setup, label=label)
    accuracy_S = at_step(curves, "accuracy", setup.updates)
    return Trained(accuracy_S.tolist(), time.perf_counter() - started)


def chunks(combinations: Sequence[int], setup: Setup, device: torch.device) -> Iterator[list[int]]:
    """Yield combinations of one size at a time, as many as the device has memory for.

    Free memory is asked for before each chunk.

    Args:
        combinations: sets of heads, head number n in a set as bit n.
        setup: of the models.
        device: whose memory counts.
    """
    for heads in sorted({one.bit_count() for one in combinations}):
        left = [one for one in combinations if one.bit_count() == heads]
        while left:
            fits = free_bytes(device) // bytes_of_model(setup, heads)
            size = max(1, min(MAX_MODELS, fits))
            yield left[:size]
            left = left[size:]


def free_bytes(device: torch.device) -> int:
    """Return how much memory training may take."""
    if device.type != "cuda":
        return CPU_BYTES
    release(device)
    return int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])


def bytes_of_model(setup: Setup, heads: int) -> int:
    """Estimate what training takes for one model of a stack."""
    with torch.device("meta"):
        model = Seq2Seq(setup.model(heads))
    parameters = sum(math.prod(x.shape) for x in model.parameters())
    positions = setup.batch * (setup.types + 1)
    numbers = positions * setup.hidden * (KEPT + KEPT_PER_HEAD * heads)
    return 4 * (4 * parameters + numbers)  # a parameter has a gradient and Adam's two means


def members_of(combination: int) -> list[int]:
    """Return the indices of the heads in a combination.

    >>> members_of(0b1011)
    [0, 1, 3]
    """
    return [head for head in range(combination.bit_length()) if combination >> head & 1]


@dataclass(frozen=True)
class PoolConfig:
    """Settings of one pool."""

    setup: Setup = field(default_factory=Setup)
    good: int = 5  # heads
    bad: int = 5
    trials: int = 3  # streams of data on which a candidate must always succeed or always fail
    candidates: int = 40  # heads tried at a time
    rounds: int = 10  # of candidates before giving up
    data_seeds: int = 1  # further streams on which all combinations are trained
    sum_heads: Literal["sum", "mean"] = "sum"
    seed: int = 0  # of everything but the heads and the data; further pools count on from it
    number: int = 0  # of the pool

    def __post_init__(self) -> None:
        if min(self.good, self.bad) < 1:
            raise ValueError(
                f"good and bad must be 1 or more each, got {self.good} and {self.bad}: "
                "the question is what a good head does for bad ones."
            )

    @property
    def first_data(self) -> int:
        """Seed of the pool's first stream; no two pools have a seed in common."""
        return self.number * (self.trials + self.data_seeds)

    def drawn(self, candidates: list[int], device: torch.device) -> Pool:
        """Make the pool of some candidates."""
        first = FIRST_HEAD + self.number * HEADS_OF_POOL
        heads = [first + candidate for candidate in candidates]
        return Pool.drawn(self.setup, heads, seed=self.seed + self.number, device=device)


def train_pool(config: PoolConfig, folder: Path) -> Run:
    """Find good and bad heads and train all combinations; a killed run resumes."""
    with Run.create(folder, config) as run:
        verdicts = find_heads(config, run)
        chosen = [
            [head for head, verdict in enumerate(verdicts) if verdict == kind][:number]
            for kind, number in (("good", config.good), ("bad", config.bad))
        ]
        _train_combinations(config, config.drawn(chosen[0] + chosen[1], device_of()), run)
        seconds = sum(chunk["seconds"] for chunk in done_chunks(run))
        run.save_figures({"verdicts": verdicts, "seconds": seconds})
    return run


def find_heads(config: PoolConfig, run: Run) -> list[str]:
    """Return good, bad or mixed for each head tried until there are enough of both."""
    verdicts: list[str] = []
    for number in range(config.rounds):
        file = f"candidates/{number:03d}.json"
        if not run.has(file):
            first = number * config.candidates
            accuracy = _alone(config, list(range(first, first + config.candidates)))
            run.write_json(file, {"accuracy": accuracy})
        for accuracy in run.read_json(file)["accuracy"]:
            times = sum(one >= SUCCESS for one in accuracy)
            verdicts.append({config.trials: "good", 0: "bad"}.get(times, "mixed"))
        if verdicts.count("good") >= config.good and verdicts.count("bad") >= config.bad:
            return verdicts
    found = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("good", "bad", "mixed"))
    raise ValueError(
        f"{config.good} good and {config.bad} bad heads were wanted, but {len(verdicts)} "
        f"candidates are {found}; try more with --set pool.rounds={2 * config.rounds}, or start "
        f"from another model with --set pool.seed={config.seed + 1}."
    )


def _alone(config: PoolConfig, candidates: list[int]) -> list[list[float]]:
    """Return the accuracy of each candidate, alone, on each stream of data."""
    pool = config.drawn(candidates, device_of())
    streams = range(config.first_data, config.first_data + config.trials)
    trials = [(head, data) for head in range(len(candidates)) for data in streams]
    accuracy: list[float] = []
    # a trial stands for a combination of one head here: all that counts is how many fit
    for part in chunks([1] * len(trials), config.setup, pool.device):
        some = trials[len(accuracy) : len(accuracy) + len(part)]
        heads, data = [[head] for head, _ in some], [data for _, data in some]
        accuracy += train_combinations(pool, heads, data, config.setup).accuracy
    return [accuracy[x : x + len(streams)] for x in range(0, len(accuracy), len(streams))]


def _train_combinations(config: PoolConfig, pool: Pool, run: Run) -> None:
    """Train the combinations that are not done yet."""
    first = config.first_data + config.trials
    for data in range(first, first + config.data_seeds):
        done = {x for chunk in done_chunks(run, f"{data:03d}-") for x in chunk["combinations"]}
        left = [x for x in range(1, 2 ** (config.good + config.bad)) if x not in done]
        for part in chunks(left, config.setup, pool.device):
            members, seeds = [members_of(one) for one in part], [data] * len(part)
            trained = train_combinations(
                pool, members, seeds, config.setup, sum_heads=config.sum_heads
            )
            name = f"combinations/{data:03d}-{part[0].bit_count():02d}-{part[0]:06d}.json"
            run.write_json(name, {"combinations": part, **trained._asdict()})


def done_chunks(run: Run, data: str = "") -> list[dict[str, Any]]:
    """Return the chunks of combinations that are done."""
    return [run.read_json(file) for file in run.names(f"combinations/{data}*.json")]
