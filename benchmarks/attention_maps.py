"""Ways to measure all heads of a BERT in words: recorders, and whole attention matrices.

The matrices are taken a sentence and a head at a time, as the code of papers on heads does (Clark
et al., 2019, for one), or, as few do, whole batches at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from benchmarks import SEED
from headwise.analysis.gold import first_gold, neighbour_gold, punctuation_gold, rare_gold
from headwise.hf import adopt
from headwise.hf.adoption import is_adopted
from headwise.recording import Pointing, Profile, Reading, Words
from headwise.recording.reading import Gold
from headwise.sites import observe

CLS, SEP, FIRST, VOCAB = 1, 2, 4, 4000
MARKS = 60  # the commonest pieces stand for punctuation
REACH = 8  # distances that are told apart, as of Profile


@dataclass(frozen=True, eq=False)
class Batch:
    """Sentences of one length, and all that is to be asked of them."""

    numbers: range
    ids: Tensor  # (B, T)
    words: Words
    gold: Sequence[Gold]


Sentences = list[Batch]


def small_bert(
    *, width: int, heads: int, layers: int, tokens: int, backend: Literal["sdpa", "eager"]
) -> BertModel:
    """Random weights, always the same."""
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=4 * width,
        max_position_embeddings=tokens,
        attn_implementation=backend,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    # so that heads look somewhere: those of a fresh BERT look everywhere alike
    for name, parameter in model.named_parameters():
        if "query" in name or "key" in name:
            parameter.data *= 5
    return model


def draw_sentences(count: int, *, tokens: int, batch: int) -> Sentences:
    """Random sentences of so many tokens; every other word has two pieces."""
    generator = torch.Generator().manual_seed(SEED)
    inside = tokens - 2
    # pieces 0 and 1 of the first word, 2 of the second, 3 and 4 of the third, ...
    word_T = (torch.arange(inside) * 2 + 1) // 3
    n_words = int(word_T[-1]) + 1
    found: Sentences = []
    for start in range(0, count, batch):
        size = min(batch, count - start)
        # squared: some words are common, others rare
        drawn_BT = torch.rand(size, inside, generator=generator).square()
        inner_BT = FIRST + (drawn_BT * (VOCAB - FIRST)).long()
        ids_BT = torch.cat(
            [torch.full((size, 1), CLS), inner_BT, torch.full((size, 1), SEP)], dim=1
        )
        of_BT = torch.full_like(ids_BT, -1)
        of_BT[:, 1:-1] = word_T
        lead_W = torch.searchsorted(word_T, torch.arange(n_words))
        said = [[_said(number) for number in row] for row in inner_BT[:, lead_W].tolist()]
        found.append(Batch(range(start, start + size), ids_BT, Words(of_BT), _gold(said)))
    return found


def _said(number: int) -> str:
    return "," if number < FIRST + MARKS else f"w{number}"


def _gold(said: list[list[str]]) -> list[Gold]:
    def rank(word: str) -> int:
        return 0 if word == "," else int(word[1:])

    return [
        *neighbour_gold(said),
        *first_gold(said),
        *punctuation_gold(said),
        *rare_gold(said, rank),
    ]


@torch.no_grad()
def by_recorders(model: BertModel, sentences: Sentences) -> dict[str, float]:
    """Ours; figures are means over heads."""
    if not is_adopted(model):
        adopt(model)
    profile, pointing = Profile(), Pointing()
    for batch in sentences:
        reading = Reading(batch.numbers, {"encoder": batch.words}, batch.gold)
        profile.reading = pointing.reading = reading
        with observe(model, profile, pointing):
            model(batch.ids.to(model.device))
    columns: dict[str, Any] = {**profile.drain(), **pointing.drain()}
    return {
        name: float(torch.tensor([value for row in columns[name].values() for value in row]).mean())
        for name in ("confidence", "special_mass", "first_share", *_labels(sentences))
    }


def _labels(sentences: Sentences) -> list[str]:
    return list(dict.fromkeys(gold.label for batch in sentences for gold in batch.gold))


class Sums:
    """Running sums of one layer, a row a head."""

    def __init__(self, heads: int, labels: Sequence[str]) -> None:
        self.words = 0
        self.confidence, self.special, self.first, self.entropy = (
            torch.zeros(heads, dtype=torch.float64) for _ in range(4)
        )
        self.offsets = torch.zeros(heads, 2 * REACH + 1)
        self.hits = {label: torch.zeros(heads, dtype=torch.float64) for label in labels}
        self.asked = dict.fromkeys(labels, 0)


@torch.no_grad()
def by_batch(model: BertModel, sentences: Sentences) -> dict[str, float]:
    """With every layer's n x n matrices, whole batches at once; figures are means over heads."""
    labels, sums = _labels(sentences), dict[int, Sums]()
    for batch in sentences:
        maps = model(batch.ids.to(model.device), output_attentions=True).attentions
        pieces_BTW = _pieces(batch.words.of).to(model.device)
        for layer, weights_BHTT in enumerate(maps):
            found = sums.setdefault(layer, Sums(weights_BHTT.shape[1], labels))
            _add(found, _in_words(weights_BHTT, pieces_BTW), batch.gold)
    return _figures(list(sums.values()), labels)


