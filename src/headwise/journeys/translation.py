"""Train a translator on a parallel corpus, and translate its test set.

    headwise train translation --corpus multi30k --source en --target de --attention topk:8

Everything is written to a Run folder; started again after an interruption it goes on where it
stopped. `headwise translate RUN` then translates what is typed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.analysis.scores import Score, bleu, tokenised_bleu
from headwise.data.batching import Epochs
from headwise.data.parallel import ParallelBatch, parallel_batch
from headwise.data.subword import Kind, PiecePair, train_pieces
from headwise.data.translation import Lines, ParallelTexts, read_parallel_texts
from headwise.data.vocabulary import PAD
from headwise.journeys.codec import InPieces, load_codecs, save_codecs
from headwise.journeys.parallel_files import read_parallel_files
from headwise.journeys.training_run import (
    Clock,
    TrainingSettings,
    check_settings,
    choose_weights,
    in_first_process_first,
    is_first_process,
    shared_run,
    training_bar,
    training_figures,
)
from headwise.journeys.translator import Translator
from headwise.models import Transformer, TransformerConfig
from headwise.recording import Run
from headwise.reporting import write_report
from headwise.training import fit, label_smoothed_sum
from headwise.training.loss import Summed

__all__ = ["TranslationConfig", "train_translation"]

MULTIPLE = 8  # widths of batches on a GPU, whose matrices like it so
TOKENISED = ("iwslt14", "iwslt15")  # corpora whose texts come as tokens between spaces
Pairs = list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class TranslationConfig(TrainingSettings):
    """Settings of `train_translation`; the defaults suit Multi30k on a GPU.

    `width`, `heads`, `layers`, `feed_forward` and `dropout` are those of the size unless given.
    """

    corpus: str = "multi30k"  # see headwise.data.translation; "files" takes the three below
    source: str = "en"  # language to translate from
    target: str = "de"  # language to translate into
    train: tuple[str, ...] = ()  # of one's own: a file of sources, and one of their translations
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train_pairs: int = 0  # only so many pairs of a part, the first ones; 0 takes all
    valid_pairs: int = 0
    test_pairs: int = 0
    pieces: int = 8000  # how many pieces of words are learnt, of each side where not joint
    kind: Kind = "unigram"  # how they are learnt
    joint: bool = True  # one set of pieces for both languages
    size: Literal["small", "iwslt", "base"] = "small"
    width: int | None = None
    heads: int | None = None
    layers: int | None = None  # in encoder and decoder alike
    feed_forward: int | None = None
    dropout: float | None = None  # of embeddings and of what each layer adds
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    norm: Literal["pre", "post"] = "pre"
    share_embeddings: Literal["all", "target", "none"] | None = None  # None: all, if joint
    max_length: int = 256  # pieces of the longest sentence, marks included
    encoder_attention: str = "softmax"  # see headwise.ops.named
    decoder_attention: str = "softmax"
    cross_attention: str = "softmax"
    sparse_in: Literal["both", "training"] = "both"
    label_smoothing: float = 0.1
    tokens: int = 4096  # pieces in a batch, the longer side of each pair, padding included
    beams: int = 4  # with which the test set is translated
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        check_settings(self, "pieces", "tokens", "beams", "max_length")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}.")
        if self.tokens < self.max_length:
            raise ValueError(
                f"tokens must be at least max_length, got {self.tokens} and {self.max_length}."
            )
        for name in ("train_pairs", "valid_pairs", "test_pairs", "length_penalty"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        if (self.corpus == "files") != any((self.train, self.valid, self.test)):
            raise ValueError("Files of one's own are given with corpus='files', and only then.")
        self.shape(9, 9)

    def shape(self, source_vocab: int, target_vocab: int) -> TransformerConfig:
        """The model's shape for so many pieces."""
        changes: dict[str, Any] = {
            "width": self.width,
            "heads": self.heads,
            "encoder_layers": self.layers,
            "decoder_layers": self.layers,
            "feed_forward": self.feed_forward,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "feed_forward_dropout": self.feed_forward_dropout,
            "norm": self.norm,
            "share_embeddings": self.share_embeddings or ("all" if self.joint else "target"),
            "max_length": self.max_length,
            "encoder_attention": self.encoder_attention,
            "decoder_attention": self.decoder_attention,
            "cross_attention": self.cross_attention,
            "sparse_in": self.sparse_in,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        sized: Callable[..., TransformerConfig] = getattr(TransformerConfig, self.size)
        return sized(source_vocab, target_vocab, **given)


def train_translation(config: TranslationConfig, folder: Path) -> Run:
    """Learn pieces, train, translate the test set; returns the finished run.

    It holds `model.safetensors` and the pieces, `translations.txt`, the test set translated by beam
    search, `figures.json` with BLEU and its signatures, and `report.html`. In several processes,
    started by `accelerate launch`, the first one writes them.

    Args:
        config: the settings.
        folder: of the run; one that is there is continued.
    """
    texts = _texts(config)
    with shared_run(folder, config) as run:
        if not run.has("figures.json"):
            translator = in_first_process_first(lambda: _untrained(config, run, texts.train))
            note = _train(config, run, translator, texts)
            if is_first_process():
                _finish(config, run, translator, texts.test, note)
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


def _untrained(config: TranslationConfig, run: Run, train: Lines) -> Translator:
    """A translator with its first weights, and with pieces that are then in the run."""
    if not run.names("*pieces.model"):
        learnt = _learnt(config, train)
        save_codecs(run, InPieces(learnt.source), InPieces(learnt.target))
    source, target = load_codecs(run)
    torch.manual_seed(config.seed)
    model = Transformer(config.shape(len(source), len(target)))
    return Translator(model, source, target)


def _learnt(config: TranslationConfig, train: Lines) -> PiecePair:
    if config.joint:
        both = train_pieces([*train.source, *train.target], size=config.pieces, kind=config.kind)
        return PiecePair(both, both)
    source, target = (train_pieces(side, size=config.pieces, kind=config.kind) for side in train)
    return PiecePair(source, target)


def _train(
    config: TranslationConfig, run: Run, translator: Translator, texts: ParallelTexts
) -> dict[str, Any]:
    """Train in place, and end with the weights that validate best; what there is to say of it."""
    train, valid = _encoded(translator, texts.train), _encoded(translator, texts.valid)
    held_out = _held_out(valid, tokens=config.tokens)
    clock = Clock(run)

    def loss(model: nn.Module, batch: ParallelBatch) -> Summed:
        logits_BTV = model(batch.source, batch.source_lengths, batch.target_in)
        smoothing = config.label_smoothing
        return label_smoothed_sum(logits_BTV, batch.target_out, pad=PAD, smoothing=smoothing)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"validation_loss": _validation_loss(model, held_out)}

    cuda = torch.cuda.is_available()
    multiple = MULTIPLE if cuda else 1
    with training_bar(config) as show:
        fit(
            translator.model,
            loss,
            _batches(train, tokens=config.tokens, multiple=multiple, seed=config.seed),
            run=run,
            config=config.fit_config(cuda=cuda),
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=show,
            evaluate=clock.timed(evaluate),
        )
    chosen = choose_weights(run, translator.model, evaluate)
    with torch.no_grad():
        validated = evaluate(translator.model)
    return {
        **validated,
        "weights": chosen,
        "train_pairs": len(train),
        "train_pairs_too_long": len(texts.train.source) - len(train),
    }


