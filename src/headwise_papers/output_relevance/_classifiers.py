"""Classifiers of Tables 1 and 3 and of Fig. 3 and 4, trained once for three experiments.

For each data set one stack of normal, uniform and frozen models is trained; the traces of their
attention, output relevance and gradient influence are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.config import suggestion
from headwise.recording import Run
from headwise.training import progress_bar
from headwise_papers.core import Job, find_or_train
from headwise_papers.data.batches import Ragged
from headwise_papers.data.classification import Labelled, LabelledTexts, read_labelled
from headwise_papers.data.glove import GloveVectors, read_glove
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.measures.sen_curves import Records
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig, Variant
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.ops.relevance import peak_positions
from headwise_papers.output_relevance._runs import (
    MAX_POSITIONS,
    Traces,
    device_of,
    drawn,
    of_runs,
    read_texts,
    text_chunks,
)
from headwise_papers.recipes.stacked import STATE, shuffled_order, train_stack

UPDATES = {  # appendix A.3
    "imdb": 2000,
    "ag_news": 1500,
    "newsgroups": 1500,
    "sst": 2000,
    "amazon": 2500,
    "yelp": 2300,  # sentences of reviews
    "yelp_reviews": 2300,  # the paper's Yelp, from Yelp's own file
}
AT_HAND = tuple(UPDATES)[:-1]
VARIANTS: tuple[Variant, ...] = ("normal", "uniform", "frozen")
RECORDERS = ("test", "validation", "influence")
WIDTHS = {"glove": 50, "random": 300}  # of embeddings
BATCH, MAX_LENGTH = 32, 1000  # texts of an update; words after this many are cut off
EVERY_SET = 0.8  # of 30 pairs, where a claim is about all sets; 30 of 30 have 0.89 or more
EVALUATED = schedule(10, until=100, then=50)

Embeddings = Literal["glove", "random"]


@dataclass(frozen=True)
class Config:
    """Settings of the classifiers (appendices A.2 and A.3) and the data sets to train on."""

    sets: tuple[str, ...] = AT_HAND  # and yelp_reviews, with Yelp's own file
    embeddings: Embeddings = "glove"  # random is what the released code does
    seeds: int = 5  # normal, uniform and frozen models each
    updates: int | None = None  # none: the paper's number for each data set
    hidden: int = 256  # width of h, half of it from each direction, and of the scoring layer
    rate: float = 1e-3  # of Adam; the paper does not say
    held_out: int = 400  # validation texts, and as many test texts
    punctuation: bool = True  # punctuation is tokens; the paper does not say

    def __post_init__(self) -> None:
        for name in self.sets:
            if name not in UPDATES:
                raise ValueError(f"There is no data set {name!r}. {suggestion(name, UPDATES)}")
        if self.seeds < 2:
            raise ValueError(f"Runs are compared with others, so seeds >= 2, got {self.seeds}.")
        if self.updates is not None and self.updates < 1:
            raise ValueError(
                f"updates must be 1 or more, got {self.updates}; none means the paper's number."
            )

    def on(self, name: str) -> "Config":
        """Return the settings of the training on one data set."""
        return replace(self, sets=(name,), updates=self.updates or UPDATES[name])

    def part(self, name: str) -> str:
        """Return what the results of a data set are named after."""
        return name if self.embeddings == "glove" else f"{name}, {self.embeddings}"


SMOKE = Config(sets=("sst",), seeds=2, updates=40, hidden=32, rate=5e-3, held_out=100)


@dataclass(frozen=True)
class Trained:
    """Traces of the models of one data set, by recorder: "test", "validation", "influence"."""

    seeds: int  # of each variant
    recorded: Mapping[str, Traces]

    @staticmethod
    def on(name: str, config: Config) -> "Trained":
        """Find or train the models of a data set."""
        run = find_or_train(train_classifiers, config.on(name))
        return Trained(config.seeds, {x: run.load_tensors(_trace(x)) for x in RECORDERS})

    def of(self, variant: Variant, recorder: str = "test") -> Traces:
        """Return the traces of the models of one variant."""
        first = VARIANTS.index(variant) * self.seeds
        return of_runs(dict(self.recorded[recorder]), first, first + self.seeds)

    def rise(self, variant: Variant, *, where: Variant) -> Tensor:
        """Return how far beta of each run has risen at the most influential token, (E, S).

        Args:
            variant: whose output relevance.
            where: whose influence, that of the run of this variant with the same number.
        """
        first = VARIANTS.index(where) * self.seeds
        at_ESS = self.of(variant, "influence")["rise_at"][:, :, first : first + self.seeds]
        return at_ESS.diagonal(dim1=1, dim2=2)


def models(config: Config) -> Iterator[Job]:
    """List the trainings, one per data set."""
    for name in config.sets:
        yield Job(train_classifiers, config.on(name))


def train_classifiers(config: Config, folder: Path) -> Run:
    """Train the models of all variants on a config's one data set; keep traces, not weights."""
    with Run.create(folder, config) as run:
        if not all(run.has(_trace(recorder)) for recorder in RECORDERS):
            _train(config, run)
        run.path(STATE).unlink(missing_ok=True)  # hundreds of megabytes that nobody will read
        accuracy_ES = run.load_tensors(_trace("test"))["accuracy"]
        run.save_figures({"accuracy": float(accuracy_ES[-1].mean())})
    return run


