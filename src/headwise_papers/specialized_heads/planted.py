"""Does a model whose heads were set by hand turn out to have the roles that were planted?

    headwise reproduce specialized_heads/planted            # 5 seconds on a CPU
    headwise reproduce specialized_heads/planted --smoke

A self-test beyond the paper: heads that attend as planted (`_planting.PLANTED`), in a toy
language that knows what is right. Roles are found with its annotation, and by `inspect`, which
seeks neither repeated words in encoders nor antecedents.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headwise.analysis import (
    duplicate_gold,
    first_gold,
    neighbour_gold,
    punctuation_gold,
    rare_gold,
    with_roles,
)
from headwise.recording import Gold, HeadTable, Pointing, Profile, Reading, Row, Run, Words
from headwise.sites import observe
from headwise.text import Tree, WordRanks
from headwise.workflows.inspect import inspect
from headwise_papers.core import Claim, Experiment, Result, share
from headwise_papers.data.toy import ToyLanguage, ToyPair
from headwise_papers.data.vocabulary import EOS, PAD
from headwise_papers.measures.toy_gold import toy_gold
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads._measures import draw_roles
from headwise_papers.specialized_heads._planting import NOTHING, PLANTED, planted_translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 100  # sentences
LANGUAGE = ToyLanguage(400, 80, adjectives=120, zipf_exponent=0.7)
# roles that `inspect` does not seek
UNASKED = frozenset({("encoder.0.self", "coreference"), ("encoder.0.self", "duplicate")})
HITS = {  # the column of each role that was planted, other than distances
    "first word": "first_word",
    "nsubj_to_head": "nsubj_to_head",
    "rare words": "rarest",
    "coreference": "coreference",
    "duplicate": "duplicate",
}


@dataclass(frozen=True)
class Config:
    """Toy language, which has rare words, and the size of its text."""

    sentences: int = 1000
    counted: int = 4000  # sentences from which it is known how common words are
    language: ToyLanguage = LANGUAGE
    seed: int = 0


FOUND = "roles found that were planted"
BY_INSPECT = "roles found by inspect that were planted"
CLAIMS = (
    *(
        Claim.share(name, threshold=0.8, text="Every head has the role that was planted")
        for name in (FOUND, BY_INSPECT)
    ),
    *(
        Claim.value(f"{role}: hits", 1.0, margin=0.0, exact=True, text="Planted heads never miss")
        for role in HITS
    ),
)


def run(config: Config, run: Run) -> dict[str, Result]:
    """Plant, inspect and compare; one value per head."""
    known = config.language.pairs(max(config.counted, config.sentences), seed=config.seed)
    ranks = WordRanks.count(pair.source for pair in known)
    translator, pairs = planted_translator(known, ranks.rank), known[: config.sentences]
    table = find_roles(translator, pairs, ranks)
    run.save_heads(table)
    seen = inspect(
        translator.model,
        (translator.source, translator.target),
        [tree_of(pair) for pair in pairs],
        ranks=ranks,
        sample=0,
        ablation_lines=0,
        batch_size=BATCH,
    )
    return {FOUND: _agreeing(table), BY_INSPECT: _agreeing(seen, unasked=UNASKED), **_hits(table)}


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw the roles of all heads."""
    return {"roles": draw_roles(run.heads())}


def _agreeing(table: HeadTable, *, unasked: Set[tuple[str, str]] = frozenset()) -> Result:
    """Return whether planted heads have the role they were given, or none where none is sought."""
    return share(
        row["role"] == (None if (site, role) in unasked else role)
        for site, role, row in _planted(table)
    )


def _hits(table: HeadTable) -> dict[str, Result]:
    hits: dict[str, list[float]] = {}
    for _, role, row in _planted(table):
        if role in HITS:
            hits.setdefault(f"{role}: hits", []).append(float(row[HITS[role]] or 0))
    return {name: Result(values) for name, values in hits.items()}


def _planted(table: HeadTable) -> Iterator[tuple[str, str | None, Row]]:
    """Yield site, planted role and row of every head that was set by hand."""
    found = {(head.site, head.index): row for head, row in table}
    for site, heads in PLANTED.items():
        for number, role in enumerate(heads):
            yield site, None if role.startswith(NOTHING) else role, found[site, number]


def tree_of(pair: ToyPair) -> Tree:
    """Return a toy sentence as a tree; words without an arc depend on nothing."""
    heads, relations = [-1] * len(pair.source), ["dep"] * len(pair.source)
    for arc in pair.arcs:
        heads[arc.dependent], relations[arc.dependent] = arc.head, arc.relation
    return Tree(pair.source, tuple(heads), tuple(relations), pair.tags, " ".join(pair.source))


@torch.no_grad()
def find_roles(translator: Translator, pairs: Sequence[ToyPair], ranks: WordRanks) -> HeadTable:
    """Return the head table of a translator of the toy language, with all roles.

    Args:
        translator: of the toy language, in words.
        pairs: that it reads.
        ranks: of words.
    """
    profile, pointing = Profile(), Pointing()
    for start in range(0, len(pairs), BATCH):
        chosen = pairs[start : start + BATCH]
        batch = translator.text_batch(
            [" ".join(pair.source) for pair in chosen], [" ".join(pair.target) for pair in chosen]
        )
        profile.reading = pointing.reading = Reading(
            range(start, start + len(chosen)),
            {
                "encoder": Words.each((batch.source != PAD) & (batch.source != EOS)),
                "decoder": Words.each(batch.target_in != PAD),
            },
            gold_of(chosen, ranks),
        )
        with observe(translator.model, profile, pointing):
            translator.model(batch.source, batch.source_lengths, batch.target_in)
    table = HeadTable.of({**profile.drain(), **pointing.drain()})
    return with_roles(table, pointing.baselines())


def gold_of(pairs: Sequence[ToyPair], ranks: WordRanks) -> list[Gold]:
    """Return all that heads might point at; the decoder reads its start token as a word too."""
    said = {
        "encoder.self": [pair.source for pair in pairs],
        "decoder.self": [("<bos>", *pair.target) for pair in pairs],
    }
    # the only punctuation is the last word, which in the decoder only the word itself could see
    sources = said["encoder.self"]
    golds = [*toy_gold(pairs), *rare_gold(sources, ranks.rank), *punctuation_gold(sources)]
    for kind, sentences in said.items():
        for ask in (first_gold, neighbour_gold, duplicate_gold):
            golds += ask(sentences, kind)
    return golds


experiment = Experiment(Config(), Config(sentences=200, counted=3000), None, run, draw, CLAIMS)
