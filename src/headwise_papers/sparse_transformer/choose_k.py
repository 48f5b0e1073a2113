"""How many keys should top-k attention keep?

Fig. 3: BLEU on the validation part for k in 2, 4, 8, 16, 32 and infinity, which is softmax, as a
mean over three seeds. Section 5.2 says that BLEU "generally rises first and then falls as k
increases", and that of 4, 8, 16 and 32 "setting the value of k to 8 achieves consistent
improvements".

The commands; translators of sparse_transformer/translation need not be trained again (k = 8 and infinity), and
`--set at_once=4` trains four at a time:

    headwise reproduce sparse_transformer/choose-k --set trained=runs/sparse_transformer/translation  # 11 min on an H200
    headwise reproduce sparse_transformer/choose-k                           # 24 min, estimated
    headwise reproduce sparse_transformer/choose-k --smoke                   # 10 seconds

The data folder must hold the corpora asked for. How translators are trained, and what the two kinds
of BLEU are, see sparse_transformer/translation. Fig. 3 is of validation BLEU, and so is everything here that
does not say "test".

How it is judged, decided before any result was seen:

1. *Rises*: "topk:8 better than topk:2" is 1 if the 95 % interval of the differences over seeds is
   above 0, 0.5 if only their mean is, else 0. *Falls*: the same for "topk:8 better than softmax".
2. *Best inside*: the share of seeds whose best k is neither the smallest nor infinity. By chance it
   would be four in six, so it counts only if it holds for all; partly down to 0.75.
3. *8 is best of 4, 8, 16, 32*: the share of seeds for which it is, by chance one in four; partly
   down to 0.5.

Where ours deviates, or the paper leaves it open:

1. Multi30k en-de, 29,000 captions, instead of IWSLT En-Vi and De-En. Sentences are shorter: what
   share of rows has more than k keys stands beside the curve. Where it is near 0, as for k = 32,
   top-k attention is softmax, but for how the sums are rounded.
2. The paper's values can only be read off its picture: they are not repeated here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.sparse_transformer._bleu_plots import draw_curve
from headwise_papers.sparse_transformer._drawing import panels, save
from headwise_papers.sparse_transformer._long_rows import long_rows
from headwise_papers.sparse_transformer._scoring import Wanted, score_at_once, scores
from headwise_papers.sparse_transformer._table import better, differences, expected_claim
from headwise_papers.sparse_transformer._training import (
    TINY,
    Job,
    Training,
    task_named,
    translator_run,
)

MAIN = "multi30k-en-de"
INFINITY = "softmax"  # as top-k attention of all keys is
TRIED = ("topk:4", "topk:8", "topk:16", "topk:32")  # of which 8 is said to be the best
SHARE = "tab:grey"

Values = dict[str, list[float]]


@dataclass(frozen=True)
class Config(Training):
    """What is trained, see `Training` and `TASKS`."""

    corpora: tuple[str, ...] = (MAIN,)
    keys: tuple[int, ...] = (2, 4, 8, 16, 32)  # k; infinity comes with them


EXPECTED = (
    expected_claim(better(MAIN, "topk:8", "topk:2"), "Fig. 3, rises"),
    expected_claim(better(MAIN, "topk:8", INFINITY), "Fig. 3, falls"),
    Expected(f"{MAIN}: best k is inside", 1.0, "Section 5.2", partly=0.25),
    Expected(f"{MAIN}: 8 is best of 4, 8, 16, 32", 1.0, "Section 5.2", partly=0.5),
)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train with every k and compare; each figure with one value a seed."""
    tasks = {corpus: task_named(corpus) for corpus in config.corpora}
    names = [*(f"topk:{k}" for k in config.keys), INFINITY]
    figures: Values = {}
    curves: dict[str, tuple[Values, list[float]]] = {}
    every = {
        corpus: {name: [Job(corpus, name, seed) for seed in range(config.seeds)] for name in names}
        for corpus in tasks
    }
    each = [job for jobs in every.values() for several in jobs.values() for job in several]
    score_at_once(config, run, [Wanted(job, ("valid", "test")) for job in each])
    for corpus, task in tasks.items():
        jobs = every[corpus]
        valid, test = (
            {
                name: [float(getattr(scores(config, run, j, part), task.judged)) for j in several]
                for name, several in jobs.items()
            }
            for part in ("valid", "test")
        )
        figures |= {f"{corpus}: BLEU with {name}": values for name, values in valid.items()}
        figures |= {f"{corpus}: test BLEU with {name}": values for name, values in test.items()}
        pairs = [("topk:8", "topk:2"), *((name, INFINITY) for name in names[:-1])]
        figures |= differences(corpus, valid, pairs)
        figures |= {f"{corpus}: {claim}": held for claim, held in shape_of(valid).items()}
        first = translator_run(config, run, jobs[INFINITY][0])
        shares = [long_rows(config, first, corpus, k) for k in config.keys]
        for k, share in zip(config.keys, shares, strict=True):
            figures[f"{corpus}: rows with more than {k} keys"] = [share]
        curves[corpus] = valid, shares
    _draw(curves, run)
    return figures


def shape_of(values: Mapping[str, Sequence[float]]) -> Values:
    """For each seed, whether its best k is inside, and whether 8 is the best of four.

    >>> shape_of({"topk:2": [1.0, 5.0], "topk:8": [3.0, 3.0], "softmax": [2.0, 2.0]})
    {'best k is inside': [1.0, 0.0]}

    Args:
        values: BLEU by the name of the attention, from the smallest k to softmax, a value a seed.
    """
    names = list(values)
    seeds = [dict(zip(names, own, strict=True)) for own in zip(*values.values(), strict=True)]
    best = [max(own, key=lambda name: own[name]) for own in seeds]
    found = {"best k is inside": [float(name in names[1:-1]) for name in best]}
    if set(TRIED) <= set(names):
        eight = [max(TRIED, key=lambda name: own[name]) == "topk:8" for own in seeds]
        found["8 is best of 4, 8, 16, 32"] = list(map(float, eight))
    return found


def _draw(curves: Mapping[str, tuple[Values, list[float]]], run: Run) -> None:
    """As Fig. 3, with the share of rows that k cuts."""
    figure, axes = panels(len(curves))
    for panel, (corpus, (values, shares)) in zip(axes[0], curves.items(), strict=True):
        named = {
            name.removeprefix("topk:").replace(INFINITY, "inf"): own for name, own in values.items()
        }
        draw_curve(panel, named, label="validation BLEU")
        panel.set_xlabel("k")
        panel.set_ylabel("BLEU on the validation part; 95 % interval", fontsize=8)
        panel.set_title(corpus, fontsize=10)
        other = panel.twinx()
        other.plot(range(len(named)), [*shares, 0.0], ":", color=SHARE)
        other.set_ylim(0, 1)
        other.set_ylabel("share of rows with more than k keys", color=SHARE, fontsize=8)
    save(figure, run, "figure-3")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(keys=(2, 8), seeds=1, **TINY),
    reproduce=reproduce,
    expected=EXPECTED,
)