@torch.no_grad()
def by_head(model: BertModel, sentences: Sentences) -> dict[str, float]:
    """With the same matrices, a sentence and a head at a time in NumPy."""
    labels, sums = _labels(sentences), dict[int, Sums]()
    for batch in sentences:
        maps = model(batch.ids.to(model.device), output_attentions=True).attentions
        right = {one.label: _right(one, len(batch.numbers)) for one in batch.gold}
        for layer, weights_BHTT in enumerate(maps):
            found = sums.setdefault(layer, Sums(weights_BHTT.shape[1], labels))
            for item, map_HTT in enumerate(weights_BHTT.cpu().numpy()):
                pieces = _pieces_of_words(batch.words.of[item].tolist())
                for head, map_TT in enumerate(map_HTT):
                    asked = {label: rows[item] for label, rows in right.items()}
                    _add_one(found, head, map_TT, pieces, asked)
                found.words += len(pieces)
                for label, rows in right.items():
                    found.asked[label] += len(rows[item])
    return _figures(list(sums.values()), labels)


def _right(gold: Gold, items: int) -> list[dict[int, set[int]]]:
    """The right words of each word that is asked, by sentence."""
    found: list[dict[int, set[int]]] = [{} for _ in range(items)]
    for item, query, key in gold.right.tolist():
        found[item].setdefault(query, set()).add(key)
    return found


def _pieces_of_words(of: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(max(of) + 1)]
    for place, word in enumerate(of):
        if word >= 0:
            found[word].append(place)
    return found


def _add_one(
    found: Sums,
    head: int,
    map_TT: Any,
    pieces: list[list[int]],
    asked: dict[str, dict[int, set[int]]],
) -> None:
    of_words_TW = np.stack([map_TT[:, places].sum(axis=1) for places in pieces], axis=1)
    words_WW = np.stack([of_words_TW[places].mean(axis=0) for places in pieces])
    strongest_W = words_WW.argmax(axis=1)
    found.confidence[head] += float(words_WW.max(axis=1).sum(dtype=float))
    found.special[head] += float((1 - words_WW.sum(axis=1)).sum(dtype=float))
    found.first[head] += float((strongest_W == 0).sum())
    found.entropy[head] -= float((words_WW * np.log(words_WW + 1e-30)).sum())
    offset_W = (strongest_W - np.arange(len(pieces))).clip(-REACH, REACH) + REACH
    found.offsets[head] += torch.from_numpy(np.bincount(offset_W, minlength=2 * REACH + 1))
    strongest = strongest_W.tolist()
    for label, rows in asked.items():
        found.hits[label][head] += sum(strongest[query] in keys for query, keys in rows.items())


def _figures(layers: list[Sums], labels: Sequence[str]) -> dict[str, float]:
    figures = {
        "confidence": [one.confidence / one.words for one in layers],
        "special_mass": [one.special / one.words for one in layers],
        "first_share": [one.first / one.words for one in layers],
        **{label: [one.hits[label] / one.asked[label] for one in layers] for label in labels},
    }
    return {name: float(torch.stack(values).mean()) for name, values in figures.items()}


def _pieces(of_BT: Tensor) -> Tensor:
    """(B, T, W), 1 where a piece belongs to a word."""
    n_words = int(of_BT.max()) + 1
    return (of_BT[..., None] == torch.arange(n_words)).float()


def _in_words(weights_BHTT: Tensor, pieces_BTW: Tensor) -> Tensor:
    """Weights summed over the pieces of keys and averaged over those of queries."""
    pieces_B1TW = pieces_BTW[:, None]
    mean_B1WT = (pieces_B1TW / pieces_B1TW.sum(dim=2, keepdim=True)).mT
    return mean_B1WT @ (weights_BHTT @ pieces_B1TW)


def _add(found: Sums, words_BHWW: Tensor, gold: Sequence[Gold]) -> None:
    peak_BHW, strongest_BHW = words_BHWW.max(dim=-1)
    n_words = words_BHWW.shape[2]
    found.words += len(words_BHWW) * n_words
    found.confidence += peak_BHW.double().sum(dim=(0, 2)).cpu()
    found.special += (1 - words_BHWW.sum(dim=-1)).double().sum(dim=(0, 2)).cpu()
    found.first += (strongest_BHW == 0).double().sum(dim=(0, 2)).cpu()
    found.entropy += torch.special.entr(words_BHWW).sum(dim=-1).double().sum(dim=(0, 2)).cpu()
    offset_BHW = strongest_BHW - torch.arange(n_words, device=strongest_BHW.device)
    near_BHW = offset_BHW.clamp(-REACH, REACH) + REACH
    for head in range(near_BHW.shape[1]):
        counts = torch.bincount(near_BHW[:, head].flatten(), minlength=2 * REACH + 1)
        found.offsets[head] += counts.cpu()
    for one in gold:
        item_N, query_N, key_N = one.right.to(strongest_BHW.device).unbind(dim=1)
        hit_NH = (strongest_BHW[item_N, :, query_N] == key_N[:, None]).double()
        asked_R, asking_N = (item_N * n_words + query_N).unique(return_inverse=True)
        hit_RH = hit_NH.new_zeros(len(asked_R), hit_NH.shape[1]).index_add(0, asking_N, hit_NH)
        found.hits[one.label] += hit_RH.clamp(max=1).sum(dim=0).cpu()
        found.asked[one.label] += len(asked_R)
