"""Beyond the paper: does output relevance also tell where a Transformer comes to attend?

Headwise's Transformer (mean pooling) and Hugging Face's BERT (first position) learn SST, normally
and with uniform attention in the last layer. beta is that of the last layer's value path, over all
heads. With mean pooling the attention of seeds hardly agrees (0.15).

    headwise reproduce output_relevance/transformer --jobs 4       # 14 minutes on a CPU core
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.config import from_json
from headwise.hf import adopt
from headwise.ops import uniform_attention
from headwise.recording import Run
from headwise.sites import find_sites, replace
from headwise.training import progress_bar
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    curve,
    draw_lines,
    find_or_train,
    panels,
)
from headwise_papers.data.batches import Ragged
from headwise_papers.data.classification import Labelled, read_labelled
from headwise_papers.data.vocabulary import BOS
from headwise_papers.measures.relevance import agreement, at, best_step, from_others
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.measures.value_path import value_path
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.ops.relevance import Looked, output_relevance
from headwise_papers.output_relevance._runs import (
    OVER_SHUFFLES,
    Traces,
    device_of,
    drawn,
    gold_attention,
    limit_shares,
    named,
    table_row,
    text_chunks,
)
from headwise_papers.recipes.stacked import shuffled_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["headwise", "bert"]
KINDS: tuple[Kind, ...] = ("headwise", "bert")
UNIFORM_SEED = 1000  # of the first uniform model; normal ones have 0, 1, ...
TRACE = "trace/relevance/curves.safetensors"
CLAIMS = tuple(
    Claim.direction(f"{kind}: {OVER_SHUFFLES}", text=f"{kind}: hr above shuffles") for kind in KINDS
)


@dataclass(frozen=True)
class Recipe:
    """Settings of a small Transformer."""

    updates: int = 800
    batch: int = 64
    rate: float = 5e-4  # of AdamW
    width: int = 64
    heads: int = 4
    layers: int = 2
    every: int = 50  # updates between evaluations


@dataclass(frozen=True)
class Model:
    """Settings of one model."""

    kind: Kind
    uniform: bool  # attention of the last layer
    seed: int
    recipe: Recipe


@dataclass(frozen=True)
class Config:
    """Settings of all models."""

    recipe: Recipe = Recipe()
    seeds: int = 5  # normal models of each kind, and as many uniform ones

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(f"Runs are compared with others, so seeds >= 2, got {self.seeds}.")


SMOKE = Config(Recipe(updates=20, width=16, heads=2, layers=1, every=10, batch=16), seeds=2)


def _models(config: Config, kind: Kind, *, uniform: bool) -> list[Job]:
    first = UNIFORM_SEED if uniform else 0
    seeds = range(first, first + config.seeds)
    return [Job(train_model, Model(kind, uniform, seed, config.recipe)) for seed in seeds]


def models(config: Config) -> list[Job]:
    """List all models."""
    kinds = product(KINDS, (False, True))
    return [job for kind, uniform in kinds for job in _models(config, kind, uniform=uniform)]


def train_model(config: Model, folder: Path) -> Run:
    """Train a model, and keep traces of where it attends."""
    recipe, texts, device = config.recipe, read_labelled("sst"), device_of()
    train, test = (
        Labelled([[BOS, *ids] for ids in part.texts], part.labels)
        for part in (texts.train, texts.test)
    )
    longest, words = max(map(len, train.texts + test.texts)), len(texts.vocabulary.words)
    make = _own if config.kind == "headwise" else _bert
    model = drawn(lambda: make(recipe, words, longest), seed=config.seed, device=device)
    if config.uniform:
        last = find_sites(model)[-1]
        replace(model, uniform_attention, where=lambda site: site is last)
    recorder = RelevanceCurves(_reader(test, device), schedule(recipe.every))
    ragged = Ragged.of(train.texts, device=device)
    labels = torch.tensor(train.labels, device=device)
    order = shuffled_order(len(ragged), batch=recipe.batch, seeds=[config.seed])
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.01)
    with (
        Run.create(folder, config) as run,
        torch.random.fork_rng(),
        progress_bar(recipe.updates, label=f"{config.kind} {config.seed}") as show,
    ):
        torch.manual_seed(config.seed)  # of dropout
        recorder(0, model)
        for step in range(recipe.updates):
            chosen = order(step)[0]
            padded = ragged.take(chosen)
            output = model.train()(*_inputs(model, padded.ids, padded.lengths))
            logits = output if isinstance(output, Tensor) else output.logits
            loss = cross_entropy(logits, labels[chosen.to(device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder(step + 1, model)
            if (step + 1) % recipe.every == 0:
                show(step + 1, {"loss": loss.item()})
        run.save_tensors(TRACE, recorder.tensors())
        run.save_figures({"updates": recipe.updates})
    return run


def _own(recipe: Recipe, words: int, longest: int) -> nn.Module:
    shape = ClassifierConfig(
        vocabulary=words,
        width=recipe.width,
        heads=recipe.heads,
        layers=recipe.layers,
        feed_forward=2 * recipe.width,
        max_length=longest,
    )
    return TransformerClassifier(shape)


def _bert(recipe: Recipe, words: int, longest: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification  # lazy: takes seconds

    shape = BertConfig(
        vocab_size=words,
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        intermediate_size=2 * recipe.width,
        max_position_embeddings=longest,
    )
    model = BertForSequenceClassification(shape)
    adopt(model)
    return model


def _inputs(model: nn.Module, ids_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(model, TransformerClassifier):
        return ids_BT, lengths_B
    place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    return ids_BT, (place_T < lengths_B[:, None]).long()


def _reader(part: Labelled, device: torch.device) -> Callable[[nn.Module], Iterator[Looked]]:
    batches = text_chunks(part, 2**13, device)

    def read(model: nn.Module) -> Iterator[Looked]:
        for ids_BT, lengths_B, label_B in batches():
            path = value_path(model, _inputs(model, ids_BT, lengths_B), label_B)
            beta_BK = output_relevance(path.theta.sum(1), label_B)
            yield Looked(path.alpha.mean(1)[None], beta_BK[None], lengths_B, path.right[None])

    return read


def _traces(config: Config, kind: Kind, *, uniform: bool) -> Traces:
    """Return the traces of all seeds, joined."""
    jobs = _models(config, kind, uniform=uniform)
    found = [find_or_train(*job).load_tensors(TRACE) for job in jobs]
    return {
        name: x if x.dim() < 2 else torch.cat([traces[name] for traces in found], dim=1)
        for name, x in found[0].items()
    }


def run(config: Config, out: Run) -> dict[str, Result]:
    """Train both kinds, normally and uniformly, and compare where they attend."""
    results: dict[str, Result] = {}
    for kind in KINDS:
        normal, uniform = (_traces(config, kind, uniform=x) for x in (False, True))
        star_S = best_step(normal["accuracy"]).evaluation
        own_SS = agreement(gold_attention(normal), at(normal["beta_top"], star_S)[None])[0]
        values = {
            "hr(alpha*, beta*)": own_SS.diagonal(),
            "best accuracy, uniform": best_step(uniform["accuracy"]).value,
        }
        results |= named(values, part=kind) | table_row(normal, uniform).results(kind)
    return results


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw hr of alpha* through training, in other seeds and in uniform models."""
    config = from_json(Config, out.config())
    figure, (axes,) = panels(len(KINDS))
    for panel, kind in zip(axes, KINDS, strict=True):
        normal, uniform = (_traces(config, kind, uniform=x) for x in (False, True))
        gold_SN = gold_attention(normal)
        alpha_ESS, beta_ESS = (agreement(gold_SN, normal[x]) for x in ("alpha_top", "beta_top"))
        unif_ESR = agreement(gold_SN, uniform["beta_top"])
        shown = {
            "alpha of another seed": from_others(alpha_ESS),
            "beta of another seed": from_others(beta_ESS),
            "beta under uniform attention": unif_ESR.mean(1),  # of all pairs, one value per run
        }
        curves = {label: curve(normal["step"], x_ES) for label, x_ES in shown.items()}
        draw_lines(panel, curves, xlabel="update", ylabel="hr with alpha*", title=kind)
        limit_shares(panel)
    return {"curves": figure}


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
