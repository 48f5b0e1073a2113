"""Settings of an inspection, and the columns that its table may have."""

from dataclasses import dataclass
from typing import Literal

from headwise.analysis.gold import RELATIONS
from headwise.recording.columns import known_columns

ALL = "all"  # stands for every relation of a treebank
MAX_TRANSLATION = 64  # tokens


@dataclass(frozen=True)
class InspectConfig:
    """Settings of an inspection."""

    model: str  # folder of a run or of a Hugging Face model
    data: str  # file with one sentence or paragraph per line, or a treebank
    relations: tuple[str, ...] = RELATIONS  # of syntax, where there are trees; "all" takes all
    ranks: str = ""  # file of word counts; without it the words of the data are counted
    coreference: str = "none"  # a coreference set to inspect too, e.g. gap or gap:test
    references: str = ""  # file of translations of the data, one per line, for alignments
    alignments: str = ""  # file of links between their words, such as 0-0 1-2, one line each
    parser: str = ""  # of plain text: spacy:PIPELINE or stanza:LANGUAGE
    special: tuple[str, ...] = ()  # more tokens that do not count as words
    max_translation: int = MAX_TRANSLATION  # tokens that a Hugging Face translator generates
    sample: int = 200  # sentences that importance is measured on
    steps: int | None = 4  # predictions of each of them, drawn at random; none takes all
    relevance: bool = True  # propagate relevance (LRP)
    rule: Literal["ratio", "alpha_beta"] = "ratio"  # of LRP
    ablation_lines: int = 16  # sentences read again with each head off; 0 leaves that out
    samples: int = 4  # sentences whose attention is shown
    batch_size: int = 16  # sentences in a batch
    device: str = "auto"  # cpu, cuda, cuda:1; auto takes a GPU where there is one
    seed: int = 0  # of samples and intervals

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_translation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("ablation_lines", "samples", "sample"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, or none for all, got {self.steps}.")
        if bool(self.references) != bool(self.alignments):
            raise ValueError("alignments need references, the translations they are of; give both.")
        if not self.relations:
            raise ValueError("relations must name some, e.g. nsubj,obj; or all.")


def columns_of(config: InspectConfig) -> tuple[str, ...]:
    """Return the columns that a table may have; none where only the treebank knows them."""
    if config.relations == (ALL,):
        return ()
    return known_columns(
        config.relations,
        mentions=config.coreference != "none",
        alignments=bool(config.alignments),
        sample=config.sample,
        relevance=config.relevance,
        ablation_lines=config.ablation_lines,
    )
