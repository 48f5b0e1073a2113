"""Sentence classifiers on SST-2, fine-tuned from a pretrained encoder and found in the cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headwise.hf import release
from headwise.recording import Run, write_checksums
from headwise.training import fit
from headwise.workflows.inspect import quiet_transformers
from headwise.workflows.prune import PruneConfig, open_task
from headwise_papers.data.bags import ORIGIN, sst_file
from headwise_papers.data.source import data_folder
from headwise_papers.recipes.training_run import training_bar


@dataclass(frozen=True)
class Classifier:
    """Settings of a fine-tuned classifier."""

    model: str = ""  # folder of an encoder
    updates: int = 650  # three times through the data
    learning_rate: float = 5e-5
    batch_size: int = 32
    length: int = 64  # tokens
    train_lines: int = 0  # number of lines; 0 takes all
    test_lines: int = 0
    seed: int = 0


def write_files(run: Run, config: Classifier) -> dict[str, Any]:
    """Write labelled sentences of the training and test part; return them as settings."""
    folder = data_folder(None, wanted="SST2", origin=ORIGIN)
    for part, count in (("train", config.train_lines), ("test", config.test_lines)):
        rows = spread(sst_file("sst2", part).lines(folder), count)
        run.write_text(f"data/{part}.tsv", "".join(f"{line}\n" for line in rows))
    train, test = (str(run.path(f"data/{part}.tsv")) for part in ("train", "test"))
    return {"data": (train,), "dev": (test,)}


def spread(lines: Sequence[str], count: int) -> Sequence[str]:
    """Return lines from all over a file, which begins with praise; 0 takes all.

    >>> spread(["a", "b", "c", "d", "e"], 2)
    ['a', 'c']
    """
    if not 0 < count < len(lines):
        return lines
    return [lines[number * len(lines) // count] for number in range(count)]


def settings_of(config: Classifier, steps: int) -> dict[str, Any]:
    """Return the settings that fine-tuning and pruning share."""
    return {
        "steps": steps,
        "learning_rate": config.learning_rate,
        "batch_size": config.batch_size,
        "length": config.length,
        "evaluate_every": max(1, steps // 5),
        "checkpoint_every": max(1, steps),
        "speed_seconds": 0.0,
        "inspect_lines": 0,
        "seed": config.seed,
    }


def tune_classifier(config: Classifier, folder: Path) -> Run:
    """Fine-tune an encoder with two classes; return the finished run, which holds the model."""
    with Run.create(folder, config) as run:
        fresh = run.path("untrained")
        _save(_new_classifier(config), Path(config.model), fresh)
        settings = PruneConfig(
            **write_files(run, config),
            **settings_of(config, config.updates),
            model=str(fresh),
            keep=0,  # nothing is pruned here: only the task is taken
        )
        task = open_task(settings, fresh)
        with training_bar(settings.steps) as show:
            fit(
                task.model,
                task.loss,
                task.train.epochs(size=config.batch_size, seed=config.seed),
                run=run,
                config=settings.fit_config(cuda=torch.cuda.is_available()),
                progress=show,
            )
        release(task.model)
        _save(task.model, fresh, run.path("model"))
        run.save_figures({"updates": config.updates})
    return run


def _new_classifier(config: Classifier) -> Any:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(config.seed)  # of the new layer
    with quiet_transformers():
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            config.model,
            num_labels=2,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    return model.float()  # MiniLM comes in half precision


def _save(model: Any, tokenizer_of: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    with quiet_transformers():
        model.to("cpu").save_pretrained(folder)
        tokenizer: Any = AutoTokenizer.from_pretrained(
            tokenizer_of, local_files_only=True, trust_remote_code=False
        )
        tokenizer.save_pretrained(folder)
    write_checksums(folder)
