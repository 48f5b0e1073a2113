"""Does output relevance also tell where a Transformer comes to attend?

Beyond the paper, which studies recurrent models with one attention layer over hidden states. Here
two Transformer classifiers learn SST from scratch, Headwise's own (mean pooling) and Hugging Face's
BERT (adopted; pools its first position), and output relevance is that of the last layer's value
path (`headwise_papers.measures.value_path`): what the value of a position alone would bring to the logits.
As in Section 3.4 each is trained normally and with uniform attention in its last layer. The paper's
claim for recurrent models, *hr above the random baseline*, is judged as in
`output_relevance/classification`: hr(alpha*, beta_unif) of a pair of runs is above the best of as many
shuffles as there are evaluations.

The commands, with HEADWISE_DATA naming a folder that holds `sst`:

    headwise reproduce output_relevance/transformer           # 14 minutes on a CPU core
    headwise reproduce output_relevance/transformer --smoke   # 5 seconds

A killed run goes on with the models that are not trained. What is measured, on 400 test sentences:

1. alpha of a position: the weight that the last layer gives it, mean over heads and over the
   queries the logits read. beta: the output relevance of the sum of theta over heads. Both are of
   the whole layer, because heads of different seeds do not correspond.
2. alpha* is alpha at the evaluation with the highest test accuracy. hr(alpha*, beta) says how often
   its peak is among the largest twentieth of beta: of the model itself at the same evaluation
   (beta*), and of a model with uniform attention at s', where that is largest. Baselines, ceiling,
   s and the accuracy there are those of `output_relevance/classification`; each model has a start and an
   order of texts of its own.
3. Before the last layer states are already mixed by another layer, so a peak of alpha may lie on a
   position that has gathered what stood elsewhere. The first mark, BERT's [CLS], is a position too.
4. What was found: in BERT, which reads one position, it is as in recurrent models. Relevance under
   uniform attention foretells attention (hr 0.36, against 0.10 for the luckiest shuffle and 0.53
   for another seed), and does so best early, falling to 0.13 in the end. With mean pooling the
   attention of different seeds hardly agrees (0.15), so there is little to foretell.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.ops.fixed import uniform_attention
from headwise.recording.run import Run
from headwise.sites import find_sites, replace
from headwise.training.progress import Report, progress_bar
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.batches import Ragged
from headwise_papers.data.classification import Labelled, LabelledTexts, read_labelled
from headwise_papers.data.vocabulary import BOS
from headwise_papers.measures.relevance import (
    agreement,
    at,
    best_step,
    from_others,
    output_relevance,
)
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.measures.value_path import value_path
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.ops.relevance import Looked
from headwise_papers.output_relevance._figures import listed, of_row
from headwise_papers.output_relevance._plots import ALPHA, BETA, OTHER, draw_curve, panels, save
from headwise_papers.output_relevance._stacks import chunks_by_length, device_of, drawn
from headwise_papers.output_relevance._table import gold_attention, table_row
from headwise_papers.recipes.stacked import shuffled_order

KINDS = ("headwise", "bert")
UNIFORM_SEED = 1000  # of the first uniform model; normal ones have 0, 1, ...
Variant = Literal["normal", "uniform"]
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
    seeds: int = 5  # normal models of each kind, and as many uniform ones
    device: str = "auto"  # a GPU where there is one

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(
                f"seeds must be 2 or more, as attention is compared with that of another seed; "
                f"got {self.seeds}."
            )


EXPECTED = tuple(
    Expected(f"{kind}: hr above the random baseline", 1.0, "Sec. 3.4, for RNNs", partly=0.5)
    for kind in KINDS
)


class Texts(NamedTuple):
    """Sentences behind a first mark."""

    train: Labelled
    test: Labelled
    words: int  # of the vocabulary
    longest: int  # positions of a sentence

    @staticmethod
    def of(texts: LabelledTexts) -> "Texts":
        """Training and test texts."""
        train, test = (
            Labelled([[BOS, *ids] for ids in part.texts], part.labels)
            for part in (texts.train, texts.test)
        )
        longest = max(len(ids) for part in (train, test) for ids in part.texts)
        return Texts(train, test, len(texts.vocabulary.words), longest)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train both kinds, normally and uniformly, and compare where they look."""
    texts = Texts.of(read_labelled("sst"))
    figures: dict[str, list[float]] = {}
    figure, axes = panels(len(KINDS))
    for kind, panel in zip(KINDS, axes[0], strict=True):
        normal = _trained(config, kind, "normal", texts, run)
        uniform = _trained(config, kind, "uniform", texts, run)
        figures |= listed(_measured(normal, uniform), part=kind)
        _draw(panel, kind, normal, uniform)
    axes[0][0].set_ylabel("agreement with alpha* (hr)")
    save(figure, run, "curves")
    return figures


