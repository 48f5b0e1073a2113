"""A generated pair of languages with known structure: what a head should look at is on record.

The source reads like English. Its past tense marks neither number nor gender, and nouns have no
gender. Sentences of 4 to 16 words, of two kinds:

    one clause      the small dog often quietly chased some cats .
    two clauses     the small dog saw some cats and it often chased the birds .

In a two-clause sentence the second clause has one or two pronouns. The antecedent is a noun of the
first clause and the only noun of its number in the whole sentence, so number alone identifies it.

The target is made up. It has two genders, fixed for each noun and invisible in the source.

- Order: adverbs first, then subject, object and, last, the verb; adjectives follow their noun, the
  nearest first.
- Nouns end in -o or -a by gender, plurals add -i; adjectives end in -e, adverbs in -u.
- The verb ends in -to, -ta, -toi or -tai by gender and number of its *subject*: to translate
  a verb one must find its subject, one to three words before it.
- Pronouns are lo, la, loi, lai by gender and number of the *antecedent*.
- `the` is ke; `a` and `some` have no counterpart.

A pair of `ToyLanguage()`; under each target word stands the source position it is aligned to:

    the small dog saw some cats and it often chased the birds .
    0   1     2   3   4    5    6   7  8     9      10  11    12

    ke kagiga babare korufoi kufupta na totodu la ke ropokai nokepta .
    0  2      1      5       3       6  8      7  10 11      9       12

    arcs            nsubj(3, 2) obj(3, 5) amod(2, 1) nsubj(9, 7) obj(9, 11) advmod(9, 8)
    coreference     (7, 2): `it` is the dog, the only noun in the singular

Every target word is aligned to exactly one source word, an agreeing verb to the source verb. The
target is a function of the source, so a perfect translator makes no mistake.

Within a word class, the word of rank r = 1, 2, ... is drawn with probability proportional to
(r + zipf_shift) ** -zipf_exponent (Zipf, Mandelbrot); a noun is singular or plural equally often.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from typing import Literal, NamedTuple, TypeVar

__all__ = ["Arc", "ToyLanguage", "ToyPair", "frequencies"]

Relation = Literal["nsubj", "obj", "amod", "advmod"]
Drawn = TypeVar("Drawn")

# Each list runs from the commonest word to the rarest. Nouns take a plural in -s, and no noun or
# adjective starts with a vowel, so that "a" is always right.
_WORDS = {
    "nouns": """dog cat horse bird cow pig hen duck goat lamb rabbit bear lion tiger frog snake crow
        hawk monkey donkey camel zebra turtle spider bee beetle crab whale shark seal swan robin
        parrot pigeon squirrel hedgehog badger beaver weasel raccoon leopard cheetah gorilla panda
        koala puffin penguin pelican flamingo gecko jaguar hamster wombat tapir marmot lemur
        pangolin quokka capybara narwhal""",
    "transitive_verbs": """saw found heard followed chased watched met helped liked feared passed
        called caught touched bit pushed kicked carried missed trusted guarded teased startled
        admired dodged nudged ambushed pestered outran bewildered""",
    "intransitive_verbs": """slept ran waited jumped sang fell rested danced yawned shivered
        trembled hibernated""",
    "adjectives": """small big young black white brown red happy quiet tired hungry brave clever
        lazy gentle proud wild grey thin shy strange sleepy noisy wet dusty lonely playful nervous
        clumsy grumpy fluffy greedy restless stubborn speckled cheerful majestic nocturnal ticklish
        melancholic""",
    "frequency_adverbs": "often never always sometimes soon once rarely seldom",
    "manner_adverbs": """quickly slowly quietly suddenly happily carefully gladly calmly secretly
        bravely loudly gently politely eagerly lazily nervously patiently clumsily reluctantly
        majestically""",
}
_CONJUNCTIONS = {"and": "na", "but": "sed", "while": "dum"}
_INDEFINITE = ("a", "some")  # by number
_PRONOUNS = (("it", "they"), ("it", "them"))  # subject and object, by number
_ENDINGS = ("o", "oi", "a", "ai")  # by agreement = 2 * gender + number

# How often each choice is drawn. First the clauses of a sentence, written as their subject and
# object, N for a noun and P for a pronoun.
_FRAMES = {
    ("N", ""): 0.10, ("NN", ""): 0.35,
    ("N", "P"): 0.05, ("N", "PN"): 0.10, ("N", "NP"): 0.10,
    ("NN", "P"): 0.05, ("NN", "PN"): 0.10, ("NN", "NP"): 0.10, ("NN", "PP"): 0.05,
}  # fmt: skip
_CONJUNCTION = {"and": 0.5, "but": 0.3, "while": 0.2}
_DEFINITE = {True: 0.6, False: 0.4}
# In two-clause sentences both are drawn from the second table: 16 words at most.
_ADJECTIVES = ({0: 0.5, 1: 0.35, 2: 0.15}, {0: 0.6, 1: 0.4})
_ADVERB_CLASSES = {"f": "frequency_adverbs", "m": "manner_adverbs"}
# Adverbs before the verb, and those at the end of the clause, by letter.
_ADVERBS = (
    {" ": 0.3, "f ": 0.2, "m ": 0.15, "fm ": 0.15, " m": 0.1, "f m": 0.1},
    {" ": 0.45, "f ": 0.25, "m ": 0.15, " m": 0.15},
)


@dataclass(frozen=True, slots=True)
class Arc:
    """One dependency between two words of the source sentence, by position."""

    head: int
    dependent: int
    relation: Relation


@dataclass(frozen=True, slots=True)
class ToyPair:
    """A sentence in both languages and all that is known about it."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    alignment: frozenset[tuple[int, int]]  # (target position, source position)
    arcs: tuple[Arc, ...]
    coreference: tuple[tuple[int, int], ...]  # (pronoun, antecedent), source positions
    tags: tuple[str, ...]  # of the source: DET ADJ NOUN PRON ADV VERB CONJ PUNCT


