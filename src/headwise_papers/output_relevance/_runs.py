"""Runs compared with each other: initial models, readers of test sets, the measures of Table 1."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from headwise_papers.core import Result, curve, draw_lines
from headwise_papers.core.experiment import Kind
from headwise_papers.data.batches import Ragged, parallel_batch
from headwise_papers.data.classification import Labelled
from headwise_papers.measures.relevance import (
    agreement,
    at,
    best_step,
    ceiling,
    crossing,
    floor,
    from_others,
)
from headwise_papers.models.rnn_stack import RnnClassifierSequence, RnnClassifierStack, Seq2SeqStack
from headwise_papers.models.stacking import best_device
from headwise_papers.ops.relevance import Looked, holds, top_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Model = TypeVar("Model", bound=nn.Module)
TextBatch = tuple[Tensor, Tensor, Tensor]  # ids, lengths and labels
Traces = dict[str, Tensor]  # of a `RelevanceCurves`, of the models of one variant

MAX_POSITIONS = 2**19  # seeds x padded positions of one forward pass
HR = "hr(alpha*, beta_unif)"
OVER_SHUFFLES = "hr - best of as many shuffles"
ALPHA, BETA, OTHER = "tab:red", "tab:blue", "tab:grey"  # the paper's colours of Fig. 2
ROW_AXIS = {"lengths": 0, "alpha_peak": 2, "beta_peak": 2, "alpha_top": 2, "beta_top": 2}


def device_of() -> torch.device:
    """Return a GPU where there is one, else the CPU."""
    return torch.device(best_device())


def drawn(make: Callable[[], Model], *, seed: int, device: torch.device) -> Model:
    """Make a model whose initial weights depend on the seed alone, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().to(device)


def text_chunks(
    part: Labelled, positions: int, device: torch.device
) -> Callable[[], Iterator[TextBatch]]:
    """Return a function that yields labelled texts in chunks of similar length, shortest first.

    Args:
        part: the texts.
        positions: padded positions of a chunk, at most.
        device: where the texts are kept.
    """
    ragged = Ragged.of(part.texts, device=device)
    labels = torch.tensor(part.labels, device=device)
    chunks: list[list[int]] = [[]]
    for number in ragged.sizes.argsort(stable=True).tolist():
        if chunks[-1] and (len(chunks[-1]) + 1) * int(ragged.sizes[number]) > positions:
            chunks.append([])
        chunks[-1].append(number)

    def batches() -> Iterator[TextBatch]:
        for chosen in map(torch.tensor, chunks):
            padded = ragged.take(chosen)
            yield padded.ids, padded.lengths, labels[chosen.to(device)]

    return batches


def read_texts(
    part: Labelled, *, device: torch.device, seeds: int
) -> Callable[[RnnClassifierStack | RnnClassifierSequence], Iterator[Looked]]:
    """Return a reader of labelled texts for a stack of so many classifiers."""
    batches = text_chunks(part, MAX_POSITIONS // seeds, device)
    return lambda stack: (stack.look(*batch) for batch in batches())


def read_pairs(
    pairs: Sequence[tuple[list[int], list[int]]], *, device: torch.device, size: int = 64
) -> Callable[[Seq2SeqStack], Iterator[Looked]]:
    """Return a reader of sentence pairs, in chunks of similar length, shortest first."""
    ordered = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))
    chunks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    batches = [
        tuple(x.to(device) for x in parallel_batch(*map(list, zip(*chunk, strict=True))))
        for chunk in chunks
    ]

    def read(stack: Seq2SeqStack) -> Iterator[Looked]:
        was_training = stack.training
        stack.eval()
        for source, source_lengths, target_in, target_out, target_lengths in batches:
            yield stack.look(source, source_lengths, target_in, target_out, target_lengths)
        stack.train(was_training)

    return read


