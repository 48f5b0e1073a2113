"""Translation: train a translator on a parallel corpus, and translate its test set.

    headwise train translation --corpus multi30k --source en --target de --attention topk:8
    headwise train translation --corpus multi30k --guide next=1,prev=1

Everything is written to a run folder; an interrupted training resumes. `headwise translate RUN`
translates what is typed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.analysis import Score, bleu
from headwise.guidance import Guidance
from headwise.recording import Run
from headwise.text import Epochs
from headwise.training import FitConfig, Summed, check_at_least, fit, label_smoothed_sum
from headwise_papers.data.batches import ParallelBatch, parallel_batch
from headwise_papers.data.subword import Kind, train_subwords
from headwise_papers.data.translation import Lines, ParallelTexts, read_parallel_texts
from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS
from headwise_papers.measures.scores import tokenised_bleu
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.recipes.guiding import GuideSettings, Tokens, guided, with_guidance
from headwise_papers.recipes.training_run import (
    Clock,
    RunningLoss,
    checksum_of,
    choose_weights,
    clock,
    complete_report,
    fit_here,
    in_first_process_first,
    is_first_process,
    shared_run,
    training_bar,
    training_figures,
)
from headwise_papers.recipes.translator import (
    Codec,
    SubwordCodec,
    Translator,
    load_codecs,
    mean_loss,
    save_codecs,
)

SIZES = {
    "small": TransformerConfig.small(),
    "iwslt": TransformerConfig.iwslt(),
    "base": TransformerConfig.base(),
}
FULL_STOPS = (".", "\u2581.")  # subwords say whether a space is before them
TOKENISED = ("iwslt14", "iwslt15")  # corpora whose texts are tokens between spaces
MULTIPLE = 8  # widths of batches on a GPU, whose matrices are faster so
Pairs = list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class TranslationConfig:
    """Settings of `train_translation`; the defaults suit Multi30k on a GPU."""

    corpus: str = "multi30k"  # see headwise_papers.data.translation; "files" takes the three below
    source: str = "en"  # language to translate from
    target: str = "de"  # language to translate into
    train: tuple[str, ...] = ()  # your own files: source and target
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train_pairs: int = 0  # number of pairs of a part, the first ones; 0: all
    valid_pairs: int = 0
    test_pairs: int = 0
    vocab_size: int = 8000  # learned subwords, of each side where not joint
    subwords: Kind = "unigram"  # how they are learned
    joint: bool = True  # one vocabulary for both languages
    model: TransformerConfig = SIZES["small"]  # vocabularies are filled in
    guide: GuideSettings = GuideSettings()
    label_smoothing: float = 0.1
    batch_tokens: int = 4096  # tokens in a batch, the longer side of each pair, padding included
    beams: int = 4  # beam size for the test set
    length_penalty: float = 0.6
    fit: FitConfig = FitConfig()

    def __post_init__(self) -> None:
        check_at_least(1, self, "vocab_size", "batch_tokens", "beams")
        check_at_least(0, self, "train_pairs", "valid_pairs", "test_pairs", "length_penalty")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}.")
        if not 1 <= self.model.max_length <= self.batch_tokens:
            raise ValueError(
                "batch_tokens must be at least model.max_length, and that at least 1, got "
                f"{self.batch_tokens} and {self.model.max_length}."
            )
        if self.model.source_vocab or self.model.target_vocab:
            raise ValueError("Vocabularies are learnt; leave them out of model, set vocab_size.")
        if self.model.share_embeddings == "all" and not self.joint:
            raise ValueError("model.share_embeddings='all' needs joint=true, one vocabulary.")
        if (self.corpus == "files") != any((self.train, self.valid, self.test)):
            raise ValueError("Your own files are given with corpus='files', and only then.")
        model = self.model
        causal = [f"decoder.{layer}.self" for layer in range(model.decoder_layers)]
        self.guide.check(_sites(model), heads=model.heads, steps=self.fit.steps, causal=causal)

    def shape(self, source_vocab: int, target_vocab: int) -> TransformerConfig:
        """Return the model's settings with its vocabularies."""
        shared = self.model.share_embeddings
        if shared is None:
            shared = "all" if self.joint else "target"
        return replace(
            self.model,
            source_vocab=source_vocab,
            target_vocab=target_vocab,
            share_embeddings=shared,
        )