@dataclass(frozen=True)
class ToyLanguage:
    """The two languages: how many words they have and how often those are used.

    A class larger than its list of English words is filled up, at the rare end, with made-up ones.

    >>> pair = ToyLanguage().pairs(5, seed=0)[4]
    >>> print(*pair.source)
    a cow often fell and it suddenly saw the cats .
    >>> print(*pair.target)
    totodu dutida fobafta na fiketu la ke korufoi kufupta .
    >>> pair.coreference
    ((5, 1),)
    >>> pair.arcs[0]
    Arc(head=3, dependent=1, relation='nsubj')
    """

    nouns: int = 60  # each with a singular and a plural
    transitive_verbs: int = 30
    intransitive_verbs: int = 12
    adjectives: int = 40
    frequency_adverbs: int = 8  # "often": between subject and verb
    manner_adverbs: int = 20  # "quickly": before the verb or at the end of the clause
    zipf_exponent: float = 1.5  # 0 makes all words of a class equally frequent
    zipf_shift: float = 1.0  # flattens the head of the distribution and leaves its tail
    seed: int = 0  # of the target words and genders; source sentences do not depend on it

    def __post_init__(self) -> None:
        for name in _WORDS:
            if not 1 <= getattr(self, name) <= 2000:
                raise ValueError(f"{name} must be 1 to 2000 words, got {getattr(self, name)}.")
        if self.zipf_exponent < 0 or self.zipf_shift < 0:
            raise ValueError(
                "zipf_exponent and zipf_shift must not be negative, "
                f"got {self.zipf_exponent} and {self.zipf_shift}."
            )

    def pairs(self, count: int, *, seed: int) -> list[ToyPair]:
        """Generate sentence pairs; with the same seed, fewer pairs are the beginning of more."""
        if count < 1:
            raise ValueError(f"The number of pairs must be 1 or more, got {count}.")
        draws = _make_draws(self._shares, seed=seed)
        return [_Draft(draws).pair() for _ in range(count)]

    @cached_property
    def source_words(self) -> tuple[str, ...]:
        """All words of the source language, sorted."""
        return tuple(sorted(self._frequency))

    @cached_property
    def target_words(self) -> tuple[str, ...]:
        """All words of the target language, sorted."""
        functional = {"ke", ".", *_CONJUNCTIONS.values(), *(f"l{ending}" for ending in _ENDINGS)}
        lexemes = (lexeme for shares in self._shares.values() for lexeme in shares)
        return tuple(sorted(functional.union(*(lexeme.target for lexeme in lexemes))))

    def frequency(self, word: str) -> float:
        """Return the probability of a source word: its expected share of all source tokens."""
        if word not in self._frequency:
            raise ValueError(f"{word!r} is no word of the source language; see source_words.")
        return self._frequency[word]

    @cached_property
    def _shares(self) -> "dict[str, dict[_Lexeme, float]]":
        """The words of each class, with their probability within the class."""
        return {
            name: _zipf(lexemes, exponent=self.zipf_exponent, shift=self.zipf_shift)
            for name, lexemes in _make_lexicon(self).items()
        }

    @cached_property
    def _frequency(self) -> dict[str, float]:
        counts = _expected_counts(self._shares)
        length = sum(counts.values())
        return {word: count / length for word, count in counts.items()}


