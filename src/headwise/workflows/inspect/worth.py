"""What heads are worth to the predictions of one batch: three ways to ask, a row a sentence."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.analysis.ablation import ablate_items
from headwise.analysis.importance import gradient_importance
from headwise.analysis.propagation import Rule, head_relevance, top_class
from headwise.sites import find_sites
from headwise.workflows.inspect.asking import Asked
from headwise.workflows.inspect.subject import Subject

__all__ = ["by_gradient", "by_relevance", "by_switching_off"]

VALUES = 2**26  # of outputs held at once while heads are off
TOGETHER = 8  # the most heads that are off in one pass
ByHead = dict[str, Tensor]  # site -> (rows or sentences, H)


def by_relevance(subject: Subject, asked: Asked, *, rows: int, rule: Rule) -> ByHead:
    """Relevance of heads for the top predictions, {site: (B, H)}, the mean over each sentence's."""

    def found() -> Iterable[tuple[Tensor, ByHead]]:
        for part in asked.parts(rows):

            def logits(part: Asked = part) -> Tensor:
                return subject.forward(part.inputs).values

            def pick(logits: Tensor, part: Asked = part) -> Tensor:
                # a classifier's have no axis of positions
                return top_class(part.at[:, : logits.dim() - 1])(logits)

            yield part.item[part.at[:, 0]], head_relevance(subject.model, logits, pick, rule=rule)

    return _by_sentence(found(), len(asked.steps))


def by_gradient(subject: Subject, asked: Asked, *, rows: int) -> ByHead:
    """Gradient importance with the loss of the model's own top predictions, {site: (B, H)}."""

    def found() -> Iterable[tuple[Tensor, ByHead]]:
        for part in asked.parts(rows):

            def losses(part: Asked = part) -> Tensor:
                values_MV = part.values(subject.forward(part.inputs)).float()
                return _mean(part, cross_entropy_of_best(values_MV), len(part.item))

            yield part.item, gradient_importance(subject.model, losses)

    return _by_sentence(found(), len(asked.steps))


def by_switching_off(subject: Subject, asked: Asked, *, rows: int) -> dict[str, ByHead]:
    """What changes with each head off, {measure: {site: (B, H)}}.

    `output_change` for all models; `loss_rise` and `prediction_change` for those with predictions.
    """
    found: dict[str, list[tuple[Tensor, ByHead]]] = {}
    for part in asked.parts(rows):
        for measure, values in _SwitchingOff(subject, part).changes().items():
            found.setdefault(measure, []).append((part.item, values))
    return {measure: _by_sentence(each, len(asked.steps)) for measure, each in found.items()}


def cross_entropy_of_best(values: Tensor) -> Tensor:
    """The loss of the best class of each row."""
    return cross_entropy(values, values.detach().argmax(-1), reduction="none")


class _SwitchingOff:
    """The outputs of some rows with and without heads: all measures from the same passes."""

    def __init__(self, subject: Subject, asked: Asked) -> None:
        self.subject, self.asked = subject, asked
        with torch.no_grad():
            output = subject.forward(asked.inputs)
        self.predicts = output.predicts != "nothing"
        self.whole_MV = asked.values(output).float()
        self.together = max(1, min(TOGETHER, VALUES // output.values.numel()))
        self.noted: list[Tensor] = []  # (N, 2) a pass: how far outputs move, how many change

    def changes(self) -> dict[str, ByHead]:
        """{measure: {site: (N, H)}}."""
        items = len(self.asked.item)
        rise = ablate_items(
            self.subject.model,
            self._measure,
            items=items,
            together=self.together,
            device=self.asked.item.device,
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
        part, question_K = self.asked.taken(rows_N)
        values_KV = part.values(self.subject.forward(part.inputs)).float()
        whole_KV, n = self.whole_MV[question_K], len(rows_N)
        best_K = whole_KV.argmax(-1)
        gap_N = _mean(part, (values_KV - whole_KV).square().sum(-1), n)
        size_N = _mean(part, whole_KV.square().sum(-1), n)
        moved_N = torch.where(size_N == 0, 0, gap_N / size_N).sqrt()  # nan stays nan
        changed_N = _mean(part, (values_KV.argmax(-1) != best_K).float(), n)
        self.noted.append(torch.stack([moved_N, changed_N], dim=1))
        if not self.predicts:
            return moved_N
        return _mean(part, cross_entropy(values_KV, best_K, reduction="none"), n)


def _mean(asked: Asked, value_M: Tensor, rows: int) -> Tensor:
    """The mean over the questions of each row, (N,)."""
    row_M = asked.at[:, 0]
    sum_N = value_M.new_zeros(rows).index_add(0, row_M, value_M)
    count_N = value_M.new_zeros(rows).index_add(0, row_M, torch.ones_like(value_M))
    return sum_N / count_N.clamp(min=1)


def _by_sentence(found: Iterable[tuple[Tensor, ByHead]], sentences: int) -> ByHead:
    """Means over the rows of each sentence, from (the sentence of each row, {site: (N, H)})."""
    sums: ByHead = {}
    count_B1 = torch.zeros(sentences, 1, dtype=torch.float64)
    for item_N, values in found:
        place_N = item_N.cpu()
        count_B1.index_add_(0, place_N, torch.ones(len(place_N), 1, dtype=torch.float64))
        for site, value_NH in values.items():
            zeros_BH = torch.zeros(sentences, value_NH.shape[1], dtype=torch.float64)
            sums.setdefault(site, zeros_BH).index_add_(0, place_N, value_NH.double().cpu())
    return {site: sum_BH / count_B1.clamp(min=1) for site, sum_BH in sums.items()}
