"""The demo: train a small translator on the toy language and inspect each of its heads.

    headwise demo

It takes less than 90 seconds on two CPU cores. Everything is written to a run folder with a report;
an interrupted run resumes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from headwise.analysis import ablate, bleu, with_roles
from headwise.recording import (
    HeadTable,
    Pointing,
    Profile,
    Reading,
    Run,
    Samples,
    Words,
    writing_alone,
)
from headwise.reporting import write_report
from headwise.sites import observe
from headwise.training import FitConfig, check_at_least, fit, label_smoothed_loss, progress_bar
from headwise.workflows.progress import counting
from headwise_papers.data.batches import ParallelBatch, ParallelData
from headwise_papers.data.toy import ToyLanguage, ToyPair
from headwise_papers.data.vocabulary import EOS, PAD, Vocabulary
from headwise_papers.measures.toy_gold import toy_gold
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.recipes.translator import Translator, WordCodec, token_accuracy

EVALUATE_EVERY = 100  # steps

Columns = dict[str, dict[str, list[float]]]  # measure -> site -> one value per head


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo; the defaults take about a minute on two cores."""

    train_pairs: int = 20_000
    test_pairs: int = 500  # none of their sentences is among the training pairs
    ablation_pairs: int = 200  # sentences translated with each head switched off
    samples: int = 6  # sentences whose attention is shown
    batch_size: int = 64
    model: TransformerConfig = TransformerConfig(max_length=64)  # vocabularies are filled in
    fit: FitConfig = FitConfig(
        steps=800,
        learning_rate=3e-3,
        warmup=100,
        precision="float32",
        checkpoint_every=100,
        average=1,
    )

    def __post_init__(self) -> None:
        check_at_least(1, self, "train_pairs", "test_pairs", "ablation_pairs", "batch_size")
        check_at_least(0, self, "samples")
        if min(self.model.encoder_layers, self.model.decoder_layers) < 1:
            raise ValueError("The model must have at least 1 layer in encoder and decoder.")


def demo(config: DemoConfig, folder: Path) -> HeadTable:
    """Train, measure every head, switch each off; return the table that the report shows."""
    started = time.perf_counter()
    with writing_alone(folder), Run.create(folder, config, "demo") as run:
        language = ToyLanguage()
        train = language.pairs(config.train_pairs, seed=config.fit.seed)
        test = _unseen(language, train, config.test_pairs, seed=config.fit.seed + 1)
        translator = _train(config, run, train, test)
        figures = _evaluate(translator, test)
        run.write_json("trace/attention.json", _samples(translator, test[: config.samples]))
        table = _measure(translator, test, _switch_off(translator, test[: config.ablation_pairs]))
        figures["sentences"] = len(test)
        figures["seconds"] = time.perf_counter() - started
        run.save_heads(table)
        run.save_figures(figures)
        write_report(run)
    return table


def _unseen(
    language: ToyLanguage, train: Sequence[ToyPair], count: int, *, seed: int
) -> list[ToyPair]:
    """Return pairs whose source is not among the training pairs."""
    known = {pair.source for pair in train}
    drawn = 2 * count
    while True:
        pairs = [pair for pair in language.pairs(drawn, seed=seed) if pair.source not in known]
        if len(pairs) >= count:
            return pairs[:count]
        drawn *= 2


def _train(
    config: DemoConfig, run: Run, train: Sequence[ToyPair], test: Sequence[ToyPair]
) -> Translator:
    translator = _untrained(config, train)
    if run.has("model.safetensors"):
        return Translator.load(run)

    def loss(model: nn.Module, batch: ParallelBatch) -> Tensor:
        logits_BTV = model(batch.source, batch.source_lengths, batch.target_in)
        return label_smoothed_loss(logits_BTV, batch.target_out, pad=PAD)

    with progress_bar(config.fit.steps, label="training") as show:

        def report(step: int, metrics: Mapping[str, float]) -> None:
            show(step, metrics)
            if step % EVALUATE_EVERY == 0:
                run.log(step, accuracy=token_accuracy(translator, _batch(translator, test[:200])))
                translator.model.train()

        fit(
            translator.model,
            loss,
            _batches(config, translator, train),
            run=run,
            config=config.fit,
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=report,
        )
    translator.save(run)
    return Translator.load(run)


