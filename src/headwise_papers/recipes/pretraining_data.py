"""Pre-training data: settings, text, and the batches and losses of each objective."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from headwise.config import from_json
from headwise.recording import Run
from headwise.training import CHECKPOINT, FitConfig, check_at_least
from headwise_papers.data.masking import (
    EncodedText,
    MaskedBatch,
    MaskedBatches,
    PackedBlocks,
    PairBatch,
    PairBatches,
    ReplacedBatch,
    ReplacedBatches,
    SegmentPairs,
    encode_documents,
)
from headwise_papers.data.pretraining import PretrainingTexts, read_pretraining, read_text_file
from headwise_papers.data.subword import (
    MAX_VOCABULARY,
    MIN_VOCABULARY,
    ByteLevelCodec,
    SpecialTokenStyle,
    train_byte_level,
)
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import MaskedLM, MaskedLMWithNextSentence, ReplacedToken
from headwise_papers.recipes.guiding import GuideSettings
from headwise_papers.recipes.training_run import clock

PretrainingModel = MaskedLM | MaskedLMWithNextSentence | ReplacedToken
Batch = MaskedBatch | PairBatch | ReplacedBatch
Batches = MaskedBatches | PairBatches | ReplacedBatches

TOKENIZER, TEXT, CHECKSUM = "tokenizer.json", "text.safetensors", "text.json"
VOCAB_SIZES = {"debian-docs-en": 52_000}  # of texts with many words
VOCAB_SIZE = 8_000  # of the others
SAME = ("corpus", "file", "vocab_size", "train_documents", "valid_documents")  # decide the text
MAX_BATCH_TOKENS = 10**9
VALIDATION_SEED = 12345  # of the masked positions in the validation part, for all runs
FIT = FitConfig(
    steps=20_000,
    learning_rate=1e-4,
    warmup=1000,
    schedule="linear",
    beta2=0.999,
    epsilon=1e-8,
    compile=None,
    average=1,
    evaluate_every=500,
    checkpoint_every=1000,
)


@dataclass(frozen=True)
class PretrainingConfig:
    """Settings of `pretrain`; the defaults are a RoBERTa-base on a GPU of 80 GB.

    On a GPU the model is compiled unless `fit.compile` is false, as its batches have one shape; on
    a CPU only if it is true. Texts are read in blocks of `model.max_length` tokens.
    """

    corpus: str = "debian-docs-en"  # see headwise_papers.data.pretraining; "file" takes the next
    file: str = ""  # your own text; blank lines end documents, its last tenth is for validation
    text_of: str = ""  # folder of an earlier run on the same text, whose tokens are used
    train_documents: int = 0  # number of documents of a part, the first ones; 0: all
    valid_documents: int = 0
    vocab_size: int = 0  # tokens, at most; 0: 52,000 of debian-docs-en, 8,000 of the others
    objective: Literal["mlm", "electra"] = "mlm"  # masked tokens, or replaced ones
    next_sentence: bool = False  # BERT: two segments, and whether the second follows the first
    model: EncoderConfig = EncoderConfig()  # the vocabulary and the family are filled in
    batch_size: int = 64  # blocks
    masked: float = 0.15  # share of a block's tokens that are masked, or replaced
    guide: GuideSettings = GuideSettings(alpha=30.0)  # see docs/guide.md on the weight
    fit: FitConfig = FIT

    def __post_init__(self) -> None:
        check_at_least(1, self, "batch_size")
        check_at_least(0, self, "train_documents", "valid_documents")
        if self.vocab_size and not MIN_VOCABULARY <= self.vocab_size <= MAX_VOCABULARY:
            raise ValueError(
                f"vocab_size must be {MIN_VOCABULARY} or more, a token for each byte and each "
                "special token, or 0 for as many as suit the text, and at most "
                f"{MAX_VOCABULARY:,}, got {self.vocab_size}."
            )
        if self.model.vocab:
            raise ValueError("The vocabulary is learned; leave it out of model, set vocab_size.")
        block = self.model.max_length
        if self.batch_size * block > MAX_BATCH_TOKENS:
            raise ValueError(
                f"A batch must have at most {MAX_BATCH_TOKENS:,} tokens, batch_size times "
                f"model.max_length, got {self.batch_size} times {block}; make batch_size smaller."
            )
        if (self.corpus == "file") != bool(self.file):
            raise ValueError(
                "Your own text is given with --file, and without --corpus (corpus=file, file=PATH)."
            )
        if block < 8 or not 1 <= round(self.masked * block) <= block // 2:
            raise ValueError(
                "model.max_length must be at least 8, and masked choose one token to half of them, "
                f"got {block} and {self.masked}."
            )
        if self.objective == "electra" and self.next_sentence:
            raise ValueError("next_sentence goes with objective='mlm'; ELECTRA has no such loss.")
        sites = {f"encoder.{n}.self": self.model.attention for n in range(self.model.layers)}
        self.guide.check(sites, heads=self.model.heads, steps=self.fit.steps)

    @property
    def marks(self) -> SpecialTokenStyle:
        """Family whose special tokens the vocabulary has."""
        return "bert" if self.next_sentence or self.objective == "electra" else "roberta"

    def shape(self, vocab: int) -> EncoderConfig:
        """Return the encoder's settings with its vocabulary and the family of the objective."""
        family = "bert" if self.next_sentence else "roberta"
        family = "electra" if self.objective == "electra" else family
        return replace(self.model, vocab=vocab).in_family(family)


