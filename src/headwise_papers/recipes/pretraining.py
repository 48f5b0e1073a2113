"""Pre-train an encoder on a text: masked language modelling, BERT's two tasks, or ELECTRA's.

    headwise train mlm --corpus debian-docs-en --layers 12 --guide next=1,prev=1,first=4 --alpha 10
    headwise train electra --corpus debian-docs-en

Heads may be guided (Deshpande & Narasimhan, 2020). Everything is written to a Run folder; started
again after an interruption it goes on where it stopped.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.config import from_json, to_json
from headwise.guidance import Guidance
from headwise.recording import Run
from headwise.training import fit
from headwise.training.averaging import keep_weights
from headwise.training.progress import Report
from headwise.workflows.training_run import (
    Clock,
    complete_report,
    fit_here,
    in_first_process_first,
    is_first_process,
    logged_rows,
    process_count,
    shared_run,
    training_bar,
    training_figures,
)
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.models.encoder import EncoderConfig, training_flops
from headwise_papers.recipes.guiding import guided
from headwise_papers.recipes.loss_so_far import LossSoFar
from headwise_papers.recipes.pretraining_settings import PretrainingConfig
from headwise_papers.recipes.pretraining_tasks import (
    Batch,
    PretrainingModel,
    check_parts,
    fresh_model,
    task_loss,
    training_batches,
    validate,
    validation_batches,
)
from headwise_papers.recipes.pretraining_text import TOKENIZER, PretrainingText, read_texts, text_in
from headwise_papers.recipes.translator import load_weights

__all__ = ["Pretrained", "PretrainingConfig", "load_pretrained", "pretrain"]

H200 = 790e12  # floating-point operations a second in bfloat16 that products reach at best
CURVE = 10  # updates that a point of the training curve is about
LAST = 20  # the training loss at the end is the mean of this part, one in so many, of the curve


class Pretrained(NamedTuple):
    """A pre-trained model and its tokenizer."""

    model: PretrainingModel  # its encoder is `model.encoder`
    pieces: ByteLevelCodec


def pretrain(config: PretrainingConfig, folder: Path, *, keep_at: Collection[int] = ()) -> Run:
    """Learn a tokenizer, number the text, train; returns the finished run.

    It holds `model.safetensors`, `tokenizer.json`, the text in numbers and `report.html`. In
    `figures.json` losses are those of the task alone, guidance left out: `train_loss` over the last
    twentieth of the updates, dropout included, `validation_loss`, in the precision of the training,
    and `average_loss` over all updates. The weights are those of the last update. While it trains
    `task_loss`, `guidance_loss` without its weight, and that weight, `alpha`, are logged. In
    several processes, started by `accelerate launch`, the first one writes, and its batches are
    what training losses are about.

    Args:
        config: the settings.
        folder: of the run; one that is there is continued.
        keep_at: after so many updates, less than all, the weights are kept, without what only
            training needs, as `checkpoints/30.safetensors` and the like.
    """
    made = read_texts(config, folder) if is_first_process() else None
    if made is not None:
        check_parts(config, made)
    with shared_run(folder, config, "pretraining") as run:
        if not run.has("figures.json"):
            text: PretrainingText = in_first_process_first(lambda: text_in(run, config, made))
            torch.manual_seed(config.fit.seed)
            model = fresh_model(config, config.shape(len(text.pieces)))
            figures = _train(config, run, model, text, keep_at)
            if is_first_process():
                _finish(config, run, model, figures)
        complete_report(run)
    return run


def load_pretrained(run: Run) -> Pretrained:
    """The model of a finished run of `pretrain`, in evaluation mode, and its tokenizer."""
    if run.kind != "pretraining":
        raise ValueError(f"{run.folder} holds no run of `headwise train mlm` or `electra`.")
    if not run.has("model.safetensors"):
        gone = run.has("figures.json") and "is finished, but its model.safetensors is not there"
        raise ValueError(
            f"{run.folder} {gone or 'holds no trained model yet; let the run finish first'}."
        )
    config = from_json(PretrainingConfig, run.config())
    model = fresh_model(config, run.read_settings("model.json", EncoderConfig))
    load_weights(model, run)
    return Pretrained(model.eval(), ByteLevelCodec.load(run.path(TOKENIZER)))


def _train(
    config: PretrainingConfig,
    run: Run,
    model: PretrainingModel,
    text: PretrainingText,
    keep_at: Collection[int],
) -> dict[str, Any]:
    """Train in place; losses by name."""
    batches, held_out = training_batches(config, text), validation_batches(config, text)
    settings = fit_here(config.fit, replayable=True, one_shape=True)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        mixed = settings.precision == "bfloat16"
        return validate(model, map(held_out, range(len(held_out))), bfloat16=mixed)

    # in one process the loss is compiled with the model; several have a wrapper around the model
    whole = settings.compile and process_count() == 1
    of_task = torch.compile(task_loss) if whole else task_loss
    so_far = LossSoFar(window=CURVE * config.fit.accumulate)
    with _guided(config, model, text.pieces) as guidance:

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            main, beside = of_task(model, batch)
            so_far.add(main)
            main = main if beside is None else main + beside
            return main if guidance is None else main + guidance.loss()

        with training_bar(config.fit.steps) as show:
            fit(
                model,
                loss,
                batches,
                run=run,
                config=dataclasses.replace(
                    settings, compile=settings.compile and not whole, keep_best=False
                ),
                tokens=lambda batch: batch.ids.numel(),
                progress=_logging(run, so_far, guidance, show),
                evaluate=Clock(run).timed(evaluate),
                on_step=_before_update(run, model, guidance, keep_at),
                beside=so_far.tensors,
            )
    model.eval()
    return {**_last(run), "average_loss": so_far.average}


def _before_update(
    run: Run, model: nn.Module, guidance: Guidance | None, keep_at: Collection[int]
) -> Callable[[int], None]:
    def on_step(done: int) -> None:
        if guidance is not None:
            guidance.at_step(done)
        if done in keep_at and is_first_process():
            keep_weights(run, model.state_dict(), step=done)

    return on_step


def _guided(
    config: PretrainingConfig, model: nn.Module, pieces: ByteLevelCodec
) -> AbstractContextManager[Guidance | None]:
    tokens = {"delim": (pieces.begin, pieces.end), "period": pieces.written_as(".")}
    return guided(model, config.guide, steps=config.fit.steps, tokens={"encoder": tokens})


def _logging(run: Run, so_far: LossSoFar, guidance: Guidance | None, show: Report) -> Report:
    """A progress report that logs the parts of the loss beside it."""

    def report(step: int, metrics: Mapping[str, float]) -> None:
        if "loss" in metrics:
            run.log(step, task_loss=so_far.recent)
            if guidance is not None:
                parts = guidance.by_pattern
                run.log(step, guidance_loss=sum(parts.values()), alpha=guidance.alpha)
                run.log(step, **{f"guidance_{name}": loss for name, loss in parts.items()})
        show(step, metrics)

    return report


def _last(run: Run) -> dict[str, float]:
    """The losses at the end of the training: of its last updates, and as evaluated after all."""
    every = run.metrics()
    rows = logged_rows(run, "task_loss")
    last = rows[-max(1, len(rows) // LAST) :]
    names = {"task_loss": "train_loss", "guidance_loss": "guidance_loss"}
    trained = {
        new: sum(row[old] for row in last) / len(last)
        for old, new in names.items()
        if old in last[0]
    }
    both = ((name, value) for row in every for name, value in row.items())
    return trained | {name: value for name, value in both if name.startswith("validation_")}


def _finish(
    config: PretrainingConfig, run: Run, model: PretrainingModel, losses: dict[str, Any]
) -> None:
    run.write_json("model.json", to_json(model.encoder.config))
    run.save_tensors("model.safetensors", model.state_dict())
    trained = training_figures(run, model)
    block = config.model.max_length
    a_step = config.batch_size * block * config.fit.accumulate * process_count()
    speed = {
        "tokens_seen": int(trained["updates"]) * a_step,
        "model_flops_utilisation": _utilisation(config, model, trained["tokens_per_second"]),
    }
    run.save_figures({**losses, **trained, **speed})


def _utilisation(
    config: PretrainingConfig, model: PretrainingModel, tokens_per_second: float
) -> float | None:
    """The share of an H200's arithmetic in bfloat16 that was used; None on other devices.

    All is the 790 TFLOP/s that large products reach; that is 0.8 of the 989 that are published as
    the dense peak. Only what is really computed counts: words are scored at the hidden places
    alone, and what is computed twice, or for guidance, counts not at all. None too of attention
    other than softmax, whose kernels leave out products that are not counted apart.
    """
    if not torch.cuda.is_available() or "H200" not in torch.cuda.get_device_name():
        return None
    if config.model.attention != "softmax":
        return None
    is_electra = config.objective == "electra"
    block = config.model.max_length
    places = block if is_electra else round(config.masked * block)
    heads = {"scored": 0, "judged": places} if is_electra else {"scored": places}
    a_block = training_flops(model.encoder.config, texts=1, length=block, **heads)
    return a_block / block * tokens_per_second / (H200 * process_count())
