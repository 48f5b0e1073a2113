"""Translators of the experiments: English into other languages, and one tuned to subtitles.

Each is found by its settings in the cache, or trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from headwise.analysis import bleu
from headwise.config import changed, suggestion
from headwise.recording import Run
from headwise.training import FitConfig, Summed, fit, label_smoothed_sum
from headwise_papers.core import Job, Result, find_or_train, share
from headwise_papers.data.batches import ParallelBatch
from headwise_papers.data.translation import Lines, ParallelTexts, read_parallel_texts
from headwise_papers.data.vocabulary import PAD
from headwise_papers.recipes.training_run import (
    Clock,
    choose_weights,
    fit_here,
    training_bar,
    training_figures,
)
from headwise_papers.recipes.translation import (
    SIZES,
    TranslationConfig,
    all_batches,
    encoded_pairs,
    pair_batches,
    train_translation,
    validation_loss,
    width_multiple,
)
from headwise_papers.recipes.translator import Translator, open_translator

SUBTITLES = "en-ru subtitles"
TRANSLATORS = ("en-ru", "en-de", "en-fr", "en-de multi30k", SUBTITLES)
TOGETHER = 256  # sentences translated at the same time
RECIPE = TranslationConfig(
    corpus="tatoeba",
    source="en",
    subwords="bpe",
    vocab_size=8000,  # of each side, as in the paper: a joint one would not suit two alphabets
    joint=False,
    model=replace(SIZES["iwslt"], heads=8),
    train_pairs=46_085,  # all there are in Russian
    batch_tokens=8192,
    fit=FitConfig(steps=2500, warmup=500, evaluate_every=125, checkpoint_every=125),
)
TINY = changed(  # of smoke runs
    RECIPE,
    {
        "train_pairs": 200,
        "valid_pairs": 12,
        "test_pairs": 4,
        "vocab_size": 400,
        "batch_tokens": 512,
        "beams": 1,
        "model.max_length": 40,
        "model.width": 32,
        "model.heads": 4,
        "model.encoder_layers": 2,
        "model.decoder_layers": 2,
        "model.feed_forward": 64,
        "model.dropout": 0.0,
        "fit.steps": 20,
        "fit.warmup": 10,
        "fit.learning_rate": 1e-2,
        "fit.evaluate_every": 10,
        "fit.checkpoint_every": 10,
        "fit.average": 2,
    },
)


@dataclass(frozen=True)
class Tuning:
    """Settings of a translator that is trained further on another domain."""

    base: TranslationConfig
    corpus: str = "opensubtitles"
    steps: int = 300

    @property
    def fit(self) -> FitConfig:
        """Settings of the training."""
        return FitConfig(
            steps=self.steps,
            warmup=self.steps // 10,
            learning_rate=3e-4,
            evaluate_every=25,
            checkpoint_every=25,
            average=self.base.fit.average,
            seed=self.base.fit.seed,
        )


Model = TranslationConfig | Tuning


def translator(recipe: TranslationConfig, name: str, seed: int, *, tuning: int = 300) -> Model:
    """Return the settings of a translator.

    Args:
        recipe: of English into Russian.
        name: one of `TRANSLATORS`.
        seed: of weights and batches.
        tuning: updates on subtitles.
    """
    if name not in TRANSLATORS:
        raise ValueError(f"There is no translator {name!r}. {suggestion(name, TRANSLATORS)}")
    pair, _, domain = name.partition(" ")
    base = changed(recipe, {"target": pair.removeprefix("en-"), "fit.seed": seed})
    if domain == "subtitles":
        return Tuning(base, steps=tuning)
    if domain == "multi30k":
        steps = recipe.fit.steps * 4 // 5
        return changed(base, {"corpus": "multi30k", "train_pairs": 0, "fit.steps": steps})
    return base


def job(model: Model) -> Job:
    """Return how a translator is trained, as the runner takes it."""
    return Job(tune_translator if isinstance(model, Tuning) else train_translation, model)


def trained(model: Model) -> Run:
    """Return the finished run of a translator, found or trained now."""
    return find_or_train(*job(model))


def scored(
    name: str, models: Sequence[Model], least_bleu: float
) -> tuple[dict[str, Result], list[Model]]:
    """Return the BLEU of translators, and those of them with enough to enter."""
    scores = [float(trained(model).figures()["bleu"]) for model in models]
    entering = [model for model, score in zip(models, scores, strict=True) if score >= least_bleu]
    results = {
        f"{name}: BLEU": Result(scores),
        f"{name}: enters": share(score >= least_bleu for score in scores),
    }
    return results, entering


def by_name(prefix: str, found: Sequence[Mapping[str, float]]) -> dict[str, Result]:
    """Return means by name, over the seeds that have a value.

    >>> by_name("en-ru: ", [{"BLEU": 1.0}, {"BLEU": 3.0}])["en-ru: BLEU"].mean
    2.0
    """
    names = dict.fromkeys(name for values in found for name in values)
    return {
        f"{prefix}{name}": Result([values[name] for values in found if name in values])
        for name in names
    }


def recipe_of(model: Model) -> TranslationConfig:
    """Return the settings of a translator, or of the one that it is tuned from."""
    return model.base if isinstance(model, Tuning) else model


def read_texts(model: Model) -> ParallelTexts:
    """Read all texts of a translator's domain; subtitles as plain text, like the others."""
    recipe = recipe_of(model)
    plain = isinstance(model, Tuning)
    return read_parallel_texts(model.corpus, recipe.source, recipe.target, plain=plain)


