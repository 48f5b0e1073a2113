"""The coreference probe (section 5.6): which head looks from mentions to what they mean?

A mention is resolved if, of all that its head word attends to, most weight lies on a word of one of
its antecedents. All may be all tokens, all words, or the words of those mentions alone among which
rules choose as well: its antecedents and, before it, mentions of others. The reading, the words and
the counting are those of `headwise inspect`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from headwise.ops import Attended
from headwise.recording import Gold, Pointing, Reading, Words
from headwise.sites import Head, Site
from headwise.workflows.inspect import Annotation, Prepared, Sentence, Stream, Subject, read_through

__all__ = ["Among", "Probed", "Score", "among_mentions", "among_tokens", "probe"]

Among = Literal["tokens", "words", "candidates"]
CANDIDATES = "encoder.candidates"  # marks what may be chosen; recorders take it for no kind of site
Columns = Mapping[str, Mapping[str, Sequence[float | None]]]  # label, or an end -> site -> heads


class Score(NamedTuple):
    """Accuracy of the best head, and of a head that was chosen on other passages.

    Ends of 95 % intervals are of a bootstrap over passages; that of the best head does not know
    that it was chosen, the other one need not.
    """

    head: str  # the best on all passages
    best: float
    low: float
    high: float
    held_out: float  # of the head that is best on the first half, on the second
    held_out_low: float
    held_out_high: float


class Probed(NamedTuple):
    """Scores of a model on a set of passages, by label as in `coreference_gold`.

    Labels without a mention that could be asked for are left out.
    """

    tokens: dict[str, Score]  # where special tokens may be attended to, as in the paper
    words: dict[str, Score]  # where only words count, as `inspect` does
    candidates: dict[str, Score]  # where only words of gold mentions do
    rules: dict[str, dict[str, float]]  # what needs no model
    mentions: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the scores as JSON can hold them."""
        scores = {
            among: {label: score._asdict() for label, score in getattr(self, among).items()}
            for among in get_args(Among)
        }
        return {**scores, "rules": self.rules, "mentions": self.mentions}

    @staticmethod
    def is_whole(data: Mapping[str, Any]) -> bool:
        """Return whether all that is measured now was already when this was written."""
        return all(among in data for among in get_args(Among))

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Probed":
        """Rebuild the scores from JSON."""
        scores = {
            among: {label: Score(**score) for label, score in data[among].items()}
            for among in get_args(Among)
        }
        return Probed(**scores, rules=data["rules"], mentions=data["mentions"])


@dataclass
class AmongTokens:
    """`Pointing` where tokens that are no words can be the strongest too."""

    pointing: Pointing
    name: str = "among_tokens"
    reading: Reading | None = None
    _counted: Reading | None = None  # the reading whose words were counted last

    def __call__(self, site: Site, attended: Attended) -> None:
        if self.reading is not self._counted:
            self._counted = self.reading
            self.pointing.reading = None if self.reading is None else among_tokens(self.reading)
        self.pointing(site, attended)

    def state(self) -> dict[str, Tensor]:
        """Return all counts."""
        return self.pointing.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state()` gave."""
        self.pointing.load(state)


@dataclass
class AmongMentions:
    """`Pointing` where only words of mentions can be the strongest."""

    pointing: Pointing
    name: str = "among_mentions"
    reading: Reading | None = None
    _mask: Tensor | None = None  # of the reading that was seen last
    _masked: Reading | None = None

    def __call__(self, site: Site, attended: Attended) -> None:
        if self.reading is not None and self.reading is not self._masked:
            self._masked = self.reading
            self._mask = among_mentions(self.reading).to(attended.out.device)
            self.pointing.reading = replace(self.reading)  # rows of another call than others share
        assert self._mask is not None
        self.pointing(site, _weighing_only(attended, self._mask))

    def state(self) -> dict[str, Tensor]:
        """Return all counts."""
        return self.pointing.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state()` gave."""
        self.pointing.load(state)


def among_mentions(reading: Reading) -> Tensor:
    """Return (B, 1, T, T), True from a mention's head word to words of its candidates."""
    words = reading.words["encoder"]
    end = words.most  # stands for what is no word
    allowed_BWW = torch.zeros(len(words.on_host), end + 1, end + 1, dtype=torch.bool)
    for gold in reading.gold:
        if gold.kind == CANDIDATES:
            allowed_BWW[gold.right.unbind(dim=1)] = True
    of_BT = torch.where(words.on_host < 0, end, words.on_host)
    item_B11 = torch.arange(len(of_BT))[:, None, None]
    return allowed_BWW[item_B11, of_BT[:, :, None], of_BT[:, None]][:, None]


