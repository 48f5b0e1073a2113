"""Training translators for the experiments on output relevance: settings, data, batches, runs.

A finished training lies in a folder of its own below the run: `multi30k`, `iwslt14` and `early`,
with the recorded curves, and but for `early` the weights, the pieces of words, and BLEU.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.recording.run import Run
from headwise.training.progress import progress_bar
from headwise_papers.data.batches import Ragged
from headwise_papers.data.subword import SubwordCodec, train_subwords
from headwise_papers.data.translation import Lines, Pair, TranslationData, read_parallel_texts
from headwise_papers.data.vocabulary import BOS, EOS
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.models.rnn import Seq2Seq, Seq2SeqConfig, Variant
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.output_relevance._patience import Patience
from headwise_papers.output_relevance._stacks import device_of, drawn, looking_at_pairs
from headwise_papers.recipes.stacked import shuffled_order, train_stack

PIECES, CURVES = "pieces.model", "trace/{}/curves.safetensors"
EARLY = "early"  # folder of the early runs
EARLY_SEED = 1000  # of the first early run; converged runs have 0, 1, ...
LOOKED_PAIRS = 640  # seeds x pairs looked at together: their theta has V numbers a position
CHECKPOINT_EVERY = 4000  # updates; a checkpoint of ten models and their curves is some gigabytes


class Length(NamedTuple):
    """How long to train on a corpus, and how to look at it."""

    epochs: int
    every: int  # updates between evaluations
    valid: int  # pairs evaluated, the first of the validation part


@dataclass(frozen=True)
class Config:
    """The paper's settings (Appendix A.2 and A.3)."""

    corpora: tuple[str, ...] = ("multi30k", "iwslt14")  # the first also has the early runs
    seeds: int = 5  # normal ones, and as many uniform ones
    epochs: int = 20  # of Multi30k
    every: int = 200  # updates between evaluations
    valid: int = 1014  # validation pairs evaluated, all of them
    iwslt14_epochs: int = 15  # the paper: 50
    iwslt14_every: int = 1000
    iwslt14_valid: int = 1000  # of 7,283
    patience: int = 25  # evaluations without a better normal seed that end training
    early_seeds: int = 50  # runs of Fig. 2, normal ones
    early_updates: int = 1500
    early_valid: int = 200  # pairs they are evaluated on, the first ones
    pairs: int = 0  # to train on, the first ones; 0 takes all
    longest: int = 95  # pieces of a side; pairs with more are not trained on
    tested: int = 0  # test pairs translated for BLEU; 0 takes all
    vocabulary: int = 8000  # pieces that both languages share
    hidden: int = 256  # of everything
    dropout: float = 0.5
    batch: int = 16
    rate: float = 1e-3
    device: str = "auto"  # a GPU where there is one

    def length(self, name: str) -> Length:
        """Of the training on one corpus."""
        if name == "iwslt14":
            return Length(self.iwslt14_epochs, self.iwslt14_every, self.iwslt14_valid)
        return Length(self.epochs, self.every, self.valid)


SMOKE = Config(
    corpora=("multi30k",),
    seeds=2,
    epochs=12,
    every=40,
    valid=30,
    early_seeds=2,
    early_updates=30,
    early_valid=15,
    pairs=1000,
    longest=12,
    tested=20,
    vocabulary=1000,
    hidden=16,
    dropout=0.0,
    rate=1e-2,
    device="cpu",
)


def read_pairs(config: Config, name: str, run: Run) -> TranslationData:
    """A corpus in the pieces of a run, which learns them if it has none."""
    texts = read_parallel_texts(name)
    learnt = _first(texts.train, config.pairs or None)
    if not run.has(PIECES):
        known = train_subwords([*learnt.source, *learnt.target], size=config.vocabulary)
        known.save(run.path(PIECES))
    pieces = SubwordCodec.load(run.path(PIECES))
    train, valid, test = (
        list(zip(pieces.encode_all(lines.source), pieces.encode_all(lines.target), strict=True))
        for lines in (
            learnt,
            _first(texts.valid, config.length(name).valid),
            _first(texts.test, config.tested or None),
        )
    )
    train = [pair for pair in train if max(map(len, pair)) <= config.longest]
    return TranslationData(name, train, valid, test, pieces)


def _first(lines: Lines, count: int | None) -> Lines:
    return Lines(lines.source[:count], lines.target[:count])


def pair_batches(
    pairs: Sequence[Pair],
    *,
    batch: int,
    seeds: Sequence[int],
    device: torch.device,
    multiple: int = 8,
) -> Callable[[int], tuple[Tensor, ...]]:
    """Batches by number, each seed's in an order of its own, as `Seq2SeqStack.loss` wants them.

    (S, B, K) sources with EOS, (S, B, T) targets from BOS on, the same up to EOS, and lengths.

    Args:
        pairs: source and target ids without marks; they live on the device.
        batch: pairs of an update.
        seeds: one of each model.
        device: of the models.
        multiple: widths are rounded up to a multiple of this, so that few shapes occur.
    """
    sources = Ragged.of([[*source, EOS] for source, _ in pairs], device=device)
    targets = Ragged.of([[*target, EOS] for _, target in pairs], device=device)
    order = shuffled_order(len(pairs), batch=batch, seeds=seeds)

    def make(step: int) -> tuple[Tensor, ...]:
        chosen_SB = order(step)
        source = sources.take(chosen_SB, multiple=multiple)
        target = targets.take(chosen_SB, multiple=multiple)
        # behind a short target this leaves its EOS in the padding, where it counts for nothing
        target_in_SBT = pad(target.ids[..., :-1], (1, 0), value=BOS)
        return source.ids, target_in_SBT, target.ids, source.lengths, target.lengths

    return make


