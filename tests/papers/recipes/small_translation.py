"""A translator so small, of a toy language in files, that a test can afford to train it."""

import dataclasses
from pathlib import Path

import torch

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.recipes.translation import TranslationConfig, train_translation
from tests.papers.recipes.configured import configured

SMALL = {
    "corpus": "files",
    "vocab_size": 120,
    "width": 32,
    "heads": 2,
    "layers": 1,
    "feed_forward": 64,
    "dropout": 0.0,
    "max_length": 64,
    "batch_tokens": 1024,
    "steps": 120,
    "warmup": 10,
    "learning_rate": 1e-2,
    "evaluate_every": 20,
    "checkpoint_every": 20,
    "average": 2,
    "beams": 2,
}


def write_texts(folder: Path, *, train: int = 300) -> dict[str, tuple[str, ...]]:
    """Toy sentences and their translations, two files a part; the settings that name them."""
    language = ToyLanguage(nouns=6, transitive_verbs=3, intransitive_verbs=3, adjectives=3)
    files: dict[str, tuple[str, ...]] = {}
    for seed, (part, count) in enumerate({"train": train, "valid": 30, "test": 20}.items()):
        pairs = language.pairs(count, seed=seed)
        paths = folder / f"{part}.toy-en", folder / f"{part}.toy-xx"
        for path, side in zip(paths, ("source", "target"), strict=True):
            path.write_text("".join(" ".join(getattr(pair, side)) + "\n" for pair in pairs))
        files[part] = tuple(map(str, paths))
    return files


def small_config(texts: Path, **changes: object) -> TranslationConfig:
    """The settings, for the files that are written to a folder."""
    return configured(TranslationConfig, **{**SMALL, **write_texts(texts), **changes})


def config_of(folder: Path) -> TranslationConfig:
    """The settings with which the run in a folder was made."""
    return from_json(TranslationConfig, Run.open(folder).config())


def quietly(config, folder: Path, train=train_translation) -> Run:
    """A training on one thread, which is faster at this size and always gives the same sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train(config, folder)
    finally:
        torch.set_num_threads(before)


def lasting(run: Run) -> tuple[object, ...]:
    """All that a run found, less what a clock measured."""
    clocks = ("tokens_per_second", "minutes")
    metrics = [{k: v for k, v in row.items() if k not in clocks} for row in run.metrics()]
    figures = {k: v for k, v in run.figures().items() if k not in clocks}
    return metrics, figures


def stopping(real, step_to_stop: int):
    """A progress bar that is interrupted at a step."""

    @dataclasses.dataclass
    class Stopping:
        config: object

        def __enter__(self):
            self.bar = real(self.config)
            show = self.bar.__enter__()

            def stop(step, metrics):
                show(step, metrics)
                if step == step_to_stop and "loss" in metrics:
                    raise KeyboardInterrupt

            return stop

        def __exit__(self, *error):
            return self.bar.__exit__(*error)

    return Stopping
