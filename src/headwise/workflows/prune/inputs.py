"""What a pruning is made of: checksums of its model and its data, which must stay as they are."""

from collections.abc import Iterator
from pathlib import Path

from headwise.pruning.recipe import RECIPE
from headwise.recording import Run
from headwise.recording.checksums import digest
from headwise.workflows.prune.config import PruneConfig

__all__ = ["check_inputs"]

INPUTS = "inputs.json"  # of a run: {path of a file: its SHA-256}
# what decides how a model computes and reads, in a folder of Hugging Face's or of ours
OF_MODEL = (
    *("config.json", "model*.json", "model*.safetensors", "pruning*.json", "classifier.json"),
    *("tokenizer*", "*vocab*", "*.model", "hugging-face/*"),
)


def check_inputs(config: PruneConfig, run: Run) -> None:
    """Refuse to go on with another model or other data than a pruning began with.

    Args:
        config: names them.
        run: keeps their checksums from its first start on.
    """
    now = {str(path): digest(path) if path.is_file() else "" for path in _files(config)}
    if not run.has(INPUTS):
        run.write_json(INPUTS, now)
    before = run.read_json(INPUTS, {...: str})
    changed = [path for path in before | now if before.get(path) != now.get(path)]
    if changed:
        raise ValueError(
            f"{changed[0]} is not what it was when the pruning in {run.folder} began, so that its "
            "figures would mix two; put it back, or choose another folder."
        )


def _files(config: PruneConfig) -> Iterator[Path]:
    yield from (Path(path) for path in (*config.data, *config.dev))
    if config.inspection:
        place = Path(config.inspection)
        yield place if place.name == "heads.json" else place / "heads.json"
    model = Path(config.model)
    # a pruned model's recipe has the checksums of all its files, which were checked on opening it
    names = (RECIPE,) if (model / RECIPE).is_file() else OF_MODEL
    found = {path for name in names for path in model.glob(name) if path.is_file()}
    yield from sorted(found)