def frequencies(
    pairs: Iterable[ToyPair], *, side: Literal["source", "target"] = "source"
) -> dict[str, int]:
    """Count each word on one side of the pairs, most frequent first."""
    return dict(Counter(word for pair in pairs for word in getattr(pair, side)).most_common())


class _Lexeme(NamedTuple):
    source: tuple[str, ...]  # nouns: by number
    target: tuple[str, ...]  # nouns: by number; verbs: by the agreement of the subject
    gender: int  # of a noun


def _stems(seed: int) -> Iterator[str]:
    """Yield pronounceable stems such as "bukev", none twice, in an order set by the seed.

    Some are English words of the lists above, "never" for one.
    """
    consonants, vowels = "bdfgklmnprtv", "aeiou"
    stems = ["".join(s) for s in product(consonants, vowels, consonants, vowels, consonants)]
    random.Random(seed).shuffle(stems)
    return iter(stems)


def _make_lexicon(language: ToyLanguage) -> dict[str, list[_Lexeme]]:
    stems, toss = _stems(language.seed), random.Random(language.seed)
    english = {word for text in _WORDS.values() for word in text.split()}
    made_up = (stem for stem in _stems(-1) if stem not in english)
    lexicon: dict[str, list[_Lexeme]] = {}
    for name, text in _WORDS.items():
        count, plain = getattr(language, name), text.split()
        words = [*plain[:count], *(next(made_up) for _ in range(count - len(plain)))]
        # Of two neighbours in rank, one has each gender: both genders are about equally frequent.
        genders = [gender for _ in range(count) for gender in toss.sample((0, 1), 2)]
        lexicon[name] = [
            _make_lexeme(name, word, stem=next(stems), gender=gender)
            for word, gender in zip(words, genders, strict=False)
        ]
    return lexicon


def _make_lexeme(name: str, word: str, *, stem: str, gender: int) -> _Lexeme:
    if name == "nouns":
        endings = _ENDINGS[2 * gender : 2 * gender + 2]
        return _Lexeme((word, f"{word}s"), tuple(stem + ending for ending in endings), gender)
    if name in ("transitive_verbs", "intransitive_verbs"):
        return _Lexeme((word,), tuple(f"{stem}t{ending}" for ending in _ENDINGS), gender)
    return _Lexeme((word,), (stem + ("e" if name == "adjectives" else "u"),), gender)


def _zipf(lexemes: list[_Lexeme], *, exponent: float, shift: float) -> dict[_Lexeme, float]:
    weights = [(rank + shift) ** -exponent for rank in range(1, len(lexemes) + 1)]
    total = sum(weights)
    return {lexeme: weight / total for lexeme, weight in zip(lexemes, weights, strict=True)}