def _sites(shape: TransformerConfig) -> dict[str, str]:
    """Return the attention of each site of a model, by the site's name."""
    decoder = range(shape.decoder_layers)
    return (
        {f"encoder.{n}.self": shape.encoder_attention for n in range(shape.encoder_layers)}
        | {f"decoder.{n}.self": shape.decoder_attention for n in decoder}
        | {f"decoder.{n}.cross": shape.cross_attention for n in decoder}
    )


def train_translation(config: TranslationConfig, folder: Path) -> Run:
    """Learn subwords, train, translate the test set; return the finished run.

    It holds `model.safetensors` and the subwords, `translations.txt` (the test set translated by
    beam search), `figures.json` with BLEU and its signatures, and `report.html`. With several
    processes, started by `accelerate launch`, the first one writes them. `train_nll` (over about
    the last tenth of the updates) and `average_nll` (over all) are training losses with dropout,
    without label smoothing and guidance.

    Args:
        config: the settings.
        folder: of the run; an unfinished one is resumed, if the texts have not changed.
    """
    texts = _texts(config)
    checksum = checksum_of(*texts.train, *texts.valid, *texts.test)
    with shared_run(folder, config, "translation", data=checksum) as run:
        if not run.has("figures.json"):
            translator = in_first_process_first(lambda: _untrained(config, run, texts.train))
            note = _train(config, run, translator, texts)
            if is_first_process():
                _finish(config, run, translator, texts.test, note)
        complete_report(run)
    return run


def _texts(config: TranslationConfig) -> ParallelTexts:
    if config.corpus == "files":
        parts = [_files(config, name) for name in ("train", "valid", "test")]
        texts = ParallelTexts("files", *parts)
    else:
        texts = read_parallel_texts(config.corpus, config.source, config.target)
    return ParallelTexts(
        texts.name,
        _first(texts.train, config.train_pairs),
        _first(texts.valid, config.valid_pairs),
        _first(texts.test, config.test_pairs),
    )


def _files(config: TranslationConfig, part: str) -> Lines:
    """Read your own files of a part, line by line translations; drop pairs with an empty side."""
    files: tuple[str, ...] = getattr(config, part)
    if len(files) != 2:
        raise ValueError(
            f"{part} takes two files, of the source and of the target, got {len(files)}; "
            f"give --{part} twice."
        )
    first, second = (_lines(Path(file)) for file in files)
    if len(first) != len(second):
        raise ValueError(
            f"{files[0]} has {len(first)} lines, but {files[1]} has {len(second)}; line by line "
            "they must be translations of each other."
        )
    pairs = [pair for pair in zip(first, second, strict=True) if all(map(str.strip, pair))]
    if not pairs:
        raise ValueError(f"{files[0]} and {files[1]} hold no pair of sentences.")
    return Lines([source for source, _ in pairs], [target for _, target in pairs])


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"There is no text file {path}; check the path.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path} is not UTF-8 ({problem}); convert it first.") from None
    # at line feeds only: other line separators may stand inside a sentence
    lines = text.split("\n")
    return [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]


def _first(lines: Lines, count: int) -> Lines:
    return Lines(lines.source[:count], lines.target[:count]) if count else lines


def _untrained(config: TranslationConfig, run: Run, train: Lines) -> Translator:
    """Make a translator with random weights; write its subwords into the run."""
    if not run.names("*pieces.model"):
        with clock(f"learning {config.vocab_size:,} subwords"):
            save_codecs(run, *_learned(config, train))
    source, target = load_codecs(run)
    torch.manual_seed(config.fit.seed)
    model = Transformer(config.shape(len(source), len(target)))
    return Translator(model, source, target)


def _learned(config: TranslationConfig, train: Lines) -> tuple[SubwordCodec, SubwordCodec]:
    texts = [[*train.source, *train.target]] if config.joint else train
    codecs = [
        SubwordCodec(train_subwords(side, size=config.vocab_size, kind=config.subwords))
        for side in texts
    ]
    return codecs[0], codecs[-1]


