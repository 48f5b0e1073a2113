"""Translators: a Transformer with the codecs of both languages, from text to text.

`Translator` is written into a run folder and read from one; `translate_stream` translates lines as
they arrive.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.config import to_json
from headwise.pruning import PruningRecord, check_whole, rebuild, record_of
from headwise.recording import Run
from headwise_papers.data.batches import ParallelBatch, pad, parallel_batch
from headwise_papers.data.marian import MarianCodec, MarianFolder, marian_folder
from headwise_papers.data.subword import CodecPair, SubwordModel
from headwise_papers.data.vocabulary import BOS, EOS, PAD, Vocabulary
from headwise_papers.models import Hypothesis, Transformer, TransformerConfig, beam, greedy
from headwise_papers.models.marian import load_marian

Ids = list[int]
WORD_FILES = "source_vocabulary.json", "target_vocabulary.json"
SUBWORD_FILES = "pieces.model", "source_pieces.model"  # of both languages, or one each
RECORD = "pruning_record.json"  # of a run whose model was pruned: the heads that are left
CHUNK = 1 << 20  # maximum number of bytes that are translated together


@runtime_checkable
class Codec(Protocol):
    """Text to ids and back, without special tokens; ids below 4 are those of `data.vocabulary`."""

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, up to the first end token."""
        ...

    def tokens(self, text: str) -> list[str]:
        """Return one string for each id of a text, to be shown."""
        ...

    def names(self, ids: Iterable[int]) -> list[str]:
        """Return one string for each id that a model generated, to be shown."""
        ...


@dataclass(frozen=True)
class WordCodec:
    """Codec of words, which are separated by white space.

    >>> codec = WordCodec(Vocabulary.from_sentences([["the", "dog"]]))
    >>> codec.encode("the cat"), codec.tokens("the cat"), codec.decode([5, 4])
    ([5, 3], ['the', 'cat'], 'the dog')
    """

    vocabulary: Vocabulary

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.encode(text.split())

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.vocabulary.decode(ids))

    def tokens(self, text: str) -> list[str]:
        return text.split()

    def names(self, ids: Iterable[int]) -> list[str]:
        return self.vocabulary.decode(ids)


@dataclass(frozen=True)
class SubwordCodec:
    """Codec of subwords; "▁" stands for the space before one."""

    pieces: SubwordModel

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return self.pieces.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self.pieces.decode(ids)

    def tokens(self, text: str) -> list[str]:
        return self.names(self.encode(text))

    def names(self, ids: Iterable[int]) -> list[str]:
        return [self.pieces.piece(number) for number in ids]


def save_codecs(run: Run, source: Codec, target: Codec) -> None:
    """Write the codecs of both languages, which must be of one class, into a run."""
    if isinstance(source, WordCodec) and isinstance(target, WordCodec):
        for name, codec in zip(WORD_FILES, (source, target), strict=True):
            run.write_text(name, codec.vocabulary.to_json())
    elif isinstance(source, SubwordCodec) and isinstance(target, SubwordCodec):
        CodecPair(source.pieces, target.pieces).save(run.folder)
    else:
        raise ValueError(
            "A run holds two codecs of words or two of subwords, got "
            f"{type(source).__name__} and {type(target).__name__}."
        )


def load_codecs(run: Run) -> tuple[Codec, Codec]:
    """Return the codecs of source and target that `save_codecs` wrote."""
    if any(run.has(name) for name in SUBWORD_FILES):
        both = CodecPair.load(run.folder)
        return SubwordCodec(both.source), SubwordCodec(both.target)
    if not all(run.has(name) for name in WORD_FILES):
        raise ValueError(
            f"{run.folder} holds no translator: neither subwords nor words are there; give the "
            "folder of a run of `headwise train translation` or `headwise demo`."
        )
    source, target = (WordCodec(read_vocabulary(run, name)) for name in WORD_FILES)
    return source, target


def read_vocabulary(run: Run, name: str) -> Vocabulary:
    """Return the vocabulary in a file of a run; a damaged one is refused by its name."""
    text = run.read_text(name)
    try:
        return Vocabulary.from_json(text)
    except ValueError as problem:
        raise ValueError(f"{run.path(name)} cannot be used: {problem}") from None


