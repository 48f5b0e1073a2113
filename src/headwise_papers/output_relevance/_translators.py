"""Translators of Section 3: long runs of normal and uniform models, and many short normal runs.

A finished training keeps traces of attention and output relevance and its subword vocabulary; the
long runs also BLEU. Weights are not kept.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from headwise.config import suggestion
from headwise.recording import Run
from headwise.training import progress_bar
from headwise_papers.core import Job
from headwise_papers.data.batches import Ragged, parallel_batch
from headwise_papers.data.subword import SubwordModel, train_subwords
from headwise_papers.data.translation import Lines, Pair, TranslationData, read_parallel_texts
from headwise_papers.data.vocabulary import BOS, EOS
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.models.decode import greedy
from headwise_papers.models.rnn import Seq2Seq, Seq2SeqConfig, Variant
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.ops.relevance import Looked
from headwise_papers.output_relevance._runs import Traces, device_of, drawn, of_runs, read_pairs
from headwise_papers.recipes.stacked import STATE, shuffled_order, train_stack

SUBWORDS, CURVES = "subwords.model", "trace/{}/curves.safetensors"
INSIDE = "early, without the end token"  # results on rows whose gold attention is elsewhere
EARLY_SEED = 1000  # of the first early run; converged runs have 0, 1, ...
BATCH = 16  # pairs of an update
MAX_PAIRS = 640  # seeds x pairs of one evaluation: their theta has V numbers per position
CHECKPOINT_EVERY = 4000  # updates; a checkpoint of ten models and their traces is some gigabytes
MAX_TRANSLATION, TRANSLATED = 150, 128  # tokens of a translation; sentences of a batch


@dataclass(frozen=True)
class Recipe:
    """Corpus and models (Appendix A.2)."""

    corpus: str = "multi30k"
    pairs: int = 0  # to train on, the first ones; 0 takes all
    longest: int = 95  # tokens of a side; pairs with more are not trained on
    vocabulary: int = 8000  # tokens that both languages share
    hidden: int = 256  # width of everything
    dropout: float = 0.5
    rate: float = 1e-3  # of Adam

    def shape(self, vocabulary: int, variant: Variant = "normal") -> Seq2SeqConfig:
        """Return the settings of a model."""
        return Seq2SeqConfig(
            vocabulary=vocabulary,
            embedding=self.hidden,
            hidden=self.hidden,
            dropout=self.dropout,
            variant=variant,
        )


@dataclass(frozen=True)
class LongRuns:
    """Normal models and as many uniform ones, trained for some epochs."""

    recipe: Recipe = Recipe()
    seeds: int = 5
    epochs: int = 12
    every: int = 200  # updates between evaluations
    valid: int = 1014  # validation pairs, the first ones
    probe: int = 200  # of these, pairs that the early runs are evaluated on
    patience: int = 10  # evaluations without a better normal model that end training
    tested: int = 0  # test pairs translated for BLEU; 0 takes all


@dataclass(frozen=True)
class EarlyRuns:
    """Many normal models, trained for a short time."""

    recipe: Recipe
    valid: int
    seeds: int
    updates: int


@dataclass(frozen=True)
class Config:
    """Settings of the trainings on both corpora, and of the early runs on the first."""

    corpora: tuple[str, ...] = ("multi30k", "iwslt14")
    multi30k: LongRuns = LongRuns()
    iwslt14: LongRuns = LongRuns(Recipe("iwslt14"), epochs=5, every=1000, valid=1000)
    early_seeds: int = 50
    early_updates: int = 1500

    def __post_init__(self) -> None:
        for name in self.corpora:
            if name not in ("multi30k", "iwslt14"):
                known = suggestion(name, ("multi30k", "iwslt14"))
                raise ValueError(f"There is no corpus {name!r}. {known}")

    def long_runs(self, name: str) -> LongRuns:
        """Return the settings of one corpus."""
        return self.multi30k if name == "multi30k" else self.iwslt14

    def early(self) -> EarlyRuns:
        """Return the settings of the early runs."""
        first = self.long_runs(self.corpora[0])
        return EarlyRuns(first.recipe, first.probe, self.early_seeds, self.early_updates)


SMOKE = Config(
    corpora=("multi30k",),
    multi30k=LongRuns(
        Recipe(pairs=1000, longest=12, vocabulary=1000, hidden=16, dropout=0.0, rate=1e-2),
        seeds=2,
        epochs=12,
        every=40,
        valid=30,
        probe=15,
        tested=20,
    ),
    early_seeds=2,
    early_updates=30,
)


def models(config: Config) -> Iterator[Job]:
    """List the trainings."""
    for name in config.corpora:
        yield Job(train_translators, config.long_runs(name))
    yield Job(train_early, config.early())


def train_translators(config: LongRuns, folder: Path) -> Run:
    """Train normal and uniform models on a corpus, and translate with the first.

    The traces `relevance` and `probe`, on all validation pairs and on those of the early runs,
    have the normal models first, then the uniform ones.
    """
    with Run.create(folder, config) as run:
        data = read_data(config.recipe, run, valid=config.valid, test=config.tested)
        if not run.has(CURVES.format("probe")):
            _train_long(config, data, run)
        run.save_figures({"bleu": _bleu(_first_model(config.recipe, data, run), data)})
        run.path(STATE).unlink()
    return run


def _train_long(config: LongRuns, data: TranslationData, run: Run) -> None:
    recipe, device = config.recipe, device_of()
    seeds: dict[int, Variant] = {
        seed: "normal" if seed < config.seeds else "uniform" for seed in range(2 * config.seeds)
    }
    at, size = schedule(config.every), max(1, MAX_PAIRS // len(seeds))
    patience = Patience(
        read_pairs(data.valid, device=device, size=size), normal=config.seeds, most=config.patience
    )
    probe = read_pairs(data.valid[: config.probe], device=device, size=size)
    updates = config.epochs * len(data.train) // BATCH
    with _seeded(device), progress_bar(updates, label=recipe.corpus) as progress:
        train_stack(
            make_stack(recipe, len(data.pieces), seeds, device),
            pair_batches(data.train, seeds=list(seeds), device=device),
            steps=updates,
            rate=recipe.rate,
            recorders=[
                RelevanceCurves(patience.read, at),
                patience,
                RelevanceCurves(probe, at, name="probe"),
            ],
            stop=patience.over,
            run=run,
            checkpoint_every=CHECKPOINT_EVERY,
            progress=progress,
        )


def train_early(config: EarlyRuns, folder: Path) -> Run:
    """Train many normal models for a short time, without checkpoints, and keep their traces."""
    recipe, device = config.recipe, device_of()
    with Run.create(folder, config) as run, _seeded(device):
        data = read_data(recipe, run, valid=config.valid)
        seeds: dict[int, Variant] = {EARLY_SEED + index: "normal" for index in range(config.seeds)}
        read = read_pairs(data.valid, device=device, size=max(1, MAX_PAIRS // len(seeds)))
        recorder = RelevanceCurves(read, early_schedule)
        with progress_bar(config.updates, label="early runs") as progress:
            loss_ES = train_stack(
                make_stack(recipe, len(data.pieces), seeds, device),
                pair_batches(data.train, seeds=list(seeds), device=device),
                steps=config.updates,
                rate=recipe.rate,
                recorders=[recorder],
                progress=progress,
            )
        run.save_tensors(CURVES.format("relevance"), recorder.tensors())
        run.save_figures({"loss": float(loss_ES[-1].mean())})
    return run


def traces_of(trained: Run, seeds: int, trace: str = "relevance") -> tuple[Traces, Traces]:
    """Return the traces of normal and of uniform models."""
    every = trained.load_tensors(CURVES.format(trace))
    return of_runs(every, 0, seeds), of_runs(every, seeds)


def early_schedule(step: int) -> bool:
    """Return whether early runs are evaluated: every update up to 10, every 10 to 100, then 50."""
    return step <= 10 or step % (10 if step <= 100 else 50) == 0


@contextmanager
def _seeded(device: torch.device) -> Generator[None]:
    """Seed dropout, and restore the caller's random state at the end."""
    cuda = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(0)
        yield