class PretrainingText(NamedTuple):
    """A tokenized text."""

    pieces: ByteLevelCodec
    train: EncodedText
    valid: EncodedText
    checksum: str  # of its documents


def read_texts(
    settings: PretrainingConfig, folder: Path, ready: PretrainingText | None = None
) -> PretrainingText | None:
    """Tokenize the text, or load that of another run; None if the run in a folder has it.

    Raises, before a run folder is created, for a text that cannot be read or that is not the one
    with which the run in the folder began.

    Args:
        settings: of the pre-training.
        folder: of its run.
        ready: the tokenized text, if the caller has it.
    """
    if (folder / TEXT).is_file() or (folder / "figures.json").is_file():
        return None
    text = ready or (_of_other_run(settings, folder) if settings.text_of else _tokenized(settings))
    if (folder / CHECKPOINT).is_file():
        began = _checksum(Run.open(folder))
        if began != text.checksum:
            raise ValueError(
                f"{folder} holds a training on another text, of checksum {began[:16]} where this "
                f"one has {text.checksum[:16]}; bring that text back, or choose another folder."
            )
    return text


def text_in(run: Run, settings: PretrainingConfig, text: PretrainingText | None) -> PretrainingText:
    """Return the text of a run; write it there the first time.

    Args:
        run: gets `tokenizer.json`, `text.json` and, unless another run has it, `text.safetensors`.
        settings: of the run.
        text: from `read_texts`.
    """
    if text is None:
        return _load(Run.open(settings.text_of) if settings.text_of else run)
    text.pieces.save(run.path(TOKENIZER))
    run.write_json(CHECKSUM, {"sha256": text.checksum})
    if not settings.text_of:
        run.save_tensors(TEXT, text.train.tensors("train") | text.valid.tensors("valid"))
    return text


def same_text(settings: PretrainingConfig, other: Run) -> bool:
    """Tell whether another run has the text and the tokenizer of these settings."""
    return other.has(TEXT) and other.has(TOKENIZER) and _other_text(settings, other) is None


def _tokenized(settings: PretrainingConfig) -> PretrainingText:
    """Learn the vocabulary and tokenize the text."""
    texts = _documents(settings)
    size = settings.vocab_size or VOCAB_SIZES.get(settings.corpus, VOCAB_SIZE)
    lines = (line for document in texts.train for line in document)
    with clock(f"learning {size:,} tokens"):
        pieces = train_byte_level(lines, size=size, style=settings.marks)
    with clock("tokenizing the text"):
        train, valid = (encode_documents(part, pieces) for part in (texts.train, texts.valid))
    return PretrainingText(pieces, train, valid, texts.checksum())


def _documents(settings: PretrainingConfig) -> PretrainingTexts:
    if settings.corpus == "file":
        texts = read_text_file(Path(settings.file))
    else:
        texts = read_pretraining(settings.corpus)
    return PretrainingTexts(
        texts.name,
        texts.train[: settings.train_documents or None],
        texts.valid[: settings.valid_documents or None],
        [],
    )


def _of_other_run(settings: PretrainingConfig, folder: Path) -> PretrainingText:
    """Load the text of another run; raise if your own file has changed when a run on it begins."""
    other = Run.open(settings.text_of)
    _check_same(settings, other)
    text = _load(other)
    begins = not (folder / CHECKPOINT).is_file()
    own = begins and settings.corpus == "file" and Path(settings.file).is_file()
    if own and _documents(settings).checksum() != text.checksum:
        raise ValueError(
            f"{settings.file} is not the text it was when {other.folder} read it; text_of is for "
            "runs on the same text, so leave it out."
        )
    return text


def _load(source: Run) -> PretrainingText:
    tensors = source.load_tensors(TEXT)
    train, valid = (EncodedText.of(tensors, part) for part in ("train", "valid"))
    pieces = ByteLevelCodec.load(source.path(TOKENIZER))
    return PretrainingText(pieces, train, valid, _checksum(source))


def _checksum(run: Run) -> str:
    return str(run.read_json(CHECKSUM, {"sha256": str})["sha256"])