def _trace(recorder: str) -> str:
    return f"trace/{recorder}/curves.safetensors"


def _train(config: Config, run: Run) -> None:
    device, (name,), updates = device_of(), config.sets, config.updates
    assert updates is not None
    texts = read_labelled(
        name, longest=MAX_LENGTH, punctuation=config.punctuation, held_out=config.held_out
    )
    stack = make_stack(texts, config, device)
    read = partial(read_texts, device=device, seeds=stack.seeds)
    with progress_bar(updates, label=name) as progress:
        train_stack(
            stack,
            text_batches(texts.train, seeds=stack.seeds, device=device),
            steps=updates,
            rate=config.rate,
            recorders=[
                RelevanceCurves(read(texts.test), EVALUATED, name="test"),
                RelevanceCurves(read(texts.validation), EVALUATED, name="validation"),
                InfluencePeaks(read_influence(texts.test, device=device, seeds=stack.seeds)),
            ],
            run=run,
            checkpoint_every=500,
            progress=progress,
        )


def make_stack(texts: LabelledTexts, config: Config, device: torch.device) -> RnnClassifierStack:
    """Make models of every variant, each with initial weights of its own."""
    width = WIDTHS[config.embeddings]
    glove = read_glove(texts.vocabulary, width=width) if config.embeddings == "glove" else None

    def make(variant: Variant) -> RnnClassifier:
        model = RnnClassifier(
            RnnClassifierConfig(
                vocabulary=len(texts.vocabulary),
                classes=texts.classes,
                embedding=width,
                hidden=config.hidden,
                attention=config.hidden,
                variant=variant,
            )
        )
        if glove is not None:
            _set_vectors(model, glove)
        return model

    variants: list[Variant] = [name for name in VARIANTS for _ in range(config.seeds)]
    return RnnClassifierStack(
        [
            drawn(partial(make, variant), seed=number, device=device)
            for number, variant in enumerate(variants)
        ]
    )


@torch.no_grad()
def _set_vectors(model: RnnClassifier, glove: GloveVectors) -> None:
    """Copy GloVe's vectors; other words keep random ones, scaled to the same standard deviation."""
    spread = glove.matrix[glove.found].std(correction=0)
    random_VE = model.embed.weight * spread
    model.embed.weight.copy_(torch.where(glove.found[:, None], glove.matrix, random_VE))


