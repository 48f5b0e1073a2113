"""Are a few heads of each layer far more important than the others, and are they the sure ones?

Figures 1 and 2, and sections 4 and 5.1. Translators from English into Russian, German and French
are trained on Tatoeba, each with the same 46,085 sentence pairs, and every head of their encoders
is measured: how much it contributes to the predicted word (relevance, by layer-wise relevance
propagation), how sure it is (confidence), and what it does (role).

The commands; `trained` names runs whose translators are taken instead of trained, and
`--set at_once=4` trains and inspects four at a time:

    headwise reproduce specialized_heads/importance                     # about 16 minutes on an H200, estimated
    headwise reproduce specialized_heads/importance --set seeds=1 --set targets=ru     # about 3 of them
    headwise reproduce specialized_heads/importance --smoke             # 10 seconds

The data folder must hold tatoeba with the languages asked for, and the treebank en_ewt. Each
translator and each look at its heads is a run of its own below this one; finished ones are not made
again, and each holds a report of its own.

A translator whose test BLEU is below 15 does not enter: what the heads of a bad translator do tests
no claim about good ones. Its BLEU is a figure all the same, "enters" is then 0, and if none of a
language enters, the claims about it stay unmeasured: this data cannot test them. BLEU is cased
sacreBLEU, `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp`; it stands in every picture too.

How it is judged, decided before any result was seen; every value is of one translator, layers are
counted from 1:

1. *In each layer a small number of heads is much more important than all others*: the share of
   layers in which two of the eight heads have half of the relevance, as much as the other six
   together (an equal share would be a quarter). Reproduced if it is so in five of six layers,
   partly in half of them.
2. *Relevance agrees to a reasonable extent with confidence*: Spearman's correlation within a layer,
   the mean over all layers but the first, which the paper excepts. 1 if it is 0.3 or more, 0.5 if
   it is above 0, else 0.
3. *Positional heads are to a large extent the most important ones*: the share of positional heads
   among the three most relevant of their layer (chance: 3/8). Reproduced from 75 %, partly from
   50 %.
4. *Every positional head has a confidence above 0.8*: the share for which that holds. Reproduced at
   100 %, partly from 75 %.
5. *The most relevant head of layer 1 points at rare words*: 1 if the most relevant head of layer 1
   is the one that points most at the two rarest words, and does so in more than half of the cases.
6. *It is the exception that is not confident*: 1 if its confidence is below the median of layer 1.

Where ours deviates, or the paper leaves it open:

1. 46,085 pairs of short sentences stand for 2.5 million of WMT and 6 million of OpenSubtitles. The
   model has 512 dimensions and 6 + 6 layers of 8 heads as in the paper, but feed-forward layers of
   1,024, dropout of 0.3 but none of attention weights, and 8,000 pieces a side. It is trained for
   2,500 updates, its rate falling by a cosine; the paper's falls with the inverse square root after
   16,000 updates of warm-up, and its models converged. See specialized_heads/pretrained for a translator of as
   many layers and heads that was trained to the end.
2. Relevance: weights of attention and of layer norm are held constant, see
   `headwise.analysis.propagation`. It may be negative: the absolute values of a layer sum to 1, so
   that what works against the predicted word counts as relevance that the first two do not have.
   The mean is over all steps of the model's own translations of 200 held-out sentences.
3. A head is positional if its strongest word is at one distance for 90 % of the words that have a
   word there; the paper counts all words, which gives less (specialized_heads/pretrained has both).
   Confidence, positions and rare words are in whole words, on 1,000 held-out sentences of Tatoeba;
   grammar on 5,000 sentences of up to 20 words of the English Web Treebank. A role counts only if
   the 95 % interval over sentences is above its threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.specialized_heads._inspecting import (
    Looking,
    Seen,
    entering,
    joined_roles,
    look,
    look_at_once,
)
from headwise_papers.specialized_heads._measures import (
    grid,
    importance_figures,
    role_grid,
    shares_by_layer,
)
from headwise_papers.specialized_heads._pictures import draw_grids
from headwise_papers.specialized_heads._training import TARGETS, TINY, jobs_of

AGREES = 0.3  # a correlation to a reasonable extent


@dataclass(frozen=True)
class Config(Looking):
    """What is trained and looked at, see `Training` and `Looking`."""

    targets: tuple[str, ...] = TARGETS


def _expected(target: str) -> list[Expected]:
    figure = "Fig. 1" if target == "ru" else "Fig. 2"
    name = f"en-{target}"
    claims = [
        Expected(
            f"{name}: layers in which two heads have half of the relevance",
            1.0,
            f"{figure}, section 4",
            margin=0.17,
            partly=0.5,
        ),
        Expected(
            f"{name}: positional heads among the three most relevant",
            1.0,
            f"{figure}, section 5.1",
            margin=0.25,
            partly=0.5,
        ),
        Expected(
            f"{name}: positional heads with confidence above 0.8", 1.0, "section 5.1", partly=0.25
        ),
        Expected(
            f"{name}: layer 1: the most relevant head is the one for rare words",
            1.0,
            f"{figure}, section 5.3",
            partly=0.5,
        ),
    ]
    if target != "ru":
        return claims
    return [
        *claims,
        Expected(f"{name}: relevance agrees with confidence", 1.0, "Fig. 1b", partly=0.5),
        Expected(
            f"{name}: layer 1: its confidence is below the layer's median",
            1.0,
            "Fig. 1b",
            partly=0.5,
        ),
    ]


EXPECTED = tuple(item for target in TARGETS for item in _expected(target))


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train, look and draw; each figure with one value a translator that enters."""
    figures: dict[str, list[float]] = {}
    drawn: dict[str, Seen] = {}
    every = [job for target in config.targets for job in jobs_of(config, target)]
    look_at_once(config, run, every, "lines", "trees")
    for target in config.targets:
        jobs = jobs_of(config, target)
        entered = entering(config, run, jobs, figures)
        seen = [look(config, run, job) for job in entered]
        for one in seen:
            for name, value in _figures(one).items():
                figures.setdefault(f"{one.job.name}: {name}", []).append(value)
        if seen:
            drawn[target] = seen[0]
    _draw(list(drawn.values()), run)
    return figures


def _figures(seen: Seen) -> dict[str, float]:
    figures = importance_figures(seen.lines.table)
    agreement = figures["rank correlation of relevance and confidence, other layers"]
    figures["relevance agrees with confidence"] = (
        1.0 if agreement >= AGREES else 0.5 if agreement > 0 else 0.0
    )
    groups = [role for row in role_grid(joined_roles(seen)) for role in row]
    figures["heads with a role"] = float(sum(map(bool, groups)))
    return figures


def _draw(seen: Sequence[Seen], run: Run) -> None:
    """Fig. 1 of all models at once: importance, confidence, function."""
    if not seen:
        return
    order = {one.title: shares_by_layer(grid(one.lines.table, "relevance")) for one in seen}
    grids = {
        one.title: {
            "importance (LRP)": order[one.title],
            "confidence": grid(one.lines.table, "confidence"),
            "function": role_grid(joined_roles(one)),
        }
        for one in seen
    }
    draw_grids(grids, order, run, "importance")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(targets=("ru",), lines=24, sample=4, longest_tree=10, trees=50, **TINY),
    reproduce=reproduce,
    expected=EXPECTED,
)
