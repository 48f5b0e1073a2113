"""How much every head matters, on a sample of sentences: means over them, with intervals.

    relevance            share of the model's top prediction that comes through the head, by layer-
                         wise relevance propagation, normalised over the heads of its site; the mean
                         over all predictions (Voita et al., 2019, section 4)
    gradient_importance  |d loss / d gate| of the head (Michel et al., 2019)
    output_norm          norm of what it adds to the residual stream, relative to its whole site
    loss_rise            increase of the loss when the head is off
    prediction_change    share of top predictions that change then
    output_change        relative change of the outputs then

There are no labels, so the loss is that of the model's own top prediction. A translator and a
causal language model predict the next token at every step; a masked language model predicts tokens
that are masked one at a time; a classifier predicts its class.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.analysis.importance import ablate_items, gradient_importance, output_norms
from headwise.analysis.propagation import Rule, head_relevance, top_class
from headwise.recording.tally import Tallies, bootstrap_weights
from headwise.sites import find_sites
from headwise.workflows.inspect.config import InspectConfig
from headwise.workflows.inspect.corpus import Numbered
from headwise.workflows.inspect.stream import Bookmark, Seen
from headwise.workflows.inspect.subject import Output, Predicts, Prepared, Subject
from headwise.workflows.progress import Counted

WHOLE = 0  # the position that stands for the whole text
VALUES = 2**26  # of outputs in memory while heads are off
TOGETHER = 8  # the most heads that are off in one pass
ByHead = dict[str, Tensor]  # site -> (rows or sentences, H)


def measure_importance(
    subject: Subject,
    drawn: Sequence[Numbered],
    config: InspectConfig,
    *,
    output_norm: bool = True,
    bookmark: Bookmark | None = None,
    progress: Counted = lambda done, total: None,
) -> "Means":
    """Measure importance on some sentences.

    Args:
        subject: whose heads.
        drawn: a random sample, in random order.
        config: `steps`, `relevance`, `rule`, `ablation_lines`, `batch_size` and `seed` count.
        output_norm: whether to measure it; not every model says what its heads add.
        bookmark: where to resume, and where to save.
        progress: called with (sentences done, in all).
    """
    means, predicts = Means(seed=config.seed), None
    seen = bookmark.load([means]) if bookmark else Seen()
    for batch, off in list(_batches(drawn, config))[seen.chunks :]:
        with torch.no_grad():
            prepared = subject.prepare([sentence for _, sentence in batch])
            predicts = predicts or subject.forward(prepared.inputs).predicts
        measured = _Batch(subject, prepared, predicts, [number for number, _ in batch], config)
        measured.add_to(means, output_norm=output_norm, ablation=off)
        sentences = seen.sentences + len(batch)
        seen = replace(seen, chunks=seen.chunks + 1, sentences=sentences)
        progress(seen.sentences, len(drawn))
        if bookmark:
            bookmark.save([means], seen)
    return means


def _batches(
    drawn: Sequence[Numbered], config: InspectConfig
) -> Iterator[tuple[Sequence[Numbered], bool]]:
    """Yield sentences of similar length together, and whether heads are ablated on them."""
    parts = drawn[: config.ablation_lines], drawn[config.ablation_lines :]
    for part, off in zip(parts, (True, False), strict=True):
        ordered = sorted(part, key=lambda pair: len(pair[1].text))
        for start in range(0, len(ordered), config.batch_size):
            yield ordered[start : start + config.batch_size], off


@dataclass(frozen=True, eq=False)
class _Batch:
    """Sentences whose predictions importance is measured with."""

    subject: Subject
    prepared: Prepared
    predicts: Predicts
    numbers: Sequence[int]  # of the sentences in their corpus
    config: InspectConfig

    def add_to(self, means: "Means", *, output_norm: bool, ablation: bool) -> None:
        """Measure, and add to the means."""
        few = self._predictions(steps=self.config.steps)
        if few is None:
            return
        # all steps of a sentence are one row, unless each needs a mask of its own
        every = few if self.predicts == "masked" else self._predictions(steps=None)
        assert every is not None
        rows, counts = self.config.batch_size, [float(steps > 0) for steps in few.steps]
        if self.predicts != "nothing":
            if self.config.relevance:
                relevance = by_relevance(self.subject, few, rows=rows, rule=self.config.rule)
                means.add("relevance", relevance, self.numbers, few.steps)
            slopes = by_gradient(self.subject, every, rows=rows)
            means.add("gradient_importance", slopes, self.numbers, counts)
        if output_norm:
            means.add("output_norm", self._output_norms(), self.numbers, counts)
        if ablation:
            for measure, values in by_ablation(self.subject, every, rows=rows).items():
                means.add(measure, values, self.numbers, counts)

    def _predictions(self, *, steps: int | None) -> "Predictions | None":
        return predictions_of(
            self.subject,
            self.prepared,
            self.predicts,
            numbers=self.numbers,
            steps=steps,
            seed=self.config.seed,
        )

    def _output_norms(self) -> ByHead:
        counted = {stack: words.of >= 0 for stack, words in self.prepared.words.items()}
        return output_norms(
            self.subject.model,
            lambda: self.subject.forward(self.prepared.inputs),
            counted=counted,
        )


@dataclass
class Means(Tallies):
    """Means over sentences of the importance of heads, with intervals and a state to save."""

    bounded: bool = False
    grain: float = 0.0
    name: str = "importance"
    seed: int = 0

    def add(
        self,
        measure: str,
        values: Mapping[str, Tensor],
        sentences: Sequence[int],
        counts: Sequence[float | int],
    ) -> None:
        """Add {site: (B, H)} of some sentences, each with its weight."""
        weights_BR = bootstrap_weights(sentences, seed=self.seed)
        count_B1 = torch.tensor(counts, dtype=torch.float64)[:, None]
        for site, value_BH in values.items():
            tally = self.at(measure, site)
            tally.add(value_BH.double().cpu() * count_B1, count_B1, weights=weights_BR)

    def merge(self, other: Tallies) -> None:
        """Add the sums of another with the same seed, of other sentences."""
        seed = other.seed if isinstance(other, Means) else None
        if seed != self.seed:
            raise ValueError(
                f"Means with the seed {self.seed} were given some with the seed {seed}; their "
                "intervals cannot be merged."
            )
        super().merge(other)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Rows of inputs, and the positions whose predictions count.

    Args:
        inputs: each with an axis of rows in front.
        item: (N,), the sentence of each row, by its place in the batch.
        at: (M, 2) of (row, position); the position is 0 where the whole text is classified.
        steps: how many predictions each sentence of the batch has, chosen or not.
    """

    inputs: Mapping[str, Tensor]
    item: Tensor
    at: Tensor
    steps: Sequence[int]

    def parts(self, rows: int) -> Iterator["Predictions"]:
        """Yield groups of so many rows; groups without a prediction are left out."""
        for start in range(0, len(self.item), rows):
            here_M = (self.at[:, 0] >= start) & (self.at[:, 0] < start + rows)
            if bool(here_M.any()):
                at_M2 = self.at[here_M] - self.at.new_tensor([start, 0])
                inputs = {name: x[start : start + rows] for name, x in self.inputs.items()}
                yield Predictions(inputs, self.item[start : start + rows], at_M2, self.steps)

    def values(self, output: Output) -> Tensor:
        """Return the outputs at the chosen positions, (M, V)."""
        row_M, position_M = self.at.unbind(dim=1)
        values = output.values
        return values[row_M] if values.dim() == 2 else values[row_M, position_M]

    def taken(self, rows: Tensor) -> tuple["Predictions", Tensor]:
        """Return some rows, which may repeat, and the places of their predictions among all."""
        place_K, chosen_K = (rows[:, None] == self.at[:, 0]).nonzero().unbind(dim=1)
        at_K2 = torch.stack([place_K, self.at[chosen_K, 1]], dim=1)
        inputs = {name: tensor[rows] for name, tensor in self.inputs.items()}
        return Predictions(inputs, self.item[rows], at_K2, self.steps), chosen_K


