"""Training the classifiers of Tables 1 and 3 and of Fig. 3 and 4 once, for several experiments.

For each set one stack of normal, uniform and frozen models learns in a folder of its own inside
the run, where the records of their attention, output relevance and influence stay.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headwise.config import suggestion, to_json
from headwise.recording.run import Run
from headwise.training.progress import progress_bar
from headwise_papers.data.batches import Ragged
from headwise_papers.data.classification import Labelled, LabelledTexts, read_labelled
from headwise_papers.data.glove import GloveVectors, read_glove
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig, Variant
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.output_relevance._peaks import Influenced, InfluencePeaks
from headwise_papers.output_relevance._stacks import (
    LOOKED_POSITIONS,
    chunks_by_length,
    device_of,
    drawn,
    looking_at_texts,
)
from headwise_papers.recipes.stacked import STATE, shuffled_order, train_stack

__all__ = ["SETS", "Trained", "Training", "trained_on"]

UPDATES = {  # appendix A.3
    "imdb": 2000,
    "ag_news": 1500,
    "newsgroups": 1500,
    "sst": 2000,
    "amazon": 2500,
    "yelp": 2300,
    "yelp_reviews": 2300,  # the paper's Yelp; at hand are sentences, the set before
}
SETS = tuple(UPDATES)
AT_HAND = SETS[:-1]
VARIANTS: tuple[Variant, ...] = ("normal", "uniform", "frozen")
RECORDERS = ("test", "validation", "influence")
WIDTHS = {"glove": 50, "random": 300}  # of embeddings


@dataclass(frozen=True)
class Training:
    """Appendices A.2 and A.3."""

    sets: tuple[str, ...] = AT_HAND  # and yelp_reviews, of Yelp's own file
    seeds: int = 5  # normal, uniform and frozen models each
    updates: int | None = None  # 1 or more; none: the paper's number for each set
    batch: int = 32
    rate: float = 1e-3  # of Adam; the paper does not say
    embeddings: Literal["glove", "random"] = "glove"  # random is what the released code does
    width: int | None = None  # of embeddings; none: 50 for GloVe's and 300 for random ones
    hidden: int = 256  # of h, half of it from each direction
    attention: int = 256  # of the layer that scores; the paper does not say
    longest: int = 1000  # words after this many are cut off; the paper keeps texts whole
    punctuation: bool = True  # marks are words; the paper does not say, see output_relevance/data
    held_out: int = 400  # validation texts, and as many test texts
    every: int = 10  # updates between evaluations, up to `until`
    until: int = 100
    then: int = 50  # and after it
    device: str = "auto"  # a GPU where there is one

    def __post_init__(self) -> None:
        for name in self.sets:
            if name not in UPDATES:
                raise ValueError(f"There is no set {name!r}. {suggestion(name, UPDATES)}")
        if self.seeds < 2:
            raise ValueError(f"Runs are compared with others, so seeds >= 2, got {self.seeds}.")
        if self.updates is not None and self.updates < 1:
            raise ValueError(
                f"updates must be 1 or more, got {self.updates}; none means the paper's number."
            )


@dataclass(frozen=True)
class Trained:
    """What training on one set recorded, by recorder: "test", "validation" and "influence"."""

    seeds: int  # of each variant
    recorded: Mapping[str, Mapping[str, Tensor]]

    def rise(self, variant: Variant, *, where: Variant) -> Tensor:
        """How far beta of each run of a variant has risen at the most influential token, (E, S).

        Args:
            variant: whose output relevance.
            where: whose influence, that of the run of this variant with the same number.
        """
        first = VARIANTS.index(where) * self.seeds
        at_ESS = self.of(variant, "influence")["rise_at"][:, :, first : first + self.seeds]
        return at_ESS.diagonal(dim1=1, dim2=2)

    def of(self, variant: Variant, recorder: str = "test") -> dict[str, Tensor]:
        """The records of the models of one variant."""
        first = VARIANTS.index(variant) * self.seeds
        return {
            name: value if value.dim() < 2 else value[:, first : first + self.seeds]
            for name, value in self.recorded[recorder].items()
        }


def trained_on(name: str, config: Training, run: Run, *, trained: str = "") -> Trained:
    """The records of training on a set; trained now, unless that was done before.

    Args:
        name: the set.
        config: the settings.
        run: the experiment's; the training is kept, and resumed, in its folder `name`.
        trained: folder of a finished run of output_relevance/classification, read instead.
    """
    settings = _settings_of(name, config)
    if trained:
        return _read(_finished(name, Path(trained), settings), config)
    with Run.create(run.path(name), settings) as own:
        if not _is_done(own):
            _train(settings, own)
            own.path(STATE).unlink()  # hundreds of megabytes that nobody will read
    return _read(own, config)


def _settings_of(name: str, config: Training) -> Training:
    """The settings that one set's training depends on."""
    shared = Training(**{item.name: getattr(config, item.name) for item in fields(Training)})
    return replace(
        shared,
        sets=(name,),
        updates=_updates(name, config),
        width=_width(config),
    )


def _updates(name: str, config: Training) -> int:
    return UPDATES[name] if config.updates is None else config.updates