def read_data(recipe: Recipe, run: Run, *, valid: int, test: int = 0) -> TranslationData:
    """Read a corpus in the subword vocabulary of a run, which is learned if the run has none."""
    texts = read_parallel_texts(recipe.corpus)
    learned = _first(texts.train, recipe.pairs or None)
    if not run.has(SUBWORDS):
        known = train_subwords([*learned.source, *learned.target], size=recipe.vocabulary)
        known.save(run.path(SUBWORDS))
    subwords = SubwordModel.load(run.path(SUBWORDS))
    train, valid_pairs, test_pairs = (
        list(zip(subwords.encode_all(lines.source), subwords.encode_all(lines.target), strict=True))
        for lines in (learned, _first(texts.valid, valid), _first(texts.test, test or None))
    )
    train = [pair for pair in train if max(map(len, pair)) <= recipe.longest]
    return TranslationData(recipe.corpus, train, valid_pairs, test_pairs, subwords)


def _first(lines: Lines, count: int | None) -> Lines:
    return Lines(lines.source[:count], lines.target[:count])


def pair_batches(
    pairs: Sequence[Pair],
    *,
    seeds: Sequence[int],
    device: torch.device,
    batch: int = BATCH,
    multiple: int = 8,
) -> Callable[[int], tuple[Tensor, ...]]:
    """Return batches by number, each seed's in an order of its own, for `Seq2SeqStack.loss`.

    (S, B, K) sources with EOS, (S, B, T) targets from BOS on, the same up to EOS, and lengths.

    Args:
        pairs: source and target ids without special tokens.
        seeds: one of each model.
        device: of the models; the pairs are kept there.
        batch: pairs of an update.
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
    recipe: Recipe, vocabulary: int, seeds: Mapping[int, Variant], device: torch.device
) -> Seq2SeqStack:
    """Make models initialised by their seeds."""

    def model(variant: Variant) -> Seq2Seq:
        return Seq2Seq(recipe.shape(vocabulary, variant))

    return Seq2SeqStack(
        [drawn(lambda v=variant: model(v), seed=s, device=device) for s, variant in seeds.items()]
    )


def _first_model(recipe: Recipe, data: TranslationData, run: Run) -> Seq2Seq:
    """Return the model of seed 0 after its last update."""
    model = Seq2Seq(recipe.shape(len(data.pieces)))
    kept = run.load_tensors(STATE)
    model.load_state_dict({x: kept[f"model.{x}"][0] for x, _ in model.named_parameters()})
    return model.to(device_of()).eval()


def _bleu(model: Seq2Seq, data: TranslationData) -> float:
    """Return BLEU of greedy translations of the test part."""
    from sacrebleu import BLEU  # lazy: only BLEU needs it

    references = read_parallel_texts(data.name).test.target[: len(data.test)]
    # IWSLT'14 is tokenised and lower-cased already, on both sides
    metric = BLEU(tokenize="none" if data.name == "iwslt14" else "13a", force=True)
    return cast(float, metric.corpus_score(_translations(model, data), [references]).score)


def _translations(model: Seq2Seq, data: TranslationData) -> list[str]:
    """Return greedy translations; sentences of similar length are translated together."""
    device = next(model.parameters()).device
    order = sorted(range(len(data.test)), key=lambda number: len(data.test[number][0]))
    found: dict[int, str] = {}
    for start in range(0, len(order), TRANSLATED):
        chosen = order[start : start + TRANSLATED]
        sources, targets = zip(*(data.test[number] for number in chosen), strict=True)
        batch = parallel_batch(sources, targets)
        hypotheses = greedy(
            model,
            batch.source.to(device),
            batch.source_lengths.to(device),
            bos=BOS,
            eos=EOS,
            max_length=MAX_TRANSLATION,
        )
        texts = [data.pieces.decode(hypothesis.ids) for hypothesis in hypotheses]
        found |= dict(zip(chosen, texts, strict=True))
    return [found[number] for number in range(len(order))]


@dataclass
class Patience:
    """Stop rule: training ends when no normal model has become more accurate for some time.

    It reads through another reader, so that nothing is evaluated twice. As a recorder it keeps its
    state in the checkpoints; it must come after the recorder that reads through it.
    """

    reader: Callable[[Seq2SeqStack], Iterator[Looked]]
    normal: int  # models that count, the first ones
    most: int  # evaluations without a better model
    name: str = "patience"
    _best: Int[Tensor, " S"] = field(init=False, repr=False)  # right words; each time of as many
    _since: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._best = torch.full((self.normal,), -1)

    def read(self, stack: Seq2SeqStack) -> Iterator[Looked]:
        """Read, and count what is right."""
        right_S = torch.zeros(self.normal, dtype=torch.long)
        for looked in self.reader(stack):
            right_S += looked.right[: self.normal].sum(1).cpu()
            yield looked
        better = bool((right_S > self._best).any())
        self._since = 0 if better else self._since + 1
        self._best = torch.maximum(self._best, right_S)

    def over(self, step: int) -> bool:
        """Return whether to end training."""
        return self._since >= self.most

    def __call__(self, step: int, model: object) -> None:
        """Do nothing: `read` has counted."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {"best": self._best, "since": torch.tensor(self._since)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what `tensors` returned earlier."""
        self._best, self._since = tensors["best"], int(tensors["since"])