def _trained(config: Config, kind: str, variant: Variant, texts: Texts, run: Run) -> Traces:
    """What is recorded of all seeds, joined; each model is kept as soon as it is trained."""
    traces: list[Traces] = []
    with progress_bar(config.seeds * config.updates, label=f"{kind}, {variant}") as show:
        for number in range(config.seeds):
            file = f"trace/{kind}-{variant}/{number:03d}.safetensors"
            if not run.has(file):
                seed = number + (UNIFORM_SEED if variant == "uniform" else 0)
                model = _model(config, kind, texts, seed=seed)
                before = number * config.updates
                run.save_tensors(
                    file,
                    _recorded(
                        model,
                        config,
                        texts,
                        uniform=variant == "uniform",
                        seed=seed,
                        progress=lambda step, loss, before=before: show(before + step, loss),
                    ),
                )
            traces.append(run.load_tensors(file))
    whole = {name: traces[0][name] for name in ("step", "lengths")}
    return whole | {
        name: torch.cat([trace[name] for trace in traces], dim=1)
        for name in traces[0]
        if name not in whole
    }


def _recorded(
    model: nn.Module, config: Config, texts: Texts, *, uniform: bool, seed: int, progress: Report
) -> Traces:
    """Train a model and record where it looks."""
    device, last = device_of(config.device), find_sites(model)[-1]
    recorder = RelevanceCurves(_reading(texts.test, device), schedule(config.every))
    ragged = Ragged.of(texts.train.texts, device=device)
    labels = torch.tensor(texts.train.labels, device=device)
    order = shuffled_order(len(ragged), batch=config.batch, seeds=[seed])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=0.01)
    evened = replace(model, uniform_attention, where=lambda site: site is last) if uniform else None
    with evened or nullcontext(), torch.random.fork_rng():
        torch.manual_seed(seed)  # of dropout
        recorder(0, model)
        for step in range(config.updates):
            chosen = order(step)[0]
            padded = ragged.take(chosen)
            logits = _logits(model.train(), padded.ids, padded.lengths)
            loss = cross_entropy(logits, labels[chosen.to(device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder(step + 1, model)
            if (step + 1) % config.every == 0:
                progress(step + 1, {"loss": loss.item()})
    return recorder.tensors()


def _model(config: Config, kind: str, texts: Texts, *, seed: int) -> nn.Module:
    make = _own if kind == "headwise" else _bert
    return drawn(lambda: make(config, texts), seed=seed, device=device_of(config.device))


def _own(config: Config, texts: Texts) -> nn.Module:
    return TransformerClassifier(
        ClassifierConfig(
            vocabulary=texts.words,
            width=config.width,
            heads=config.heads,
            layers=config.layers,
            feed_forward=2 * config.width,
            max_length=texts.longest,
        )
    )


def _bert(config: Config, texts: Texts) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification  # lazy: takes seconds

    from headwise.hf import adopt

    shape = BertConfig(
        vocab_size=texts.words,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=2 * config.width,
        max_position_embeddings=texts.longest,
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


def _measured(normal: Traces, uniform: Traces) -> Traces:
    """Figures with one value for each normal run as gold."""
    star_S = best_step(normal["accuracy"]).evaluation
    own_SS = agreement(gold_attention(normal), at(normal["beta_top"], star_S)[None])[0]
    return {
        "hr(alpha*, beta*)": own_SS.diagonal(),
        **of_row(table_row(normal, uniform)),
        "best accuracy, uniform": best_step(uniform["accuracy"]).value,
    }


def _draw(panel: Axes, kind: str, normal: Traces, uniform: Traces) -> None:
    """hr of alpha* through training, in what other seeds and uniform models have."""
    gold_SN = gold_attention(normal)
    alpha_ESS, beta_ESS = (agreement(gold_SN, normal[x]) for x in ("alpha_top", "beta_top"))
    unif_ESR = agreement(gold_SN, uniform["beta_top"])
    for label, colour, curve_ES in (
        ("alpha of another seed", ALPHA, from_others(alpha_ESS)),
        ("beta of another seed", BETA, from_others(beta_ESS)),
        ("beta under uniform attention", OTHER, unif_ESR.mean(1)),  # of all pairs, a run a value
    ):
        draw_curve(panel, normal["step"], curve_ES, colour=colour, label=label)
    panel.set_title(kind)
    panel.set_xlabel("updates")
    panel.set_ylim(0, min(1.0, panel.get_ylim()[1]))
    panel.legend(frameon=False, fontsize=8)


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(updates=20, width=16, heads=2, layers=1, every=10, seeds=2, batch=16),
    reproduce=reproduce,
    expected=EXPECTED,
)
