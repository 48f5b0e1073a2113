"""Figures of attention: maps, one row of weights as bars, and keys by layer and head."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from headwise_papers.core import panels
from headwise_papers.sparse_transformer._maps import Keys

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Sentence", "attention_figures"]


class Sentence(NamedTuple):
    """A sentence pair and how some translators look at it."""

    source: list[str]
    target: list[str]
    maps: dict[str, Tensor]  # (T, K) by attention; rows behind the target's words are not drawn
    gold: dict[int, int]  # source position by target position; empty where nobody knows


def attention_figures(
    name: str, counted: Mapping[str, Mapping[str, Keys]], sentences: Sequence[Sentence]
) -> "dict[str, Figure]":
    """Return all figures of some translators by name."""
    return {
        f"keys-{name}": _key_figure(counted),
        f"maps-{name}": _map_figure(sentences),
        f"bars-{name}": _bar_figure(sentences[0]),
    }


def _map_figure(sentences: Sequence[Sentence]) -> "Figure":
    """Draw Fig. 4: a row per sentence, a column per attention; dots are gold alignments."""
    columns = len(sentences[0].maps)
    figure, axes = panels(columns, len(sentences), width=4.6, height=4.0)
    for row, sentence in zip(axes, sentences, strict=True):
        for panel, (attention, map_TK) in zip(row, sentence.maps.items(), strict=True):
            shown = map_TK[: len(sentence.target), : len(sentence.source)].numpy()
            panel.imshow(shown, cmap="Greys", vmin=0, vmax=1, aspect="auto")
            keys, asking = (list(sentence.gold.values()), list(sentence.gold))
            panel.plot(keys, asking, "o", color="tab:red", markersize=3)
            panel.set_xticks(range(len(sentence.source)), sentence.source, rotation=90, fontsize=7)
            panel.set_yticks(range(len(sentence.target)), sentence.target, fontsize=7)
            panel.set_title(attention, fontsize=9)
    return figure


def _bar_figure(sentence: Sentence) -> "Figure":
    """Draw Fig. 1: the weight that the middle target word gives to each source word."""
    figure, ((panel,),) = panels(1, width=7.0, height=3.0)
    asking = len(sentence.target) // 2
    width = 0.8 / len(sentence.maps)
    for index, (attention, map_TK) in enumerate(sentence.maps.items()):
        at = [place + width * index - 0.4 + width / 2 for place in range(len(sentence.source))]
        heights = map_TK[asking, : len(sentence.source)].tolist()
        panel.bar(at, heights, width=width, label=attention)
    panel.set_xticks(range(len(sentence.source)), sentence.source, rotation=60, fontsize=8)
    panel.set(ylabel="weight")
    panel.set_title(f"from the position that predicts {sentence.target[asking]!r}", fontsize=9)
    panel.legend(frameon=False, fontsize=8)
    return figure


def _key_figure(counted: Mapping[str, Mapping[str, Keys]]) -> "Figure":
    """Draw keys with 1 % of the weight or more: a row per attention, a column per kind."""
    kinds = list(next(iter(counted.values())))
    everything = [keys for by_kind in counted.values() for keys in by_kind.values()]
    most = max(float(keys.carrying.max()) for keys in everything)
    figure, axes = panels(len(kinds), len(counted), width=3.2, height=2.4)
    for row, (attention, by_kind) in zip(axes, counted.items(), strict=True):
        for panel, kind in zip(row, kinds, strict=True):
            values_LH = by_kind[kind].carrying
            panel.imshow(values_LH.numpy(), cmap="Blues", vmin=0, vmax=most, aspect="auto")
            for layer, values in enumerate(values_LH.tolist()):
                for head, value in enumerate(values):
                    colour = "white" if value > 0.6 * most else "black"
                    panel.text(head, layer, f"{value:.1f}", ha="center", va="center", color=colour)
            panel.set_xticks(range(values_LH.shape[1]))
            panel.set_yticks(range(values_LH.shape[0]))
            panel.set_title(f"{attention}, {kind}", fontsize=8)
            panel.set_xlabel("head", fontsize=8)
            panel.set_ylabel("layer", fontsize=8)
    return figure
