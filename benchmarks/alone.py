"""The peers of stacked training: one `nn.LSTM` model at a time, in the loop that stacks train in.

So both sides have the same Adam, the same precision and the same batches, and neither waits for
the device between updates. All sentences are whole here: nothing is packed, and no mask is needed.
"""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import wait_for
from headwise_papers.models.rnn import RnnClassifier, Seq2Seq
from headwise_papers.recipes.stacked import TrainableStack, train_stack

Batch = tuple[Tensor, ...]


class Alone:
    """One model as `train_stack` wants it.

    Args:
        model: trained in place.
        predict: the logits of a model, given the batch without its last tensor, the labels.
    """

    seeds = 1

    def __init__(self, model: nn.Module, predict: Callable[..., Tensor]) -> None:
        self.weights = dict(model.named_parameters())
        self._model, self._predict = model, predict

    def loss(self, *batch: Tensor) -> Tensor:
        """The mean cross-entropy, (1,)."""
        logits = self._predict(self._model, *batch[:-1])
        return cross_entropy(logits.flatten(0, -2), batch[-1].flatten())[None]


def classified(model: RnnClassifier, tokens_BT: Tensor) -> Tensor:
    """Logits of whole sentences: what `RnnClassifier` gives, with no packing."""
    hidden_BTM, _ = model.encoder(model.embed(tokens_BT))
    score_BT = model.query(model.key(hidden_BTM).relu())[..., 0]
    return model.output((score_BT.softmax(-1)[:, None] @ hidden_BTM)[:, 0])


def copied(model: Seq2Seq, source_BK: Tensor, target_BT: Tensor) -> Tensor:
    """Logits of whole sentences: what `Seq2Seq` gives for copying, with no packing."""
    assert model.mix is not None and not model.config.bidirectional
    hidden_BKM, last = model.encoder(model.embed(source_BK))
    embed = model.embed if model.config.shared else model.embed_target
    d_BTD, _ = model.decoder(embed(target_BT), last)
    query_BHTM = model.heads.queries(d_BTD) / math.sqrt(model.config.width)
    weights_BHTK = (query_BHTM @ hidden_BKM[:, None].mT).softmax(-1)
    context_BTD = model.heads.outputs(weights_BHTK @ hidden_BKM[:, None]).sum(1)
    return model.output(model.mix(torch.cat([d_BTD, context_BTD], dim=-1)).tanh())


@dataclass(frozen=True)
class Trainee:
    """A stack or a single model, the batches it is trained on in turn, and whether to replay."""

    stack: TrainableStack
    batches: Sequence[Batch]
    replay: bool  # updates as CUDA graphs; a CPU has none

    def losses(self, steps: int) -> Tensor:
        """Train for some updates; the losses before each."""
        return train_stack(self.stack, self._batch, steps=steps, replay=self.replay)

    def update_ms(self, *, warm: int, updates: int) -> float:
        """The time of one update, the first `warm` ones not counted."""
        device = next(iter(self.stack.weights.values())).device
        times: list[float] = []

        def clock(step: int) -> bool:
            if step in (warm, warm + updates):
                wait_for(device)
                times.append(time.perf_counter())
            return len(times) == 2

        never = warm + updates + 1
        train_stack(
            self.stack, self._batch, steps=never, stop=clock, replay=self.replay, log_every=never
        )
        return 1000 * (times[1] - times[0]) / updates

    def _batch(self, step: int) -> Batch:
        return self.batches[step % len(self.batches)]


def unpacked(
    models: Sequence[nn.Module],
    predict: Callable[..., Tensor],
    batches: Sequence[Batch],
    device: torch.device,
) -> dict[str, list[Trainee]]:
    """The peers at their best: on a GPU also with our own trick, the replay."""
    peers = {"nn.LSTM unpacked, in sequence": in_sequence(models, predict, batches, replay=False)}
    if device.type == "cuda":
        replayed = in_sequence(models, predict, batches, replay=True)
        peers["nn.LSTM unpacked, replayed, in sequence"] = replayed
    return peers


def in_sequence(
    models: Sequence[nn.Module],
    predict: Callable[..., Tensor],
    batches: Sequence[Batch],
    *,
    replay: bool,
) -> list[Trainee]:
    """Each model for itself, with its own part of each batch; the models are copied."""
    return [
        Trainee(
            # to: cuDNN wants the weights of an LSTM in one piece, and a copy's may not be
            Alone(deepcopy(model).to(batches[0][0].device), predict),
            [tuple(x[seed].contiguous() for x in batch) for batch in batches],
            replay,
        )
        for seed, model in enumerate(models)
    ]