def _expected_counts(shares: dict[str, dict[_Lexeme, float]]) -> dict[str, float]:
    """Return how many of each source word a sentence has on average."""
    slots = _expected_slots()
    counts = {
        form: slots[name] * share / len(lexeme.source)
        for name, lexemes in shares.items()
        for lexeme, share in lexemes.items()
        for form in lexeme.source
    }
    counts |= {word: slots["conjunctions"] * share for word, share in _CONJUNCTION.items()}
    counts |= dict.fromkeys(_INDEFINITE, slots["nouns"] * _DEFINITE[False] / 2)
    subjects, objects = slots["subject pronouns"], slots["object pronouns"]
    counts |= {"it": (subjects + objects) / 2, "they": subjects / 2, "them": objects / 2}
    return counts | {"the": slots["nouns"] * _DEFINITE[True], ".": 1.0}


def _expected_slots() -> dict[str, float]:
    """Return how many words of each class a sentence has on average."""
    slots: defaultdict[str, float] = defaultdict(float)
    for (first, second), share in _FRAMES.items():
        short = bool(second)
        nouns = share * (first + second).count("N")
        slots["nouns"] += nouns
        slots["adjectives"] += nouns * sum(n * p for n, p in _ADJECTIVES[short].items())
        slots["conjunctions"] += share * short
        for clause in filter(None, (first, second)):
            slots["transitive_verbs" if len(clause) == 2 else "intransitive_verbs"] += share
            slots["subject pronouns"] += share * (clause[0] == "P")
            slots["object pronouns"] += share * (clause[1:] == "P")
            for letter, name in _ADVERB_CLASSES.items():
                slots[name] += share * sum(
                    pattern.count(letter) * p for pattern, p in _ADVERBS[short].items()
                )
    return slots


class _Draws(NamedTuple):
    """Endless streams of random choices."""

    words: dict[str, Iterator[_Lexeme]]  # by word class
    frames: Iterator[tuple[str, str]]
    numbers: Iterator[int]  # 0 singular, 1 plural
    conjunctions: Iterator[str]
    definite: Iterator[bool]
    adjectives: tuple[Iterator[int], ...]
    adverbs: tuple[Iterator[str], ...]


def _stream(chance: random.Random, shares: Mapping[Drawn, float]) -> Iterator[Drawn]:
    choices, cumulative = list(shares), list(accumulate(shares.values()))
    while True:  # many at once: a single choice costs ten times as much
        yield from chance.choices(choices, cum_weights=cumulative, k=256)


def _make_draws(shares: dict[str, dict[_Lexeme, float]], *, seed: int) -> _Draws:
    chance = random.Random(seed)
    return _Draws(
        words={name: _stream(chance, lexemes) for name, lexemes in shares.items()},
        frames=_stream(chance, _FRAMES),
        numbers=_stream(chance, {0: 0.5, 1: 0.5}),
        conjunctions=_stream(chance, _CONJUNCTION),
        definite=_stream(chance, _DEFINITE),
        adjectives=tuple(_stream(chance, counts) for counts in _ADJECTIVES),
        adverbs=tuple(_stream(chance, patterns) for patterns in _ADVERBS),
    )


class _Phrase(NamedTuple):
    """A subject or object that has been said."""

    position: int  # of the noun or pronoun in the source
    agreement: int  # 2 * gender + number
    target: list[tuple[str, int]]  # target words, each with its source position