def _encoded(translator: Translator, lines: Lines) -> Pairs:
    """The ids of sentence pairs; those too long for the model are left out."""
    sides = (
        map(c.encode, s) for c, s in zip((translator.source, translator.target), lines, strict=True)
    )
    room = translator.room
    pairs = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= room]
    if not pairs:
        raise ValueError(f"No sentence pair fits max_length={room + 1}; raise it.")
    return pairs


def _batches(pairs: Pairs, *, tokens: int, multiple: int, seed: int) -> Epochs[ParallelBatch]:
    def collate(chosen: list[int]) -> ParallelBatch:
        sources, targets = zip(*(pairs[index] for index in chosen), strict=True)
        return parallel_batch(sources, targets, multiple=multiple)

    # a mark is added to each side
    lengths = [max(len(source), len(target)) + 1 for source, target in pairs]
    return Epochs(lengths, collate, tokens=tokens, multiple=multiple, seed=seed)


def _held_out(pairs: Pairs, *, tokens: int) -> Sequence[ParallelBatch]:
    batches = _batches(pairs, tokens=tokens, multiple=1, seed=0)
    return [batches(number) for number in range(len(batches))]


@torch.no_grad()
def _validation_loss(model: nn.Module, batches: Sequence[ParallelBatch]) -> float:
    """Nats a target piece, the end mark included, without label smoothing."""
    device = next(model.parameters()).device
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in batches:
        there = ParallelBatch(*(tensor.to(device) for tensor in batch))
        logits_BTV: Tensor = model(there.source, there.source_lengths, there.target_in)
        flat = logits_BTV.flatten(0, 1).float(), there.target_out.flatten()
        total += cross_entropy(*flat, ignore_index=PAD, reduction="sum")
        count += int(batch.target_lengths.sum())
    return total.item() / count


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
    write_report(run)


def _score(name: str, score: Score) -> dict[str, float | str]:
    return {name: score.value, f"{name}_signature": score.signature}
