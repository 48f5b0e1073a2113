"""Do heads that were guided to the next and the previous token survive pruning?

    headwise reproduce specialized_heads/prune-guided --jobs 5    # 15 minutes on an H200
    headwise reproduce specialized_heads/prune-guided --smoke     # 7 seconds on a CPU

Beyond the paper: of two translators trained alike, one has head 0 of each encoder layer guided to
the next token and head 1 to the previous. Both encoders are pruned. Guidance has a weight of 1 at
the start; with 10, BLEU was 4 lower.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from headwise.config import changed
from headwise.guidance import Plan
from headwise.ops import Attended
from headwise.pruning import PruningRecord
from headwise.recording import Run
from headwise.sites import Site, observe
from headwise_papers.core import Claim, Experiment, Job, Result, lines, minus, share
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads._models import (
    Model,
    by_name,
    first_pairs,
    job,
    read_texts,
    recipe_of,
    scored,
    trained,
)
from headwise_papers.specialized_heads._pruning import (
    SMALL,
    Amount,
    Pruned,
    PruningStudy,
    prune_translator,
    pruned,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN, GUIDED = "en-ru", "en-ru guided"
OFFSETS = {"next": 1, "prev": -1}
KEEP = (17, 10, 4)
NUMBERED, TAUGHT, OTHERS = "heads with these numbers", "guided heads", "other heads"


@dataclass(frozen=True)
class Config(PruningStudy):
    """Settings: how many heads are kept, and which are guided."""

    keep: tuple[int, ...] = KEEP
    plan: str = "next=1,prev=1"  # guided heads of each encoder layer
    strength: float = 1.0  # weight of guidance at the start, alpha
    lines: int = 256  # test sentences on which attention is measured

    def __post_init__(self) -> None:
        if other := {aim.name for aim in Plan.parse(self.plan).aims.values()} - OFFSETS.keys():
            raise ValueError(f"plan may name next and prev here, got {', '.join(sorted(other))}.")

    def guided(self, model: Model) -> TranslationConfig:
        """Return the settings of a guided translator."""
        guide = {"guide.plan": self.plan, "guide.alpha": self.strength}
        return changed(recipe_of(model), guide)


CLAIMS = (
    *(
        Claim.direction(
            f"{GUIDED}: {heads} heads: kept, guided less other heads",
            text="Guided heads are kept more often than others",
        )
        for heads in KEEP
    ),
    Claim.direction("BLEU, guided less plain", text="Guided translators are better"),
)


def models(config: Config) -> Iterator[Job]:
    plain = config.models(PLAIN)
    guided = [config.guided(model) for model in plain]
    yield from map(job, (*plain, *guided))
    for amount in config.amounts():
        for model in (*plain, *guided):
            yield Job(prune_translator, config.pruning(model, amount, part="encoder"))


def run(config: Config, run: Run) -> dict[str, Result]:
    """Prune plain and guided translators, and count what is left."""
    results, entering = scored(PLAIN, config.models(PLAIN), config.least_bleu)
    scores = [float(trained(config.guided(model)).figures()["bleu"]) for model in entering]
    both = [m for m, score in zip(entering, scores, strict=True) if score >= config.least_bleu]
    if scores:
        results[f"{GUIDED}: BLEU"] = Result(scores)
        results[f"{GUIDED}: enters"] = share(score >= config.least_bleu for score in scores)
    if not both:
        return results
    twins: list[tuple[Model, Model]] = [(model, config.guided(model)) for model in both]
    bleu = [[float(trained(one).figures()["bleu"]) for one in pair] for pair in twins]
    results["BLEU, guided less plain"] = Result([b - a for a, b in bleu], "difference")
    weights = [[_weight(trained(one), config, one) for one in pair] for pair in twins]
    results[f"{PLAIN}: weight there, of {NUMBERED}"] = Result([w[0] for w in weights])
    results[f"{GUIDED}: weight there, of {TAUGHT}"] = Result([w[1] for w in weights])
    for amount in config.amounts():
        results |= _pruned_both(config, amount, twins)
    return results


def _pruned_both(
    config: Config, amount: Amount, twins: Sequence[tuple[Model, Model]]
) -> dict[str, Result]:
    """Prune plain and guided translators by an amount, and compare what is left."""
    left = {
        arm: [pruned(config.pruning(pair[place], amount, part="encoder")) for pair in twins]
        for place, arm in enumerate((PLAIN, GUIDED))
    }
    heads = Plan.parse(config.plan).heads
    results: dict[str, Result] = {}
    for arm, some in left.items():
        name = f"{arm}: {amount}"
        results[f"{name}: BLEU"] = Result([one.bleu for one in some])
        results[f"{name}: BLEU lost"] = Result([one.lost for one in some], "difference")
        results[f"{name}: heads left"] = Result(
            [float(one.counts()["encoder.self"]) for one in some]
        )
    plain = [{f"kept, of {NUMBERED}": _kept(one, heads)} for one in left[PLAIN]]
    results |= by_name(f"{PLAIN}: {amount}: ", plain)
    name = f"{GUIDED}: {amount}: "
    results |= by_name(name, [_kept_of(config, one) for one in left[GUIDED]])
    apart = minus(results[f"{name}kept, of {TAUGHT}"], results[f"{name}kept, of {OTHERS}"])
    results[f"{name}kept, guided less other heads"] = apart
    for metric in ("BLEU", "BLEU lost"):
        pair = (results[f"{arm}: {amount}: {metric}"] for arm in (GUIDED, PLAIN))
        results[f"{amount}: {metric}, guided less plain"] = minus(*pair)
    after = [
        _weight(Run.open(one.folder), config, model, one.record)
        for one, (_, model) in zip(left[GUIDED], twins, strict=True)
        if _kept(one, heads)
    ]
    return results | ({f"{name}weight there, of {TAUGHT} left": Result(after)} if after else {})


def _kept_of(config: Config, one: Pruned) -> dict[str, float]:
    """Return the shares that are left of guided heads, of others, and by what they were taught."""
    plan = Plan.parse(config.plan)
    found = {
        f"kept, of {TAUGHT}": _kept(one, plan.heads),
        f"kept, of {OTHERS}": _kept(one, plan.heads, others=True),
    }
    for pattern in dict.fromkeys(aim.name for aim in plan.aims.values()):
        numbers = [number for number, aim in plan.aims.items() if aim.name == pattern]
        found[f"kept, of heads guided to {pattern}"] = _kept(one, numbers)
    return found


def _kept(one: Pruned, numbers: Collection[int], *, others: bool = False) -> float:
    """Return the share left of the encoder's heads with some numbers, or of all the others."""
    return fmean(
        number in one.record.kept[site]
        for site, count in one.record.heads.items()
        for number in range(count)
        if site.startswith("encoder") and (number in numbers) != others
    )


