"""Does output relevance also tell where a Transformer comes to attend?

Beyond the paper, which studies recurrent models with one attention layer over hidden states. Here
two Transformer classifiers learn SST from scratch, Headwise's own (mean pooling) and Hugging Face's
BERT (adopted; pools its first position), and output relevance is that of the last layer's value
path (`headwise.analysis.value_path`): what the value of a position alone would bring to the logits.
As in Section 3.4 each is trained twice, normally and with uniform attention in its last layer.

The commands:

    headwise reproduce relevance/transformer           # 2 minutes on a GPU; 20 on two CPU cores
    headwise reproduce relevance/transformer --smoke   # 5 seconds

What is measured, on 400 test sentences:

1. alpha of a position: the weight that the last layer gives it, mean over heads and over the
   queries the logits read. beta: the output relevance of the sum of theta over heads. Both are of
   the whole layer, because heads of different seeds do not correspond.
2. alpha* is alpha at the evaluation with the highest test accuracy. hr(alpha*, beta) says how often
   its peak is among the largest twentieth of beta: of the model itself at the same evaluation, and
   of a model with uniform attention at s', where that is largest. The floor is one shuffle, the
   ceiling the attention of another seed at its best.
3. Before the last layer states are already mixed by another layer, so a peak of alpha may lie on a
   position that has gathered what stood elsewhere. The first mark, BERT's [CLS], is a position too.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.analysis.relevance import (
    agreement,
    at,
    best_step,
    ceiling,
    floor,
    from_others,
    output_relevance,
)
from headwise.analysis.value_path import value_path
from headwise.data.batching import Ragged
from headwise.data.labelled import Labelled, LabelledTexts, read_labelled
from headwise.data.vocabulary import BOS
from headwise.experiments.base import Expected, Experiment
from headwise.experiments.relevance._plots import ALPHA, BETA, OTHER, draw_curve, panels, save
from headwise.experiments.relevance._stacks import chunks_by_length, device_of
from headwise.models.classifier import ClassifierConfig, TransformerClassifier
from headwise.ops.fixed import uniform_attention
from headwise.ops.relevance import Looked
from headwise.recording.relevance import RelevanceCurves, schedule
from headwise.recording.run import Run
from headwise.sites import find_sites, replace
from headwise.training.stacked import shuffled_order

KINDS = ("headwise", "bert")
Traces = dict[str, Tensor]


@dataclass(frozen=True)
class Config:
    """Modest Transformers."""

    updates: int = 800
    batch: int = 64
    rate: float = 5e-4  # of AdamW
    width: int = 64
    heads: int = 4
    layers: int = 2
    every: int = 50  # updates between evaluations
    seeds: int = 5
    device: str = "auto"  # a GPU where there is one


EXPECTED = tuple(
    Expected(f"{kind}: {what}")
    for kind in KINDS
    for what in ("best accuracy", "hr(alpha*, beta*)", "hr(alpha*, beta_unif)", "floor", "ceiling")
)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train both kinds, normally and uniformly, and compare where they look."""
    texts = _marked(read_labelled("sst"))
    figures: dict[str, list[float]] = {}
    figure, axes = panels(len(KINDS))
    for kind, panel in zip(KINDS, axes[0], strict=True):
        normal = _trained(config, kind, "normal", texts)
        uniform = _trained(config, kind, "uniform", texts)
        run.save_tensors(f"trace/{kind}-normal/curves.safetensors", normal)
        run.save_tensors(f"trace/{kind}-uniform/curves.safetensors", uniform)
        figures |= {f"{kind}: {what}": x for what, x in _measured(normal, uniform).items()}
        _draw(panel, kind, normal, uniform)
    axes[0][0].set_ylabel("agreement with alpha* (hr)")
    save(figure, run, "curves")
    return figures


def _marked(texts: LabelledTexts) -> tuple[Labelled, Labelled, int]:
    """Training and test texts behind a first mark, and the number of words."""
    train, test = (
        Labelled([[BOS, *ids] for ids in part.texts], part.labels)
        for part in (texts.train, texts.test)
    )
    return train, test, len(texts.vocabulary.words)


def _trained(
    config: Config,
    kind: str,
    variant: Literal["normal", "uniform"],
    texts: tuple[Labelled, Labelled, int],
) -> Traces:
    """What is recorded of all seeds, seeds joined."""
    train, test, words = texts
    kept = [_one(config, kind, variant, train, test, words, seed) for seed in range(config.seeds)]
    joined = {name: torch.cat([trace[name] for trace in kept], dim=1) for name in kept[0]
              if kept[0][name].dim() > 1}  # fmt: skip
    return {**joined, "step": kept[0]["step"], "lengths": kept[0]["lengths"]}


