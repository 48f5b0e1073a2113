"""Can a model that was trained with softmax be switched to top-k attention without loss?

    headwise reproduce sparse_transformer/switch --jobs 4 --set model=my-models/minilm  # 6 minutes
    headwise reproduce sparse_transformer/switch --smoke      # 8 seconds on a CPU

Beyond the paper, which trains with top-k attention. A softmax translator computes with the k best
keys of each row, everywhere or in encoder, decoder or cross-attention alone; so does a pretrained
Hugging Face model, if `model` names its folder.

- Translators, on the test part: BLEU and nats per subword of the right translation, less those with
  softmax. "k without loss" is the smallest k from which on BLEU is at most 0.1 below softmax.
- A pretrained model, on 500 paragraphs of WikiText-2 in five groups: the loss of a masked language
  model at 15 % of the words, or of a causal one at the next words. An encoder without a head must
  find a paragraph's second half among all, by cosines of mean hidden states.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, draw_lines, minus, panels
from headwise_papers.recipes.translation import train_translation
from headwise_papers.sparse_transformer._pretrained import kind_of, long_paragraphs, open_pretrained
from headwise_papers.sparse_transformer._translators import (
    MAIN,
    TINY,
    score_job,
    scores,
    task_named,
    translator,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = {
    "all": "*",
    "encoder": "encoder.*",
    "decoder": "decoder.*.self",
    "cross": "decoder.*.cross",
}
WITHOUT_LOSS = 0.1  # BLEU
GROUPS = 5  # of paragraphs
CLAIMS = (
    *(
        Claim.comparable(
            f"{MAIN}, {place}: BLEU of topk:8 - softmax",
            margin=WITHOUT_LOSS,
            text="8 keys are enough after training",
        )
        for place in PLACES
    ),
    Claim.direction("pretrained: topk:8 - softmax", text="a pretrained model loses with 8 keys"),
)


@dataclass(frozen=True)
class Config:
    """Settings."""

    corpus: str = MAIN
    keys: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # k
    places: tuple[str, ...] = tuple(PLACES)
    seeds: int = 3
    changes: tuple[str, ...] = ()  # of the recipe, for example fit.steps=20
    model: str = ""  # folder of a Hugging Face model; none leaves it out
    paragraphs: int = 500
    paragraph_tokens: int = 128

    def __post_init__(self) -> None:
        if unknown := set(self.places) - set(PLACES):
            raise ValueError(f"places are some of {', '.join(PLACES)}, got {', '.join(unknown)}.")


def models(config: Config) -> Iterator[Job]:
    every = [translator(config.corpus, "softmax", s, config.changes) for s in range(config.seeds)]
    yield from (Job(train_translation, model) for model in every)
    for model in every:
        yield score_job(model, "test", "softmax")
        for place in config.places:
            yield from (score_job(model, "test", f"topk:{k}", PLACES[place]) for k in config.keys)


def run(config: Config, out: Run) -> dict[str, Result]:
    corpus, judged = config.corpus, task_named(config.corpus).judged
    base = _measured(config, "softmax", "*")
    results: dict[str, Result] = {}
    for place in config.places:
        gains: dict[int, Result] = {}
        for k in config.keys:
            found = _measured(config, f"topk:{k}", PLACES[place])
            gains[k] = minus(found[judged], base[judged])
            loss = minus(found["loss"], base["loss"])
            results[f"{corpus}, {place}: BLEU of topk:{k} - softmax"] = gains[k]
            results[f"{corpus}, {place}: loss of topk:{k} - softmax"] = loss
        if enough := smallest_without_loss(gains):
            results[f"{corpus}, {place}: k without loss"] = Result(enough)
    results[f"{corpus}: BLEU of softmax"] = base[judged]
    return results | (_pretrained(config) if config.model else {})


def _measured(config: Config, attention: str, where: str) -> dict[str, Result]:
    """Measure softmax translators that compute with other attention, by kind of score."""
    every = [translator(config.corpus, "softmax", s, config.changes) for s in range(config.seeds)]
    figures = [scores(model, "test", attention, where) for model in every]
    kinds = (task_named(config.corpus).judged, "loss")
    return {kind: Result([own[kind] for own in figures]) for kind in kinds}


def smallest_without_loss(gains: Mapping[int, Result]) -> list[float]:
    """Return for each seed the smallest k from which on BLEU is at most 0.1 below softmax.

    Seeds without such a k are left out.

    >>> gains = {1: Result([0.2, -3.0]), 2: Result([-1.0, 0.0]), 4: Result([0.1, 0.0])}
    >>> smallest_without_loss(gains)
    [4.0, 2.0]
    """
    found: list[float] = []
    for own in zip(*(result.values for result in gains.values()), strict=True):
        smallest: float | None = None
        for k, gain in reversed(list(zip(gains, own, strict=True))):
            if gain < -WITHOUT_LOSS:
                break
            smallest = float(k)
        found += [] if smallest is None else [smallest]
    return found


def _pretrained(config: Config) -> dict[str, Result]:
    """Measure a pretrained model with softmax and with every k."""
    subject = open_pretrained(Path(config.model))
    kind, texts = kind_of(subject), long_paragraphs(config.paragraphs)
    groups_N = torch.arange(len(texts)) % GROUPS

    def measured(attention: str = "") -> Result:
        of_text_N = kind.losses(subject, texts, tokens=config.paragraph_tokens, attention=attention)
        return Result([float(of_text_N[groups_N == group].mean()) for group in range(GROUPS)])

    base = measured()
    results = {f"pretrained: {kind.name}, softmax": base}
    for k in config.keys:
        found = measured(f"topk:{k}")
        results[f"pretrained: {kind.name}, topk:{k}"] = found
        results[f"pretrained: topk:{k} - softmax"] = minus(found, base)
    return results


def draw(results: Mapping[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw BLEU, and the loss of a pretrained model, less those with softmax, by k."""
    bleu: dict[str, dict[int, Result]] = {}
    pretrained: dict[int, Result] = {}
    for name, result in results.items():
        of, _, attention = name.removesuffix(" - softmax").rpartition("topk:")
        if of == "pretrained: ":
            pretrained |= {int(attention): result} if " - softmax" in name else {}
        elif of.endswith("BLEU of "):
            bleu.setdefault(of.partition(":")[0], {})[int(attention)] = result
    figure, (axes,) = panels(1 + bool(pretrained))
    draw_lines(axes[0], bleu, xlabel="k", ylabel="BLEU - that with softmax", marker="o")
    if pretrained:
        draw_lines(axes[1], {"pretrained": pretrained}, xlabel="k", marker="o",
                   ylabel="loss - that with softmax")  # fmt: skip
    for panel in axes:
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:.0f}")
    return {"switch": figure}


SMOKE = Config(seeds=1, keys=(1, 32), places=("all", "cross"), changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
