"""Beyond the paper: do score and norm of a word grow together in a Transformer's first layer?

Appendix A expects that the relation "should persist". A Transformer classifier learns SST2, and 618
words are followed. Post-norm with SGD is nearest to the theory.

    headwise reproduce training_dynamics/transformer --jobs 4    # 3 minutes on a GPU, 12 on a CPU

- The score of a word in a head is what queries give it, less what they give the other words of the
  sentence; its value likewise. The relation is the rank correlation over words between growth of
  the score and change of the value.
- A head has a positive relation if its correlation is above what chance gives once in forty times.
- Rates and epochs were chosen by loss and accuracy alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    curve,
    draw_function,
    draw_lines,
    find_or_train,
    panels,
)
from headwise_papers.measures.ranks import rank_correlation
from headwise_papers.ops.sen import theoretical_norm
from headwise_papers.training_dynamics._transformer import (
    CURVES,
    Training,
    Words,
    read_words,
    train_classifier,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS = ("post-norm, SGD", "post-norm, AdamW", "pre-norm, AdamW")
SHOWN = 12  # pure words with a curve of their own, and as many mixed ones
PURE, MIXED = "tab:red", "tab:blue"
Curves = dict[str, dict[str, Tensor]]  # by variant, then as `centred` names them, seeds first


SGD, ADAMW = Training("SGD", epochs=16, rate=0.3), Training()


@dataclass(frozen=True)
class Config:
    """Settings of all models."""

    sgd: Training = SGD
    adamw: Training = ADAMW
    pure_words: int = 50  # and as many mixed words
    seeds: int = 5

    def trainings(self, variant: str) -> list[Training]:
        """Return the settings of a variant by seed."""
        norm, optimizer = variant.split("-norm, ")
        own = self.sgd if optimizer == "SGD" else self.adamw
        return [replace(own, norm=norm, seed=seed) for seed in range(self.seeds)]


SMALL = Training(epochs=3, rate=1e-2, sentences=600, width=16, heads=2, layers=1, minimum=8)
SMOKE = Config(replace(SMALL, optimizer="SGD", epochs=1, rate=0.3), SMALL, pure_words=30, seeds=1)

CLAIMS = tuple(
    Claim.value(f"{variant}: heads with a positive relation", 1.0, margin=0.0, number=65,
                where="App. A, expected", text="Heads with a positive relation")
    for variant in VARIANTS
)  # fmt: skip


def models(config: Config) -> Iterator[Job]:
    """List each variant with each seed."""
    for variant in VARIANTS:
        yield from (Job(train_classifier, training) for training in config.trainings(variant))


def curves_of(config: Config, variant: str) -> dict[str, Tensor]:
    """Return the curves of the words, seeds on the leading axis."""
    runs = [find_or_train(train_classifier, training) for training in config.trainings(variant)]
    found = [run.load_tensors(CURVES) for run in runs]
    accuracies = torch.tensor([run.figures()["accuracy"] for run in runs], dtype=torch.float64)
    stacked = {name: torch.stack([own[name] for own in found]) for name in found[0]}
    return {**stacked, "accuracy": accuracies}


def run(config: Config, out: Run) -> dict[str, Result]:
    """Measure relations in each variant."""
    _, _, words = read_words(config.sgd)
    results: dict[str, Result] = {}
    for variant in VARIANTS:
        found = measures(curves_of(config, variant), words, *words.by_purity(config.pure_words))
        results |= {f"{variant}: {name}": Result(x.tolist()) for name, x in found.items()}
    return results


def measures(
    curves: dict[str, Tensor], words: Words, pure: Tensor, mixed: Tensor
) -> dict[str, Tensor]:
    """Return what is measured of one variant, one value per seed."""
    last = {name: values[:, -1] for name, values in curves.items() if name != "accuracy"}
    score_SHW, change_SHW = last["score"], last["value change"]
    relation_SH = rank_correlation(score_SHW, change_SHW)
    chance = 1.96 / math.sqrt(len(words.numbers_W) - 1)
    given_SH = rank_correlation(score_SHW, change_SHW, given=words.occurrence_W)
    pure_SH = rank_correlation(score_SHW[..., pure], change_SHW[..., pure])
    through_SHW = rank_correlation(  # from the second record on: at the first all growth is 0
        curves["score"][:, 1:, :, pure].movedim(1, -1),
        curves["value change"][:, 1:, :, pure].movedim(1, -1),
    )
    theory_SHW = theoretical_norm(score_SHW, words.m)[..., pure]
    ratio_SHW = torch.where(theory_SHW > 0, change_SHW[..., pure] / theory_SHW, torch.nan)
    found = {
        "test accuracy": curves["accuracy"],
        "heads with a positive relation": (relation_SH > chance).double().mean(1),
        "heads with a negative relation": (relation_SH < -chance).double().mean(1),
        "correlation, value change": relation_SH.mean(1),
        "correlation, value change, given occurrence": given_SH.mean(1),
        "correlation, value change, pure words": pure_SH.mean(1),
        "correlation, value norm": rank_correlation(score_SHW, last["value norm"]).mean(1),
        "pure words that grow together through training": (through_SHW > 0).double().mean((1, 2)),
        "score growth of pure words": score_SHW[..., pure].mean((1, 2)),
        "score growth of mixed words": score_SHW[..., mixed].mean((1, 2)),
        "value change of pure words": change_SHW[..., pure].mean((1, 2)),
        "value change of mixed words": change_SHW[..., mixed].mean((1, 2)),
        "pure words' value change over Eq. 10's, median": ratio_SHW.flatten(1).nanmedian(1).values,
    }
    for name in ("embedding change", "embedding norm"):
        found[f"correlation, {name}"] = rank_correlation(score_SHW.mean(1), last[name])
    return {name: values_S for name, values_S in found.items() if values_S.isfinite().all()}


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw words through training, words of each head at the end, and correlations."""
    config = from_json(Config, out.config())
    sst, _, words = read_words(config.sgd)
    names = sst.vocabulary.decode(words.numbers_W.tolist())
    every = {variant: curves_of(config, variant) for variant in VARIANTS}
    return {
        "sen-curves": draw_curves(every, words, names, config.pure_words),
        "sen-heads": draw_heads(every, words),
        "correlations": draw_correlations(every, words, config.pure_words),
    }


