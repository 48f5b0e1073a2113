"""Translators and what is left of them: pruned by `headwise prune`, each in a folder of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headwise.config import from_json, suggestion
from headwise.pruning.record import PruningRecord
from headwise.recording.run import Run
from headwise.workflows.prune import PruneConfig, prune_folder
from headwise.workflows.prune.pruning import run_folder
from headwise_papers.core import lending
from headwise_papers.core.at_once import make_at_once
from headwise_papers.data.translation import Lines, read_parallel_texts
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.specialized_heads._training import (
    RECIPE,
    TINY,
    Domain,
    Job,
    Training,
    find_file,
    jobs_of,
    train_at_once,
    translator_run,
)
from headwise_papers.specialized_heads._tuning import TuningConfig, first_lines

__all__ = [
    "ENTERING",
    "KINDS",
    "SMALL",
    "TRANSLATORS",
    "Amount",
    "Cut",
    "Figures",
    "Pruned",
    "Pruning",
    "add_losses",
    "amounts",
    "asked_for",
    "files_of",
    "jobs_named",
    "prune_at_once",
    "pruned",
    "texts_of",
    "translator_run",
]

Figures = dict[str, list[float]]
KINDS = ("encoder.self", "decoder.self", "decoder.cross")
TRANSLATORS: dict[str, tuple[str, Domain]] = {  # target and domain
    "en-ru": ("ru", "tatoeba"),
    "en-de": ("de", "tatoeba"),
    "en-de multi30k": ("de", "multi30k"),
    "en-ru subtitles": (
        "ru",
        "subtitles",
    ),  # 12.6 BLEU in specialized_heads/syntax: too little to enter
}
ENTERING = tuple(TRANSLATORS)[:3]
# settings in which a pruning that is lent may differ from one that is asked for
ASIDE = ("model", "data", "dev", "inspect_lines", "checkpoint_every")
DECIDED = 0.1  # P(open) this near to 0 or 1
OFTEN = 250  # updates of a pruning between checkpoints, up to a minute beside many others


@dataclass(frozen=True)
class Pruning(Training):
    """How translators are pruned; for their training see `Training`.

    Gates and weights are trained on from the converged model. Of several weights of the penalty,
    each gives another number of heads; a number asked for is reached by steering the penalty.
    """

    seeds: int = 3
    keep: tuple[int, ...] = ()  # numbers of heads that are asked for
    penalties: tuple[float, ...] = ()  # lambda of the sum over all heads, the paper's counting
    prune_steps: int = 2000  # with 300 gates are hardly decided, see specialized_heads/prune-all
    prune_rate: float = 3e-4  # of the weights
    prune_warmup: int = 0
    gate_rate: float = 0.05


SMALL: dict[str, Any] = {**TINY, "prune_steps": 10, "gate_rate": 1.5}


class Amount(NamedTuple):
    """How far to prune."""

    keep: int | None
    penalty: float | None

    @property
    def name(self) -> str:
        """Of folders.

        >>> Amount(12, None).name, Amount(None, 0.05).name
        ('keep-12', 'lambda-0.05')
        """
        return f"keep-{self.keep}" if self.penalty is None else f"lambda-{self.penalty:g}"

    @property
    def title(self) -> str:
        """Of figures.

        >>> Amount(12, None).title, Amount(None, 0.05).title
        ('12 heads', 'lambda-0.05')
        """
        return f"{self.keep} heads" if self.penalty is None else self.name


class Cut(NamedTuple):
    """A translator and how far to prune it."""

    job: Job
    amount: Amount


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruned translator."""

    amount: Amount
    folder: Path  # the model
    run: Run  # of its pruning

    @property
    def bleu(self) -> float:
        """On the test part."""
        return float(self.run.figures()["bleu_after"])

    @property
    def lost(self) -> float:
        """BLEU of the unpruned translator less its own; negative if it is better."""
        return float(self.run.figures()["bleu_before"]) - self.bleu

    @property
    def record(self) -> PruningRecord:
        """Which heads are left."""
        return PruningRecord.from_json(self.run.read_json("trace/pruning.json")["record"])

    @property
    def whole(self) -> bool:
        """Whether all heads are left."""
        return sum(self.record.heads.values()) == sum(map(len, self.record.kept.values()))

    def counts(self) -> dict[str, int]:
        """Heads left, by kind of attention."""
        return {kind: sum(self.by_layer(kind).values()) for kind in KINDS}

    def by_layer(self, kind: str) -> dict[int, int]:
        """Heads left of a kind of attention, by layer, which count from 0."""
        stack, end = kind.split(".")
        sites = self.record.kept.items()
        return {
            int(site.split(".")[1]): len(heads)
            for site, heads in sites
            if site.startswith(stack) and site.endswith(end)
        }

    def prob_open(self) -> list[float]:
        """P(open) of every gate at the last evaluation."""
        last: Mapping[str, Any] = self.run.read_json(self.run.names("trace/gates/*.json")[-1])
        return [float(value) for heads in last["prob_open"].values() for value in heads]

    def decided(self) -> float:
        """The share of gates that end nearly open or nearly closed."""
        values = self.prob_open()
        return sum(value <= DECIDED or value >= 1 - DECIDED for value in values) / len(values)


def jobs_named(config: Pruning, name: str) -> list[Job]:
    """A translator of `TRANSLATORS`, all seeds; other names are refused with a suggestion."""
    if name not in TRANSLATORS:
        raise ValueError(f"There is no translator {name!r}. {suggestion(name, TRANSLATORS)}")
    return jobs_of(config, *TRANSLATORS[name])


