"""Does a model whose heads were set by hand turn out to have the roles that were planted?

The encoder of a Transformer has eight heads whose queries and keys are set by hand, see
`_planting.PLANTED`: one looks at the previous word, one at the next, one at the first, one from a
subject to its verb, one at the rarest word of the sentence, one from a pronoun to its antecedent,
one at an earlier occurrence of the same word, and one at nothing in particular. The decoder, which
looks back only, has some of these, one that looks two words back, and four without a role. The toy
language knows what is right, and the table of heads must say what was planted, no more and no less:

    headwise reproduce specialized_heads/planted           # 5 seconds on a CPU
    headwise reproduce specialized_heads/planted --smoke

The paper has no such test: it looks at heads whose truth nobody knows. So a figure of 1 is what
the definitions demand, and anything else a mistake of ours. A head may do a second thing for free:
looking at the rarest word finds many antecedents, and the first word is often "the", which comes
again. What is compared is therefore the strongest role of each head; the others stand in the table
that the run keeps. "Hits" is how often each planted head points where it was told to.

It is asked twice: with the annotation of the toy language, and as a user would, by `inspect` with
the sentences as a treebank. That asks encoders about neither repeated words nor, without a set of
mentions, antecedents, so that the two heads for them must come out without a role. The decoder then
reads the model's own translations, which are nonsense and full of repetitions.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import torch

from headwise.analysis import with_roles
from headwise.analysis.gold import (
    duplicate_gold,
    first_gold,
    neighbour_gold,
    punctuation_gold,
    rare_gold,
)
from headwise.recording import HeadTable, Pointing, Profile, Reading, Run, Words
from headwise.recording.heads import Row
from headwise.recording.reading import Gold
from headwise.sites import observe
from headwise.text.frequencies import WordRanks
from headwise.text.treebank import Tree
from headwise.workflows.inspect import inspect
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.toy import ToyLanguage, ToyPair
from headwise_papers.data.vocabulary import EOS, PAD
from headwise_papers.measures.toy_gold import toy_gold
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads._pictures import draw_roles
from headwise_papers.specialized_heads._planting import NOTHING, PLANTED, planted_translator

BATCH = 100  # sentences
# what `inspect` does not ask
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
    """How many sentences are looked at; words are many, so that there are rare ones."""

    sentences: int = 1000
    counted: int = 4000  # sentences from which it is known how common words are
    nouns: int = 400
    adjectives: int = 120
    transitive_verbs: int = 80
    zipf_exponent: float = 0.7
    seed: int = 0

    def language(self) -> ToyLanguage:
        """The toy language with these words."""
        return ToyLanguage(
            nouns=self.nouns,
            adjectives=self.adjectives,
            transitive_verbs=self.transitive_verbs,
            zipf_exponent=self.zipf_exponent,
        )


FOUND = "roles found that were planted"
BY_INSPECT = "roles found by inspect that were planted"
EXPECTED = (
    Expected(FOUND, 1.0, "by construction"),
    Expected(BY_INSPECT, 1.0, "by construction"),
    *(Expected(f"{role}: hits", 1.0, "by construction") for role in HITS),
)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Plant, look, and compare; a value a head."""
    known = config.language().pairs(max(config.counted, config.sentences), seed=config.seed)
    ranks = WordRanks.count(pair.source for pair in known)
    translator, pairs = planted_translator(known, ranks.rank), known[: config.sentences]
    table = find_roles(translator, pairs, ranks)
    run.save_heads(table)
    draw_roles(table, run, "roles")
    seen = inspect(
        translator.model,
        (translator.source, translator.target),
        [tree_of(pair) for pair in pairs],
        ranks=ranks,
        sample=0,
        ablation_lines=0,
        batch_size=BATCH,
    )
    return {
        FOUND: _agreeing(table),
        BY_INSPECT: _agreeing(seen, unasked=UNASKED),
        **_hits(table),
    }


def _agreeing(table: HeadTable, *, unasked: Set[tuple[str, str]] = frozenset()) -> list[float]:
    """Of each planted head, 1 if its role is the one it was given, or none where none was asked."""
    return [
        float(row["role"] == (None if (site, role) in unasked else role))
        for site, role, row in _planted(table)
    ]


def _hits(table: HeadTable) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {}
    for _, role, row in _planted(table):
        if role in HITS:
            figures.setdefault(f"{role}: hits", []).append(float(row[HITS[role]] or 0))
    return figures


def _planted(table: HeadTable) -> Iterator[tuple[str, str | None, Row]]:
    """Site, planted role and row of every head that was set by hand."""
    found = {(head.site, head.index): row for head, row in table}
    for site, heads in PLANTED.items():
        for number, role in enumerate(heads):
            yield site, None if role.startswith(NOTHING) else role, found[site, number]


def tree_of(pair: ToyPair) -> Tree:
    """A toy sentence as a treebank has it; words without an arc depend on nothing."""
    heads, relations = [-1] * len(pair.source), ["dep"] * len(pair.source)
    for arc in pair.arcs:
        heads[arc.dependent], relations[arc.dependent] = arc.head, arc.relation
    return Tree(pair.source, tuple(heads), tuple(relations), pair.tags, " ".join(pair.source))


@torch.no_grad()
def find_roles(translator: Translator, pairs: Sequence[ToyPair], ranks: WordRanks) -> HeadTable:
    """The table of heads of a translator of the toy language, with everything there is to ask.

    Args:
        translator: of the toy language, in words.
        pairs: to look at.
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
    """All that heads might point at; the decoder reads its beginning mark as a word too."""
    said = {
        "encoder.self": [pair.source for pair in pairs],
        "decoder.self": [("<bos>", *pair.target) for pair in pairs],
    }
    # the only mark is the last word, so that in the decoder it could be asked for by itself alone
    sources = said["encoder.self"]
    golds = [*toy_gold(pairs), *rare_gold(sources, ranks.rank), *punctuation_gold(sources)]
    for kind, sentences in said.items():
        for ask in (first_gold, neighbour_gold, duplicate_gold):
            golds += ask(sentences, kind)
    return golds


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(sentences=200, counted=3000),
    reproduce=reproduce,
    expected=EXPECTED,
)
