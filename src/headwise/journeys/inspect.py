"""What the heads of a trained model do: one table, any kind of model, any size of corpus.

    headwise inspect MODEL --data FILE.txt
    headwise inspect MODEL --data treebank.conllu --out report.html

One pass over the data asks where every head looks. Then a sample of it is looked at more closely:
how much of the model's predictions comes through each head, and what is lost without it.
"""

import copy
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Literal

from torch import nn
from transformers import PreTrainedModel

from headwise.data.frequencies import WordRanks
from headwise.data.treebank import Tree
from headwise.data.vocabulary import Vocabulary
from headwise.hf import adopt, release
from headwise.hf.adoption import is_adopted, unwrapped
from headwise.journeys.codec import Codec, InWords
from headwise.journeys.inspecting.annotating import ALL, RELATIONS
from headwise.journeys.inspecting.corpus import Corpus, coreference_corpus, corpus_of
from headwise.journeys.inspecting.examining import Examined, examine
from headwise.journeys.inspecting.hugging_face_subject import HuggingFaceSubject
from headwise.journeys.inspecting.own_subjects import ClassifierSubject, TranslatorSubject
from headwise.journeys.inspecting.sentence import Sentence
from headwise.journeys.inspecting.subject import Subject
from headwise.journeys.opening import open_subject, padding_right
from headwise.models import Transformer
from headwise.models.classifier import TransformerClassifier
from headwise.models.rnn import RnnClassifier, Seq2Seq
from headwise.recording import HeadTable, Run
from headwise.reporting import write_report

__all__ = ["InspectConfig", "inspect", "inspect_folder"]

TEXTS = ("role", "roles", "offset", "entropy")  # columns without an interval
MEASURES = (
    *("relevance", "gradient_importance", "output_norm"),
    *("loss_rise", "prediction_change", "output_change"),
    *("confidence", "offset_share", "first_share", "special_mass"),
    *("previous", "next", "first_word", "punctuation", "rarest", "two_rarest"),
    *("duplicate", "induction"),
)
NOTES = (
    "There are no labels: losses, and the predictions that relevance starts from, are those of the "
    "model's own top choice. A translator reads its own greedy translations.",
    "The mark that begins a translation counts as its first word.",
)
MENTIONS = ("coreference", *(f"coreference_{kind}" for kind in ("pronoun", "proper", "nominal")))
Data = Iterable[str | Tree | Sentence] | Path
Tokenizer = object  # of Hugging Face; a Vocabulary; or the codecs of a translator's two languages


