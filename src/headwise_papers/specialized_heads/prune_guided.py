"""Do heads that were guided to the next and the previous token survive pruning?

Beyond both papers. One finds that heads of all functions, positional ones among them, are still
there when two thirds are pruned (section 6.2.2 of Voita et al.); the other teaches heads positions
from the start (Deshpande and Narasimhan). Two translators from English into Russian are trained
alike, one plainly, one with head 0 of each encoder layer guided to the next token and head 1 to the
previous. The encoders of both are pruned as in specialized_heads/prune-encoder.

    headwise reproduce specialized_heads/prune-guided --set trained=runs/specialized_heads/prune-all,runs/specialized_heads/prune-encoder    # an hour
    headwise reproduce specialized_heads/prune-guided --smoke    # 7 seconds; the hour is estimated
    headwise reproduce specialized_heads/prune-guided --set trained=runs/specialized_heads/prune-scratch,runs/specialized_heads/prune-encoder \\
        --set at_once=5 --set steps=2000 --set tokens=4096 --set prune_steps=800    # 4 minutes

`trained` names runs of heads/* and specialized_heads/prune-encoder, whose plain translators are taken, and
`--set at_once=4` trains and prunes four at a time; minutes are of an H200. The data folder must
hold tatoeba.

A translator whose BLEU is below 15 does not enter, nor does its pair. What is measured:

- *kept, of guided heads* and *kept, of other heads*: the share of them that is left. If gates did
  not care, both would be the number of heads left over that of all heads.
- *kept, of heads with these numbers*: the same of the plain translator, where numbers mean nothing.
- *weight there*: before and after pruning, the mean attention of guided heads to the next or the
  previous token, as each was told, on test sentences. The weight of guidance falls to 0 during
  training, so that heads may turn away again. The same of the plain translator stands beside.
- *BLEU* and *BLEU lost* of both, and the differences, seed by seed.

How it is judged. *Guided heads kept more often than others* is 1, yes, if the 95 % interval of the
differences over three seeds or more is above 0, 0, no, if it is below, and else 0.5, undecided; so
it is where all seeds have the same difference, as an interval without width says nothing of chance.
The interval was decided on before any result was seen, the rest later: two seeds had been enough,
differences without any spread a yes, and means had told partly from no. BLEU stands there without a
verdict.

Guidance has a weight of 1 at the start. With 10, as language models have it, translators learned
worse: BLEU 24.3, 23.1 and 23.6 where plain ones had 27.6, 27.5 and 27.7 (`--set steps=2000 --set
tokens=4096 --set strength=10`, commit c3e746d, an H200, cut off before all were pruned).

Found so far, by the last command: **yes, they survive**, about three times as often as others. Of
17 heads left in the encoder or 10, two thirds and 44 % of the twelve guided ones are among them,
and a fourth and 13 % of the other 36; more often with every seed. With 4 left it is two of each
kind, with every seed, which decides nothing. Until they were pruned they had stayed what they were
told to be, with 0.96 of their attention there though guidance had ended, where heads with the same
numbers of a plain translator have 0.11 (after pruning it is measured since). Pruning costs guided
translators as much as plain ones, within wide intervals. And with a weight of 1 guidance helps the
translator itself: 29.6 BLEU for 27.6, seed by seed 2.1, 1.8 and 2.0 more.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

from headwise.config import changed
from headwise.guidance import Plan
from headwise.ops.attended import Attended
from headwise.pruning.record import PruningRecord
from headwise.recording.run import Run
from headwise.sites import Site, observe
from headwise_papers.core.base import OUR_QUESTION, Expected, Experiment
from headwise_papers.core.claims import sure, sure_claim
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads._inspecting import entering
from headwise_papers.specialized_heads._prune_plots import draw_curves
from headwise_papers.specialized_heads._training import Job, found_or_trained, jobs_of, settings_of
from headwise_papers.specialized_heads._translators import (
    SMALL,
    Amount,
    Cut,
    Figures,
    Pruned,
    Pruning,
    amounts,
    prune_at_once,
    pruned,
    texts_of,
    translator_run,
)

Curves = dict[str, list[tuple[float, float]]]
PLAIN, GUIDED = "en-ru", "en-ru guided"
APART = "kept, guided less other heads"
MORE_OFTEN = "guided heads kept more often than others"
OFFSETS = {"next": 1, "prev": -1}
KEEP = (17, 10, 4)


@dataclass(frozen=True)
class Config(Pruning):
    """How far is pruned, see `Pruning` and `Training`, and what is guided."""

    keep: tuple[int, ...] = KEEP
    plan: str = "next=1,prev=1"  # heads of each layer of the encoder that are guided
    strength: float = 1.0  # weight of guidance at the start, alpha
    lines: int = 256  # test sentences on which it is seen where heads look

    def __post_init__(self) -> None:
        super().__post_init__()
        if other := {aim.name for aim in Plan.parse(self.plan).aims.values()} - OFFSETS.keys():
            raise ValueError(f"plan may name next and prev here, got {', '.join(sorted(other))}.")


EXPECTED = tuple(
    item
    for heads in KEEP
    for item in (
        sure_claim(f"{GUIDED}: {heads} heads: {MORE_OFTEN}", OUR_QUESTION),
        Expected(f"{heads} heads: BLEU lost, guided less plain", None, OUR_QUESTION),
    )
)


def reproduce(config: Config, run: Run) -> Figures:
    """Train both, prune them, count and draw."""
    figures: Figures = {}
    curves: Curves = {}
    jobs = jobs_of(config, "ru")
    cuts = [Cut(job, amount) for job in jobs for amount in amounts(config)]
    prune_at_once(config, run, cuts, partial(_prune, config), partial(_train, config))
    for job in entering(config, run, jobs, figures):
        model = guided_translator(config, run, job)
        score = float(model.figures()["bleu"])
        found = {f"{GUIDED}: BLEU": score, f"{GUIDED}: enters": float(score >= config.least_bleu)}
        if score >= config.least_bleu:
            plain = translator_run(config, run, job)
            found["BLEU, guided less plain"] = score - float(plain.figures()["bleu"])
            found |= _where_heads_look(config, plain, model)
            for amount in amounts(config):
                found |= _pruned_both(config, run, job, amount, model.folder, curves)
        for metric, value in found.items():
            figures.setdefault(metric, []).append(value)
    figures |= _kept_more_often(figures)
    if curves:
        draw_curves(curves, run, "kept", across="heads left in the encoder", up="share kept")
    return figures


def _kept_more_often(figures: Figures) -> Figures:
    """Of each number of heads, whether guided ones are surely kept more often than others."""
    return {
        f"{name.removesuffix(APART)}{MORE_OFTEN}": [sure(differences)]
        for name, differences in figures.items()
        if name.endswith(f": {APART}")
    }


def guided_translator(config: Config, run: Run, job: Job) -> Run:
    """The finished run of a guided translator, found or trained now."""
    plain = settings_of(config, job)
    assert isinstance(plain, TranslationConfig)
    settings = changed(plain, {"guide.plan": config.plan, "guide.alpha": config.strength})
    return found_or_trained(config, run, job, f"guided/{job.folder}", settings)


def _train(config: Config, run: Run, job: Job) -> None:
    plain = translator_run(config, run, job)
    if float(plain.figures()["bleu"]) >= config.least_bleu:
        guided_translator(config, run, job)


def _prune(config: Config, run: Run, cut: Cut) -> None:
    model = guided_translator(config, run, cut.job)
    if float(model.figures()["bleu"]) >= config.least_bleu:
        _pair(config, run, cut, model.folder)


def _pair(config: Config, run: Run, cut: Cut, model: Path) -> tuple[Pruned, Pruned]:
    """What is left of a plain translator and of its guided twin."""
    prune = partial(pruned, config, run, *cut, where="encoder.*", freeze="decoder")
    return prune(name="encoder"), prune(model=model, name="encoder-of-guided")


def _pruned_both(
    config: Config, run: Run, job: Job, amount: Amount, model: Path, curves: Curves
) -> dict[str, float]:
    """Prune a guided translator and its plain twin, and count what is left."""
    plain, guided = _pair(config, run, Cut(job, amount), model)
    plan = Plan.parse(config.plan)
    shares = {PLAIN: {"heads with these numbers": _kept(plain, plan.heads)}}
    shares[GUIDED] = {
        "guided heads": _kept(guided, plan.heads),
        "other heads": _kept(guided, plan.heads, others=True),
    }
    found: dict[str, float] = {}
    for arm, one in ((PLAIN, plain), (GUIDED, guided)):
        name, left = f"{arm}: {amount.title}", float(one.counts()["encoder.self"])
        found |= {f"{name}: BLEU": one.bleu, f"{name}: BLEU lost": one.lost}
        found[f"{name}: heads left"] = left
        for heads, share in shares[arm].items():
            found[f"{name}: kept, of {heads}"] = share
            curves.setdefault(f"{arm}, {heads}", []).append((left, share))
    name = f"{GUIDED}: {amount.title}"
    for pattern in dict.fromkeys(aim.name for aim in plan.aims.values()):
        numbers = [number for number, aim in plan.aims.items() if aim.name == pattern]
        found[f"{name}: kept, of heads guided to {pattern}"] = _kept(guided, numbers)
    found[f"{name}: {APART}"] = shares[GUIDED]["guided heads"] - shares[GUIDED]["other heads"]
    found[f"{amount.title}: BLEU, guided less plain"] = guided.bleu - plain.bleu
    found[f"{amount.title}: BLEU lost, guided less plain"] = guided.lost - plain.lost
    if shares[GUIDED]["guided heads"] and (guided.folder / "model.safetensors").is_file():
        sources = _sources(config, translator_run(config, run, job))
        weight = _weight(Run.open(guided.folder), sources, plan, guided.record)
        found[f"{name}: weight there, of guided heads left"] = weight
    return found


def _kept(one: Pruned, numbers: Collection[int], *, others: bool = False) -> float:
    """The share that is left of the encoder's heads with some numbers, or of all the others."""
    record = one.record
    return fmean(
        number in record.kept[site]
        for site, count in record.heads.items()
        for number in range(count)
        if site.startswith("encoder") and (number in numbers) != others
    )