def text_batches(
    part: Labelled, *, seeds: int, device: torch.device, batch: int = BATCH
) -> Callable[[int], tuple[Tensor, Tensor, Tensor]]:
    """Return batches of at most eight widths, each model in an order of its own."""
    ragged = Ragged.of(part.texts, device=device)
    labels = torch.tensor(part.labels, device=device)
    order = shuffled_order(len(ragged), batch=batch, seeds=range(seeds))
    multiple = 1 << max(0, (-(-int(ragged.sizes.max()) // 8) - 1).bit_length())

    def make(step: int) -> tuple[Tensor, Tensor, Tensor]:
        chosen_SB = order(step)
        padded = ragged.take(chosen_SB, multiple=multiple)
        return padded.ids, padded.lengths, labels[chosen_SB.to(device)]

    return make


class Influenced(NamedTuple):
    """Gradient influence and output relevance of S models on the same N rows of K positions."""

    xi: Float[Tensor, "S N K"]  # gradient influence
    beta: Float[Tensor, "S N K"]  # output relevance
    lengths: Int[Tensor, " N"]  # real positions of each row


def read_influence(
    part: Labelled, *, device: torch.device, seeds: int
) -> Callable[[RnnClassifierStack], Iterator[Influenced]]:
    """Return a reader of the same rows as `read_texts`, in the same order."""
    # a gradient needs about twice the memory of a forward pass
    batches = text_chunks(part, MAX_POSITIONS // (2 * seeds), device)

    def read(stack: RnnClassifierStack) -> Iterator[Influenced]:
        for ids, lengths, labels in batches():
            beta = stack.look(ids, lengths, labels).beta
            yield Influenced(stack.influence(ids, lengths, labels), beta, lengths)

    return read


KEPT = ("peak", "rise", "rising", "rise_at")


@dataclass
class InfluencePeaks:
    """Recorder of where influence is largest, and how far output relevance has risen there.

    A rise is beta^s - beta^0 at one position, with beta^0 that of the first evaluation.

    >>> xi, beta = torch.tensor([[[1.0, 5.0, 9.0]]]), torch.tensor([[[1.0, 2.0, 8.0]]])
    >>> read = lambda learned: [Influenced(xi, learned * beta, torch.tensor([2]))]
    >>> recorder = InfluencePeaks(read, lambda step: True)
    >>> recorder(0, 0.0), recorder(10, 1.0)
    (None, None)
    >>> recorder.tensors()["rise"].flatten(), recorder.tensors()["rise_at"].flatten()
    (tensor([0.0000, 1.5000], dtype=torch.float64), tensor([0., 2.], dtype=torch.float64))
    """

    read: Callable[[Any], Iterable[Influenced]]  # chunks of the same rows in the same order
    at: Callable[[int], bool] = EVALUATED
    name: str = "influence"
    _steps: list[int] = field(default_factory=list[int], init=False, repr=False)
    _first_SX: Tensor | None = field(default=None, init=False, repr=False)
    _kept: dict[str, Records] = field(
        default_factory=lambda: {name: Records() for name in KEPT}, init=False, repr=False
    )

    def __call__(self, step: int, model: Any) -> None:
        if not self.at(step) or step in self._steps[-1:]:
            return
        chunks = list(self.read(model))
        if self._first_SX is None:
            self._first_SX = torch.cat([chunk.beta.flatten(1) for chunk in chunks], dim=1).cpu()
        sizes = [chunk.beta[0].numel() for chunk in chunks]
        parts = zip(chunks, self._first_SX.split(sizes, dim=1), strict=True)
        found = [_summary(chunk, first_SX) for chunk, first_SX in parts]
        rows = {name: torch.cat([each[name] for each in found], dim=-1) for name in KEPT}
        self._steps.append(step)
        for name, value in rows.items():
            self._kept[name].append(value if name == "peak" else value.double().mean(-1))

    def tensors(self) -> dict[str, Tensor]:
        """Return what was recorded.

        `step` (E,), `peak` (E, S, N), `rise` (E, S), the mean over positions, then over rows,
        `rising` (E, S), the share of positions where beta has risen, `rise_at` (E, S, S), the rise
        of each model's beta where influence in every model is largest, mean over rows, and `beta_0`
        (1, S, X), the first beta of all positions, padded ones too.
        """
        first = torch.zeros(0, 0) if self._first_SX is None else self._first_SX
        return {
            "step": torch.tensor(self._steps),
            "beta_0": first[None],
            **{name: records.stacked() for name, records in self._kept.items()},
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what `tensors` returned earlier."""
        self._steps = tensors["step"].tolist()
        self._first_SX = tensors["beta_0"][0] if self._steps else None
        self._kept = {name: Records(tensors[name]) for name in KEPT}


def _summary(chunk: Influenced, first_SX: Tensor) -> dict[str, Tensor]:
    """Return what is kept of a chunk, still by row, on the CPU."""
    xi_SNK, beta_SNK, lengths_N = chunk
    peak_SN = peak_positions(xi_SNK, lengths_N)
    gain_SNK = beta_SNK - first_SX.to(beta_SNK.device).view_as(beta_SNK)
    real_NK = torch.arange(beta_SNK.shape[-1], device=lengths_N.device) < lengths_N[:, None]
    gain_SNK = gain_SNK.masked_fill(~real_NK, 0)
    # rows first, so that each row's gains are read at the peaks of every model
    place_NSS = peak_SN.T[:, None].expand(-1, len(gain_SNK), -1)
    at_NSS = gain_SNK.transpose(0, 1).gather(2, place_NSS)
    found = {
        "peak": peak_SN.int(),
        "rise": gain_SNK.sum(-1) / lengths_N,
        "rising": (gain_SNK > 0).sum(-1) / lengths_N,
        "rise_at": at_NSS.permute(1, 2, 0),
    }
    return {name: value.cpu() for name, value in found.items()}