def _one(
    config: Config,
    kind: str,
    variant: Literal["normal", "uniform"],
    train: Labelled,
    test: Labelled,
    words: int,
    seed: int,
) -> Traces:
    """Train one model and record it."""
    device = device_of(config.device)
    with torch.random.fork_rng():
        torch.manual_seed(seed + (1000 if variant == "uniform" else 0))
        longest = max(len(ids) for part in (train, test) for ids in part.texts)
        model = _model(kind, config, words, longest).to(device)
        recorder = RelevanceCurves(_reading(test, device), schedule(config.every))
        ragged = Ragged.of(train.texts, device=device)
        labels = torch.tensor(train.labels, device=device)
        order = shuffled_order(len(ragged), batch=config.batch, seeds=[seed])
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=0.01)
        last = find_sites(model)[-1]
        change = (
            replace(model, uniform_attention, where=lambda site: site is last)
            if variant == "uniform"
            else nullcontext()
        )
        with change:
            for step in range(config.updates + 1):
                recorder(step, model)
                chosen = order(step)[0]
                padded = ragged.take(chosen)
                loss = cross_entropy(
                    _logits(model.train(), padded.ids, padded.lengths), labels[chosen.to(device)]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return recorder.tensors()


def _model(kind: str, config: Config, words: int, longest: int) -> nn.Module:
    if kind == "headwise":
        return TransformerClassifier(
            ClassifierConfig(
                vocabulary=words,
                width=config.width,
                heads=config.heads,
                layers=config.layers,
                feed_forward=2 * config.width,
                max_length=longest,
            )
        )
    from transformers import BertConfig, BertForSequenceClassification  # lazy: takes seconds

    from headwise.hf import adopt

    shape = BertConfig(
        vocab_size=words,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=2 * config.width,
        max_position_embeddings=longest,
    )
    model = BertForSequenceClassification(shape)
    adopt(model)
    return model


def _inputs(model: nn.Module, ids_BT: Tensor, lengths_B: Tensor) -> Any:
    if isinstance(model, TransformerClassifier):
        return ids_BT, lengths_B
    real_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device) < lengths_B[:, None]
    return {"input_ids": ids_BT, "attention_mask": real_BT.long()}


def _logits(model: nn.Module, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
    inputs = _inputs(model, ids_BT, lengths_B)
    return model(*inputs) if isinstance(inputs, tuple) else model(**inputs).logits


def _reading(part: Labelled, device: torch.device) -> Callable[[nn.Module], Iterator[Looked]]:
    ragged = Ragged.of(part.texts, device=device)
    labels = torch.tensor(part.labels, device=device)
    chunks = chunks_by_length(ragged.sizes, 2**13)

    def read(model: nn.Module) -> Iterator[Looked]:
        for chosen in chunks:
            padded, label_B = ragged.take(chosen), labels[chosen.to(device)]
            path = value_path(model, _inputs(model, padded.ids, padded.lengths), label_B)
            beta_BK = output_relevance(path.theta.sum(1), label_B)
            yield Looked(path.alpha.mean(1)[None], beta_BK[None], padded.lengths, path.right[None])

    return read


def _measured(normal: Traces, uniform: Traces) -> dict[str, list[float]]:
    best = best_step(normal["accuracy"])
    gold_SN, top_SNP = (at(normal[x], best.evaluation) for x in ("alpha_peak", "alpha_top"))
    own = torch.diagonal(agreement(gold_SN, at(normal["beta_top"], best.evaluation)[None])[0])
    pairs_ESR = agreement(gold_SN, uniform["beta_top"])
    chosen = best_step(torch.diagonal(pairs_ESR, dim1=1, dim2=2))
    shuffle = torch.Generator().manual_seed(0)
    top_unif_SNP = at(uniform["beta_top"], chosen.evaluation)
    several = len(gold_SN) > 1
    return {
        "best accuracy": best.value.tolist(),
        "hr(alpha*, beta*)": own.tolist(),
        "hr(alpha*, beta_unif)": chosen.value.tolist(),
        "floor": floor(gold_SN, top_unif_SNP, normal["lengths"], shuffle).mean(1).tolist(),
        "ceiling": ceiling(gold_SN, top_SNP).tolist() if several else own.tolist(),
    }


def _draw(panel: Any, kind: str, normal: Traces, uniform: Traces) -> None:
    gold_SN = at(normal["alpha_peak"], best_step(normal["accuracy"]).evaluation)
    curves = [
        ("alpha of another seed", ALPHA, normal["alpha_top"]),
        ("beta of another seed", BETA, normal["beta_top"]),
        ("beta under uniform attention", OTHER, uniform["beta_top"]),
    ]
    for label, colour, top in curves:
        pairs_ESR = agreement(gold_SN, top)
        several = pairs_ESR.shape[-1] > 1
        draw_curve(
            panel,
            normal["step"],
            from_others(pairs_ESR) if several else pairs_ESR[..., 0],
            colour=colour,
            label=label,
        )
    panel.set_title(kind)
    panel.set_xlabel("updates")
    panel.set_ylim(0, None)
    panel.legend(frameon=False, fontsize=8)


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(updates=20, width=16, heads=2, layers=1, every=10, seeds=2, batch=16),
    reproduce=reproduce,
    expected=EXPECTED,
)
