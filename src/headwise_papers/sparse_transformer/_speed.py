"""Training steps and beam search of models that are timed in turns."""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.ops import Attended
from headwise.ops.graphs import Replayed, on_a_stream
from headwise.sites import replace
from headwise.text import Epochs
from headwise.training import label_smoothed_sum
from headwise_papers.data.batches import ParallelBatch, pad, parallel_batch
from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.cache import Cache, FixedCache
from headwise_papers.models.decode import Hypothesis, beam
from headwise_papers.sparse_transformer._speed_lengths import LENGTHS

__all__ = [
    "Attempt",
    "EndingAtSourceLength",
    "Training",
    "check_loss",
    "drawn_batches",
    "drawn_series",
    "drawn_sources",
    "eager",
    "make_model",
    "take_turns",
    "translated",
    "wait_for",
]

MULTIPLE = 8  # widths of batches, which matrices of a GPU like
AGREEMENT = {"cuda": 2e-2, "cpu": 1e-4}  # of losses, relative
PAIRS = 4000  # sentence pairs drawn, of which batches are made
Attempt = Callable[[], int]  # work that can be repeated; returns how many tokens it was


def drawn_batches(
    corpus: str, *, vocab: int, tokens: int, count: int, device: torch.device, seed: int = 0
) -> list[ParallelBatch]:
    """Return the first batches of `drawn_series`, on the device.

    Args:
        corpus: a name of `LENGTHS`.
        vocab: words of both languages.
        tokens: in a batch, of the longer side, padding included.
        count: how many batches, of all lengths.
        device: where they go.
        seed: of what is drawn.
    """
    series = drawn_series(corpus, vocab=vocab, tokens=tokens, seed=seed)
    return [
        ParallelBatch(*(tensor.to(device) for tensor in series(number))) for number in range(count)
    ]


def drawn_series(
    corpus: str, *, vocab: int, tokens: int, pairs: int = PAIRS, seed: int = 0
) -> Epochs[ParallelBatch]:
    """Return batches of random words in sentences as long as those of a corpus.

    Args:
        corpus: a name of `LENGTHS`.
        vocab: words of both languages.
        tokens: in a batch, of the longer side, padding included.
        pairs: of sentences, in an epoch.
        seed: of what is drawn.
    """
    rng = random.Random(seed)
    lengths = rng.choices(LENGTHS[corpus], k=pairs)
    drawn = [tuple(_words(rng, length, vocab) for length in pair) for pair in lengths]

    def collate(chosen: list[int]) -> ParallelBatch:
        sources, targets = zip(*(drawn[index] for index in chosen), strict=True)
        return parallel_batch(sources, targets, multiple=MULTIPLE)

    longer = [max(pair) + 1 for pair in lengths]  # a mark is added
    return Epochs(longer, collate, tokens=tokens, multiple=MULTIPLE, seed=seed)


