"""How many keys should top-k attention keep?

    headwise reproduce sparse_transformer/choose-k --jobs 3    # 24 minutes on an H200
    headwise reproduce sparse_transformer/choose-k --smoke     # 10 seconds on a CPU

Fig. 3 and Section 5.2: BLEU on the validation part "generally rises first and then falls as k
increases", and of 4, 8, 16 and 32 keys 8 is the best; all keys are softmax. By chance the best of
six would be inside in four of six seeds, and 8 the best of four in one of four.

Deviations:

- Multi30k en-de, 29,000 captions, for IWSLT En-Vi and De-En. Sentences are shorter: the share of
  rows with more than k keys stands beside the curve. On all others top-k attention is softmax.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, draw_lines, panels, share
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.sparse_transformer._translators import (
    MAIN,
    TINY,
    Part,
    long_rows,
    score_job,
    scores,
    subtract,
    task_named,
    translator,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_KEYS = "softmax"
TRIED = ("topk:4", "topk:8", "topk:16", "topk:32")  # of which 8 is said to be the best
PARTS: tuple[Part, ...] = ("test", "valid")
DATA = "Multi30k"
CLAIMS = (
    Claim.direction(f"{MAIN}: topk:8 - topk:2", number=79, where="Fig. 3", stands_for=DATA,
                    text="BLEU first rises with k"),
    Claim.direction(f"{MAIN}: topk:8 - softmax", number=80, where="Fig. 3", stands_for=DATA,
                    text="BLEU then falls"),
    Claim.share(f"{MAIN}: best k is inside", threshold=0.9, number=80, where="Section 5.2",
                text="the best k is neither the smallest nor all keys", stands_for=DATA),
    Claim.share(f"{MAIN}: 8 is best of 4, 8, 16, 32", threshold=0.5, number=80,
                where="Section 5.2", text="8 keys are most often the best", stands_for=DATA),
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Settings; softmax, all keys, is trained too."""

    corpus: str = MAIN
    keys: tuple[int, ...] = (2, 4, 8, 16, 32)
    seeds: int = 3
    changes: tuple[str, ...] = ()  # of the recipe, for example fit.steps=20


def _translators(config: Config) -> dict[str, list[TranslationConfig]]:
    """Return settings by attention, one per seed."""
    return {
        name: [translator(config.corpus, name, s, config.changes) for s in range(config.seeds)]
        for name in (*(f"topk:{k}" for k in config.keys), ALL_KEYS)
    }


def models(config: Config) -> Iterator[Job]:
    for part in PARTS:
        for several in _translators(config).values():
            yield from (score_job(model, part) for model in several)


def run(config: Config, out: Run) -> dict[str, Result]:
    corpus, every, judged = config.corpus, _translators(config), task_named(config.corpus).judged
    test, valid = (
        {n: Result([scores(model, part)[judged] for model in every[n]]) for n in every}
        for part in PARTS
    )
    results = {f"{corpus}: BLEU with {name}": valid[name] for name in every}
    results |= {f"{corpus}: test BLEU with {name}": test[name] for name in every}
    pairs = [("topk:8", "topk:2"), *((name, ALL_KEYS) for name in every if name != ALL_KEYS)]
    results |= subtract(corpus, valid, pairs)
    results |= {f"{corpus}: {claim}": held for claim, held in best_keys(valid).items()}
    for k in config.keys:
        results[f"{corpus}: rows with more than {k} keys"] = long_rows(every[ALL_KEYS][0], k)
    return results


def best_keys(bleu: Mapping[str, Result]) -> dict[str, Result]:
    """Return for each seed whether its best k is inside, and whether 8 is the best of four.

    Args:
        bleu: by attention, from the smallest k to softmax.
    """
    names = list(bleu)
    columns = zip(*(bleu[name].values for name in names), strict=True)
    seeds = [dict(zip(names, own, strict=True)) for own in columns]
    found = {
        "best k is inside": share(max(own, key=own.__getitem__) in names[1:-1] for own in seeds)
    }
    if set(TRIED) <= set(names):
        eight = (max(TRIED, key=own.__getitem__) == "topk:8" for own in seeds)
        found["8 is best of 4, 8, 16, 32"] = share(eight)
    return found


def draw(results: Mapping[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 3, with the share of rows that k cuts."""
    corpus = next(iter(results)).partition(":")[0]
    start = f"{corpus}: BLEU with "
    bleu = {n.removeprefix(start): r for n, r in results.items() if n.startswith(start)}
    names = [name.removeprefix("topk:").replace(ALL_KEYS, "all") for name in bleu]
    figure, ((axes,),) = panels(1, width=5.0, height=3.5)
    curve = dict(enumerate(bleu.values()))
    draw_lines(axes, {"validation": curve}, xlabel="k", ylabel="BLEU", title=corpus, marker="o",
               legend=False)  # fmt: skip
    axes.set_xticks(range(len(names)), names)
    shares = [results[f"{corpus}: rows with more than {k} keys"].mean for k in names[:-1]]
    other = axes.twinx()
    other.plot(range(len(names)), [*shares, 0.0], ":", color="tab:grey")
    other.set_ylim(0, 1)
    other.set_ylabel("share of rows with more than k keys", color="tab:grey", fontsize=8)
    return {"figure-3": figure}


experiment = Experiment(
    Config(), Config(keys=(2, 8), seeds=1, changes=TINY), models, run, draw, CLAIMS
)