class _Draft:
    """A sentence while it is being said, word after word in source order."""

    def __init__(self, draws: _Draws) -> None:
        self.draws = draws
        self.short = False
        self.source: list[str] = []
        self.tags: list[str] = []
        self.arcs: list[Arc] = []
        self.coreference: list[tuple[int, int]] = []
        self.target: list[tuple[str, int]] = []  # each word with its source position

    def pair(self) -> ToyPair:
        first, second = next(self.draws.frames)
        self.short = bool(second)
        if second:
            self.two_clauses(first, second)
        else:
            self.clause([next(self.draws.numbers) for _ in first])
        self.target.append((".", self.say(".", "PUNCT")))
        return ToyPair(
            source=tuple(self.source),
            target=tuple(word for word, _ in self.target),
            alignment=frozenset(enumerate(position for _, position in self.target)),
            arcs=tuple(self.arcs),
            coreference=tuple(self.coreference),
            tags=tuple(self.tags),
        )

    def two_clauses(self, first: str, second: str) -> None:
        number = next(self.draws.numbers)
        antecedent = next(self.draws.numbers) if len(first) == 2 else 0
        # The antecedent is the only noun of its number, so that the pronoun can mean nothing else.
        numbers: list[int | _Phrase] = [1 - number] * len(first)
        numbers[antecedent] = number
        phrases = self.clause(numbers)
        conjunction = next(self.draws.conjunctions)
        self.target.append((_CONJUNCTIONS[conjunction], self.say(conjunction, "CONJ")))
        antecedents = iter(
            [phrases[antecedent], phrases[1 - antecedent]] if len(first) == 2 else phrases
        )
        self.clause([next(antecedents) if kind == "P" else 1 - number for kind in second])

    def clause(self, arguments: Sequence[int | _Phrase]) -> list[_Phrase]:
        """Append a clause; an argument is a new noun's number or the antecedent of a pronoun."""
        subject = self.argument(arguments[0], _PRONOUNS[0])
        before, after = next(self.draws.adverbs[self.short]).split(" ")
        adverbs = [self.adverb(letter) for letter in before]
        transitive = len(arguments) == 2
        name = "transitive_verbs" if transitive else "intransitive_verbs"
        verb = next(self.draws.words[name])
        place = self.say(verb.source[0], "VERB")
        self.arcs.append(Arc(place, subject.position, "nsubj"))
        phrases = [subject]
        if transitive:
            phrases.append(self.argument(arguments[1], _PRONOUNS[1]))
            self.arcs.append(Arc(place, phrases[1].position, "obj"))
        adverbs += [self.adverb(letter) for letter in after]
        self.arcs += [Arc(place, position, "advmod") for _, position in adverbs]
        self.target += adverbs
        for phrase in phrases:
            self.target += phrase.target
        self.target.append((verb.target[subject.agreement], place))
        return phrases

    def argument(self, argument: int | _Phrase, pronouns: tuple[str, str]) -> _Phrase:
        if isinstance(argument, int):
            return self.noun_phrase(argument)
        place = self.say(pronouns[argument.agreement % 2], "PRON")
        self.coreference.append((place, argument.position))
        return _Phrase(place, argument.agreement, [("l" + _ENDINGS[argument.agreement], place)])

    def noun_phrase(self, number: int) -> _Phrase:
        definite = next(self.draws.definite)
        determiner = self.say("the" if definite else _INDEFINITE[number], "DET")
        adjectives: list[tuple[str, int]] = []
        for _ in range(next(self.draws.adjectives[self.short])):
            adjective = next(self.draws.words["adjectives"])
            adjectives.append((adjective.target[0], self.say(adjective.source[0], "ADJ")))
        noun = next(self.draws.words["nouns"])
        place = self.say(noun.source[number], "NOUN")
        self.arcs += [Arc(place, position, "amod") for _, position in adjectives]
        target = [("ke", determiner)] if definite else []
        target += [(noun.target[number], place), *reversed(adjectives)]
        return _Phrase(place, 2 * noun.gender + number, target)

    def adverb(self, letter: str) -> tuple[str, int]:
        adverb = next(self.draws.words[_ADVERB_CLASSES[letter]])
        return adverb.target[0], self.say(adverb.source[0], "ADV")

    def say(self, word: str, tag: str) -> int:
        """Append a source word; its position."""
        self.source.append(word)
        self.tags.append(tag)
        return len(self.source) - 1