def predictions_of(
    subject: Subject,
    prepared: Prepared,
    predicts: Predicts,
    *,
    numbers: Sequence[int],
    steps: int | None = None,
    seed: int = 0,
) -> Predictions | None:
    """Choose predictions of a batch; None where it has no word.

    Args:
        subject: its mask token is used.
        prepared: the batch.
        predicts: what the model predicts.
        numbers: of the sentences in their corpus; with the seed they decide which steps are drawn.
        steps: the most of each sentence, drawn at random; None takes all.
        seed: of that draw.
    """
    of_BT = prepared.words[prepared.last].of
    places = [row.nonzero()[:, 0].tolist() for row in of_BT.cpu() >= 0]
    if not any(places):
        return None
    if predicts == "class":
        places = [[WHOLE] if row else [] for row in places]
    chosen = [
        _some(row, steps, random.Random(f"{seed} {number}"))
        for row, number in zip(places, numbers, strict=True)
    ]
    pairs = [(item, place) for item, row in enumerate(chosen) for place in row]
    at_M2 = torch.tensor(pairs, device=of_BT.device)
    everyone_N = torch.arange(len(of_BT), device=of_BT.device)
    found = Predictions(prepared.inputs, everyone_N, at_M2, [len(row) for row in places])
    return _masked(found, subject.mask_id) if predicts == "masked" else found


