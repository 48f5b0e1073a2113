"""Patterns as matrices, attention of encoders as maps, and how much of one lies on the other."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headwise.guidance import CONVENTIONS, Aim
from headwise.guidance.schedule import ConventionName
from headwise.ops.attended import Attended
from headwise.ops.guidance import Pattern
from headwise.ops.guidance.rows import targets
from headwise.ops.scores import Scores
from headwise.sites import Site, observe
from headwise_papers.models.encoder import Encoder

__all__ = ["attention_maps", "pattern_matrices", "weight_on_patterns"]


def pattern_matrices(
    ids: Sequence[int], aims: Mapping[str, Aim], *, convention: ConventionName = "mean"
) -> dict[str, Tensor]:
    """The weights that each pattern wants in a text, (T, T) with a row a query.

    Args:
        ids: the tokens of the text.
        aims: patterns by name.
        convention: how rows are counted that see no key of the pattern, or several.
    """
    known, counted = list(aims.values()), CONVENTIONS[convention]
    patterns = tuple(
        _pattern(aim, place, normalised=counted.normalised, uniform=counted.edges == "uniform")
        for place, aim in enumerate(known)
    )
    return dict(zip(aims, _targets(ids, known, patterns), strict=True))


def weight_on_patterns(
    maps_LHTT: Tensor, ids: Sequence[int], aims: Mapping[str, Aim]
) -> dict[str, Tensor]:
    """How much of each head's weight lies on the keys of a pattern, (L, H).

    The mean over the rows that see a key of the pattern: those at the edge of a text do not count.
    """
    known = list(aims.values())
    patterns = tuple(
        _pattern(aim, place, normalised=False, uniform=False) for place, aim in enumerate(known)
    )
    found: dict[str, Tensor] = {}
    for name, aimed_TT in zip(aims, _targets(ids, known, patterns), strict=True):
        rows_T = aimed_TT.any(dim=1)
        on_LHT = (maps_LHTT * aimed_TT).sum(dim=-1)
        found[name] = on_LHT[..., rows_T].mean(dim=-1)
    return found


@torch.no_grad()
def attention_maps(encoder: Encoder, ids: Sequence[int]) -> Tensor:
    """All weights of an encoder reading one text, (L, H, T, T), on the CPU."""
    maps: list[Tensor] = []

    def keep(site: Site, attended: Attended) -> None:
        maps.append(attended.weights[0].float().cpu())

    device = next(encoder.parameters()).device
    with observe(encoder, keep):
        encoder.eval()(torch.tensor([list(ids)], device=device))
    return torch.stack(maps)


def _pattern(aim: Aim, place: int, *, normalised: bool, uniform: bool) -> Pattern:
    edges = "uniform" if uniform else "nothing"
    if aim.tokens:
        return Pattern(key_set=place, normalised=normalised, edges=edges)
    if aim.offset is not None:
        return Pattern(offset=aim.offset, normalised=normalised, edges=edges)
    return Pattern(column=0, normalised=normalised, edges=edges)


def _targets(
    ids: Sequence[int], aims: Sequence[Aim], patterns: tuple[Pattern, ...]
) -> list[Tensor]:
    """The matrix of each pattern; the key sets of those without tokens are empty."""
    held = [[[token in aim.tokens for token in ids]] for aim in aims]
    q_BNTD = torch.zeros(1, len(aims), len(ids), 1)
    scores = Scores(q_BNTD, q_BNTD)
    visible_BNTT = torch.ones(1, len(aims), len(ids), len(ids), dtype=torch.bool)
    matrices_NTT = targets(scores, visible_BNTT, patterns, torch.tensor(held))[0]
    return list(matrices_NTT.float().unbind())
