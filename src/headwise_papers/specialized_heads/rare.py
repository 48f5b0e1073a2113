"""Is there a head in the first layer that points at the rarest words, and is it the most relevant?

    headwise reproduce specialized_heads/rare --jobs 2    # 1 minute on an H200, after syntax
    headwise reproduce specialized_heads/rare --smoke     # 5 seconds on a CPU

Section 5.3, Figure 5. The baseline is the best fixed place, such as the second word from the end:
in 8 words it reaches 54 to 62 %, about as much as the heads. The recorded run did not measure it,
so that claim 144 waits for one that does.

Deviations: frequencies are of whole words; the paper counts tokens of byte-pair encoding.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from headwise.ops import Attended
from headwise.recording import Run
from headwise.sites import Head, Site, observe
from headwise.text import words_in
from headwise_papers.core import Claim, Experiment, Job, Result, draw_matrix, minus, panels, share
from headwise_papers.recipes.translator import open_translator
from headwise_papers.specialized_heads._inspection import (
    SHORT,
    Study,
    held_out,
    inspected,
    word_ranks,
)
from headwise_papers.specialized_heads._measures import best_head, fixed_place, rare_figures
from headwise_papers.specialized_heads._models import (
    SUBTITLES,
    TRANSLATORS,
    Model,
    by_name,
    scored,
    trained,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = range(8, 16)  # tokens of a sentence that is drawn
MAPS = "trace/maps.json"
TWO = "points at one of the two rarest"
PLACE = "a fixed place is one of the two rarest"
TOP = "is the most relevant of its layer"

Config = Study


def _claims() -> Iterator[Claim]:
    for metric, paper in (("points at the rarest word", 0.66), (TWO, 0.83)):
        yield Claim.value(f"{SUBTITLES}: {metric}", paper, margin=0.1, number=145,
                          where="section 5.3", text=f"A head of layer 1 {metric}",
                          stands_for="few subtitles")  # fmt: skip
    for name in (*TRANSLATORS[:3], SUBTITLES):
        yield Claim.direction(f"{name}: {TWO} less a fixed place", number=144, where="section 5.3",
                              text="A head of layer 1 points at rare words more often than a fixed "
                              "place", stands_for="Tatoeba")  # fmt: skip
        yield Claim.share(f"{name}: {TOP}", threshold=0.9, number=143, where="section 5.3",
                          text="The head for rare words is the most relevant of layer 1",
                          stands_for="Tatoeba")  # fmt: skip


def models(config: Config) -> Iterator[Job]:
    return config.jobs(lines=True)


def run(config: Config, run: Run) -> dict[str, Result]:
    """Inspect the first layers of translators on held-out lines."""
    results: dict[str, Result] = {}
    maps: dict[str, object] = {}
    for name in config.translators:
        scores, entering = scored(name, config.models(name), config.least_bleu)
        results |= scores
        tables = [inspected(config.on_lines(model)).table for model in entering]
        found = [
            rare_figures(table, _fixed_place(model, config.lines))
            for table, model in zip(tables, entering, strict=True)
        ]
        results |= by_name(f"{name}: ", found)
        if found:
            results[f"{name}: {TOP}"] = share(one[TOP] == 1 for one in found)
            apart = minus(results[f"{name}: {TWO}"], results[f"{name}: {PLACE}"])
            results[f"{name}: {TWO} less a fixed place"] = apart
            bleu = float(trained(entering[0]).figures()["bleu"])
            head = best_head(tables[0], "two_rarest", stack="encoder.0.").head
            maps[f"{name}, BLEU {bleu:.1f}"] = _map(config, entering[0], head)
    run.write_json(MAPS, maps)
    return results


def _fixed_place(model: Model, lines: int) -> dict[str, float]:
    """Return what the best fixed place reaches on the lines of an inspection."""
    sentences = [words_in(line) for line in held_out(model, lines)]
    return fixed_place(sentences, word_ranks(model).rank)


@torch.no_grad()
def _map(config: Config, model: Model, head: Head) -> tuple[list[str], list[list[float]]]:
    """Return the tokens of a held-out sentence, and how a head attends to them."""
    translator = open_translator(trained(model).folder)
    lines = held_out(model, config.lines)
    drawn = [line for line in lines if len(translator.source.encode(line)) in LENGTHS]
    line = (drawn or lines)[0]
    found: list[list[list[float]]] = []

    def watch(site: Site, attended: Attended) -> None:
        found.append(attended.weights[0, head.index].float().cpu().tolist())

    batch = translator.text_batch([line], [line])
    with observe(translator.model, watch, where=head.site):
        translator.model.encode(batch.source, batch.source_lengths)
    return [*translator.source.tokens(line), "</s>"], found[0]


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw Figure 5: how the head attends to a sentence."""
    maps = run.read_json(MAPS)
    if not maps:
        return {}
    figure, axes = panels(len(maps), width=3.8, height=3.6)
    for panel, (title, (tokens, weights)) in zip(axes[0], maps.items(), strict=True):
        draw_matrix(panel, weights, xticks=tokens, yticks=tokens, cmap="Greys", highest=1.0)
        panel.set_title(title, fontsize=8)
    return {"figure-5": figure}


experiment = Experiment(Config(), Config(**SHORT), models, run, draw, tuple(_claims()))