def _train(
    config: TranslationConfig, run: Run, translator: Translator, texts: ParallelTexts
) -> dict[str, Any]:
    """Train in place, load the weights that validate best, and return losses and sizes."""
    model = translator.model
    train, valid = encoded_pairs(translator, texts.train), encoded_pairs(translator, texts.valid)
    held_out = all_batches(valid, tokens=config.batch_tokens)

    def validate(model: nn.Module) -> dict[str, float]:
        return {"validation_loss": validation_loss(model, held_out)}

    running = RunningLoss(window=config.fit.steps * config.fit.accumulate // 10)
    with _guided(config, translator) as guidance:
        _fit(config, run, model, train, running, guidance, validate)
    chosen = choose_weights(run, model, validate)
    with torch.no_grad():
        validated = validate(model)
    return {
        **validated,
        **_losses(running),
        "weights": chosen,
        "train_pairs": len(train),
        "train_pairs_too_long": len(texts.train.source) - len(train),
    }


def _fit(
    config: TranslationConfig,
    run: Run,
    model: Transformer,
    train: Pairs,
    running: RunningLoss,
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
        running.add(plain.total / plain.number)
        return with_guidance(smooth, guidance)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        metrics = guidance.log() if guidance else {}
        return {**validate(model), **_losses(running), **metrics}

    batches = pair_batches(
        train,
        tokens=config.batch_tokens,
        multiple=width_multiple(),
        most=model.config.max_length,
        seed=config.fit.seed,
    )
    with training_bar(config.fit.steps) as show:
        fit(
            model,
            loss,
            batches,
            run=run,
            config=fit_here(config.fit, replayable=True),
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=show,
            evaluate=Clock(run).timed(evaluate),
            on_step=guidance.at_step if guidance else None,
            extra_state=running.tensors,
        )


def _guided(
    config: TranslationConfig, translator: Translator
) -> AbstractContextManager[Guidance | None]:
    codecs = {"encoder": translator.source, "decoder": translator.target}
    tokens = {stack: _special_tokens(codec) for stack, codec in codecs.items()}
    return guided(
        translator.model, config.guide, steps=config.fit.steps, tokens=tokens, padding=PAD
    )


def _special_tokens(codec: Codec) -> Tokens:
    """Return the ids of begin and end tokens, and of full stops."""
    words = codec.names(range(len(SPECIALS), len(codec)))
    stops = [number for number, word in enumerate(words, len(SPECIALS)) if word in FULL_STOPS]
    return {"delim": (BOS, EOS), "period": stops}


def _losses(running: RunningLoss) -> dict[str, float]:
    """Return the training losses in nats per target token, without smoothing and guidance."""
    return {"train_nll": running.recent, "average_nll": running.average}


def _finish(
    config: TranslationConfig, run: Run, translator: Translator, test: Lines, note: dict[str, Any]
) -> None:
    """Save the translator, translate the test set and score it."""
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


def width_multiple() -> int:
    """Return the multiple that widths of training batches are rounded up to on this machine."""
    return MULTIPLE if torch.cuda.is_available() else 1


def encoded_pairs(translator: Translator, lines: tuple[list[str], list[str]]) -> Pairs:
    """Return the ids of sentence pairs, without those too long for the model."""
    sides = (
        map(c.encode, s) for c, s in zip((translator.source, translator.target), lines, strict=True)
    )
    most = translator.max_tokens
    pairs = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= most]
    if not pairs:
        raise ValueError(f"No sentence pair fits max_length={most + 1}; raise it.")
    return pairs


def pair_batches(
    pairs: Pairs, *, tokens: int, multiple: int, most: int | None = None, seed: int
) -> Epochs[ParallelBatch]:
    """Make batches of pairs of similar length, in a new order each epoch.

    Args:
        pairs: of ids.
        tokens: of a batch, the longer side of each pair, padding included.
        multiple: of widths.
        most: maximum width, a model's `max_length`.
        seed: of the order.
    """

    def collate(chosen: list[int]) -> ParallelBatch:
        sources, targets = zip(*(pairs[index] for index in chosen), strict=True)
        return parallel_batch(sources, targets, multiple=multiple, most=most)

    # one special token is added to each side
    lengths = [max(len(source), len(target)) + 1 for source, target in pairs]
    tokens = with_padding(tokens, lengths, multiple=multiple)
    return Epochs(lengths, collate, tokens=tokens, multiple=multiple, seed=seed)


def with_padding(tokens: int, lengths: Sequence[int], *, multiple: int) -> int:
    """Return the batch size in tokens, large enough for the longest pair with its padding."""
    longest = max(lengths)
    rounded_up = -(-longest // multiple) * multiple
    return max(tokens, rounded_up) if longest <= tokens else tokens


def all_batches(pairs: Pairs, *, tokens: int) -> Sequence[ParallelBatch]:
    """Return batches with every pair once."""
    batches = pair_batches(pairs, tokens=tokens, multiple=1, seed=0)
    return [batches(number) for number in range(len(batches))]


def validation_loss(model: nn.Module, batches: Sequence[ParallelBatch]) -> float:
    """Compute nats per target token, the end included, without label smoothing."""
    device = next(model.parameters()).device
    return mean_loss(lambda b: model(b.source, b.source_lengths, b.target_in), batches, device)
