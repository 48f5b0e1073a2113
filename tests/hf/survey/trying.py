"""All verbs on the models of one family."""

from typing import TypedDict

from transformers import PreTrainedConfig, PreTrainedModel

from tests.hf.survey import tiny
from tests.hf.survey.verbs import VERBS, Cell, Trial, attempt, gap

BACKENDS = ("sdpa", "eager")


class Row(TypedDict):
    """What came out for one model: a cell per verb and backend, or why it was not tried."""

    family: str
    model: str
    reason: str
    cells: dict[str, dict[str, tuple[str, str]]]  # verb -> backend -> (state, reason)


def try_family(family: str) -> list[Row]:
    """A row for each model of a family; whatever a host raises on its own is its row's reason."""
    try:
        kinds = tiny.classes(family)
    except ImportError as error:
        return [_untried(family, "", error)]
    if not kinds:
        reason = "no class whose forward takes tensors alone"
        return [Row(family=family, model="", reason=reason, cells={})]
    return [try_model(family, kind) for kind in kinds]


def try_model(family: str, kind: type[PreTrainedModel]) -> Row:
    """Each verb with each backend that the host supports."""
    row = Row(family=family, model=kind.__name__, reason="", cells={})
    for backend in BACKENDS:
        try:
            trial = _trial(tiny.tiny_config(kind), kind, backend)
        except Exception as error:  # anything: hosts are not ours
            if "does not support an attention implementation" in str(error):
                continue
            return _untried(family, kind.__name__, error)
        for name, cell in _cells(trial).items():
            row["cells"].setdefault(name, {})[backend] = (cell.state, cell.reason)
    return row


def _trial(config: PreTrainedConfig, kind: type[PreTrainedModel], backend: str) -> Trial:
    model = tiny.build(config, kind, backend)
    trial = Trial(model, tiny.batch_for(model), backend)
    again = trial.outputs(trial.plain)
    if not trial.expected:
        raise ValueError("the model returns no tensors")
    if gap(trial.expected, again):
        raise ValueError("the model's outputs are not repeatable")
    if any(output.isnan().any() for output in again):
        raise ValueError("the model's outputs are not finite")
    return trial


def _cells(trial: Trial) -> dict[str, Cell]:
    """A refusal to adopt refuses the rest; what fails to adopt is tried no further."""
    first = attempt(VERBS["adopt"], trial)
    if first.state != "ok":
        return {name: first if name == "adopt" else Cell(first.state, "as adopt") for name in VERBS}
    return {"adopt": first} | {
        name: attempt(verb, trial) for name, verb in VERBS.items() if name != "adopt"
    }


def _untried(family: str, model: str, error: Exception) -> Row:
    said = " ".join(str(error).split())
    return Row(family=family, model=model, reason=f"{type(error).__name__}: {said}", cells={})