class Row(NamedTuple):
    """Row of Table 1, one value per pair of a normal run, whose attention is gold, and another.

    The other is a uniform run. No run is in two pairs, so that an interval over values covers both
    kinds of run.
    """

    hr: Float[Tensor, " S"]  # of gold attention in beta_unif at s'
    hr_at_best: Float[Tensor, " S"]  # where the uniform run is most accurate
    hr_at_end: Float[Tensor, " S"]
    floor: Float[Tensor, " S"]  # hr in one shuffle of beta_unif at s'
    lucky_floor: Float[Tensor, " S"]  # the best of as many shuffles as there are evaluations
    ceiling: Float[Tensor, " S"]  # of gold attention in another run's
    s: Float[Tensor, " S"]  # the update at which other runs' attention passes hr; else the last
    passes: Bool[Tensor, " S"]  # whether it does
    accuracy_at_s: Float[Tensor, " S"]  # of these other runs
    best: Float[Tensor, " S"]  # accuracy
    relevance: Float[Tensor, "E S"]  # hr of gold attention in beta_unif
    attention: Float[Tensor, "E S"]  # hr of gold attention in that of other runs

    def results(self, part: str = "") -> dict[str, Result]:
        """Return the row by name; s where no run has one is left out."""
        values = {
            HR: self.hr,
            f"{HR} at uniform's best accuracy": self.hr_at_best,
            f"{HR} at the end": self.hr_at_end,
            "random baseline": self.floor,
            "random baseline, best of as many shuffles": self.lucky_floor,
            "ceiling, another normal run": self.ceiling,
            "s": self.s[self.passes],
            "other runs pass hr": self.passes,
            "accuracy at s": self.accuracy_at_s[self.passes],
            "best accuracy": self.best,
        }
        gain = {OVER_SHUFFLES: self.hr - self.lucky_floor}
        return named(values, part=part) | named(gain, part=part, kind="difference")

    def draw(self, axes: "Axes", step_E: Tensor, *, title: str) -> None:
        """Draw hr of alpha* in beta_unif and in another run's attention through training."""
        curves = {
            r"$\beta_{unif}$": curve(step_E, self.relevance),
            r"$\hat\alpha$, another run": curve(step_E, self.attention),
            "random baseline": curve(step_E[[0, -1]], self.floor.expand(2, -1)),
        }
        colours = dict(zip(curves, (BETA, ALPHA, OTHER), strict=True))
        draw_lines(
            axes, curves, xlabel="update", ylabel=r"hr with $\alpha^*$", title=title,
            colours=colours,
        )  # fmt: skip
        axes.set_ylim(0, 1.02)


def gold_attention(normal: Traces) -> Int[Tensor, "S N"]:
    """Return where each normal run attends most when it is most accurate, alpha^{s*}."""
    return at(normal["alpha_peak"], best_step(normal["accuracy"]).evaluation)


def table_row(normal: Traces, uniform: Traces, *, seed: int = 0) -> Row:
    """Compute a row of Table 1 from as many normal as uniform runs on the same rows.

    s' is chosen for each pair, as the paper does for its one pair.
    """
    gold_SN = gold_attention(normal)
    pairs_ES = paired(gold_SN, uniform["beta_top"])
    hr_S = best_step(pairs_ES).value
    attention_ES = from_others(agreement(gold_SN, normal["alpha_top"]).mT)
    passes_S = crossing(attention_ES, hr_S)
    place_S = torch.where(passes_S < 0, len(attention_ES) - 1, passes_S)
    best = best_step(normal["accuracy"])
    generator = torch.Generator().manual_seed(seed)
    return Row(
        hr=hr_S,
        hr_at_best=at(pairs_ES, best_step(uniform["accuracy"]).evaluation),
        hr_at_end=pairs_ES[-1],
        floor=_shuffled_hr(gold_SN, pairs_ES, uniform, generator),
        lucky_floor=lucky_floor(uniform["lengths"], pairs_ES.shape, generator),
        ceiling=ceiling(gold_SN, at(normal["alpha_top"], best.evaluation)),
        s=normal["step"][place_S].double(),
        passes=passes_S >= 0,
        accuracy_at_s=at(_of_others(normal["accuracy"]), place_S),
        best=best.value,
        relevance=pairs_ES,
        attention=attention_ES,
    )