def draw_curves(every: Curves, words: Words, names: list[str], count: int) -> "Figure":
    """Draw change of the value against growth of the score, mean of heads, of seed 0."""
    figure, (row,) = panels(len(every), width=4.4, height=3.8)
    pure, mixed = words.by_purity(count)
    theory = partial(theoretical_norm, m=words.m)
    for axes, (variant, found) in zip(row, every.items(), strict=True):
        score_EW, change_EW = found["score"][0].mean(1), found["value change"][0].mean(1)
        for group, colour, label in ((pure, PURE, "pure words"), (mixed, MIXED, "mixed words")):
            common = group[words.occurrence_W[group].argsort(descending=True)][:SHOWN]
            both = (score_EW[:, common].tolist(), change_EW[:, common].tolist())
            first, *_ = axes.plot(*both, color=colour, alpha=0.7, linewidth=1)
            first.set_label(label)
            for word in common[:5].tolist():
                end = (score_EW[-1, word].item(), change_EW[-1, word].item())
                axes.annotate(names[word], end, fontsize=7, color=colour)
        draw_function(axes, theory, score_EW.max().item(), label="Eq. 10")
        axes.set(xlabel="growth of the score", ylabel="change of the value", title=variant)
    row[0].legend(fontsize="small")
    return figure


def draw_heads(every: Curves, words: Words) -> "Figure":
    """Draw all words at the end of training, seed 0: one row per variant, one column per head."""
    heads = every[VARIANTS[0]]["score"].shape[2]
    figure, rows = panels(heads, len(every), width=2.8, height=2.5)
    theory = partial(theoretical_norm, m=words.m)
    purity: dict[str, Any] = {"c": words.purity_W.tolist(), "cmap": "coolwarm"}
    for row, (variant, found) in zip(rows, every.items(), strict=True):
        for head, axes in enumerate(row):
            score_W, change_W = found["score"][0, -1, head], found["value change"][0, -1, head]
            axes.scatter(score_W.tolist(), change_W.tolist(), s=5, vmin=0, vmax=1, **purity)
            draw_function(axes, theory, score_W.max().item(), label="Eq. 10")
            rho = rank_correlation(score_W, change_W).item()
            axes.set_ylim(0, 1.1 * change_W.max().item())
            axes.set_title(f"head {head}, rank correlation {rho:.2f}", fontsize=9)
            axes.set_xlabel("growth of the score")
        row[0].set_ylabel(f"{variant}\nchange of the value", fontsize=9)
        figure.colorbar(row[-1].collections[0], ax=row[-1], label="purity")
    return figure


def draw_correlations(every: Curves, words: Words, count: int) -> "Figure":
    """Draw the rank correlation over words through training, mean of heads."""
    figure, (row,) = panels(len(every), width=3.8, height=3.0)
    groups = {
        "all words": torch.arange(len(words.numbers_W)),
        "pure words": words.by_purity(count)[0],
    }
    for axes, (variant, found) in zip(row, every.items(), strict=True):
        score_SEHW, change_SEHW = found["score"][:, 1:], found["value change"][:, 1:]
        epoch_E = (1 + torch.arange(score_SEHW.shape[1]).double()) / 2
        lines = {
            label: curve(
                epoch_E, rank_correlation(score_SEHW[..., of], change_SEHW[..., of]).mean(-1).T
            )
            for label, of in groups.items()
        }
        draw_lines(axes, lines, xlabel="epoch", ylabel="rank correlation", title=variant,
                   colours={"all words": "k", "pure words": PURE})  # fmt: skip
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_ylim(-1, 1)
    return figure


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