def _some(places: list[int], steps: int | None, draw: random.Random) -> list[int]:
    if steps is None or len(places) <= steps:
        return places
    return sorted(draw.sample(places, steps))


def _masked(chosen: Predictions, mask_id: int | None) -> Predictions:
    """Make one row per prediction, with its token masked."""
    assert mask_id is not None
    row_M, position_M = chosen.at.unbind(dim=1)
    own_M = torch.arange(len(row_M), device=row_M.device)
    inputs = {name: tensor[row_M] for name, tensor in chosen.inputs.items()}
    inputs["input_ids"][own_M, position_M] = mask_id
    return Predictions(
        inputs, chosen.item[row_M], torch.stack([own_M, position_M], dim=1), chosen.steps
    )


def by_relevance(subject: Subject, predictions: Predictions, *, rows: int, rule: Rule) -> ByHead:
    """Return relevance of heads for the top predictions, the mean of a sentence, {site: (B, H)}."""

    def found() -> Iterable[tuple[Tensor, ByHead]]:
        for part in predictions.parts(rows):

            def logits(part: Predictions = part) -> Tensor:
                return subject.forward(part.inputs).values

            def pick(logits: Tensor, part: Predictions = part) -> Tensor:
                # a classifier's have no axis of positions
                return top_class(part.at[:, : logits.dim() - 1])(logits)

            yield part.item[part.at[:, 0]], head_relevance(subject.model, logits, pick, rule=rule)

    return _by_sentence(found(), len(predictions.steps))


def by_gradient(subject: Subject, predictions: Predictions, *, rows: int) -> ByHead:
    """Return gradient importance for the loss of the top predictions, {site: (B, H)}."""

    def found() -> Iterable[tuple[Tensor, ByHead]]:
        for part in predictions.parts(rows):

            def losses(part: Predictions = part) -> Tensor:
                values_MV = part.values(subject.forward(part.inputs)).float()
                return _mean(part, cross_entropy_of_best(values_MV), len(part.item))

            yield part.item, gradient_importance(subject.model, losses)

    return _by_sentence(found(), len(predictions.steps))


def by_ablation(subject: Subject, predictions: Predictions, *, rows: int) -> dict[str, ByHead]:
    """Return what changes with each head off, {measure: {site: (B, H)}}.

    `output_change` for all models; `loss_rise` and `prediction_change` for those with predictions.
    """
    found: dict[str, list[tuple[Tensor, ByHead]]] = {}
    for part in predictions.parts(rows):
        for measure, values in _Ablation(subject, part).changes().items():
            found.setdefault(measure, []).append((part.item, values))
    return {measure: _by_sentence(each, len(predictions.steps)) for measure, each in found.items()}


