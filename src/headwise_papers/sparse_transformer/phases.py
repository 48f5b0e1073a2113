"""Does top-k attention help while training, while predicting, or both?

Table 5: BLEU on En-Vi, 27.4 with softmax ("Base"), 27.7 with top-k attention in training only ("T")
and 27.8 with it in training and prediction ("T&P"). Section 5.3 concludes that it helps training.
Beyond the paper: in prediction only, with a model that was trained with softmax ("P").

The commands; translators of sparse_transformer/translation need not be trained again (all but T), and
`--set at_once=4` trains four at a time:

    headwise reproduce sparse_transformer/phases --set trained=runs/sparse_transformer/translation  # 3 min on an H200
    headwise reproduce sparse_transformer/phases                            # 13 min, estimated
    headwise reproduce sparse_transformer/phases --smoke                    # 10 seconds

The data folder must hold the corpora asked for. How translators are trained, and what the two kinds
of BLEU are, see sparse_transformer/translation. Table 5 is of the validation part, as Section 5.3 says (its
caption says test), and so is everything here that does not say "test".

How it is judged, decided before any result was seen:

1. *Better than*: 1 if the 95 % interval of the differences over seeds is above 0, 0.5 if only their
   mean is, else 0. That T&P is better than T the paper shows, by 0.1 BLEU, but does not claim; it
   has no verdict.
2. *As in the paper*: T less Base is 0.3 there, T&P less Base 0.4 and T&P less T 0.1. 1 if the first
   two are better and their interval is within 0.2 of that and their mean within 0.5; 0.5 if only
   the mean is. Of the last, which counts as none, the interval must lie between -0.5 and 0.5.

Where ours deviates, or the paper leaves it open:

1. Multi30k en-de, 29,000 captions, instead of the 133,000 pairs of IWSLT'15 En-Vi, and k = 8.
2. T is trained as T&P of the same seed is, update by update; what differs is how it is evaluated,
   and with that which of its weights are chosen.
3. The paper's figures are of one run each, or the best of three; ours are means over seeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headwise.recording.run import Run
from headwise_papers.core.base import Experiment
from headwise_papers.sparse_transformer._bleu_plots import draw_table
from headwise_papers.sparse_transformer._scoring import Part, Switch, Wanted, score_at_once, scores
from headwise_papers.sparse_transformer._table import (
    better,
    differences,
    expected_claim,
    expected_gain,
)
from headwise_papers.sparse_transformer._training import TINY, Job, Training, task_named

MAIN = "multi30k-en-de"
BASE, IN_TRAINING, IN_BOTH, IN_PREDICTION = "Base", "T", "T&P", "P"
PAPER = {BASE: 27.4, IN_TRAINING: 27.7, IN_BOTH: 27.8}
COMPARED = (
    (IN_TRAINING, BASE),
    (IN_BOTH, BASE),
    (IN_BOTH, IN_TRAINING),
    (IN_PREDICTION, BASE),
    (IN_BOTH, IN_PREDICTION),
)

Values = dict[str, list[float]]


@dataclass(frozen=True)
class Config(Training):
    """What is trained, see `Training` and `TASKS`."""

    corpora: tuple[str, ...] = (MAIN,)
    keep: int = 8  # keys of top-k attention


GAINS = {(a, b): round(PAPER[a] - PAPER[b], 1) for a, b in COMPARED if {a, b} <= PAPER.keys()}
EXPECTED = (
    *(item for pair, gain in GAINS.items() for item in expected_gain(MAIN, *pair, gain, "Table 5")),
    expected_claim(better(MAIN, IN_TRAINING, BASE), "Section 5.3"),
    expected_claim(better(MAIN, IN_BOTH, BASE), "Table 5"),
)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train, translate in each way and compare; each figure with one value a seed."""
    tasks = {corpus: task_named(corpus) for corpus in config.corpora}
    score_at_once(config, run, [one for corpus in tasks for one in _wanted(config, corpus)])
    figures: Values = {}
    drawn: dict[str, Mapping[str, list[float]]] = {}
    kinds: dict[str, str] = {}
    for corpus, task in tasks.items():
        valid = _by_phase(config, run, corpus, "valid")
        figures |= {f"{corpus}: BLEU of {phase}": values for phase, values in valid.items()}
        test = _by_phase(config, run, corpus, "test")
        figures |= {f"{corpus}: test BLEU of {phase}": values for phase, values in test.items()}
        figures |= differences(corpus, valid, COMPARED, paper=GAINS)
        figures |= differences(f"{corpus} test", test, COMPARED)
        drawn |= {f"{corpus}, validation": valid, f"{corpus}, test": test}
        kind = "BLEU" if task.judged == "bleu" else "tokenised BLEU"
        kinds |= {f"{corpus}, validation": kind, f"{corpus}, test": kind}
    draw_table(drawn, kinds, run, "table-5")
    return figures


def _by_phase(config: Config, run: Run, corpus: str, part: Part) -> Values:
    """BLEU by where top-k attention is used, a value a seed."""
    judged = task_named(corpus).judged
    found: Values = {}
    for seed in range(config.seeds):
        for phase, (job, switch) in _ways(config, corpus, seed).items():
            score = scores(config, run, job, part, switch)
            found.setdefault(phase, []).append(float(getattr(score, judged)))
    return found


def _wanted(config: Config, corpus: str) -> list[Wanted]:
    """Each translator once, with all ways in which it predicts."""
    ways = [way for seed in range(config.seeds) for way in _ways(config, corpus, seed).values()]
    return [
        Wanted(job, ("valid", "test"), tuple(switch for other, switch in ways if other == job))
        for job in dict.fromkeys(job for job, _ in ways)
    ]


def _ways(config: Config, corpus: str, seed: int) -> dict[str, tuple[Job, Switch | None]]:
    """What is trained and how it predicts, by where top-k attention is used."""
    sparse = f"topk:{config.keep}"
    base, both = Job(corpus, "softmax", seed), Job(corpus, sparse, seed)
    return {
        BASE: (base, None),
        IN_TRAINING: (Job(corpus, sparse, seed, "training"), None),
        IN_BOTH: (both, None),
        IN_PREDICTION: (base, Switch(sparse)),
    }


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(seeds=1, keep=2, **TINY),
    reproduce=reproduce,
    expected=EXPECTED,
)