def paired(gold: Int[Tensor, "S N"], top: UInt8[Tensor, "E R M P"]) -> Float[Tensor, "E S"]:
    """Return hr of each run's gold positions in the tops of the other run with the same number.

    Args:
        gold: position in each row.
        top: packed highly ranked positions, e.g. `beta_top` of uniform runs.
    """
    if top.shape[1:3] != gold.shape:
        raise ValueError(
            f"Gold positions are of {tuple(gold.shape)} runs and rows and the others of "
            f"{tuple(top.shape[1:3])}; train as many runs of each kind, on the same rows."
        )
    return torch.stack([holds(top_SNP, gold).double().mean(-1) for top_SNP in top])


def lucky_floor(
    lengths: Int[Tensor, " N"], shape: tuple[int, ...], generator: torch.Generator
) -> Float[Tensor, " S"]:
    """Return the largest hr of as many shuffles as there are evaluations, for each run.

    The largest of many hr's is above one shuffle's by luck alone; this is how much. In a shuffled
    row every position is as likely as any other to be highly ranked.

    Args:
        lengths: of the rows.
        shape: evaluations and runs.
        generator: makes the shuffles.
    """
    chance_N = top_number(lengths) / lengths
    hit_ESN = torch.rand(*shape, len(lengths), generator=generator) < chance_N
    return hit_ESN.double().mean(-1).amax(0)


def on_rows(traces: Traces, rows: Bool[Tensor, " N"]) -> Traces:
    """Return the records of some rows; accuracy stays that of all."""
    chosen = rows.nonzero()[:, 0]
    return {
        name: value.index_select(ROW_AXIS[name], chosen) if name in ROW_AXIS else value
        for name, value in traces.items()
    }


def of_runs(traces: Traces, first: int, last: int | None = None) -> Traces:
    """Return the records of some runs."""
    chosen = slice(first, last)
    return {name: x if x.dim() < 2 else x[:, chosen] for name, x in traces.items()}


def named(
    values: Mapping[str, Tensor], *, part: str = "", kind: Kind = "mean"
) -> dict[str, Result]:
    """Return tensors of one value per run as results; booleans are shares, empty ones left out.

    >>> named({"s": torch.tensor([10, 20]), "t": torch.zeros(0)}, part="sst")
    {'sst: s': Result(values=(10.0, 20.0), kind='mean')}
    """
    before = f"{part}: " if part else ""
    return {
        f"{before}{name}": Result(x.double().tolist(), "share" if x.dtype == torch.bool else kind)
        for name, x in values.items()
        if len(x)
    }


def pooled(results: Mapping[str, Result], name: str, parts: Sequence[str]) -> Result:
    """Return the values of several parts as one result."""
    found = [results[f"{part}: {name}"] for part in parts]
    return Result([value for one in found for value in one.values], found[0].kind)


def limit_shares(axes: "Axes") -> None:
    """Limit a vertical axis to 0 to 1, which intervals of few runs would leave."""
    axes.set_ylim(0, min(1.02, axes.get_ylim()[1]))


def _shuffled_hr(
    gold_SN: Tensor, pairs_ES: Tensor, uniform: Traces, generator: torch.Generator
) -> Tensor:
    top_SNP = at(uniform["beta_top"], best_step(pairs_ES).evaluation)
    return floor(gold_SN, top_SNP, uniform["lengths"], generator).diagonal()


def _of_others(values_ES: Tensor) -> Tensor:
    """Return for each run the mean over the others."""
    return (values_ES.sum(1, keepdim=True) - values_ES) / (values_ES.shape[1] - 1)
