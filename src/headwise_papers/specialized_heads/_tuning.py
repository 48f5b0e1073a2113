"""Train a translator on, with the texts of another domain: its pieces and weights are the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from headwise.analysis.scores import bleu
from headwise.recording.run import Run
from headwise.training import FitConfig, fit, label_smoothed_sum
from headwise.training.loss import Summed
from headwise.workflows.training_run import (
    Clock,
    choose_weights,
    fit_here,
    training_bar,
    training_figures,
)
from headwise_papers.data.batches import ParallelBatch
from headwise_papers.data.translation import Lines, ParallelTexts, read_parallel_texts
from headwise_papers.data.vocabulary import PAD
from headwise_papers.recipes.translating import open_translator
from headwise_papers.recipes.translation_batches import (
    all_batches,
    encoded_pairs,
    pair_batches,
    validation_loss,
    width_multiple,
)
from headwise_papers.recipes.translator import Translator

__all__ = ["TuningConfig", "first_lines", "tune_translator"]

TOGETHER = 256  # sentences translated at the same time


@dataclass(frozen=True)
class TuningConfig:
    """On what and how a translator is trained on."""

    corpus: str = "opensubtitles"  # tokenisation is undone, as the translator knows plain text
    source: str = "en"
    target: str = "ru"
    train_pairs: int = 0  # only so many of a part; 0 takes all
    valid_pairs: int = 0
    test_pairs: int = 0
    batch_tokens: int = 8192
    label_smoothing: float = 0.1
    beams: int = 4
    length_penalty: float = 0.6
    fit: FitConfig = FitConfig()

    def texts(self) -> ParallelTexts:
        """The three parts, as plain text."""
        texts = read_parallel_texts(self.corpus, self.source, self.target, plain=True)
        return ParallelTexts(
            texts.name,
            first_lines(texts.train, self.train_pairs),
            first_lines(texts.valid, self.valid_pairs),
            first_lines(texts.test, self.test_pairs),
        )


def first_lines(lines: Lines, count: int) -> Lines:
    """Some lines of both sides, the first ones; 0 takes all."""
    return Lines(lines.source[:count], lines.target[:count]) if count else lines


def tune_translator(config: TuningConfig, base: Run, folder: Path) -> Run:
    """Train a copy of a translator; the finished run, which looks like one of `train_translation`.

    Args:
        config: the settings.
        base: the run of the translator to start from.
        folder: of the run; one that is there is continued.
    """
    texts = config.texts()
    with Run.create(folder, config, "translation") as run:
        if not run.has("figures.json"):
            translator = open_translator(base.folder)
            before = _scored(config, translator, texts.test)
            chosen = _train(config, run, translator, texts)
            translator.save(run)
            figures = _scored(config, translator, texts.test)
            run.save_figures(
                {
                    **figures,
                    "bleu_before": before["bleu"],
                    "weights": chosen,
                    **training_figures(run, translator.model),
                }
            )
    return run


def _train(config: TuningConfig, run: Run, translator: Translator, texts: ParallelTexts) -> str:
    """Train in place, and end with the weights that validate best; which these are."""
    train = pair_batches(
        encoded_pairs(translator, texts.train),
        tokens=config.batch_tokens,
        multiple=width_multiple(),
        most=translator.model.config.max_length,
        seed=config.fit.seed,
    )
    held_out = all_batches(encoded_pairs(translator, texts.valid), tokens=config.batch_tokens)
    clock = Clock(run)

    def loss(model: nn.Module, batch: ParallelBatch) -> Summed:
        logits_BTV = model(batch.source, batch.source_lengths, batch.target_in)
        smoothing = config.label_smoothing
        return label_smoothed_sum(logits_BTV, batch.target_out, pad=PAD, smoothing=smoothing)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"validation_loss": validation_loss(model, held_out)}

    with training_bar(config.fit.steps) as show:
        fit(
            translator.model,
            loss,
            train,
            run=run,
            config=fit_here(config.fit, replayable=True),
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=show,
            evaluate=clock.timed(evaluate),
        )
    return choose_weights(run, translator.model, evaluate)


def _scored(config: TuningConfig, translator: Translator, test: Lines) -> dict[str, float | str]:
    found = translator.translate(
        test.source, beams=config.beams, length_penalty=config.length_penalty, batch=TOGETHER
    )
    score = bleu(found, test.target)
    return {"bleu": score.value, "bleu_signature": score.signature}