def make_stack(
    config: Config, vocabulary: int, seeds: Mapping[int, Variant], device: torch.device
) -> Seq2SeqStack:
    """Models that start from their seeds."""

    def model(variant: Variant) -> Seq2Seq:
        return Seq2Seq(shape_of(config, vocabulary, variant))

    return Seq2SeqStack(
        [drawn(lambda v=variant: model(v), seed=s, device=device) for s, variant in seeds.items()]
    )


def shape_of(config: Config, vocabulary: int, variant: Variant = "normal") -> Seq2SeqConfig:
    """The shape of the models."""
    return Seq2SeqConfig(
        vocabulary=vocabulary,
        embedding=config.hidden,
        hidden=config.hidden,
        dropout=config.dropout,
        variant=variant,
    )


def converged(config: Config, name: str, run: Run) -> Run:
    """Train normal and uniform models on a corpus, or find it done.

    Its traces `relevance` and `probe`, on all evaluated pairs and on those of the early runs, have
    the normal seeds first, then the uniform ones.
    """
    sub = Run.create(run.path(name), replace(config, corpora=(name,)))
    if sub.has(CURVES.format("probe")):
        return sub
    data, length, device = (
        read_pairs(config, name, sub),
        config.length(name),
        device_of(config.device),
    )
    seeds: dict[int, Variant] = {
        seed: "normal" if seed < config.seeds else "uniform" for seed in range(2 * config.seeds)
    }
    at = schedule(length.every)
    size = max(1, LOOKED_PAIRS // len(seeds))
    look = looking_at_pairs(data.valid, device=device, size=size)
    probe = looking_at_pairs(data.valid[: config.early_valid], device=device, size=size)
    patience = Patience(look, normal=config.seeds, most=config.patience)
    updates = length.epochs * len(data.train) // config.batch
    with _seeded(device), progress_bar(updates, label=name) as progress:
        train_stack(
            make_stack(config, len(data.pieces), seeds, device),
            pair_batches(data.train, batch=config.batch, seeds=list(seeds), device=device),
            steps=updates,
            rate=config.rate,
            recorders=[
                RelevanceCurves(patience.read, at),
                patience,
                RelevanceCurves(probe, at, name="probe"),
            ],
            stop=patience.over,
            run=sub,
            checkpoint_every=CHECKPOINT_EVERY,
            progress=progress,
        )
    sub.close()
    return sub


def early(config: Config, pieces_of: Run, run: Run) -> Run:
    """Train many normal models for a short time, or find it done; their weights are not kept.

    Args:
        config: the settings.
        pieces_of: the finished run on the same corpus.
        run: what the run lies in.
    """
    sub = Run.create(run.path(EARLY), replace(config, corpora=config.corpora[:1]))
    if sub.has(CURVES.format("relevance")):
        return sub
    data, device = read_pairs(config, config.corpora[0], pieces_of), device_of(config.device)
    seeds: dict[int, Variant] = {
        EARLY_SEED + index: "normal" for index in range(config.early_seeds)
    }
    size = max(1, LOOKED_PAIRS // len(seeds))
    look = looking_at_pairs(data.valid[: config.early_valid], device=device, size=size)
    recorder = RelevanceCurves(look, early_schedule)
    with _seeded(device), progress_bar(config.early_updates, label="early runs") as progress:
        loss_ES = train_stack(
            make_stack(config, len(data.pieces), seeds, device),
            pair_batches(data.train, batch=config.batch, seeds=list(seeds), device=device),
            steps=config.early_updates,
            rate=config.rate,
            recorders=[recorder],
            progress=progress,
        )
    sub.save_tensors("loss.safetensors", {"loss": loss_ES})
    sub.save_tensors(CURVES.format("relevance"), recorder.tensors())
    return sub


def of_seeds(run: Run, trace: str, first: int = 0, last: int | None = None) -> dict[str, Tensor]:
    """What a finished training recorded, of some of its models; all unless said."""
    chosen = slice(first, last)
    return {
        name: value if name in ("step", "lengths") else value[:, chosen].clone()
        for name, value in run.load_tensors(CURVES.format(trace)).items()
    }


def early_schedule(step: int) -> bool:
    """Every update up to 10, every 10 up to 100, then every 50."""
    return step <= 10 or step % (10 if step <= 100 else 50) == 0


@contextmanager
def _seeded(device: torch.device) -> Generator[None]:
    """Dropout that is the same every time, and the caller's random numbers as they were."""
    cuda = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(0)
        yield