def _check_same(settings: PretrainingConfig, other: Run) -> None:
    """Raise if another run has no text, or a different one."""
    if not other.has(TEXT) or not other.has(TOKENIZER):
        raise ValueError(
            f"{other.folder} holds no tokenized text; text_of names a run of `headwise train mlm` "
            "or `electra` that has begun, and that did not take its text from elsewhere."
        )
    if name := _other_text(settings, other):
        there, this = from_json(PretrainingConfig, other.config()), getattr(settings, name)
        raise ValueError(
            f"{other.folder} has {name}={getattr(there, name)!r}, but this run {name}={this!r}; "
            "text_of is for runs on the same text."
        )


def _other_text(settings: PretrainingConfig, other: Run) -> str | None:
    """Return the first setting in which the text of another run differs, if any."""
    there = from_json(PretrainingConfig, other.config())
    differ = (name for name in (*SAME, "marks") if getattr(there, name) != getattr(settings, name))
    return next(differ, None)


class TaskLoss(NamedTuple):
    """Loss of a batch, in nats."""

    main: Tensor  # per masked token, or per token that may have been replaced
    next_sentence: Tensor | None


def fresh_model(settings: PretrainingConfig, shape: EncoderConfig) -> PretrainingModel:
    """Make a model with random weights."""
    encoder = Encoder(shape)
    if settings.objective == "electra":
        return ReplacedToken(encoder)
    return MaskedLMWithNextSentence(encoder) if settings.next_sentence else MaskedLM(encoder)


def check_parts(settings: PretrainingConfig, text: PretrainingText) -> None:
    """Raise if a part of the text does not fill one block."""
    training_batches(settings, text)
    validation_batches(settings, text)


def training_batches(settings: PretrainingConfig, text: PretrainingText) -> Batches:
    """Make the batches of the training part."""
    return _batches(settings, text, "train", seed=settings.fit.seed, shuffled=True)


def validation_batches(settings: PretrainingConfig, text: PretrainingText) -> Batches:
    """Make the batches of the validation part, with the same masked positions for every seed."""
    return _batches(settings, text, "valid", seed=VALIDATION_SEED, shuffled=False)


def _batches(
    settings: PretrainingConfig,
    text: PretrainingText,
    part: Literal["train", "valid"],
    *,
    seed: int,
    shuffled: bool,
) -> Batches:
    encoded = {"train": text.train, "valid": text.valid}[part]
    name = {"train": "part to train on", "valid": "part held out"}[part]  # in messages
    of_text = encoded, text.pieces, settings.model.max_length, name
    size, share = settings.batch_size, settings.masked
    if settings.next_sentence:
        pairs = SegmentPairs(*of_text)
        return PairBatches(pairs, size, seed=seed, share=share, shuffled=shuffled)
    blocks = PackedBlocks(*of_text)
    if settings.objective == "electra":
        counts = text.train.counts(len(text.pieces))
        return ReplacedBatches(
            blocks, size, seed=seed, share=share, shuffled=shuffled, counts=counts
        )
    return MaskedBatches(blocks, size, seed=seed, share=share, shuffled=shuffled)


def task_loss(model: nn.Module, batch: Batch) -> TaskLoss:
    """Compute the loss of a batch: cross-entropy of masked tokens, or logistic loss of all."""
    if isinstance(batch, ReplacedBatch):
        logits_BT = model(batch.ids).float()
        return TaskLoss(binary_cross_entropy_with_logits(logits_BT, batch.replaced.float()), None)
    if isinstance(batch, PairBatch):
        found = model(batch.ids, batch.places, token_types=batch.token_types)
        # class 0: the second segment follows
        follows = cross_entropy(found.follows.float(), 1 - batch.follows)
        return TaskLoss(cross_entropy(found.words.float(), batch.targets), follows)
    logits_NV = model(batch.ids, batch.places)
    return TaskLoss(cross_entropy(logits_NV.float(), batch.targets), None)


@torch.no_grad()
def validate(
    model: nn.Module, batches: Iterable[Batch], *, bfloat16: bool = False
) -> dict[str, float]:
    """Compute the mean losses over batches, weighted by blocks, which have as many targets each.

    Args:
        model: in evaluation mode.
        batches: with pairs or without.
        bfloat16: compute in the precision of a training in bfloat16.

    Returns:
        `validation_loss`, of masked or replaced tokens alone, and with pairs
        `validation_next_sentence_loss`.
    """
    device = next(model.parameters()).device
    totals, blocks = dict[str, float](), 0
    for batch in batches:
        there = type(batch)(*(tensor.to(device) for tensor in batch))
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            found = task_loss(model, there)
        losses = {"validation_loss": found.main}
        if found.next_sentence is not None:
            losses["validation_next_sentence_loss"] = found.next_sentence
        for name, loss in losses.items():
            totals[name] = totals.get(name, 0.0) + loss.item() * len(batch.ids)
        blocks += len(batch.ids)
    return {name: total / blocks for name, total in totals.items()}