def amounts(config: Pruning, keep: Sequence[int] | None = None) -> list[Amount]:
    """Everything that is asked for: numbers of heads, then weights of the penalty.

    Args:
        config: the settings of the experiment.
        keep: other numbers than those of the settings.
    """
    numbers = [Amount(count, None) for count in (config.keep if keep is None else keep)]
    return numbers + [Amount(None, penalty) for penalty in config.penalties]


def asked_for(left: Sequence[Pruned]) -> list[Pruned]:
    """Those whose number of heads was asked for, which make a curve; where there are none, all."""
    return [one for one in left if one.amount.penalty is None] or list(left)


def add_losses(figures: Figures, job: Job, left: Sequence[Pruned]) -> None:
    """BLEU of each pruned translator, and how much less that is than without pruning."""
    trained = next((one.bleu for one in left if one.amount.keep and one.whole), None)
    for one in left:
        name = f"{job.name}: {one.amount.title}: BLEU"
        figures.setdefault(name, []).append(one.bleu)
        figures.setdefault(f"{name} lost", []).append(one.lost)
        if trained is not None and not one.whole:
            figures.setdefault(f"{name} lost to as much training", []).append(trained - one.bleu)


def prune_at_once(
    config: Pruning,
    run: Run,
    cuts: Sequence[Cut],
    make: Callable[[Run, Cut], object],
    train: Callable[[Run, Job], object] | None = None,
) -> None:
    """Train translators and prune those that enter, several at a time if `at_once` says so.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        cuts: which translators, and how far.
        make: what is done with each of them, for `make_at_once`.
        train: what is done with each translator before; None trains it.
    """
    jobs = list(dict.fromkeys(cut.job for cut in cuts))
    train_at_once(config, run, jobs, train)
    entered: list[Job] = []
    for job in jobs if config.at_once > 1 else ():
        base = translator_run(config, run, job)
        if float(base.figures()["bleu"]) >= config.least_bleu:
            files_of(run, job, base)  # which prunings share, so that one process writes them
            entered.append(job)
    left = [cut for cut in dict.fromkeys(cuts) if cut.job in entered]
    order = list(dict.fromkeys(cut.amount for cut in cuts))
    # amount by amount, as the first pruning of a translator measures it for all the others
    left.sort(key=lambda cut: order.index(cut.amount))
    make_at_once(make, left, run=run, processes=config.at_once)


def pruned(
    config: Pruning,
    run: Run,
    job: Job,
    amount: Amount,
    *,
    where: str = "*",
    freeze: Literal["decoder", "none"] = "none",
    model: Path | None = None,
    name: str = "pruned",
) -> Pruned:
    """Prune a translator, unless that was done; what only resuming needs is deleted.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        job: which translator.
        amount: how far.
        where: the sites that are pruned.
        freeze: what is not trained.
        model: another folder of the translator than that of `job`.
        name: of the folder below the run.
    """
    base = translator_run(config, run, job)
    train, test = files_of(run, job, base)
    place = f"{name}/{job.folder}/{amount.name}"
    out = run.folder / place
    settings = PruneConfig(
        model=str(model or base.folder),
        data=(str(train),),
        dev=(str(test),),
        keep=amount.keep,
        penalty=amount.penalty,
        where=where,
        freeze=freeze,
        steps=config.prune_steps,
        learning_rate=config.prune_rate,
        warmup=config.prune_warmup,
        gate_learning_rate=config.gate_rate,
        tokens=config.tokens or RECIPE.batch_tokens,
        beams=config.beams or 4,
        evaluate_every=max(1, config.prune_steps // 8),
        checkpoint_every=OFTEN,
        speed_seconds=0.0,
        inspect_lines=0,
        seed=job.seed,
    )
    lent = find_file(config, run, f"{place}-pruning/figures.json")
    if lent is not None and lent.parent != run_folder(out):
        made = lending.checked(Run.open(lent.parent), settings, aside=ASIDE)
        return Pruned(amount, lent.parent.with_name(out.name), made)
    known = f"before/{name}/{job.folder}.json"
    done = prune_folder(settings, out, before=run.read_json(known) if run.has(known) else None)
    if not run.has(known):
        run.write_json(known, done.read_json("before.json"))
    (run_folder(out) / "checkpoint.safetensors").unlink(missing_ok=True)
    return Pruned(amount, out, done)


def texts_of(base: Run) -> tuple[Lines, Lines]:
    """What a translator was trained on, and its test part."""
    settings = base.config()
    if "model" not in settings:
        texts = from_json(TuningConfig, settings).texts()
        return texts.train, texts.test
    config = from_json(TranslationConfig, settings)
    texts = read_parallel_texts(config.corpus, config.source, config.target)
    return (
        first_lines(texts.train, config.train_pairs),
        first_lines(texts.test, config.test_pairs),
    )


def files_of(run: Run, job: Job, base: Run) -> tuple[Path, Path]:
    """Files of training and test pairs, a TAB between source and target."""
    names = [f"data/{job.domain}-{job.target}.{part}.tsv" for part in ("train", "test")]
    if not all(run.has(name) for name in names):
        for name, lines in zip(names, texts_of(base), strict=True):
            run.write_text(name, "".join(_rows(lines)))
    return run.path(names[0]), run.path(names[1])


def _rows(lines: Lines) -> Sequence[str]:
    pairs = zip(lines.source, lines.target, strict=True)
    plain = ([" ".join(side.split()) for side in pair] for pair in pairs)
    return [f"{source}\t{target}\n" for source, target in plain if source and target]
