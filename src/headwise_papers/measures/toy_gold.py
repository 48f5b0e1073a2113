"""The toy language's annotation, as keys that heads might point at."""

from collections.abc import Sequence

import torch

from headwise.recording import Gold
from headwise_papers.data.toy import ToyPair


def toy_gold(pairs: Sequence[ToyPair]) -> list[Gold]:
    """Return gold for a batch of toy sentences, in the order of the batch.

    Labels, each a column: for every relation `nsubj_to_head` (from the dependent) and
    `nsubj_to_dependent` (from the head), `coreference` (from a pronoun to its antecedent), all in
    the encoder; and `alignment` in cross-attention, from the position that predicts a target word
    to the source word that it translates.
    """
    rows: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for item, pair in enumerate(pairs):
        for arc in pair.arcs:
            up, down = f"{arc.relation}_to_head", f"{arc.relation}_to_dependent"
            rows.setdefault((up, "encoder.self"), []).append((item, arc.dependent, arc.head))
            rows.setdefault((down, "encoder.self"), []).append((item, arc.head, arc.dependent))
        for pronoun, antecedent in pair.coreference:
            rows.setdefault(("coreference", "encoder.self"), []).append((item, pronoun, antecedent))
        for target, source in sorted(pair.alignment):
            rows.setdefault(("alignment", "decoder.cross"), []).append((item, target, source))
    return [Gold(label, kind, torch.tensor(right)) for (label, kind), right in sorted(rows.items())]
