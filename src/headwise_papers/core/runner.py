"""Running experiments by name: missing models in parallel, then results, figures and the record."""

import ast
import gc
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path

import headwise_papers
from headwise.config import Dataclass, suggestion
from headwise.recording import Run, writing_alone
from headwise_papers.core.cache import (
    cache_folder,
    find_or_train,
    is_trained,
    model_folder,
    using_cache,
)
from headwise_papers.core.experiment import Experiment, Job, Result
from headwise_papers.core.record import (
    Record,
    check_part,
    command_of,
    environment_of,
    save_record,
)

__all__ = ["PAPERS", "docstring_of", "experiment_names", "load_experiment", "reproduce"]

PAPERS = (
    "output_relevance",
    "attention_guidance",
    "training_dynamics",
    "sparse_transformer",
    "specialized_heads",
)
DPI = 110
CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def experiment_names() -> list[str]:
    """List every experiment, like `sparse_transformer/choose-k`, without importing any."""
    return [
        f"{paper}/{file.stem.replace('_', '-')}"
        for paper in PAPERS
        for folder in headwise_papers.__path__
        for file in sorted(Path(folder, paper).glob("*.py"))
        if not file.name.startswith("_")
    ]


def load_experiment(name: str) -> Experiment:
    """Import an experiment; a slip gets the nearest name."""
    return import_module(_module_of(name)).experiment


def docstring_of(name: str) -> str:
    """Read an experiment's docstring without importing it."""
    _, paper, stem = _module_of(name).split(".")
    files = (Path(folder, paper, f"{stem}.py") for folder in headwise_papers.__path__)
    file = next(file for file in files if file.is_file())
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def summary_of(name: str) -> str:
    """Return the first line of an experiment's docstring."""
    return docstring_of(name).partition("\n")[0]


def _module_of(name: str) -> str:
    known = experiment_names()
    if name not in known:
        raise ValueError(
            f"There is no experiment {name!r}. {suggestion(name, known)} "
            "`headwise reproduce --list` names them all."
        )
    return f"headwise_papers.{name.replace('/', '.').replace('-', '_')}"


def reproduce(
    name: str,
    config: Dataclass,
    folder: Path,
    *,
    jobs: int = 1,
    save: bool = False,
    part: str = "",
) -> dict[str, Result]:
    """Run an experiment and return its results by name.

    Args:
        name: of the experiment.
        config: its settings.
        folder: of the run that is made: logs, `figures/*.png` and `result.json`.
        jobs: how many missing models are trained in parallel.
        save: whether the record and its figures are copied to `papers/`.
        part: name of the part that the saved record is.
    """
    check_part(part)
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}.")
    experiment = load_experiment(name)
    if save and config == experiment.smoke:
        raise ValueError("Results of a smoke run say nothing, so they are not saved.")
    started = time.perf_counter()
    with writing_alone(folder), Run.create(folder, config, "experiment") as out:
        if experiment.models is not None:
            train_missing(experiment.models(config), jobs=jobs, logs=out.path("logs"))
        results = experiment.run(config, out)
        record = Record(
            experiment=name,
            command=command_of(name, config, experiment.config, jobs=jobs),
            config=out.config(),
            environment=environment_of(out),
            seconds=time.perf_counter() - started,
            results=results,
            figures=_draw(experiment, results, out),
        )
        out.write_json("result.json", record.to_json())
        out.save_figures({metric: result.mean for metric, result in results.items()})
        if save:
            save_record(record, out, part=part)
    return results


def _draw(experiment: Experiment, results: dict[str, Result], out: Run) -> tuple[str, ...]:
    figures = experiment.draw(results, out) if experiment.draw is not None else {}
    for name, figure in figures.items():
        path = out.path(f"figures/{name}.png")
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=DPI)
    return tuple(sorted(f"{name}.png" for name in figures))


def train_missing(models: Iterable[Job], *, jobs: int, logs: Path) -> None:
    """Train the models that the cache lacks, some at a time, each in a process of its own.

    With one job nothing is trained ahead: the experiment trains as it goes. The first error stops
    what has not begun and is raised; finished models stay. Models that run out of GPU memory are
    trained again with half as many jobs.

    Args:
        models: in this order; those that occur twice are trained once.
        jobs: how many at a time.
        logs: folder for what the processes print.
    """
    by_folder = {model_folder(*job): job for job in models if not is_trained(*job)}
    missing = list(by_folder.values())
    if jobs == 1 or len(missing) < 2:
        return
    logs.mkdir(parents=True, exist_ok=True)
    while missing:
        jobs = min(jobs, len(missing))
        too_large = _train_some(missing, jobs=jobs, logs=logs)
        if too_large and jobs == 1:
            raise ValueError(
                f"{too_large[0].config} does not fit into the GPU's memory even alone; the logs "
                f"are in {logs}."
            )
        missing, jobs = too_large, max(1, jobs // 2)


def _train_some(models: Sequence[Job], *, jobs: int, logs: Path) -> list[Job]:
    """Train what fits, and return the models that ran out of GPU memory."""
    import torch

    from headwise.training import progress_bar

    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),  # a forked process cannot use CUDA
        initializer=_start_process,
        initargs=(logs, threads),
    )
    with pool, progress_bar(len(models), label=f"training, {jobs} in parallel") as show:
        cache = cache_folder().absolute()
        futures = [pool.submit(_train_one, job, cache, jobs) for job in models]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                show(done, {})
        except BrokenProcessPool as error:
            raise ValueError(
                f"One of {jobs} processes was killed, perhaps for want of memory; the logs are in "
                f"{logs}. The same command resumes."
            ) from error
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return [job for job, fitted in zip(models, futures, strict=True) if not fitted.result()]


def _start_process(logs: Path, threads: int) -> None:
    """Print to a log, use a share of the cores, and end with the parent.

    Without that a killed command would leave processes behind that hold memory and go on training.
    """
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    log = os.open(logs / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _train_one(job: Job, cache: Path, jobs: int) -> bool:
    """Train one model, and return whether it fitted into memory. Other errors are raised."""
    import torch

    fitted = True
    try:
        with using_cache(cache, jobs=jobs):
            find_or_train(*job)
    except RuntimeError as problem:
        if not _is_out_of_memory(problem):
            raise
        fitted = False
        traceback.print_exc()
    gc.collect()  # a captured training step refers to itself
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return fitted


def _is_out_of_memory(problem: RuntimeError) -> bool:
    import torch

    if isinstance(problem, torch.AcceleratorError):
        return getattr(problem, "error_code", None) == CUDA_OUT_OF_MEMORY
    # cuBLAS and cuDNN raise a plain RuntimeError, which only its status tells from others
    return isinstance(problem, torch.OutOfMemoryError) or "ALLOC_FAILED" in str(problem)
