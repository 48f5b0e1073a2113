"""The report of a training run, written when the run is finished."""

from headwise.recording import Run
from headwise.recording.checksums import LIST, check_checksums
from headwise.reporting import write_report
from headwise.training import is_first_process


def complete_report(run: Run) -> None:
    """Write the report of a finished run, unless it is newer than the results.

    A run that was killed between the two gets its report when it is started again. A damaged model
    is refused first, as the results would not be those of the model that is there.
    """
    check_models(run)
    if is_first_process() and not _has_new_report(run):
        write_report(run)


def check_models(run: Run) -> None:
    """Raise if the model of a run, or of a training in it, was damaged; one may be missing."""
    for name in (*run.names("model.safetensors"), *run.names("*/model.safetensors")):
        run.load_tensors(name)
    for path in sorted(run.folder.glob(f"*/*/{LIST}")):
        check_checksums(path.parent)


def _has_new_report(run: Run) -> bool:
    if not run.has("report.html"):
        return False
    results, report = (run.path(name).stat() for name in ("figures.json", "report.html"))
    return report.st_mtime_ns >= results.st_mtime_ns