def _weighing_only(attended: Attended, mask_B1QK: Tensor) -> Attended:
    """Return the call with weight 0 where the mask is False; other weights stay as they are."""

    def weigh(scores: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        return attended.row_function(scores, *parameters) * mask[..., : scores.shape[-1]]

    return replace(attended, row_function=weigh, parameters=(mask_B1QK, *attended.parameters))


def among_tokens(reading: Reading) -> Reading:
    """Return the batch with a number for every position that is no word, and gold to match.

    Padding gets numbers too, and no weight, so that it is never the strongest.
    """
    counted = {stack: Words(_numbered(words.on_host)) for stack, words in reading.words.items()}
    gold = [
        Gold(one.label, one.kind, _moved(one.right, reading.words[stack], counted[stack]))
        for one in reading.gold
        if (stack := one.kind.partition(".")[0])
    ]
    return Reading(reading.sentences, counted, gold)


def _numbered(of_BT: Tensor) -> Tensor:
    """Return one number per word, and one for each position that is none."""
    begins_BT = of_BT < 0
    begins_BT[:, 1:] |= of_BT[:, 1:] != of_BT[:, :-1]
    begins_BT[:, 0] = True
    return begins_BT.long().cumsum(dim=1) - 1


def _moved(right_N3: Tensor, words: Words, counted: Words) -> Tensor:
    moved_N3 = right_N3.cpu().clone()
    item_N = moved_N3[:, 0]
    for column in (1, 2):
        position_N = words.first[item_N, moved_N3[:, column]]
        moved_N3[:, column] = counted.on_host[item_N, position_N]
    return moved_N3


@dataclass(frozen=True, eq=False)
class _Asking:
    """Questions to the heads about a batch; counts its mentions."""

    whole_words: bool  # ask only where every word of a passage is one token
    annotation: Annotation = field(default_factory=Annotation)
    mentions: Counter[str] = field(default_factory=Counter[str])

    def __call__(self, prepared: Prepared, sentences: Sequence[Sentence]) -> Sequence[Gold]:
        words = prepared.words["encoder"]
        asked = [
            sentence if not self.whole_words or _is_whole(row) else _silent(sentence)
            for sentence, row in zip(sentences, words.on_host.tolist(), strict=True)
        ]
        gold = self.annotation.coreference(prepared, asked)
        for one in gold:
            self.mentions[one.label] += len(one.right[:, :2].unique(dim=0))
        return [*gold, _candidates(asked, words)]


def _candidates(sentences: Sequence[Sentence], words: Words) -> Gold:
    """Return the words that each mention may choose among, as far as they were read."""
    rows: list[tuple[int, int, int]] = []
    for item, (sentence, read) in enumerate(zip(sentences, words.on_host.tolist(), strict=True)):
        assert sentence.passage is not None
        for mention in sentence.passage.mentions:
            chosen = {*mention.antecedents, *mention.distractors} & set(read)
            rows += [(item, mention.head, key) for key in sorted(chosen) if mention.head in read]
    return Gold("candidates", CANDIDATES, torch.tensor(rows, dtype=torch.long).view(-1, 3))


def _is_whole(row: Sequence[int]) -> bool:
    words = [number for number in row if number >= 0]
    return len(words) == len(set(words))


def _silent(sentence: Sentence) -> Sentence:
    assert sentence.passage is not None
    return replace(sentence, passage=replace(sentence.passage, mentions=()))


def probe(
    subject: Subject,
    sentences: Sequence[Sentence],
    *,
    whole_words: bool = False,
    batch_size: int = 32,
    seed: int = 0,
) -> Probed:
    """Ask all heads of an encoder for antecedents.

    Args:
        subject: the encoder and how it reads.
        sentences: passages with mentions; every other one is of the first half.
        whole_words: only those in which every word is one token, as in the paper's code; else the
            tokens of a word are put together.
        batch_size: passages read together.
        seed: of intervals.
    """
    asking = _Asking(whole_words)
    halves: list[dict[Among, Pointing]] = []
    for half in (0, 1):
        # passages are numbered anew in each half, so that each needs draws of its own
        pointings: dict[Among, Pointing] = {
            among: Pointing(seed=2 * seed + half) for among in get_args(Among)
        }
        passages = sentences[half::2]
        read_through(
            subject,
            Stream(passages, len(passages)),
            (
                AmongTokens(pointings["tokens"]),
                pointings["words"],
                AmongMentions(pointings["candidates"]),
            ),
            asking,
            batch_size=batch_size,
        )
        halves.append(pointings)
    rules = asking.annotation.rules.shares()
    for label, share in _merged([half["words"] for half in halves]).baselines().items():
        rules[label]["fixed_distance"] = share
    scores = {among: _scores([half[among] for half in halves]) for among in get_args(Among)}
    return Probed(**scores, rules=rules, mentions=dict(asking.mentions))


def _merged(halves: Sequence[Pointing]) -> Pointing:
    whole = Pointing()
    for half in halves:
        whole.merge(half)
    return whole


def _scores(halves: Sequence[Pointing]) -> dict[str, Score]:
    whole = _merged(halves).drain()
    first, second = (half.drain() for half in halves)
    labels = [label for label in whole if f"{label}_low" in whole]
    return {label: _score(label, whole, first, second) for label in labels}


def _score(label: str, whole: Columns, first: Columns, second: Columns) -> Score:
    best, chosen = _best(label, whole), _best(label, first)
    return Score(str(best), *_shares(label, whole, best), *_shares(label, second, chosen))


def _best(label: str, columns: Columns) -> Head:
    values = {
        Head(site, index): value
        for site, heads in columns.get(label, {}).items()
        for index, value in enumerate(heads)
        if value is not None
    }
    return max(values, key=lambda head: values[head]) if values else Head("encoder.0.self", 0)


def _shares(label: str, columns: Columns, head: Head) -> tuple[float, float, float]:
    """Return share, low and high end; the interval is 0 to 1 for too few passages."""
    ends = {"": 0.0, "_low": 0.0, "_high": 1.0}
    found = [
        _value(columns.get(f"{label}{end}", {}).get(head.site), head.index, missing)
        for end, missing in ends.items()
    ]
    return found[0], found[1], found[2]


def _value(heads: Sequence[float | None] | None, index: int, missing: float) -> float:
    value = None if heads is None else heads[index]
    return missing if value is None else value