def drawn_sources(
    corpus: str, *, vocab: int, count: int, device: torch.device, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return random sources as long as those of a corpus, end marks included, and lengths."""
    rng = random.Random(seed)
    lengths = rng.choices(LENGTHS[corpus], k=count)
    padded = pad([[*_words(rng, source, vocab), EOS] for source, _ in lengths])
    return padded.ids.to(device), padded.lengths.to(device)


def make_model(config: TransformerConfig, device: torch.device, *, seed: int = 0) -> Transformer:
    """Make a model with random weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
    return model.to(device)


def eager(model: nn.Module) -> ExitStack:
    """Attend by the definitions, with the whole matrix of weights, until the block ends."""
    stack = ExitStack()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            name = module.site.name
            stack.enter_context(replace(model, _by_definition(module), where=name))
    return stack


def check_loss(name: str, training: "Training") -> None:
    """Raise unless chosen and eager attention give the same loss."""
    mine = training.evaluated(training.batches[0])
    with eager(training.model):
        wanted = training.evaluated(training.batches[0])
    if not abs(mine - wanted) <= AGREEMENT[training.device.type] * abs(wanted):
        raise ValueError(
            f"{name} has a loss of {mine} and by its definition {wanted}; nothing is timed."
        )


def _by_definition(module: MultiHeadAttention) -> Callable[..., Attended]:
    attend: Callable[..., Attended] = module.site.attend
    chosen = cast(Any, getattr(module, "chosen", None))
    if chosen is None:
        return partial(attend, impl="reference")
    # its alpha changes with every update
    return lambda *given, **options: chosen.op()(*given, impl="reference", **options)


@dataclass
class Training:
    """Training steps on some batches in turn: forward, backward, clipping, and fused AdamW.

    In bfloat16 by autocast on a GPU, in float32 elsewhere. Batches are on the device already.
    Replayed steps are recorded as CUDA graphs when a shape of batches comes for the second time, so
    all batches must have been trained on twice before they are timed.
    """

    model: nn.Module
    batches: list[ParallelBatch]
    scores: Callable[[nn.Module, ParallelBatch], Tensor] | None = None  # None calls our model
    steps: int = 10  # of a turn
    compiled: bool = False
    replayed: bool = False
    smoothing: float = 0.1
    rate: float = 1e-4

    def __post_init__(self) -> None:
        self.model.train()
        self.device = next(self.model.parameters()).device
        self.cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.rate,
            betas=(0.9, 0.98),
            eps=1e-9,
            fused=self.cuda,
            capturable=self.replayed,
        )
        # it would warn of steps that are not recorded, as the first of each shape are not
        self.optimizer._warned_capturable_if_run_uncaptured = True  # pyright: ignore
        self.update = Replayed(self._update) if self.replayed else self._update
        self.called = torch.compile(self.model) if self.compiled else self.model
        self.number = 0
        # counted once, as asking the device for them would make it wait
        self.tokens = [int(batch.target_lengths.sum()) for batch in self.batches]

    def loss(self, batch: ParallelBatch) -> Tensor:
        """Return nats per target word, smoothed."""
        called = cast(nn.Module, self.called)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
            if self.scores is None:
                logits_BTV = called(batch.source, batch.source_lengths, batch.target_in)
            else:
                logits_BTV = self.scores(called, batch)
            total, number = label_smoothed_sum(
                logits_BTV, batch.target_out, pad=PAD, smoothing=self.smoothing
            )
        return total / number

    @torch.no_grad()
    def evaluated(self, batch: ParallelBatch) -> float:
        """Return the loss without dropout, and not compiled."""
        called, self.called = self.called, self.model.eval()
        loss = self.loss(batch).item()
        self.called = called
        self.model.train()
        return loss

    def _update(self, batch: ParallelBatch) -> Tensor:
        loss = self.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def __call__(self) -> int:
        """Run the steps of a turn, and return how many target words they had."""
        done = 0
        with on_a_stream() if self.replayed else nullcontext():
            for _ in range(self.steps):
                place = self.number % len(self.batches)
                self.update(self.batches[place])
                self.number += 1
                done += self.tokens[place]
        return done


class EndingAtSourceLength:
    """Translator that ends when its output is as long as the source, end marks included.

    Random weights would never end, or all at once. Otherwise the scores are the model's.
    """

    def __init__(self, model: Transformer) -> None:
        self.model, self.training = model, model.training

    @property
    def fixed_room(self) -> int:
        """Positions for which a step can be replayed."""
        return self.model.fixed_room

    def encode(self, source: Tensor, source_lengths: Tensor) -> Tensor:
        return self.model.encode(source, source_lengths)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_lengths: Tensor,
        *,
        cache: Cache | FixedCache | None = None,
    ) -> Tensor:
        assert cache is not None and target.shape[1] == 1
        place = cache.start + 1  # of the word to come, counted from 1
        logits_X1V = self.model.decode(target, memory, source_lengths, cache=cache)
        ends_X1 = (source_lengths <= place)[:, None]
        logits_X1V[..., EOS] = torch.where(ends_X1, 1e4, -torch.inf).to(logits_X1V.dtype)
        return logits_X1V


def translated(
    model: Transformer, source: Tensor, lengths: Tensor, *, beams: int
) -> list[Hypothesis]:
    """Translate by beam search sentences that end as long as their sources."""
    return beam(
        EndingAtSourceLength(model),
        source,
        lengths,
        bos=BOS,
        eos=EOS,
        max_length=int(lengths.max()),
        beams=beams,
    )


def take_turns(
    attempts: Mapping[str, Attempt], device: torch.device, *, turns: int, warm: int = 1
) -> dict[str, list[float]]:
    """Return tokens per second of each, one value per turn, while all take turns.

    Args:
        attempts: who takes part.
        device: where they work.
        turns: that count.
        warm: turns before them that do not.
    """
    speeds: dict[str, list[float]] = {name: [] for name in attempts}
    for turn in range(warm + turns):
        for name, attempt in attempts.items():
            wait_for(device)
            start = time.perf_counter()
            tokens = attempt()
            wait_for(device)
            if turn >= warm:
                speeds[name].append(tokens / (time.perf_counter() - start))
    return speeds


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _words(rng: random.Random, length: int, vocab: int) -> list[int]:
    return rng.choices(range(len(SPECIALS), vocab), k=length)
