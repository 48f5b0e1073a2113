"""What the heads did before some of them went, so that a report can say which functions stayed."""

from dataclasses import dataclass
from typing import Any

import torch

from headwise.recording import HeadTable, Run
from headwise.recording.run import TABLE
from headwise.workflows.inspect import InspectConfig
from headwise.workflows.inspect.corpus import corpus_of
from headwise.workflows.inspect.examining import Examination
from headwise.workflows.prune.choosing_heads import inspected
from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.task import Task

__all__ = ["Functions", "functions_of"]

LOOKED = "looked.json"  # of a run: what was found, so that it is looked for once
UNKNOWN = (
    "What the heads do was not looked at; --set look=200 or --inspection FOLDER, given from the "
    "start, tells."
)


@dataclass(frozen=True, eq=False)
class Functions:
    """What is known of the heads that the model had at first."""

    table: HeadTable
    note: str  # where it is from, or why nothing is known, a sentence


def functions_of(config: PruneConfig, task: Task, run: Run) -> Functions:
    """What an inspection says of the heads; without one, a look at lines of the dev set.

    Args:
        config: the settings.
        task: its model still has all its heads, unless this was called before.
        run: keeps what was found.
    """
    if config.inspection:
        said = f"Functions are those that the inspection {config.inspection} found."
        return Functions(inspected(config.inspection), said)
    if not config.look:
        return Functions(HeadTable((), {}), UNKNOWN)
    if not run.has(LOOKED):
        run.write_json(LOOKED, _look(config, task))
    found = run.read_json(LOOKED, {"table": TABLE, "note": str})
    return Functions(HeadTable.from_json(found["table"]), found["note"])


@torch.no_grad()
def _look(config: PruneConfig, task: Task) -> dict[str, Any]:
    """Where heads look in the first lines of the dev set; a note where that cannot be found out."""
    lines = list(task.texts[: config.look])
    # what heads are worth takes much longer, and gates or another choice decide that
    looking = InspectConfig(config.model, "", sample=0, samples=0, seed=config.seed)
    task.model.eval()
    try:
        found = Examination(task.subject, corpus_of(lines), looking).examined()
    except (ValueError, RuntimeError) as problem:  # the pruning can do without
        note = f"What the heads do could not be found out: {problem}"
        return {"table": HeadTable((), {}).to_json(), "note": note}
    note = f"Functions are what the heads did before pruning, in {len(lines)} lines of the dev set."
    too_few = found.left_out.get("intervals and roles", "")
    return {"table": found.table.to_json(), "note": f"{note} {too_few}".strip()}
