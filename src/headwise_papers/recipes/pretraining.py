"""Pre-training of encoders: masked language modelling, BERT's two tasks, or ELECTRA's.

    headwise train mlm --corpus debian-docs-en --layers 12 --guide next=1,prev=1,first=4 --alpha 10
    headwise train electra --corpus debian-docs-en

Heads may be guided (Deshpande & Narasimhan, 2020). Everything is written to a run folder; an
interrupted training resumes.
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
from headwise.training import Report, fit, keep_weights
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.models.encoder import EncoderConfig, training_flops
from headwise_papers.recipes.guiding import guided
from headwise_papers.recipes.pretraining_data import (
    TOKENIZER,
    Batch,
    PretrainingConfig,
    PretrainingModel,
    PretrainingText,
    check_parts,
    fresh_model,
    read_texts,
    task_loss,
    text_in,
    training_batches,
    validate,
    validation_batches,
)
from headwise_papers.recipes.training_run import (
    Clock,
    RunningLoss,
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
from headwise_papers.recipes.translator import load_weights

H200 = 790e12  # floating-point operations per second in bfloat16 that large products reach
CURVE = 10  # updates per point of the training curve
LAST = 20  # the final training loss is the mean of the last 1/LAST of the curve


class Pretrained(NamedTuple):
    """A pre-trained model and its tokenizer."""

    model: PretrainingModel  # its encoder is `model.encoder`
    pieces: ByteLevelCodec


def pretrain(
    config: PretrainingConfig,
    folder: Path,
    *,
    keep_at: Collection[int] = (),
    text: PretrainingText | None = None,
) -> Run:
    """Learn a tokenizer, tokenize the text, train; return the finished run.

    It holds `model.safetensors` (the weights of the last update), `tokenizer.json`, the tokenized
    text and `report.html`. In `figures.json` losses are those of the task alone, without guidance:
    `train_loss` over the last twentieth of the updates, with dropout; `validation_loss`, in the
    precision of the training; and `average_loss` over all updates. While training, `task_loss`,
    `guidance_loss` without its weight, and that weight, `alpha`, are logged. With several
    processes, started by `accelerate launch`, the first one writes, and training losses are those
    of its batches.

    Args:
        config: the settings.
        folder: of the run; an unfinished one is resumed.
        keep_at: numbers of updates after which the weights are kept, as
            `checkpoints/30.safetensors`.
        text: the tokenized text, if the caller has it.
    """
    made = read_texts(config, folder, text) if is_first_process() else None
    if made is not None:
        check_parts(config, made)
    with shared_run(folder, config, "pretraining") as run:
        if not run.has("figures.json"):
            read: PretrainingText = in_first_process_first(lambda: text_in(run, config, made))
            torch.manual_seed(config.fit.seed)
            model = fresh_model(config, config.shape(len(read.pieces)))
            figures = _train(config, run, model, read, keep_at)
            if is_first_process():
                _finish(config, run, model, figures)
        complete_report(run)
    return run


def load_pretrained(run: Run) -> Pretrained:
    """Return the model of a finished run of `pretrain`, in evaluation mode, and its tokenizer."""
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
    """Train in place; return losses by name."""
    batches, held_out = training_batches(config, text), validation_batches(config, text)
    settings = fit_here(config.fit, replayable=True, one_shape=True)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        mixed = settings.precision == "bfloat16"
        return validate(model, map(held_out, range(len(held_out))), bfloat16=mixed)

    # with one process the loss is compiled with the model; several wrap the model
    whole = settings.compile and process_count() == 1
    of_task = torch.compile(task_loss) if whole else task_loss
    running = RunningLoss(window=CURVE * config.fit.accumulate)
    with _guided(config, model, text.pieces) as guidance:

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            main, next_sentence = of_task(model, batch)
            running.add(main)
            main = main if next_sentence is None else main + next_sentence
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
                progress=_logging(run, running, guidance, show),
                evaluate=Clock(run).timed(evaluate),
                on_step=_before_update(run, model, guidance, keep_at),
                extra_state=running.tensors,
            )
    model.eval()
    return {**_last(run), "average_loss": running.average}


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


def _logging(run: Run, running: RunningLoss, guidance: Guidance | None, show: Report) -> Report:
    """Make a progress report that also logs the parts of the loss."""

    def report(step: int, metrics: Mapping[str, float]) -> None:
        if "loss" in metrics:
            run.log(step, task_loss=running.recent)
            if guidance is not None:
                parts = guidance.by_pattern
                run.log(step, guidance_loss=sum(parts.values()), alpha=guidance.alpha)
                run.log(step, **{f"guidance_{name}": loss for name, loss in parts.items()})
        show(step, metrics)

    return report


def _last(run: Run) -> dict[str, float]:
    """Return the final losses: means over the last updates, and the last evaluation."""
    rows = logged_rows(run, "task_loss")
    last = rows[-max(1, len(rows) // LAST) :]
    names = {"task_loss": "train_loss", "guidance_loss": "guidance_loss"}
    trained = {
        new: sum(row[old] for row in last) / len(last)
        for old, new in names.items()
        if old in last[0]
    }
    logged = {name: value for row in run.metrics() for name, value in row.items()}
    return trained | {n: value for n, value in logged.items() if n.startswith("validation_")}


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
    """Return the share of an H200's bfloat16 throughput that was used; None on other devices.

    The whole is 790 TFLOP/s, which large products reach; the published dense peak is 989. Only
    necessary operations count: words are scored at masked positions alone, and recomputation and
    guidance do not count. None also for attention other than softmax, whose kernels skip products.
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