def _where_heads_look(config: Config, plain: Run, model: Run) -> dict[str, float]:
    """The mean weight of heads with guided numbers where guided ones were told to look, in both."""
    sources, plan = _sources(config, plain), Plan.parse(config.plan)
    return {
        f"{PLAIN}: weight there, of heads with these numbers": _weight(plain, sources, plan),
        f"{GUIDED}: weight there, of guided heads": _weight(model, sources, plan),
    }


def _sources(config: Config, plain: Run) -> Sequence[str]:
    return texts_of(plain)[1].source[: config.lines]


@torch.no_grad()
def _weight(
    base: Run, sources: Sequence[str], plan: Plan, pruned: PruningRecord | None = None
) -> float:
    translator, found = Translator.load(base), list[float]()
    ids = [translator.source.encode(text)[: translator.max_tokens] for text in sources]
    batch = translator.batch(ids, [[]] * len(ids))
    real_BQ = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]
    pairs = int((batch.source_lengths - 1).sum())  # the last has no next, the first no previous

    def watch(site: Site, attended: Attended) -> None:
        left = range(site.num_heads) if pruned is None else pruned.kept[site.name]
        for place, number in enumerate(left):
            if number in plan.aims:
                offset = OFFSETS[plan.aims[number].name]
                mass_BQ = attended.mass(offset=offset)[:, place]
                found.append(float((mass_BQ * real_BQ).sum()) / pairs)

    with observe(translator.model, watch, where="encoder.*"):
        translator.model.encode(batch.source, batch.source_lengths)
    return fmean(found)


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=replace(Config(**SMALL), keep=(4,), strength=1000.0, prune_steps=2),
    reproduce=reproduce,
    expected=EXPECTED,
)