def cross_entropy_of_best(values: Tensor) -> Tensor:
    """Return the loss of the best class of each row."""
    return cross_entropy(values, values.detach().argmax(-1), reduction="none")


class _Ablation:
    """Outputs of some rows with and without heads: all measures from the same passes."""

    def __init__(self, subject: Subject, predictions: Predictions) -> None:
        self.subject, self.predictions = subject, predictions
        with torch.no_grad():
            output = subject.forward(predictions.inputs)
        self.predicts = output.predicts != "nothing"
        self.whole_MV = predictions.values(output).float()
        self.together = max(1, min(TOGETHER, VALUES // output.values.numel()))
        self.noted: list[Tensor] = []  # (N, 2) per pass: how far outputs move, how many change

    def changes(self) -> dict[str, ByHead]:
        """Return {measure: {site: (N, H)}}."""
        items = len(self.predictions.item)
        rise = ablate_items(
            self.subject.model,
            self._measure,
            items=items,
            together=self.together,
            device=self.predictions.item.device,
        )
        # the first pass had all heads; the others took them in the order of the sites
        noted_XN2 = torch.cat(self.noted[1:]).view(-1, items, 2)
        sites = find_sites(self.subject.model)
        by_site = noted_XN2.split([site.num_heads for site in sites])
        moved, changed = (
            {
                site.name: part_HN2[..., which].T
                for site, part_HN2 in zip(sites, by_site, strict=True)
            }
            for which in (0, 1)
        )
        if not self.predicts:
            return {"output_change": moved}
        return {"loss_rise": rise, "prediction_change": changed, "output_change": moved}

    def _measure(self, rows_N: Tensor) -> Tensor:
        part, chosen_K = self.predictions.taken(rows_N)
        values_KV = part.values(self.subject.forward(part.inputs)).float()
        whole_KV, n = self.whole_MV[chosen_K], len(rows_N)
        best_K = whole_KV.argmax(-1)
        gap_N = _mean(part, (values_KV - whole_KV).square().sum(-1), n)
        size_N = _mean(part, whole_KV.square().sum(-1), n)
        moved_N = torch.where(size_N == 0, 0, gap_N / size_N).sqrt()  # nan stays nan
        changed_N = _mean(part, (values_KV.argmax(-1) != best_K).float(), n)
        self.noted.append(torch.stack([moved_N, changed_N], dim=1))
        if not self.predicts:
            return moved_N
        return _mean(part, cross_entropy(values_KV, best_K, reduction="none"), n)


def _mean(predictions: Predictions, value_M: Tensor, rows: int) -> Tensor:
    """Return the mean over the predictions of each row, (N,)."""
    row_M = predictions.at[:, 0]
    sum_N = value_M.new_zeros(rows).index_add(0, row_M, value_M)
    count_N = value_M.new_zeros(rows).index_add(0, row_M, torch.ones_like(value_M))
    return sum_N / count_N.clamp(min=1)


def _by_sentence(found: Iterable[tuple[Tensor, ByHead]], sentences: int) -> ByHead:
    """Return means over the rows of each sentence, from (sentence of each row, {site: (N, H)})."""
    sums: ByHead = {}
    count_B1 = torch.zeros(sentences, 1, dtype=torch.float64)
    for item_N, values in found:
        place_N = item_N.cpu()
        count_B1.index_add_(0, place_N, torch.ones(len(place_N), 1, dtype=torch.float64))
        for site, value_NH in values.items():
            zeros_BH = torch.zeros(sentences, value_NH.shape[1], dtype=torch.float64)
            sums.setdefault(site, zeros_BH).index_add_(0, place_N, value_NH.double().cpu())
    return {site: sum_BH / count_B1.clamp(min=1) for site, sum_BH in sums.items()}
