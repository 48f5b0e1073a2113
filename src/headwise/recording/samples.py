"""Attention of a few sentences, kept sparsely, for pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.sites import Site

Sparse = list[list[list[list[int | float]]]]  # head, query, strongest keys, [key, weight]


@dataclass
class Samples:
    """A recorder of whole attention rows, for batches of ONE sentence each.

    Keeps, for each head and query, at most `most` keys whose weight reaches `least`. Set `tokens`
    ({stack: words}) before each forward pass; `drain()` is what reports read as attention.json.
    """

    name: str = "attention"
    most: int = 8
    least: float = 0.02
    _sentences: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def start(self, tokens: dict[str, Sequence[str]]) -> None:
        """Begin a sentence; `tokens` names the words of each stack."""
        self._sentences.append({"tokens": {k: list(v) for k, v in tokens.items()}, "sites": {}})

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        if not self._sentences:
            raise ValueError("Call Samples.start(tokens) before the forward pass it is to record.")
        if len(attended.out) != 1:
            raise ValueError(
                f"Samples records one sentence a forward pass, got a batch of {len(attended.out)}; "
                "call start(tokens) and the model for each sentence."
            )
        self._sentences[-1]["sites"][site.name] = self._strongest(attended.weights[0])

    def drain(self) -> dict[str, Any]:
        """The sentences since the last drain, as plain lists."""
        sentences, self._sentences = self._sentences, []
        return {"sentences": sentences}

    def _strongest(self, weights_HQK: Tensor) -> Sparse:
        weight_HQR, key_HQR = weights_HQK.topk(min(self.most, weights_HQK.shape[-1]), dim=-1)
        return [
            [
                [
                    [key, round(weight, 3)]
                    for key, weight in zip(keys, weights, strict=True)
                    if weight >= self.least
                ]
                for keys, weights in zip(keys_QR, weights_QR, strict=True)
            ]
            for keys_QR, weights_QR in zip(key_HQR.tolist(), weight_HQR.tolist(), strict=True)
        ]