@dataclass(frozen=True, eq=False)
class Translator:
    """A Transformer with its codecs: text in, text out."""

    model: Transformer
    source: Codec
    target: Codec

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a sentence, the special one not counted."""
        return self.model.config.max_length - 1

    @property
    def device(self) -> torch.device:
        """Device of the model's parameters."""
        return self.model.read_out.weight.device

    def batch(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> ParallelBatch:
        """Make a batch of pairs of ids, on the model's device."""
        device = self.device
        return ParallelBatch(*(tensor.to(device) for tensor in parallel_batch(sources, targets)))

    def text_batch(self, sources: Sequence[str], targets: Sequence[str]) -> ParallelBatch:
        """Make a batch of sentence pairs, on the model's device."""
        return self.batch(
            [self.source.encode(text) for text in sources],
            [self.target.encode(text) for text in targets],
        )

    def translate(
        self,
        texts: Sequence[str],
        *,
        beams: int = 1,
        length_penalty: float = 0.6,
        batch: int = 512,
    ) -> list[str]:
        """Translate sentences, in their order; one without words stays empty.

        Args:
            texts: one sentence each, cut to `max_tokens`.
            beams: beam size; 1 is greedy search.
            length_penalty: more favours longer translations; see `headwise_papers.models.beam`.
            batch: sentences of similar length that are translated together.
        """
        if batch < 1:
            raise ValueError(f"A batch holds at least one sentence, got {batch}.")
        sources = {number: self.source.encode(text) for number, text in enumerate(texts)}
        order = [number for number, ids in sources.items() if ids]
        if len(order) > batch:  # a single batch keeps its order
            order.sort(key=lambda number: len(sources[number]))
        found = [""] * len(texts)
        for start in range(0, len(order), batch):
            numbers = order[start : start + batch]
            chosen = [sources[number][: self.max_tokens] for number in numbers]
            targets = self.translate_ids(chosen, beams=beams, length_penalty=length_penalty)
            for number, ids in zip(numbers, targets, strict=True):
                found[number] = self.target.decode(ids)
        return found

    def translate_ids(
        self, sources: Sequence[Ids], *, beams: int = 1, length_penalty: float = 0.6
    ) -> list[Ids]:
        """Translate ids to ids in one batch; no source is empty or longer than `max_tokens`."""
        padded = pad([[*ids, EOS] for ids in sources])
        ids, lengths = padded.ids.to(self.device), padded.lengths.to(self.device)
        # each sentence has its own limit, whatever else is in the batch
        limits = [min(2 * length + 8, self.max_tokens) for length in padded.lengths.tolist()]
        self.model.eval()
        options: Any = {"bos": BOS, "eos": EOS, "max_length": max(limits)}
        found: list[Hypothesis]
        if beams == 1:
            found = greedy(self.model, ids, lengths, **options)
        else:
            options |= {"beams": beams, "length_penalty": length_penalty}
            found = beam(self.model, ids, lengths, **options)
        return [hypothesis.ids[:limit] for hypothesis, limit in zip(found, limits, strict=True)]

    def save(self, run: Run) -> None:
        """Write everything that `load` needs into a run."""
        run.write_json("model.json", to_json(self.model.config))
        if record := record_of(self.model):
            run.write_json(RECORD, record.to_json())
        save_codecs(run, self.source, self.target)
        run.save_tensors("model.safetensors", self.model.state_dict())

    @staticmethod
    def load(run: Run) -> "Translator":
        """Return the translator of a finished run; raise for a pruned one whose files changed."""
        check_whole(run.folder)
        check_trained(run)
        source, target = load_codecs(run)
        model = Transformer(run.read_settings("model.json", TransformerConfig))
        if run.has(RECORD):
            rebuild(model, PruningRecord.from_json(run.read_json(RECORD)))
        load_weights(model, run)
        return Translator(model.eval(), source, target)

    @staticmethod
    def of_marian(files: MarianFolder) -> "Translator":
        """Load a translator of Marian, such as Bergamot's.

        Args:
            files: from `headwise_papers.data.marian.marian_folder`.
        """
        model = load_marian(files.model)
        source, target = (SubwordCodec(MarianCodec.load(path)) for path in files[1:])
        sizes = model.config.source_vocab, model.config.target_vocab
        if (len(source), len(target)) != sizes:
            raise ValueError(
                f"{files.model.name} has {sizes[0]} and {sizes[1]} tokens, but the vocabularies "
                f"have {len(source)} and {len(target)}; give those that came with it."
            )
        return Translator(model, source, target)


def check_trained(run: Run) -> None:
    """Raise if a run has no trained model yet."""
    if not run.has("model.safetensors"):
        raise ValueError(f"{run.folder} holds no trained model yet; let the run finish first.")


def load_weights(model: nn.Module, run: Run) -> None:
    """Fill a model from a run; raise one sentence for weights that do not fit."""
    try:
        model.load_state_dict(run.load_tensors("model.safetensors"))
    except RuntimeError as error:
        raise ValueError(
            f"The weights in {run.path('model.safetensors')} do not fit model.json: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error


@torch.no_grad()
def token_accuracy(translator: Translator, batch: ParallelBatch) -> float:
    """Return the share of target tokens, the end included, predicted right from those before."""
    translator.model.eval()
    logits_BTV = translator.model(batch.source, batch.source_lengths, batch.target_in)
    real_BT = batch.target_out != PAD
    right_BT = (logits_BTV.argmax(-1) == batch.target_out) & real_BT
    return (right_BT.sum() / real_BT.sum()).item()


@torch.no_grad()
def mean_loss(scores: Callable[[Any], Tensor], batches: Sequence[Any], device: Any) -> float:
    """Compute nats per target token, the end included, without label smoothing.

    Args:
        scores: from a batch to logits, (B, T, V).
        batches: named tuples of tensors with `target_out` and `target_lengths`.
        device: of the model.
    """
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in batches:
        there = type(batch)(*(tensor.to(device) for tensor in batch))
        flat = scores(there).flatten(0, 1).float(), there.target_out.flatten()
        total += cross_entropy(*flat, ignore_index=PAD, reduction="sum")
        count += int(batch.target_lengths.sum())
    return total.item() / count


@runtime_checkable
class Stream(Protocol):
    """Stream of bytes, such as `sys.stdin.buffer`."""

    def read1(self, size: int, /) -> bytes:
        """Return the bytes that have arrived, up to a size; wait only if there are none."""
        ...


def open_translator(folder: Path) -> Translator:
    """Open the translator of a finished run or of Marian, on a GPU where there is one."""
    files = marian_folder(folder)
    translator = Translator.of_marian(files) if files else Translator.load(Run.open(folder))
    translator.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return translator


def translate_stream(
    translator: Translator,
    stream: Stream,
    write: Callable[[str], object],
    *,
    beams: int = 4,
    length_penalty: float = 0.6,
    batch: int = 64,
) -> int:
    """Translate line by line, in order; return the number of lines that were cut.

    Lines that arrive together are translated together, in batches of similar length. A line that
    arrives alone is answered immediately. Empty lines stay empty.

    Args:
        translator: from `open_translator`.
        stream: lines in UTF-8.
        write: gets the translations, each with its line end.
        beams: beam size.
        length_penalty: more favours longer translations.
        batch: sentences translated together.
    """
    cut = 0
    for lines in arriving_lines(stream):
        cut += sum(len(translator.source.encode(line)) > translator.max_tokens for line in lines)
        found = translator.translate(lines, beams=beams, length_penalty=length_penalty, batch=batch)
        write("".join(f"{line}\n" for line in found))
    return cut


def arriving_lines(stream: Stream) -> Iterator[list[str]]:
    """Yield the lines of a stream, those that arrive together in one list.

    >>> import io
    >>> list(arriving_lines(io.BytesIO(b"a dog\\n\\nthe cat")))
    [['a dog', ''], ['the cat']]
    """
    rest, done = b"", 0
    while arrived := stream.read1(CHUNK):
        *whole, rest = (rest + arrived).split(b"\n")
        if whole:
            yield [_text(line, done + number) for number, line in enumerate(whole, start=1)]
            done += len(whole)
    if rest:
        yield [_text(rest, done + 1)]


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as problem:
        raise ValueError(f"Line {number} is not UTF-8 ({problem}); convert it first.") from None
