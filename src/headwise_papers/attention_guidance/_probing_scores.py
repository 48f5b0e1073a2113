"""The figures of attention_guidance/probing: what rules and the heads of encoders reach on each set."""

from collections.abc import Iterator

from headwise_papers.attention_guidance._probe import Probed
from headwise_papers.attention_guidance._subjects import RULE

__all__ = [
    "AMONG_MENTIONS",
    "AMONG_WORDS",
    "BEST",
    "KINDS",
    "OTHERS",
    "OTHERS_AMONG_MENTIONS",
    "SIEVE",
    "BySeed",
    "Figures",
    "Found",
    "of_encoders",
    "of_rules",
]

KINDS = ("nominal", "pronoun", "proper")
BEST, AMONG_WORDS, AMONG_MENTIONS = "best", "best among words", "best among mentions"
OTHERS = "chosen on other passages"  # among all tokens
OTHERS_AMONG_MENTIONS = f"{OTHERS}, among mentions"
SIEVE = "sieve"  # the one rule that encoders are compared with

Figures = dict[str, list[float]]
BySeed = dict[str, dict[int, float]]  # a figure's values
Found = dict[str, dict[int, dict[str, Probed]]]  # by arm, by seed, by set


def _labels(name: str) -> dict[str, str]:
    """How a set and its kinds of mentions are called here, and by `Probed`."""
    kinds = KINDS if name == "litbank" else ()
    return {name: "coreference"} | {f"{name}, {kind}": f"coreference_{kind}" for kind in kinds}


def of_rules(found: Found) -> Figures:
    """What rules reach; of a set that models cut differently, on what the first of them saw."""
    figures: Figures = {}
    first = next(iter(found.values()))
    for name, probed in next(iter(first.values())).items():
        for label, theirs in _labels(name).items():
            if theirs in probed.rules:
                figures[f"{RULE}: {label}: {SIEVE}"] = [probed.rules[theirs][SIEVE]]
        for rule, share in probed.rules.get("coreference", {}).items():
            figures[f"{RULE}: {name}: {rule.replace('_', ' ')}"] = [share]
        figures[f"{name}: mentions"] = [float(probed.mentions.get("coreference", 0))]
    return figures


def of_encoders(found: Found) -> BySeed:
    """What the heads of encoders reach, by arm and metric."""
    scores: BySeed = {}
    for arm, seeds in found.items():
        for seed, by_set in seeds.items():
            for probed in by_set.items():
                for metric, value in _of_set(*probed):
                    scores.setdefault(f"{arm}: {metric}", {})[seed] = value
    return scores


def _of_set(name: str, probed: Probed) -> Iterator[tuple[str, float]]:
    for label, theirs in _labels(name).items():
        if theirs in probed.tokens:
            yield f"{label}: {BEST}", probed.tokens[theirs].best
            yield f"{label}: {AMONG_MENTIONS}", probed.candidates[theirs].best
    if "coreference" not in probed.tokens:  # no passage was of whole words
        return
    yield f"{name}: {AMONG_WORDS}", probed.words["coreference"].best
    for chosen, by_label in ((OTHERS, probed.tokens), (OTHERS_AMONG_MENTIONS, probed.candidates)):
        score = by_label["coreference"]
        yield f"{name}: {chosen}", score.held_out
        yield f"{name}: {chosen}, low end", score.held_out_low
        yield f"{name}: {chosen}, high end", score.held_out_high
