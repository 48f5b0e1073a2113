"""Antecedent selection by rules: how often they find the antecedent of a mention."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from headwise.text.mentions import PRONOUNS, Mention, Passage, Span, head_word
from headwise.text.words import is_punctuation, words_in

_DETERMINERS = frozenset(words_in("the a an his her its their my your our"))
# person, number and gender of words; "" is any
_KNOWN = {
    word: tuple(features.split(","))
    for features, words in {
        "1,one,": "i me my mine myself",
        "1,many,": "we us our ours ourselves",
        "2,,": "you your yours thou thee thy thine ye",
        "2,one,": "yourself",
        "2,many,": "yourselves",
        "3,one,male": "he him his himself mr mr. sir lord king prince man boy gentleman fellow "
        "father brother son husband uncle nephew grandfather papa",
        "3,one,female": "she her hers herself mrs mrs. miss ms. lady madam queen princess woman "
        "girl mother sister daughter wife aunt niece grandmother mamma",
        "3,one,thing": "it its itself which",
        "3,one,": "this that one oneself",
        "3,,": "who whom whose",
        "3,many,": "they them their theirs themselves these those people children",
        "3,many,male": "men boys gentlemen",
        "3,many,female": "women girls ladies",
    }.items()
    for word in words.split()
}


def antecedent_baselines(passages: Sequence[Passage]) -> dict[str, dict[str, float]]:
    """Return the accuracy of rules by kind of mention: {label: {rule: accuracy}}.

    Labels are "coreference" for all mentions, and "coreference_pronoun", "…_proper", "…_nominal".

    - random: any word before the mention; the expected accuracy.
    - previous: the word before; first: the first word of the passage.
    - nearest_noun: the nearest word before that seems a noun: capitalised inside a sentence, or
      after a determiner.
    - nearest_mention: the nearest word before of any other mention (needs gold mentions).
    - same_word: the nearest mention before with the same head word, else the nearest mention.
    - sieve: see `sieve` (needs gold mentions).
    """
    hits: dict[str, dict[str, list[float]]] = {}
    for passage in passages:
        for mention in passage.mentions:
            reached = _reached(passage, mention)
            for label in ("coreference", f"coreference_{mention.kind}"):
                by_rule = hits.setdefault(label, {})
                for rule, value in reached.items():
                    by_rule.setdefault(rule, []).append(value)
    return {
        label: {rule: sum(values) / len(values) for rule, values in by_rule.items()}
        for label, by_rule in hits.items()
    }


def sieve(passage: Passage, mention: Mention) -> int:
    """Return the head word of the earlier mention that four sieves choose; -1 if there is none.

    The rule of Clark et al. (2019), section 4.3: the nearest mention with the same words, else with
    the same head word, else with the same number, gender and person, else any. Passages have
    neither these features nor all spans, so here

    - pronouns, titles and some words for people have their features in a list; the word nearest to
      the head word counts. Other nouns are third person, plural if they have an "and" or end in a
      single "s" and are not capitalised, and of unknown gender, which agrees with any;
    - adjacent words of antecedents and distractors count as one mention, unless a mention with a
      known span covers them.

    Args:
        passage: with the mention.
        mention: to resolve.
    """
    words = [word.lower() for word in passage.words]
    own, head = _features(passage.words, mention.span), words[mention.head]
    sieves: Sequence[Callable[[Span], bool]] = (
        lambda span: words[slice(*span)] == words[slice(*mention.span)],
        lambda span: words[head_word(words, span)] == head,
        lambda span: _agree(own, _features(passage.words, span)),
        lambda span: True,
    )
    heads = {head_word(words, span): span for span in _earlier(passage, mention)}
    for holds in sieves:
        for place, span in sorted(heads.items(), reverse=True):
            if holds(span):
                return place
    return -1


def _earlier(passage: Passage, mention: Mention) -> list[Span]:
    """Return spans of mentions that end before this one; those with known spans come last."""
    start = mention.span[0]
    known = [other.span for other in passage.mentions if other.span[1] <= start]
    covered = {word for span in known for word in range(*span)}
    rest = sorted({*mention.antecedents, *mention.distractors} - covered)
    spans: list[Span] = []
    for _, run in groupby(enumerate(rest), key=lambda pair: pair[1] - pair[0]):
        places = [place for _, place in run]
        spans.append((places[0], places[-1] + 1))
    return [span for span in spans if span[1] <= start] + known


def _features(words: Sequence[str], span: Span) -> tuple[str, ...]:
    """Return person, number and gender of a mention; "" if unknown."""
    head, is_alone = head_word(words, span), span[1] - span[0] == 1
    for place in range(head, span[0] - 1, -1):
        word = words[place].lower()
        # "his" says nothing about "his ship"
        if word in _KNOWN and (is_alone or word not in PRONOUNS):
            return _KNOWN[word]
    word = words[head]
    several = word.islower() and word.endswith("s") and not word.endswith("ss")
    joined = any(word.lower() == "and" for word in words[slice(*span)])
    return ("3", "many" if several or joined else "one", "")


def _agree(one: Sequence[str], other: Sequence[str]) -> bool:
    return all(a == b or not a or not b for a, b in zip(one, other, strict=True))


def _reached(passage: Passage, mention: Mention) -> Mapping[str, float]:
    words, start = passage.words, mention.span[0]
    right = set(mention.antecedents)
    others = right | set(mention.distractors)

    def nearest(holds: Callable[[int], bool]) -> int:
        """Return the nearest word before the mention for which `holds`; -1 if there is none."""
        return next((place for place in range(start - 1, -1, -1) if holds(place)), -1)

    mentioned = nearest(lambda place: place in others)
    head = words[mention.head].lower()
    same = nearest(lambda place: place in others and words[place].lower() == head)
    choices = {
        "previous": start - 1,
        "first": 0,
        "nearest_noun": nearest(lambda place: _noun_like(words, place)),
        "nearest_mention": mentioned,
        "same_word": same if same >= 0 else mentioned,
        "sieve": sieve(passage, mention),
    }
    earlier = sum(word < start for word in right)
    chance = {"random": earlier / start if start else 0.0}
    return chance | {rule: float(place in right) for rule, place in choices.items()}


def _noun_like(words: Sequence[str], place: int) -> bool:
    word, before = words[place], words[place - 1] if place else "."
    if before.lower() in _DETERMINERS:
        return not is_punctuation(word) and word.lower() not in PRONOUNS
    begins = before in (".", "!", "?", '"', "''", "``", "“")
    return word[:1].isupper() and not begins and word != "I"