def first_pairs(lines: Lines, count: int) -> Lines:
    """Return the first lines of both sides; 0 takes all."""
    return Lines(lines.source[:count], lines.target[:count]) if count else lines


def tune_translator(config: Tuning, folder: Path) -> Run:
    """Train a copy of a translator further, with its vocabulary; return the finished run."""
    recipe, texts = config.base, read_texts(config)
    test = first_pairs(texts.test, recipe.test_pairs)
    with Run.create(folder, config, "translation") as run:
        if not run.has("figures.json"):
            translator = open_translator(trained(recipe).folder)
            before = _bleu(recipe, translator, test)
            chosen = _tune(config, run, translator, texts)
            translator.save(run)
            run.save_figures(
                {
                    "bleu": _bleu(recipe, translator, test),
                    "bleu_before": before,
                    "weights": chosen,
                    **training_figures(run, translator.model),
                }
            )
    return run


def _tune(config: Tuning, run: Run, translator: Translator, texts: ParallelTexts) -> str:
    """Train in place, and return which weights validate best; the model has these."""
    recipe = config.base
    train = pair_batches(
        encoded_pairs(translator, first_pairs(texts.train, recipe.train_pairs)),
        tokens=recipe.batch_tokens,
        multiple=width_multiple(),
        most=translator.model.config.max_length,
        seed=config.fit.seed,
    )
    valid = encoded_pairs(translator, first_pairs(texts.valid, recipe.valid_pairs))
    held_out = all_batches(valid, tokens=recipe.batch_tokens)

    def loss(model: nn.Module, batch: ParallelBatch) -> Summed:
        logits_BTV = model(batch.source, batch.source_lengths, batch.target_in)
        smoothing = recipe.label_smoothing
        return label_smoothed_sum(logits_BTV, batch.target_out, pad=PAD, smoothing=smoothing)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"validation_loss": validation_loss(model, held_out)}

    with training_bar(config.steps) as show:
        fit(
            translator.model,
            loss,
            train,
            run=run,
            config=fit_here(config.fit, replayable=True),
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=show,
            evaluate=Clock(run).timed(evaluate),
        )
    return choose_weights(run, translator.model, evaluate)


def _bleu(recipe: TranslationConfig, translator: Translator, test: Lines) -> float:
    penalty = recipe.length_penalty
    found = translator.translate(
        test.source, beams=recipe.beams, length_penalty=penalty, batch=TOGETHER
    )
    return bleu(found, test.target).value
