"""Tasks so small, in files of their own, that a test can afford to learn them."""

import random
from pathlib import Path

from headwise_papers.recipes.finetuning import FinetuningConfig
from tests.papers.recipes.configured import configured

SMALL = {
    "task": "files",
    "vocab_size": 300,
    "layers": 1,
    "width": 32,
    "heads": 2,
    "feed_forward": 64,
    "length": 24,
    "seeds": (0,),
    "epochs": 8,
    "batch_size": 16,
    "learning_rate": 1e-2,
    "patience": 0,
}
SIZES = {"train": 160, "dev": 40, "test": 60}
PLACES = ("Abuja", "Lagos", "Kano")


def write_classes(folder: Path) -> dict[str, str]:
    """Texts with a good or a bad word in them; the settings that name the files."""
    return _written(folder, "tsv", _classes)


def write_pairs(folder: Path) -> dict[str, str]:
    """Pairs: whether the second text begins with x, which has nothing to do with the first."""
    return _written(folder, "tsv", _pairs)


def write_tags(folder: Path) -> dict[str, str]:
    """Sentences with the names of places, of one word or two."""
    return _written(folder, "conll", _tags)


def small_config(files: dict[str, str], **changes: object) -> FinetuningConfig:
    return configured(FinetuningConfig, **{**SMALL, **files, **changes})


def _written(folder: Path, suffix: str, line) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    rng, files = random.Random(0), {}
    for part, count in SIZES.items():
        path = folder / f"{part}.{suffix}"
        path.write_text("".join(line(rng) for _ in range(count)))
        files[part] = str(path)
    return files


def _words(rng: random.Random) -> list[str]:
    return rng.choices(["the", "film", "was", "so", "very", "long"], k=rng.randint(2, 6))


def _classes(rng: random.Random) -> str:
    label, words = rng.choice(["bad", "good"]), _words(rng)
    words.insert(rng.randint(0, len(words)), {"bad": "awful", "good": "fine"}[label])
    return f"{label}\t{' '.join(words)}\n"


def _pairs(rng: random.Random) -> str:
    label = rng.choice(["no", "yes"])
    second = ["xyz" if label == "yes" else "abc", *_words(rng)]
    return f"{label}\t{' '.join(_words(rng))}\t{' '.join(second)}\n"


def _tags(rng: random.Random) -> str:
    rows = [f"{word} O" for word in _words(rng)]
    place = rng.choice(PLACES)
    named = [f"New B-LOC\n{place} I-LOC"] if rng.random() < 0.5 else [f"{place} B-LOC"]
    at = rng.randint(0, len(rows))
    return "\n".join(rows[:at] + named + rows[at:]) + "\n\n"