@torch.no_grad()
def _weight(base: Run, config: Config, model: Model, record: PruningRecord | None = None) -> float:
    """Return the mean attention of heads with guided numbers to the tokens of the plan."""
    test = first_pairs(read_texts(model).test, recipe_of(model).test_pairs).source[: config.lines]
    plan, found = Plan.parse(config.plan), list[float]()
    translator = Translator.load(base)
    ids = [translator.source.encode(text)[: translator.max_tokens] for text in test]
    batch = translator.batch(ids, [[]] * len(ids))
    real_BQ = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]
    pairs = int((batch.source_lengths - 1).sum())  # the last has no next, the first no previous

    def watch(site: Site, attended: Attended) -> None:
        left = range(site.num_heads) if record is None else record.kept[site.name]
        for place, number in enumerate(left):
            if number in plan.aims:
                mass_BQ = attended.mass(offset=OFFSETS[plan.aims[number].name])[:, place]
                found.append(float((mass_BQ * real_BQ).sum()) / pairs)

    with observe(translator.model, watch, where="encoder.*"):
        translator.model.encode(batch.source, batch.source_lengths)
    return fmean(found)


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw the shares of heads that are kept, by heads left."""
    settings: dict[str, Any] = run.config()
    shown = ((PLAIN, NUMBERED), (GUIDED, TAUGHT), (GUIDED, OTHERS))
    curves = {
        f"{arm}, {heads}": {
            count: results[f"{arm}: {count} heads: kept, of {heads}"] for count in settings["keep"]
        }
        for arm, heads in shown
        if f"{arm}: {settings['keep'][0]} heads: kept, of {heads}" in results
    }
    label = "heads left in the encoder"
    return {"kept": lines(curves, xlabel=label, ylabel="share kept")} if curves else {}


SMOKE = replace(Config(**SMALL), keep=(4,), strength=1000.0, steps=2)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