@dataclass(frozen=True)
class InspectConfig:
    """Settings of an inspection."""

    model: str  # folder of a run or of a Hugging Face model
    data: str  # file with a sentence or paragraph a line, or a treebank
    relations: tuple[str, ...] = RELATIONS  # of syntax, where there are trees; "all" takes all
    ranks: str = ""  # file of word counts; without it the words of the data are counted
    coreference: str = "none"  # a coreference set to look at too, e.g. gap or gap:test
    special: tuple[str, ...] = ()  # more tokens that do not count as words
    sample: int = 200  # sentences that importance is measured on
    steps: int | None = 4  # predictions of each of them, drawn at random; none takes all
    relevance: bool = True  # propagate relevance (LRP)
    rule: Literal["ratio", "alpha_beta"] = "ratio"  # of that
    ablation_lines: int = 16  # sentences read again with each head off; 0 leaves that out
    samples: int = 4  # sentences whose attention is drawn
    batch_size: int = 16  # sentences read together
    device: str = "auto"  # cpu, cuda, cuda:1; auto takes a GPU where there is one
    seed: int = 0  # of samples and intervals

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        for name in ("ablation_lines", "samples", "sample"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, or none for all, got {self.steps}.")
        if not self.relations:
            raise ValueError("relations must name some, e.g. nsubj,obj; or all.")


def inspect(
    model: nn.Module,
    tokenizer: Tokenizer,
    data: Data,
    *,
    relations: Sequence[str] = RELATIONS,
    ranks: WordRanks | None = None,
    coreference: str = "none",
    special: Sequence[str] = (),
    sample: int = 200,
    steps: int | None = 4,
    relevance: bool = True,
    ablation_lines: int = 16,
    batch_size: int = 16,
    seed: int = 0,
) -> HeadTable:
    """The head table of a model on some text, streamed. Model and tokenizer are left as they came.

    Shares come with the ends of a 95 % interval over sentences, in columns named X_low and X_high.

    Args:
        model: a Hugging Face model; or a Transformer, Seq2Seq or classifier of headwise.models.
        tokenizer: of a Hugging Face model. A model of Headwise takes its Vocabulary, or for a
            translator the codecs of source and target, a pair.
        data: lines of text, trees, or the Path of a text file or treebank.
        relations: of syntax, where there are trees; ("all",) takes all.
        ranks: how common words are; None counts those of the data.
        coreference: a coreference set to look at too, e.g. "gap" or "gap:test".
        special: more tokens that do not count as words.
        sample: how many sentences importance is measured on.
        steps: predictions of each of them, drawn at random; None takes all.
        relevance: propagate relevance (LRP).
        ablation_lines: sentences read again with each head off; 0 leaves that out.
        batch_size: sentences read together.
        seed: of samples and intervals.
    """
    config = InspectConfig(
        model=type(model).__name__,
        data="",
        relations=tuple(relations),
        coreference=coreference,
        special=tuple(special),
        sample=sample,
        steps=steps,
        relevance=relevance,
        ablation_lines=ablation_lines,
        samples=0,
        batch_size=batch_size,
        seed=seed,
    )
    with _evaluated(model):
        subject = _subject(model, tokenizer, frozenset(special))
        corpus, mentions = corpus_of(data), _mentions(config)
        return examine(subject, corpus, config, ranks=ranks, mentions=mentions).table


def inspect_folder(config: InspectConfig, folder: Path) -> HeadTable:
    """Inspect the model in a folder on a file; writes a Run with tables, traces and a report.

    An inspection that was stopped goes on where it was; one that is finished is not done again.
    """
    started = time.perf_counter()
    corpus, mentions = corpus_of(Path(config.data)), _mentions(config)
    ranks = WordRanks.load(Path(config.ranks)) if config.ranks else None
    subject = open_subject(Path(config.model), special=config.special, device=config.device)
    with Run.create(folder, config) as run:
        if not run.has("figures.json"):
            found = examine(subject, corpus, config, ranks=ranks, mentions=mentions, run=run)
            seconds = time.perf_counter() - started
            _keep(run, found, corpus, room=subject.room, seconds=seconds)
            rmtree(run.path("state"), ignore_errors=True)
        _check_data(run, corpus)
        write_report(run)
        return run.heads()


def columns_of(config: InspectConfig) -> tuple[str, ...]:
    """What the table's columns may be, as far as settings tell; none if nobody knows before."""
    if config.relations == (ALL,):
        return ()
    ways = ("to_head", "to_dependent")
    syntax = [f"{relation}_{way}" for relation in config.relations for way in ways]
    measures = [*MEASURES, *syntax, *(MENTIONS if config.coreference != "none" else ())]
    return (*TEXTS, *(f"{name}{end}" for name in measures for end in ("", "_low", "_high")))


def _mentions(config: InspectConfig) -> Corpus | None:
    return None if config.coreference == "none" else coreference_corpus(config.coreference)


def _keep(run: Run, found: Examined, corpus: Corpus, *, room: int, seconds: float) -> None:
    """Write what was found; the figures last, as they say that the rest is there."""
    for name, trace in found.traces.items():
        run.write_json(f"trace/{name}.json", trace)
    counts = {
        "lines": found.seen.sentences,
        "words": found.seen.words,
        "truncated_lines": found.seen.truncated,
        "token_limit": room,
    }
    about = {
        "left_out": dict(found.left_out),
        "notes": list(NOTES),
        "data_sha256": corpus.fingerprint,
    }
    run.write_json("trace/inspection.json", {**counts, **about})
    run.save_heads(found.table)
    found.table.to_csv(run.path("heads.csv"))
    if find_spec("pandas") and find_spec("pyarrow"):
        found.table.to_parquet(run.path("heads.parquet"))
    run.save_figures({**counts, "seconds": seconds})


def _check_data(run: Run, corpus: Corpus) -> None:
    """A finished inspection is of the file that it read."""
    if run.read_json("trace/inspection.json")["data_sha256"] != corpus.fingerprint:
        raise ValueError(
            f"The data have changed since the inspection in {run.folder}; choose another folder."
        )


@contextmanager
def _evaluated(model: nn.Module) -> Generator[None]:
    """A model with sites, evaluated and not trained, for the length of the block."""
    host = _host(model)
    had_sites = host is None or is_adopted(host)
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        if host is not None:
            adopt(model)
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training
        if host is not None and not had_sites and is_adopted(host):
            release(model)


def _host(model: nn.Module) -> PreTrainedModel | None:
    """The Hugging Face model, or None for one of Headwise's own."""
    if isinstance(model, Transformer | Seq2Seq | TransformerClassifier | RnnClassifier):
        return None
    try:
        return unwrapped(model)
    except ValueError:
        raise ValueError(
            "inspect() takes a Hugging Face model (a PreTrainedModel) and its tokenizer, or a "
            "Transformer, Seq2Seq, TransformerClassifier or RnnClassifier of headwise.models and "
            f"its words, got {type(model).__name__}."
        ) from None


def _subject(model: nn.Module, tokenizer: object, special: frozenset[str]) -> Subject:
    if isinstance(model, TransformerClassifier | RnnClassifier):
        if not isinstance(tokenizer, Vocabulary):
            raise ValueError(
                f"{type(model).__name__} reads words: give its Vocabulary as the tokenizer, got "
                f"{type(tokenizer).__name__}."
            )
        return ClassifierSubject(model, InWords(tokenizer), special)
    if isinstance(model, Transformer | Seq2Seq):
        return TranslatorSubject(model, *_codecs(model, tokenizer), special)
    return HuggingFaceSubject(model, padding_right(copy.deepcopy(tokenizer)), special)


def _codecs(model: nn.Module, tokenizer: object) -> tuple[Codec, Codec]:
    if isinstance(tokenizer, tuple) and len(tokenizer) == 2:
        source, target = tokenizer
        if isinstance(source, Codec) and isinstance(target, Codec):
            return source, target
    raise ValueError(
        f"{type(model).__name__} translates: give the codecs of source and target as the "
        "tokenizer, a pair of headwise.journeys.codec.InWords or InPieces. The run of one is "
        "inspected by headwise.journeys.inspect_folder."
    )
