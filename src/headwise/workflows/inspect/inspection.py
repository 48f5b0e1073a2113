"""Inspection of the heads of a trained model: one table, any kind of model, any size of corpus.

    headwise inspect MODEL --data FILE.txt
    headwise inspect MODEL --data treebank.conllu --out report.html

One pass over the data records what every head attends to. Then importance is measured on a sample:
how much of the model's predictions comes through each head, and what is lost without it.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

from torch import nn

from headwise.analysis.gold import RELATIONS
from headwise.json_files import check_shape
from headwise.recording import HeadTable, Run
from headwise.recording.files import writing_alone
from headwise.text.frequencies import WordRanks
from headwise.text.treebank import Tree
from headwise.workflows.inspect.config import ALL, InspectConfig
from headwise.workflows.inspect.corpus import (
    Corpus,
    aligned_corpus,
    check_relations,
    coreference_corpus,
    corpus_of,
)
from headwise.workflows.inspect.examining import Examination, Examined
from headwise.workflows.inspect.hugging_face import evaluated, subject_of
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.stream import Sources, check_unchanged, sources_of
from headwise.workflows.inspect.subject import check_finite

ABOUT = "trace/inspection.json"
NOTES = (
    "There are no labels: losses, and the predictions that relevance starts from, are those of the "
    "model's own top choice. A translator reads its own greedy translations.",
    "The mark that begins a translation counts as its first word.",
)
Data = Iterable[str | Tree | Sentence] | Path
Tokenizer = object  # of Hugging Face; a Vocabulary; or the codecs of a translator's two languages


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
    rule: Literal["ratio", "alpha_beta"] = "ratio",
    ablation_lines: int = 16,
    batch_size: int = 16,
    seed: int = 0,
    out: Path | str | None = None,
) -> HeadTable:
    """Return the head table of a model on some text. Model and tokenizer stay as they were.

    Shares have a 95 % interval over sentences, in columns named X_low and X_high. Heads of a pruned
    model have the numbers of that model; its table begins with `original`, the name of each head
    before pruning, such as encoder.0.self.5.

    Args:
        model: a Hugging Face model; or one with a method `headwise_subject(tokenizer, special)`,
            as those of `headwise_papers.models` have, that returns a `Subject`.
        tokenizer: of a Hugging Face model; or what `headwise_subject` takes, such as a Vocabulary.
        data: lines of text, trees, or the Path of a text file or treebank.
        relations: of syntax, where there are trees; ("all",) takes all.
        ranks: how common words are; None counts those of the data.
        coreference: a coreference set to inspect too, e.g. "gap" or "gap:test".
        special: more tokens that do not count as words.
        sample: how many sentences importance is measured on.
        steps: predictions of each of them, drawn at random; None takes all.
        relevance: propagate relevance (LRP).
        rule: of LRP.
        ablation_lines: sentences read again with each head off; 0 leaves that out.
        batch_size: sentences in a batch.
        seed: of samples and intervals.
        out: folder of a run with tables and a report. A stopped inspection resumes; a finished one
            is not repeated.
    """
    config = InspectConfig(
        model=type(model).__name__,
        data=str(data) if isinstance(data, Path) else "",
        relations=tuple(relations),
        coreference=coreference,
        special=tuple(special),
        sample=sample,
        steps=steps,
        relevance=relevance,
        rule=rule,
        ablation_lines=ablation_lines,
        samples=4 if out else 0,
        batch_size=batch_size,
        seed=seed,
    )
    with evaluated(model):
        check_finite(model)
        most = config.max_translation
        subject = subject_of(model, tokenizer, frozenset(special), max_translation=most)
        corpus = _corpus(corpus_of(data), config)
        work = Examination(subject, corpus, config, ranks, _mentions(config))
        return _into(Path(out), work) if out else work.examined().table


def inspect_folder(config: InspectConfig, folder: Path) -> HeadTable:
    """Inspect the model in a folder on a file, into a Run with tables, traces and a report.

    A stopped inspection resumes; a finished one is not repeated.
    """
    # lazy: models at hand need no folder
    from headwise.workflows.inspect.opening import open_subject

    corpus = _corpus(corpus_of(Path(config.data), parser=config.parser), config)
    mentions, aligned = _mentions(config), None
    if config.alignments:
        files = (config.data, config.references, config.alignments)
        aligned = aligned_corpus(*map(Path, files))
    ranks = WordRanks.load(Path(config.ranks)) if config.ranks else None
    subject = open_subject(
        Path(config.model),
        special=config.special,
        device=config.device,
        max_translation=config.max_translation,
    )
    if aligned is not None and not subject.reads_references:
        raise ValueError(
            "alignments are looked for in a translator of Headwise, which reads the references, "
            f"but this model is a {type(subject.model).__name__}; leave them out."
        )
    return _into(folder, Examination(subject, corpus, config, ranks, mentions, aligned))


def _into(folder: Path, work: Examination) -> HeadTable:
    """Write a run, or resume the one in the folder if its inputs are the same."""
    from headwise.reporting import write_report  # lazy: only runs have reports

    started = time.perf_counter()
    sources = sources_of(work.subject, work.corpus.identified(), work.ranks, work.aligned)
    with writing_alone(folder), Run.create(folder, work.config, "inspection") as run:
        if not run.has("figures.json"):
            found = replace(work, run=run, sources=sources).examined()
            seconds = time.perf_counter() - started
            _keep(run, found, sources, max_tokens=work.subject.max_tokens, seconds=seconds)
            rmtree(run.path("state"), ignore_errors=True)
        check_unchanged(read_about(run).get("sha256", {}), sources, run.folder)
        write_report(run)
        return run.heads()


def _corpus(corpus: Corpus, config: InspectConfig) -> Corpus:
    """Return the corpus, if it can have the relations that are asked for."""
    if config.relations != (ALL,):
        check_relations(corpus, config.relations)
    return corpus


def _mentions(config: InspectConfig) -> Corpus | None:
    return None if config.coreference == "none" else coreference_corpus(config.coreference)


def read_about(run: Run) -> dict[str, Any]:
    """Return counts, gaps and fingerprints of a finished inspection."""
    counts = ("lines", "truncated_lines", "unfinished_translations")
    shape = {**dict.fromkeys(counts, int), "left_out": {...: str}}
    about = run.read_json(ABOUT, shape)
    check_shape(about.get("sha256", {}), {...: str}, name=str(run.path(ABOUT)))
    return about


def _keep(run: Run, found: Examined, sources: Sources, *, max_tokens: int, seconds: float) -> None:
    """Write the results; figures.json last, as it marks the run as finished."""
    for name, trace in found.traces.items():
        run.write_json(f"trace/{name}.json", trace)
    counts = {
        "lines": found.seen.sentences,
        "words": found.seen.words,
        "truncated_lines": found.seen.truncated,
        "unfinished_translations": found.seen.unfinished,
        "token_limit": max_tokens,
    }
    about = {
        "left_out": dict(found.left_out),
        "notes": list(NOTES),
        "sha256": dict(sources),
    }
    run.write_json(ABOUT, {**counts, **about})
    run.save_heads(found.table)
    found.table.to_csv(run.path("heads.csv"))
    if find_spec("pandas") and find_spec("pyarrow"):
        found.table.to_parquet(run.path("heads.parquet"))
    run.save_figures({**counts, "seconds": seconds})
