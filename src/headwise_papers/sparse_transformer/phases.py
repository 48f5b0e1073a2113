"""Does top-k attention help while training, while predicting, or both?

    headwise reproduce sparse_transformer/phases --jobs 3    # 13 minutes on an H200
    headwise reproduce sparse_transformer/phases --smoke     # 10 seconds on a CPU

Table 5: BLEU on En-Vi is 27.4 with softmax ("Base"), 27.7 with top-k attention in training only
("T") and 27.8 with it in training and prediction ("T&P"). Section 5.3 concludes that it helps
training. Beyond the paper: in prediction only, with a model trained with softmax ("P"). Results are
of the validation part unless they say "test".

Deviations:

- Multi30k en-de, 29,000 captions, for the 133,000 pairs of IWSLT'15 En-Vi, and k = 8.
- T is trained as T&P of the same seed is, update by update; it differs in how it is evaluated, and
  with that in which of its weights are chosen.
- The paper's numbers are of one run or the best of three.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.sparse_transformer._translators import (
    MAIN,
    TINY,
    Part,
    bleu_figure,
    score_job,
    scores,
    subtract,
    task_named,
    translator,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHASES = ("Base", "T", "T&P", "P")
PAIRS = (("T", "Base"), ("T&P", "Base"), ("T&P", "T"), ("P", "Base"), ("T&P", "P"))
PARTS: dict[Part, str] = {"test": " test", "valid": ""}
DATA = "Multi30k for En-Vi"
CLAIMS = (
    *(
        Claim.direction(f"{MAIN}: {pair}", paper=paper, number=81, where="Table 5",
                        text="top-k attention helps in training", stands_for=DATA)
        for pair, paper in (("T - Base", 0.3), ("T&P - Base", 0.4))
    ),
    Claim.comparable(f"{MAIN}: T&P - T", margin=0.5, number=81, where="Table 5", stands_for=DATA,
                     text="prediction adds little (0.1 BLEU)"),
    Claim.comparable(f"{MAIN}: P - Base", margin=0.5,
                     text="top-k in prediction alone changes nothing"),
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Settings."""

    corpus: str = MAIN
    keep: int = 8  # keys of top-k attention
    seeds: int = 3
    changes: tuple[str, ...] = ()  # of the recipe, for example fit.steps=20


def _ways(config: Config, seed: int) -> dict[str, tuple[TranslationConfig, str]]:
    """Return the model and the attention it predicts with, "" for its own, by phase."""
    corpus, sparse, changes = config.corpus, f"topk:{config.keep}", config.changes
    base = translator(corpus, "softmax", seed, changes)
    return {
        "Base": (base, ""),
        "T": (translator(corpus, sparse, seed, changes, sparse_in="training"), ""),
        "T&P": (translator(corpus, sparse, seed, changes), ""),
        "P": (base, sparse),
    }


def models(config: Config) -> Iterator[Job]:
    for part in PARTS:
        for phase in PHASES:
            for seed in range(config.seeds):
                model, attention = _ways(config, seed)[phase]
                yield score_job(model, part, attention)


def run(config: Config, out: Run) -> dict[str, Result]:
    corpus, judged = config.corpus, task_named(config.corpus).judged
    every = [_ways(config, seed) for seed in range(config.seeds)]
    results: dict[str, Result] = {}
    for part, name in PARTS.items():
        found: dict[str, Result] = {}
        for phase in PHASES:
            ways = [own[phase] for own in every]
            found[phase] = Result([scores(model, part, switch)[judged] for model, switch in ways])
            results[f"{corpus}:{name} BLEU of {phase}"] = found[phase]
        results |= subtract(f"{corpus}{name}", found, PAIRS)
    return results


def draw(results: Mapping[str, Result], out: Run) -> "dict[str, Figure]":
    corpus = next(iter(results)).partition(":")[0]
    found = {
        f"{corpus},{name or ' validation'}": {
            phase: results[f"{corpus}:{name} BLEU of {phase}"] for phase in PHASES
        }
        for name in PARTS.values()
    }
    return {"table-5": bleu_figure(found)}


experiment = Experiment(Config(), Config(keep=2, seeds=1, changes=TINY), models, run, draw, CLAIMS)
