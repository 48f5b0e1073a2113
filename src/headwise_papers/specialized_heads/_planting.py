"""A Transformer whose heads attend as planted: weights set by hand, for the toy language.

A head's score is a sum of terms, each a product of something read off the query and something read
off the key:

    near(-1)        sum over w of cos(w (key - query + 1))     largest at the word before
    start()         sum over w of cos(w key)                   largest at the first word
    earlier()       -sin(w (key - query))                      the larger, the further before
    asks(A, B)      1 if the query is an A and the key a B
    rarity()        how rare the key is
    same_word()     the product of the two words' codes, largest if they are the same word
    chance()        a random product of the two words' codes

Words are given features, as vectors that lie where sinusoidal positions stand still. Post-norm, so
that the first layer reads words and positions as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise_papers.data.toy import ToyPair
from headwise_papers.data.vocabulary import SPECIALS, Vocabulary
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.transformer import DecoderLayer, EncoderLayer
from headwise_papers.recipes.translator import Translator, WordCodec

WIDTH, LONGEST = 512, 32
HEAD_WIDTH = 64
RATES = range(0, 97, 6)  # which of the 256 rates of the sinusoids tell places apart: 1 to 0.03
SLOW = 60  # one rate alone, 0.1: its sine rises over a whole sentence
SINE, COSINE = 0, WIDTH // 2  # where sines and cosines begin
# features of words; sines from 192 on hardly leave 0 within a sentence
KINDS = {"singular": 192, "plural": 193, "verb": 194, "it": 195, "they": 196}
CODE = slice(200, 224)
RARITY = WIDTH // 2 - 1  # the slowest of all
MOST_RARE = 64.0  # the feature of the rarest word
NOTHING = "nothing"  # how the names of heads begin that are to have no role
PRONOUNS = {"it": "it", "they": "they", "them": "they"}


@dataclass(frozen=True, eq=False)
class Term:
    """Term of a score: (query x + constant) . (key y)."""

    query: Tensor  # (n, WIDTH)
    key: Tensor  # (n, WIDTH)
    constant: Tensor  # (n,)

    def times(self, weight: float | int) -> "Term":
        """Return it with another weight."""
        return Term(weight * self.query, self.key, weight * self.constant)


Heads = Mapping[str, Sequence[Term]]  # the role each is to be found in, and its terms


def near(offset: int) -> Term:
    """Score the word at a distance highest: cos(w (key - query - offset)), summed over rates."""
    query, key = _reading(2 * len(RATES)), _reading(2 * len(RATES))
    for row, rate in enumerate(RATES):
        angle = torch.tensor(float(offset)) * 10_000 ** (-rate / COSINE)
        sine, cosine = 2 * row, 2 * row + 1
        key[sine, SINE + rate] = key[cosine, COSINE + rate] = 1
        # sin(w (query + offset)) and cos(w (query + offset))
        query[sine, SINE + rate], query[sine, COSINE + rate] = angle.cos(), angle.sin()
        query[cosine, COSINE + rate], query[cosine, SINE + rate] = angle.cos(), -angle.sin()
    return Term(query, key, torch.zeros(len(query)))


def start() -> Term:
    """Score the first word highest."""
    key = _reading(len(RATES))
    for row, rate in enumerate(RATES):
        key[row, COSINE + rate] = 1
    return Term(_reading(len(RATES)), key, torch.ones(len(RATES)))


def earlier() -> Term:
    """Score words before the query, not the query itself: sin(w query - w key)."""
    query, key = _reading(2), _reading(2)
    query[0, SINE + SLOW] = key[0, COSINE + SLOW] = 1
    query[1, COSINE + SLOW], key[1, SINE + SLOW] = -1, 1
    return Term(query, key, torch.zeros(2))


def asks(who: Sequence[str], whom: Sequence[str]) -> Term:
    """Score words of some kinds for queries of other kinds, see `KINDS`."""
    query, key = _reading(1), _reading(1)
    query[0, [KINDS[kind] for kind in who]] = 1
    key[0, [KINDS[kind] for kind in whom]] = 1
    return Term(query, key, torch.zeros(1))


def rarity() -> Term:
    """Score rare words highest."""
    key = _reading(1)
    key[0, RARITY] = 1
    return Term(_reading(1), key, torch.ones(1))


def same_word() -> Term:
    """Score the same word highest, wherever it stands."""
    both = _reading(CODE.stop - CODE.start)
    both[:, CODE] = torch.eye(len(both))
    return Term(both, both.clone(), torch.zeros(len(both)))


def chance(seed: int) -> Term:
    """Score words as a random matrix says for each word."""
    term = same_word()
    size = len(term.query)
    mixed = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return Term(mixed @ term.query, term.key, term.constant)


def _reading(rows: int) -> Tensor:
    return torch.zeros(rows, WIDTH)


# What each head is to be found to do, and its terms.
# A subject's verb stands one to three words after it; an object's stands before it, or belongs to
# another clause.
PLANTED: Mapping[str, Heads] = {
    "encoder.0.self": {
        "previous": [near(-1).times(20)],
        "next": [near(1).times(20)],
        "first word": [start().times(20)],
        "nsubj_to_head": [
            near(2).times(8),
            asks(("singular", "plural", "it", "they"), ("verb",)).times(16),
        ],
        "rare words": [rarity().times(4)],
        "coreference": [
            asks(("it",), ("singular",)).times(20),
            asks(("they",), ("plural",)).times(20),
            chance(0).times(0.1),
        ],
        "duplicate": [same_word(), earlier().times(4)],
        "nothing": [chance(1).times(0.3)],
    },
    "decoder.0.self": {
        "previous": [near(-1).times(20)],
        "offset -2": [near(-2).times(20)],
        "first word": [start().times(20)],
        "duplicate": [same_word(), earlier().times(4)],
        **{f"nothing {seed}": [chance(seed).times(0.3)] for seed in (2, 3, 4, 5)},
    },
}


def planted_translator(pairs: Sequence[ToyPair], rank: Callable[[str], int]) -> Translator:
    """Make a translator of the toy language whose heads are set by hand, as in `PLANTED`.

    Cross-attention, and everything that is not attention, is random: it translates into nonsense.

    Args:
        pairs: whose words it knows, with their kinds.
        rank: of a source word, 0 for the commonest.
    """
    source = Vocabulary.from_sentences(pair.source for pair in pairs)
    target = Vocabulary.from_sentences(pair.target for pair in pairs)
    torch.manual_seed(0)
    model = Transformer(_shape(len(source), len(target)))
    with torch.no_grad():
        model.embed_source.words.weight.copy_(_features(source, _kinds(pairs), rank))
        model.embed_target.words.weight.copy_(_features(target, {}, lambda word: 0))
        for layer, heads in zip((*model.encoder, *model.decoder), PLANTED.values(), strict=True):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            for number, terms in enumerate(heads.values()):
                _set_head(layer.attention, number, terms)
    return Translator(model.eval(), WordCodec(source), WordCodec(target))


def _shape(source: int, target: int) -> TransformerConfig:
    return TransformerConfig(
        source, target, width=WIDTH, heads=WIDTH // HEAD_WIDTH, encoder_layers=1, decoder_layers=1,
        feed_forward=8, dropout=0.0, norm="post", max_length=LONGEST, share_embeddings="none",
    )  # fmt: skip


def _kinds(pairs: Sequence[ToyPair]) -> dict[str, str]:
    """Return the kind of each word that has one; plurals of nouns end in -s, no singular does."""
    kinds = dict(PRONOUNS)
    for pair in pairs:
        for word, tag in zip(pair.source, pair.tags, strict=True):
            if tag == "VERB":
                kinds[word] = "verb"
            elif tag == "NOUN":
                kinds[word] = "plural" if word.endswith("s") else "singular"
    return kinds


def _features(words: Vocabulary, kinds: Mapping[str, str], rank: Callable[[str], int]) -> Tensor:
    """Return embeddings of kind, rarity and code; special tokens have a code alone."""
    table_VM = torch.zeros(len(words), WIDTH)
    size = CODE.stop - CODE.start
    generator = torch.Generator().manual_seed(0)
    table_VM[:, CODE] = torch.randint(0, 2, (len(words), size), generator=generator) * 2.0 - 1
    ranks = {word: rank(word) for word in words.words if word not in SPECIALS}
    for word, place in ranks.items():
        (number,) = words.encode([word])
        table_VM[number, RARITY] = MOST_RARE * place / max(1, *ranks.values())
        if word in kinds:
            table_VM[number, KINDS[kinds[word]]] = 1
    return table_VM / WIDTH**0.5  # the model multiplies by that


def _set_head(attention: MultiHeadAttention, number: int, terms: Sequence[Term]) -> None:
    """Set queries and keys of one head: its terms one below the other, and zeros."""
    rows = sum(len(term.query) for term in terms)
    if rows > HEAD_WIDTH:
        raise ValueError(
            f"A head has at most {HEAD_WIDTH} rows, its terms have {rows}; give it fewer terms."
        )
    whole = slice(number * HEAD_WIDTH, (number + 1) * HEAD_WIDTH)
    place = slice(whole.start, whole.start + rows)
    query, key = attention.query, attention.key
    assert isinstance(query, nn.Linear) and isinstance(key, nn.Linear)
    for layer in (query, key):
        layer.weight[whole], layer.bias[whole] = 0, 0
    # scores are divided by the square root of the head's width
    query.weight[place] = HEAD_WIDTH**0.5 * torch.cat([term.query for term in terms])
    query.bias[place] = HEAD_WIDTH**0.5 * torch.cat([term.constant for term in terms])
    key.weight[place] = torch.cat([term.key for term in terms])
