"""Train a translator on a parallel corpus, and translate its test set.

    headwise train translation --corpus multi30k --source en --target de --attention topk:8
    headwise train translation --corpus multi30k --guide next=1,prev=1

Everything is written to a Run folder; started again after an interruption it goes on where it
stopped. `headwise translate RUN` then translates what is typed.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.analysis.scores import Score, bleu
from headwise.guidance import Guidance
from headwise.recording import Run
from headwise.training import fit, label_smoothed_sum
from headwise.training.loss import Summed
from headwise.training.progress import clock
from headwise.workflows.training_run import (
    Clock,
    choose_weights,
    complete_report,
    fit_here,
    in_first_process_first,
    is_first_process,
    shared_run,
    training_bar,
    training_figures,
)
from headwise_papers.data.batches import ParallelBatch
from headwise_papers.data.subword import CodecPair, train_subwords
from headwise_papers.data.translation import Lines, ParallelTexts, read_parallel_texts
from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS
from headwise_papers.measures.scores import tokenised_bleu
from headwise_papers.models import Transformer
from headwise_papers.recipes.codec import Codec, InPieces, load_codecs, save_codecs
from headwise_papers.recipes.guiding import Tokens, guided, with_guidance
from headwise_papers.recipes.loss_so_far import LossSoFar
from headwise_papers.recipes.parallel_files import read_parallel_files
from headwise_papers.recipes.same_data import check_data, checksum_of, keep_checksum
from headwise_papers.recipes.translation_batches import (
    Pairs,
    all_batches,
    encoded_pairs,
    pair_batches,
    validation_loss,
    width_multiple,
)
from headwise_papers.recipes.translation_settings import SIZES, TranslationConfig
from headwise_papers.recipes.translator import Translator

__all__ = ["SIZES", "TranslationConfig", "train_translation"]

FULL_STOPS = (".", "\u2581.")  # pieces of words say whether a space is before them
TOKENISED = ("iwslt14", "iwslt15")  # corpora whose texts come as tokens between spaces


def train_translation(config: TranslationConfig, folder: Path) -> Run:
    """Learn pieces, train, translate the test set; returns the finished run.

    It holds `model.safetensors` and the pieces, `translations.txt`, the test set translated by beam
    search, `figures.json` with BLEU and its signatures, and `report.html`. In several processes,
    started by `accelerate launch`, the first one writes them. `train_nll`, over about the last
    tenth of the updates, and `average_nll`, over all, are of the training as it goes, dropout
    included, without label smoothing and guidance.

    Args:
        config: the settings.
        folder: of the run; one that is there is continued, if the texts are as they were.
    """
    texts = _texts(config)
    checksum = checksum_of(*texts.train, *texts.valid, *texts.test)
    check_data(folder, config, checksum)
    with shared_run(folder, config, "translation") as run:
        if not run.has("figures.json"):
            translator = in_first_process_first(
                lambda: _untrained(config, run, texts.train, checksum)
            )
            note = _train(config, run, translator, texts)
            if is_first_process():
                _finish(config, run, translator, texts.test, note)
        complete_report(run)
    return run


def _texts(config: TranslationConfig) -> ParallelTexts:
    if config.corpus == "files":
        texts = read_parallel_files(train=config.train, valid=config.valid, test=config.test)
    else:
        texts = read_parallel_texts(config.corpus, config.source, config.target)
    return ParallelTexts(
        texts.name,
        _first(texts.train, config.train_pairs),
        _first(texts.valid, config.valid_pairs),
        _first(texts.test, config.test_pairs),
    )


def _first(lines: Lines, count: int) -> Lines:
    return Lines(lines.source[:count], lines.target[:count]) if count else lines


def _untrained(config: TranslationConfig, run: Run, train: Lines, checksum: str) -> Translator:
    """A translator with its first weights, and with pieces that are then in the run."""
    if not run.names("*pieces.model"):
        keep_checksum(run, checksum)  # first, as pieces are of these texts
        with clock(f"learning {config.vocab_size:,} subwords"):
            learnt = _learnt(config, train)
        save_codecs(run, InPieces(learnt.source), InPieces(learnt.target))
    source, target = load_codecs(run)
    torch.manual_seed(config.fit.seed)
    model = Transformer(config.shape(len(source), len(target)))
    return Translator(model, source, target)


def _learnt(config: TranslationConfig, train: Lines) -> CodecPair:
    size, kind = config.vocab_size, config.subwords
    if config.joint:
        both = train_subwords([*train.source, *train.target], size=size, kind=kind)
        return CodecPair(both, both)
    source, target = (train_subwords(side, size=size, kind=kind) for side in train)
    return CodecPair(source, target)


def _train(
    config: TranslationConfig, run: Run, translator: Translator, texts: ParallelTexts
) -> dict[str, Any]:
    """Train in place, and end with the weights that validate best; what there is to say of it."""
    model = translator.model
    train, valid = encoded_pairs(translator, texts.train), encoded_pairs(translator, texts.valid)
    held_out = all_batches(valid, tokens=config.batch_tokens)

    def validate(model: nn.Module) -> dict[str, float]:
        return {"validation_loss": validation_loss(model, held_out)}

    so_far = LossSoFar(window=config.fit.steps * config.fit.accumulate // 10)
    with _guided(config, translator) as guidance:
        _fit(config, run, model, train, so_far, guidance, validate)
    chosen = choose_weights(run, model, validate)
    with torch.no_grad():
        validated = validate(model)
    return {
        **validated,
        **_losses(so_far),
        "weights": chosen,
        "train_pairs": len(train),
        "train_pairs_too_long": len(texts.train.source) - len(train),
    }


def _fit(
    config: TranslationConfig,
    run: Run,
    model: Transformer,
    train: Pairs,
    so_far: LossSoFar,
    guidance: Guidance | None,
    validate: Callable[[nn.Module], Mapping[str, float]],
) -> None:
    def loss(model: nn.Module, batch: ParallelBatch) -> Summed:
        logits_BTV = model(batch.source, batch.source_lengths, batch.target_in)
        smooth = label_smoothed_sum(
            logits_BTV, batch.target_out, pad=PAD, smoothing=config.label_smoothing
        )
        with torch.no_grad():
            plain = label_smoothed_sum(logits_BTV, batch.target_out, pad=PAD, smoothing=0.0)
        so_far.add(plain.total / plain.number)
        return with_guidance(smooth, guidance)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        told = guidance.log() if guidance else {}
        return {**validate(model), **_losses(so_far), **told}

    most = model.config.max_length
    multiple = width_multiple()
    with training_bar(config.fit.steps) as show:
        fit(
            model,
            loss,
            pair_batches(
                train,
                tokens=config.batch_tokens,
                multiple=multiple,
                most=most,
                seed=config.fit.seed,
            ),
            run=run,
            config=fit_here(config.fit, replayable=True),
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=show,
            evaluate=Clock(run).timed(evaluate),
            on_step=guidance.at_step if guidance else None,
            beside=so_far.tensors,
        )


def _guided(
    config: TranslationConfig, translator: Translator
) -> AbstractContextManager[Guidance | None]:
    codecs = {"encoder": translator.source, "decoder": translator.target}
    tokens = {stack: _marks(codec) for stack, codec in codecs.items()}
    return guided(
        translator.model, config.guide, steps=config.fit.steps, tokens=tokens, padding=PAD
    )


def _marks(codec: Codec) -> Tokens:
    """Where sentences begin and end, and their full stops."""
    words = codec.names(range(len(SPECIALS), len(codec)))
    stops = [number for number, word in enumerate(words, len(SPECIALS)) if word in FULL_STOPS]
    return {"delim": (BOS, EOS), "period": stops}


def _losses(so_far: LossSoFar) -> dict[str, float]:
    """Of the training, in nats a target piece: the task's alone, and not smoothed."""
    return {"train_nll": so_far.recent, "average_nll": so_far.average}


def _finish(
    config: TranslationConfig, run: Run, translator: Translator, test: Lines, note: dict[str, Any]
) -> None:
    """Keep the translator, translate the test set and score it."""
    translator.save(run)
    found = translator.translate(
        test.source, beams=config.beams, length_penalty=config.length_penalty, batch=256
    )
    run.write_text("translations.txt", "".join(f"{line}\n" for line in found))
    tokens = "none" if config.corpus in TOKENISED else "13a"
    cased = bleu(found, test.target)
    lowered = tokenised_bleu(found, test.target, tokenize=tokens)
    scores = {**_score("bleu", cased), **_score("tokenised_bleu", lowered)}
    run.save_figures({**scores, **note, **training_figures(run, translator.model)})


def _score(name: str, score: Score) -> dict[str, float | str]:
    return {name: score.value, f"{name}_signature": score.signature}