def _untrained(config: DemoConfig, train: Sequence[ToyPair]) -> Translator:
    sources = Vocabulary.from_sentences(pair.source for pair in train)
    targets = Vocabulary.from_sentences(pair.target for pair in train)
    torch.manual_seed(config.fit.seed)
    shape = replace(config.model, source_vocab=len(sources), target_vocab=len(targets))
    return Translator(Transformer(shape), WordCodec(sources), WordCodec(targets))


def _batches(config: DemoConfig, translator: Translator, train: Sequence[ToyPair]) -> ParallelData:
    return ParallelData(
        [translator.source.encode(" ".join(pair.source)) for pair in train],
        [translator.target.encode(" ".join(pair.target)) for pair in train],
        batch_size=config.batch_size,
        seed=config.fit.seed,
    )


def _batch(translator: Translator, pairs: Sequence[ToyPair]) -> ParallelBatch:
    return translator.text_batch(*_texts(pairs))


def _texts(pairs: Sequence[ToyPair]) -> tuple[list[str], list[str]]:
    return [" ".join(pair.source) for pair in pairs], [" ".join(pair.target) for pair in pairs]


def _evaluate(translator: Translator, test: Sequence[ToyPair]) -> dict[str, float | str]:
    sources, targets = _texts(test)
    score = bleu(translator.translate(sources, beams=4), targets, tokenize="none")
    return {
        "token_accuracy": token_accuracy(translator, _batch(translator, test)),
        "bleu": score.value,
        "bleu_signature": score.signature,
    }


@torch.no_grad()
def _samples(translator: Translator, pairs: Sequence[ToyPair]) -> dict[str, object]:
    samples = Samples()
    with observe(translator.model, samples):
        for pair in pairs:
            samples.start({"encoder": [*pair.source, "<eos>"], "decoder": ["<bos>", *pair.target]})
            batch = _batch(translator, [pair])
            translator.model(batch.source, batch.source_lengths, batch.target_in)
    return samples.drain()


@torch.no_grad()
def _measure(translator: Translator, test: Sequence[ToyPair], drops: Columns) -> HeadTable:
    """Measure confidence, distances and agreement with gold annotation; add the drops."""
    profile, pointing = Profile(), Pointing()
    with observe(translator.model, profile, pointing):
        for start in range(0, len(test), 100):
            pairs = test[start : start + 100]
            batch = _batch(translator, pairs)
            profile.reading = pointing.reading = Reading(
                range(start, start + len(pairs)),
                words={
                    "encoder": Words.each((batch.source != PAD) & (batch.source != EOS)),
                    "decoder": Words.each(batch.target_in != PAD),
                },
                gold=toy_gold(pairs),
            )
            translator.model(batch.source, batch.source_lengths, batch.target_in)
    table = HeadTable.of(profile.drain() | drops | pointing.drain())
    return with_roles(table, pointing.baselines())


def _switch_off(translator: Translator, pairs: Sequence[ToyPair]) -> Columns:
    """Measure how much accuracy and BLEU drop when each head alone is switched off."""
    sources, targets = _texts(pairs)
    batch = _batch(translator, pairs)

    def measure() -> dict[str, float]:
        return {
            "accuracy": token_accuracy(translator, batch),
            "bleu": bleu(translator.translate(sources), targets, tokenize="none").value,
        }

    whole = measure()
    with counting("switching heads off") as count:
        without = ablate(translator.model, measure, progress=count)
    return {
        f"{name}_drop": {
            site: [whole[name] - value for value in values] for site, values in sites.items()
        }
        for name, sites in without.items()
    }