def _width(config: Training) -> int:
    return WIDTHS[config.embeddings] if config.width is None else config.width


def _is_done(own: Run) -> bool:
    return all(own.has(_trace(recorder)) for recorder in RECORDERS)


def _trace(recorder: str) -> str:
    return f"trace/{recorder}/curves.safetensors"


def _read(own: Run, config: Training) -> Trained:
    return Trained(config.seeds, {name: own.load_tensors(_trace(name)) for name in RECORDERS})


def _finished(name: str, folder: Path, settings: Training) -> Run:
    """The finished training on a set inside another run, made with the same settings."""
    if not (folder / name / "config.json").is_file():
        raise ValueError(
            f"{folder} holds no training on {name}; give the folder of a finished run of "
            "output_relevance/classification, or leave out `trained` to train now."
        )
    own, wanted = Run.open(folder / name), to_json(settings)
    there = own.config()
    for setting in wanted.keys() - {"device"}:
        if there.get(setting) != wanted[setting]:
            raise ValueError(
                f"{folder / name} was trained with {setting}={there.get(setting)}, but here it is "
                f"{wanted[setting]}; set it the same, or leave out `trained` to train now."
            )
    if not _is_done(own):
        raise ValueError(f"The training in {folder / name} is not finished; finish it first.")
    return own


def _train(settings: Training, own: Run) -> None:
    (name,), device = settings.sets, device_of(settings.device)
    updates = _updates(name, settings)
    texts = read_labelled(
        name,
        longest=settings.longest,
        punctuation=settings.punctuation,
        held_out=settings.held_out,
    )
    stack = _stack(texts, settings, device)
    at = schedule(settings.every, until=settings.until, then=settings.then)
    look = partial(looking_at_texts, device=device, seeds=stack.seeds)
    with progress_bar(updates, label=name) as progress:
        train_stack(
            stack,
            _batches(texts.train, settings, device),
            steps=updates,
            rate=settings.rate,
            recorders=[
                RelevanceCurves(look(texts.test), at, name="test"),
                RelevanceCurves(look(texts.validation), at, name="validation"),
                InfluencePeaks(_influencing(texts.test, device=device, seeds=stack.seeds), at),
            ],
            run=own,
            checkpoint_every=500,
            progress=progress,
        )


def _stack(texts: LabelledTexts, settings: Training, device: torch.device) -> RnnClassifierStack:
    """Models of every variant, each with a start of its own."""
    width = _width(settings)
    glove = read_glove(texts.vocabulary, width=width) if settings.embeddings == "glove" else None

    def make(variant: Variant) -> RnnClassifier:
        model = RnnClassifier(
            RnnClassifierConfig(
                vocabulary=len(texts.vocabulary),
                classes=texts.classes,
                embedding=width,
                hidden=settings.hidden,
                attention=settings.attention,
                variant=variant,
            )
        )
        if glove is not None:
            _set_vectors(model, glove)
        return model

    variants: list[Variant] = [name for name in VARIANTS for _ in range(settings.seeds)]
    return RnnClassifierStack(
        [
            drawn(partial(make, variant), seed=number, device=device)
            for number, variant in enumerate(variants)
        ]
    )


@torch.no_grad()
def _set_vectors(model: RnnClassifier, glove: GloveVectors) -> None:
    """Words without a vector keep their own random one, made as long as the others."""
    spread = glove.matrix[glove.found].std(correction=0)
    random_VE = model.embed.weight * spread
    model.embed.weight.copy_(torch.where(glove.found[:, None], glove.matrix, random_VE))


def _batches(
    part: Labelled, settings: Training, device: torch.device
) -> Callable[[int], tuple[Tensor, Tensor, Tensor]]:
    """Batches of at most eight widths, each model in an order of its own."""
    ragged = Ragged.of(part.texts, device=device)
    labels = torch.tensor(part.labels, device=device)
    seeds = range(len(VARIANTS) * settings.seeds)
    order = shuffled_order(len(ragged), batch=settings.batch, seeds=seeds)
    multiple = 1 << max(0, (-(-int(ragged.sizes.max()) // 8) - 1).bit_length())

    def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
        chosen_SB = order(step)
        padded = ragged.take(chosen_SB, multiple=multiple)
        return padded.ids, padded.lengths, labels[chosen_SB.to(device)]

    return batch


def _influencing(
    part: Labelled, *, device: torch.device, seeds: int
) -> Callable[[RnnClassifierStack], Iterator[Influenced]]:
    """Influence and output relevance of the same rows as `looking_at_texts`, in the same order."""
    ragged = Ragged.of(part.texts, device=device)
    labels = torch.tensor(part.labels, device=device)
    # a gradient needs about twice the memory of a look
    chunks = chunks_by_length(ragged.sizes, LOOKED_POSITIONS // (2 * seeds))

    def read(stack: RnnClassifierStack) -> Iterator[Influenced]:
        for chosen in chunks:
            padded = ragged.take(chosen)
            shown = padded.ids, padded.lengths, labels[chosen.to(device)]
            yield Influenced(stack.influence(*shown), stack.look(*shown).beta, padded.lengths)

    return read
