"""Does guidance help an encoder that also uses top-k attention, and as much as one with softmax?

Beyond the paper. Explicit sparse attention keeps the k largest weights of each row, so that keys
which are not among them get no gradient of the task; guidance is a loss of the softmax over all
keys, and draws a head to keys that it does not select yet. Both arms of `attention_guidance/pretrain`, plain
and guided, are pre-trained with top-k attention too and set beside those with softmax.

    headwise reproduce attention_guidance/sparse --set trained=runs/attention_guidance/pretrain   # H200, see below
    headwise reproduce attention_guidance/sparse --smoke       # 6 seconds on a CPU core
    headwise reproduce attention_guidance/sparse --set steps=500 --set batch_size=64 --set warmup=50

Six encoders with top-k are trained where `trained` names a run of `attention_guidance/pretrain` that has
those with softmax, else twelve. At the 400,000 pieces a second that are estimated for softmax six
take 10 minutes; how fast they are trained with top-k has not been measured. `--set at_once=4`
trains four at a time, and leaves speeds out.

How it is measured:

1. As in `attention_guidance/pretrain`: English, 12 layers, three seeds, the same text, updates, learning rate
   and first weights. All heads, guided or not, use top-k in training and in evaluation.
2. Claims are about which arm has the lower loss, with each kind of attention: 1 if the 95 %
   interval of the differences between three seeds or more is on that side of 0, 0 if it is on the
   other, and 0.5 if neither is sure. No paper has figures for them.
3. "Guidance gains more with topk:8" compares, seed by seed, how far guidance lowers the validation
   loss with top-k and with softmax.

Found so far, in small, with the encoders of 4 layers of `attention_guidance/pretrain` (the command stands
below the figures): with top-k of 8 keys guidance helps as much as with softmax, 1.60 nats (1.51 to
1.70) and 1.61 (1.51 to 1.70), and plain encoders stay on the plateau with both.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headwise.config import changed
from headwise.recording.run import Run
from headwise_papers.attention_guidance._curves import draw_curves
from headwise_papers.attention_guidance._losses import (
    LOSSES,
    Runs,
    apart,
    claim_figures,
    cost_figures,
    difference,
    difference_figures,
    frequency_loss_of,
    loss_figures,
    lower,
    pairwise,
    plateau_figures,
)
from headwise_papers.attention_guidance._pretraining import (
    ENGLISH,
    GUIDED,
    MLM,
    TINY,
    Job,
    Pretraining,
    Wanted,
    diverged,
    pretrained,
    settings_of,
)
from headwise_papers.attention_guidance.pretrain import part_of
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.core.claims import sure

SOFTMAX, TOPK = "softmax", "topk:8"
ARMS = (MLM, GUIDED)
PAIRS = ((GUIDED, MLM), (MLM, GUIDED))
Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Config(Pretraining):
    """What is pre-trained, see `Pretraining`."""

    corpus: str = ENGLISH
    layers: int = 12
    attentions: tuple[str, ...] = (SOFTMAX, TOPK)  # see headwise.ops.named

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention is not None:
            raise ValueError("Here the kinds of attention are set by attentions, one or more.")
        if not self.attentions:
            raise ValueError("attentions must name one kind of attention or more.")
        for attention in self.attentions:  # refused before there is a folder
            _wanted(self, attention, GUIDED, 0)


def sparse_part(config: Config, attention: str) -> str:
    """How a kind of attention is called among figures.

    >>> sparse_part(Config(), "topk:8")
    'debian-docs-en, 12 layers, topk:8'
    """
    return f"{part_of(config.corpus, config.layers)}, {attention}"


def gains_more(attention: str) -> str:
    """The name of the claim that guidance lowers the loss further than with softmax."""
    return f"{GUIDED} gains more with {attention} than with {SOFTMAX}"


def reproduce(config: Config, run: Run) -> Figures:
    """Pre-train and compare; each figure with one value a seed."""
    found = _pretrained(config, run)
    figures: Figures = {}
    for attention, runs in found.items():
        part = sparse_part(config, attention)
        figures |= loss_figures(part, runs) | difference_figures(part, runs, PAIRS[:1])
        figures |= claim_figures(part, runs, PAIRS)
        figures |= plateau_figures(part, runs) | cost_figures(part, runs)
    figures |= _beside_softmax(config, found)
    drawn = {sparse_part(config, attention): runs for attention, runs in found.items()}
    plateaus = {part: frequency_loss_of(runs[MLM][0]) for part, runs in drawn.items()}
    draw_curves(drawn, run, "losses", plateaus=plateaus)
    return figures


def _pretrained(config: Config, run: Run) -> dict[str, dict[str, list[Run]]]:
    """The runs of every arm, by attention; all of a seed after each other."""
    jobs = [
        (attention, arm, seed)
        for seed in range(config.seeds)
        for attention in config.attentions
        for arm in ARMS
    ]
    wanted = {job: _wanted(config, *job) for job in jobs}
    found = pretrained(config, run, dict(wanted.values()))
    runs: dict[str, dict[str, list[Run]]] = {
        attention: {arm: [] for arm in ARMS} for attention in config.attentions
    }
    for (attention, arm, _), (folder, _) in wanted.items():
        runs[attention][arm].append(found[folder])
    return runs


def _wanted(config: Config, attention: str, arm: str, seed: int) -> Wanted:
    """Those with softmax lie where `attention_guidance/pretrain` has them, which lends them."""
    job = Job(config.corpus, arm, config.layers, seed)
    settings = settings_of(config, job)
    if attention == settings.model.attention:
        return job.folder, settings
    folder = f"sparse/{attention.replace(':', '-')}/{job.folder}"
    return folder, changed(settings, {"model.attention": attention})


def _beside_softmax(config: Config, found: Mapping[str, Runs]) -> Figures:
    """How far losses are from those with softmax, and whether guidance gains more."""
    figures: Figures = {}
    if SOFTMAX not in found:
        return figures
    plain = found[SOFTMAX]
    for attention, runs in found.items():
        if attention == SOFTMAX:
            continue
        for arm in ARMS:
            if gaps := pairwise(runs[arm], plain[arm], LOSSES["validation"]):
                part = part_of(config.corpus, config.layers)
                name = difference(part, "validation", f"{arm} with {attention}", SOFTMAX)
                figures[name] = gaps
        ours, theirs = (_gains(several) for several in (runs, plain))
        seeds = sorted(ours.keys() & theirs.keys())
        if seeds:
            more = apart([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
            figures[gains_more(attention)] = [sure(more)]
    return figures


def _gains(runs: Runs) -> dict[int, float]:
    """By seed how far guidance lowers the validation loss, of those that did not diverge."""
    return {
        seed: pairwise([plain], [guided], LOSSES["validation"])[0]
        for seed, (plain, guided) in enumerate(zip(runs[MLM], runs[GUIDED], strict=True))
        if not diverged(plain) and not diverged(guided)
    }


EXPECTED = (
    # no paper has these
    *(
        Expected(lower(sparse_part(Config(), attention), what, *pair))
        for attention in (TOPK, SOFTMAX)
        for what in LOSSES
        for pair in PAIRS
    ),
    Expected(gains_more(TOPK)),
)


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(corpus="oromo", layers=1, attentions=(SOFTMAX, "topk:2"), seeds=1, **TINY),
    reproduce=reproduce,
    expected=EXPECTED,
    marks_trials=True,
)
