"""Small models of every kind that `prune` takes, and text files for them."""

from pathlib import Path

import transformers as hf

from headwise.workflows.prune import PruneConfig
from tests.hf.families import GROUPED
from tests.workflows.small_hosts import LINES, classifier, host, save, tokenizer_for

KINDS = {"classification": "lab", "masked": "text", "causal": "text", "translation": "pairs"}
QUICK = {
    "steps": 30,
    "evaluate_every": 10,
    "checkpoint_every": 10,
    "batch_size": 8,
    "length": 16,
    "learning_rate": 1e-3,
    "gate_learning_rate": 0.3,
    "inspect_lines": 0,
    "speed_seconds": 0.0,
}


def write_files(folder: Path) -> None:
    """Sentences, with a label each, and as pairs."""
    folder.mkdir(exist_ok=True)
    lines = LINES * 4
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    (folder / "lab").write_text("".join(f"{int('dog' in line)}\t{line}\n" for line in lines))
    pairs = [(line, " ".join(reversed(line.split()))) for line in lines]
    (folder / "pairs").write_text("".join(f"{one}\t{other}\n" for one, other in pairs))
    for place, name in enumerate(("source", "target")):
        (folder / name).write_text("".join(f"{pair[place]}\n" for pair in pairs))


def saved(kind: str, folder: Path) -> Path:
    """A model of a kind in a folder, with the files beside it."""
    write_files(folder)
    name = {"classification": "BERT", "masked": "BERT", "causal": "GPT-2"}.get(kind, "BART")
    tokenizer = tokenizer_for(name)
    if kind == "masked":
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    model = classifier() if kind == "classification" else host(name)
    return save(model, tokenizer, folder / kind)


def grouped(folder: Path) -> Path:
    """A Llama whose heads share keys and values by two."""
    write_files(folder)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))
    return save(model, tokenizer_for("GPT-2"), folder / "llama")


def config_for(kind: str, model: Path, **changes: object) -> PruneConfig:
    """Quick settings for a model and the files beside it."""
    files = (str(model.parent / KINDS[kind]),)
    far = {} if "penalty" in changes else {"keep": 3}
    given = {"model": str(model), "data": files, "dev": files, **QUICK, **far, **changes}
    return PruneConfig(**given)
