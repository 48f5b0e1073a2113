"""Full-batch training of bag-of-words attention: against a padded module, and seeds stacked.

SST2 is read from HEADWISE_DATA; where that is not set, sentences of the same shape are drawn.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import SEED, Measured, name_of, wait_for
from headwise_papers.data.bags import Bags, read_sst
from headwise_papers.data.source import VARIABLE
from headwise_papers.data.synthetic import TopicTask
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.bag_stack import BagStack

SEEDS, RATE = 20, 0.1
WIDTHS = (100, 200)  # embedding widths of Attn-TC on SST2: the authors' code, and the paper
EPOCHS = 20  # timed together; one is too short to time
AGREEMENT = 1e-4  # relative


def measure(repeat: int, device: torch.device) -> Measured:
    """Time one epoch each way, after checking that both ways give the same losses."""
    rows = [_against_padding(width, repeat, device) for width in WIDTHS]
    rows += [_stacked(dtype, repeat, device) for dtype in (torch.float32, torch.float64)]
    return Measured(rows, _table(rows, device))


class PaddedModule(nn.Module):
    """The obvious way: look every word up, padding too, and mask its scores."""

    def __init__(self, model: BagClassifier) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(model.embeddings.detach().clone(), False)
        self.score = nn.Embedding.from_pretrained(model.word_scores().detach()[:, None], False)
        self.classify = nn.Linear(model.config.width, model.config.classes, bias=False)
        self.classify.weight = nn.Parameter(model.output.weight.detach().clone())

    def forward(self, tokens_BT: Tensor, real_BT: Tensor) -> Tensor:
        score_BT = self.score(tokens_BT)[..., 0].masked_fill(~real_BT, -torch.inf)
        weights_B1T = score_BT.softmax(-1)[:, None]
        return self.classify((weights_B1T @ self.embedding(tokens_BT))[:, 0])


def _against_padding(width: int, repeat: int, device: torch.device) -> dict[str, Any]:
    bags, vocabulary, source = _sentences()
    bags = bags.to(device)
    config = BagConfig(vocabulary=vocabulary, classes=2, width=width, embedding_std=1e-3)
    model = BagClassifier(config, generator=torch.Generator().manual_seed(SEED)).to(device)
    stack, padded = BagStack([model]), PaddedModule(model)
    data = stack.prepare(bags)
    optimizer = torch.optim.SGD(padded.parameters(), lr=RATE)
    real_NT = torch.arange(bags.tokens.shape[-1], device=device) < bags.lengths[0, :, None]

    def their_epoch() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(padded(bags.tokens[0], real_NT), bags.labels[0])
        loss.backward()
        optimizer.step()
        return loss.detach()

    contestants = {"headwise": lambda: stack.step(data, rate=RATE)[0], "padded": their_epoch}
    _refuse_unless_equal(contestants)
    best = _take_turns(contestants, device, repeat=repeat, epochs=3)
    what = f"Attn-TC epoch, {source}, d={width}"
    return _row(what, "float32", "one padded module", best["headwise"], best["padded"])


def _sentences() -> tuple[Bags, int, str]:
    if os.environ.get(VARIABLE):
        sst = read_sst("sst2")
        return sst.train, len(sst.vocabulary), "SST2"
    rng = torch.Generator().manual_seed(SEED)
    lengths = torch.randint(1, 34, (1, 6920), generator=rng)
    lengths[0, 0] = 48
    tokens = torch.randint(17550, (1, 6920, 48), generator=rng)
    labels = torch.randint(2, (1, 6920), generator=rng)
    return Bags(tokens, lengths, labels), 17550, "drawn like SST2"


def _stacked(dtype: torch.dtype, repeat: int, device: torch.device) -> dict[str, Any]:
    task = TopicTask()
    drawn = task.draw(range(SEEDS)).train.to(device)
    config = BagConfig(vocabulary=task.vocabulary)
    rngs = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
    models = [BagClassifier(config, generator=rng, dtype=dtype).to(device) for rng in rngs]
    together, alone = BagStack(models), [BagStack([model]) for model in models]
    data = together.prepare(drawn)
    own = [stack.prepare(drawn.seed(seed)) for seed, stack in enumerate(alone)]

    def one_by_one() -> Tensor:
        """Each run for itself, as single runs are: epoch after epoch of one, then the next."""
        losses = [
            [stack.step(mine, rate=RATE)[0] for _ in range(EPOCHS)]
            for stack, mine in zip(alone, own, strict=True)
        ]
        return torch.stack([run[-1] for run in losses])

    def stacked() -> Tensor:
        return [together.step(data, rate=RATE) for _ in range(EPOCHS)][-1]

    contestants = {"headwise": stacked, "alone": one_by_one}
    _refuse_unless_equal(contestants)
    best = _take_turns(contestants, device, repeat=repeat, epochs=1)
    if device.type == "cpu":
        best |= _with_one_thread({"one thread": one_by_one}, repeat=repeat)
    per_epoch = {name: value / EPOCHS for name, value in best.items()}
    what, name = f"{SEEDS} seeds, one epoch, Sec. 5.1", str(dtype).removeprefix("torch.")
    row = _row(what, name, f"{SEEDS} runs", per_epoch["headwise"], per_epoch["alone"])
    if "one thread" not in per_epoch:
        return row
    return row | {"one_thread_ms": round(per_epoch["one thread"], 3)}


def _with_one_thread(
    contestants: dict[str, Callable[[], Tensor]], *, repeat: int
) -> dict[str, float]:
    """A single seed is small, and fastest without threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = _take_turns(contestants, torch.device("cpu"), repeat=repeat, epochs=1)
    torch.set_num_threads(threads)
    return best


def _refuse_unless_equal(contestants: dict[str, Callable[[], Tensor]]) -> None:
    mine, theirs = (play() for play in contestants.values())
    if not torch.allclose(mine, theirs, rtol=AGREEMENT):
        raise SystemExit(f"The losses differ, {mine} and {theirs}: nothing is reported.")


def _take_turns(
    contestants: dict[str, Callable[[], Tensor]], device: torch.device, *, repeat: int, epochs: int
) -> dict[str, float]:
    """The best time of each in milliseconds, after one turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeat + 1):
        for name, play in contestants.items():
            wait_for(device)
            start = time.perf_counter()
            for _ in range(epochs):
                play()
            wait_for(device)
            times[name].append(1000 * (time.perf_counter() - start) / epochs)
    return {name: min(turns[1:]) for name, turns in times.items()}


def _row(what: str, dtype: str, peer: str, ours: float, theirs: float) -> dict[str, Any]:
    return {
        "what": what,
        "dtype": dtype,
        "peer": peer,
        "ours_ms": round(ours, 3),
        "peer_ms": round(theirs, 3),
        "speed_up": round(theirs / ours, 2),
    }


def _table(rows: list[dict[str, Any]], device: torch.device) -> Table:
    table = Table(title=f"Training bag-of-words attention, {name_of(device)}")
    for name in ("what", "dtype", "peer"):
        table.add_column(name, no_wrap=True)
    for name in ("our ms", "peer's ms", "speed-up", "peer with 1 thread, ms", "speed-up"):
        table.add_column(name, justify="right")
    for row in rows:
        single = row.get("one_thread_ms")
        table.add_row(
            *(row[name] for name in ("what", "dtype", "peer")),
            f"{row['ours_ms']:.2f}",
            f"{row['peer_ms']:.2f}",
            f"{row['speed_up']:.2f}x",
            f"{single:.2f}" if single else "",
            f"{single / row['ours_ms']:.2f}x" if single else "",
        )
    return table
