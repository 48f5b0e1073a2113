"""Can a model that was trained with softmax be switched to top-k attention without loss?

Beyond the paper, which trains with top-k attention: a trained softmax translator computes with the
k best keys of each row, for k from 1 to 32, at all places or at one of the three (encoder, decoder,
and cross, between them). And so does a pretrained model, such as a MiniLM, if `model` names its
folder.

The commands; without `trained` the softmax translators are trained first, 4 minutes, and
`--set at_once=4` trains and scores four at a time:

    headwise reproduce sparse_transformer/switch --set trained=runs/sparse_transformer/translation \\
        --set model=my-models/minilm                         # 2 minutes on an H200
    headwise reproduce sparse_transformer/switch --smoke                 # 8 seconds

The data folder must hold the corpora asked for and, for a pretrained model, wikitext-2. How
translators are trained, and what the two kinds of BLEU are, see sparse_transformer/translation.

What is measured:

1. *Translators* on the test part: BLEU with beam search, and the loss of the right translation in
   nats a piece, both less those with softmax, seed by seed. The loss is the finer of the two.
2. *k without loss*: the smallest k from which on BLEU is at most 0.1 below that of softmax, one
   value a seed. "Worse" is 1 if the 95 % interval of the loss of BLEU over seeds is above 0, 0.5 if
   only its mean is, else 0.
3. *A pretrained model* on 500 paragraphs of WikiText-2 with 80 words or more, up to 128 tokens of
   each, in nats: the loss of a masked language model at 15 % of the words, the same each time, or
   that of a causal one at the next words. An encoder without a head, such as all-MiniLM-L6-v2, has
   no such loss: given the first half of a paragraph it must find the second half among all 500 by
   the cosines of mean hidden states, with the loss it was trained with. Paragraphs are dealt into
   five groups, whose values make the interval. Not measured if no model is given; the run's
   `skipped.json` says so.

The paper claims nothing here, so there are no verdicts. sparse_transformer/phases compares "P", which is this
with k = 8 on the validation part, with models trained for top-k attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.sparse_transformer._bleu_plots import draw_curve
from headwise_papers.sparse_transformer._drawing import panels, save
from headwise_papers.sparse_transformer._method_pairs import surely
from headwise_papers.sparse_transformer._pretrained import kind_of, long_paragraphs, open_pretrained
from headwise_papers.sparse_transformer._scoring import (
    Scores,
    Switch,
    Wanted,
    score_at_once,
    scores,
)
from headwise_papers.sparse_transformer._training import TINY, Job, Training, task_named

MAIN = "multi30k-en-de"
SOFTMAX = "softmax"
PLACES = {
    "all": "*",
    "encoder": "encoder.*",
    "decoder": "decoder.*.self",
    "cross": "decoder.*.cross",
}
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")
WITHOUT_LOSS = 0.1  # BLEU
PRETRAINED = "pretrained"
GROUPS = 5  # of paragraphs
SKIPPED = "skipped.json"

Values = dict[str, list[float]]


@dataclass(frozen=True)
class Config(Training):
    """What is switched; for the training see `Training` and `TASKS`."""

    corpora: tuple[str, ...] = (MAIN,)
    keys: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # k
    places: tuple[str, ...] = tuple(PLACES)
    model: str = ""  # folder of a Hugging Face model, none leaves it out
    paragraphs: int = 500
    paragraph_tokens: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.places) - set(PLACES):
            raise ValueError(f"places are some of {', '.join(PLACES)}, got {', '.join(unknown)}.")


EXPECTED = (
    *(
        Expected(f"{MAIN}, {place}: {figure}", None, "beyond the paper")
        for place in PLACES
        for figure in ("BLEU of topk:8 less softmax", "k without loss")
    ),
    Expected(f"{PRETRAINED}: topk:8 less softmax", None, "beyond the paper"),
)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Switch every translator, and the pretrained model; each figure with one value a seed."""
    for corpus in config.corpora:
        task_named(corpus)
        _score_all(config, run, corpus)
    figures: Values = {}
    figure, axes = panels(len(config.corpora) + bool(config.model))
    for panel, corpus in zip(axes[0], config.corpora, strict=False):
        for place, colour in zip(config.places, COLOURS, strict=False):
            gains = _switched(config, run, corpus, place, figures)
            draw_curve(panel, gains, label=place, colour=colour)
        panel.set_title(corpus, fontsize=10)
        panel.set_ylabel("BLEU less that with softmax", fontsize=8)
        panel.legend(frameon=False, fontsize=8)
    if config.model:
        name, gains = _pretrained(config, figures)
        draw_curve(axes[0][-1], gains, label=name)
        axes[0][-1].set_title(f"{name}, less softmax", fontsize=10)
    else:
        run.write_json(SKIPPED, {PRETRAINED: "no model was given; name its folder, model=FOLDER"})
    for panel in axes[0]:
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_xlabel("k; 95 % interval")
    save(figure, run, "switch")
    return figures


def _score_all(config: Config, run: Run, corpus: str) -> None:
    """Translators first, then every switch of them, if several may be made at once."""
    jobs = [Job(corpus, SOFTMAX, seed) for seed in range(config.seeds)]
    score_at_once(config, run, [Wanted(job, ("test",)) for job in jobs])
    switches = [Switch(SOFTMAX)] + [
        Switch(f"topk:{k}", PLACES[place]) for place in config.places for k in config.keys
    ]
    each = [Wanted(job, ("test",), (switch,)) for job in jobs for switch in switches]
    score_at_once(config, run, each)


def _switched(config: Config, run: Run, corpus: str, place: str, figures: Values) -> Values:
    """Add a place's figures; BLEU less that with softmax, by k."""
    part, judged = f"{corpus}, {place}", task_named(corpus).judged
    base = _tried(config, run, corpus, Switch(SOFTMAX))  # of all places: they are the same model
    drawn: Values = {}
    for k in config.keys:
        name = f"topk:{k}"
        found = _tried(config, run, corpus, Switch(name, PLACES[place]))
        gains = _less(found, base, judged)
        drawn[str(k)] = gains
        figures[f"{part}: BLEU of {name} less softmax"] = gains
        figures[f"{part}: loss of {name} less softmax"] = _less(found, base, "loss")
        figures[f"{part}: {name} worse than softmax"] = [surely([-gain for gain in gains])]
    figures[f"{corpus}: BLEU of softmax"] = [float(getattr(score, judged)) for score in base]
    lossless = smallest_without_loss(drawn)
    if lossless:
        figures[f"{part}: k without loss"] = lossless
    return drawn


def _tried(config: Config, run: Run, corpus: str, switch: Switch) -> list[Scores]:
    jobs = [Job(corpus, SOFTMAX, seed) for seed in range(config.seeds)]
    return [scores(config, run, job, "test", switch) for job in jobs]


def _less(found: Sequence[Scores], base: Sequence[Scores], kind: str) -> list[float]:
    return [
        float(getattr(a, kind)) - float(getattr(b, kind)) for a, b in zip(found, base, strict=True)
    ]


def smallest_without_loss(gains: Mapping[str, Sequence[float]]) -> list[float]:
    """For each seed the smallest k from which on BLEU is at most 0.1 below that of softmax.

    Seeds without such a k are left out.

    >>> smallest_without_loss({"1": [0.2, -3.0], "2": [-1.0, 0.0], "4": [0.1, 0.0]})
    [4.0, 2.0]
    """
    found: list[float] = []
    for own in zip(*gains.values(), strict=True):
        smallest: float | None = None
        for k, gain in reversed(list(zip(gains, own, strict=True))):
            if gain < -WITHOUT_LOSS:
                break
            smallest = float(k)
        found += [] if smallest is None else [smallest]
    return found


def _pretrained(config: Config, figures: Values) -> tuple[str, Values]:
    """Add a pretrained model's figures; what it is measured by, and that less softmax's, by k."""
    subject = open_pretrained(Path(config.model))
    kind, texts = kind_of(subject), long_paragraphs(config.paragraphs)
    groups_N = torch.arange(len(texts)) % GROUPS

    def measured(switch: Switch | None) -> list[float]:
        of_text_N = kind.losses(subject, texts, tokens=config.paragraph_tokens, switch=switch)
        return [float(of_text_N[groups_N == group].mean()) for group in range(GROUPS)]

    base = measured(None)
    figures[f"{PRETRAINED}: {kind.name}, softmax"] = base
    drawn: Values = {}
    for k in config.keys:
        found = measured(Switch(f"topk:{k}"))
        figures[f"{PRETRAINED}: {kind.name}, topk:{k}"] = found
        gains = [a - b for a, b in zip(found, base, strict=True)]
        drawn[str(k)] = figures[f"{PRETRAINED}: topk:{k} less softmax"] = gains
        figures[f"{PRETRAINED}: topk:{k} worse than softmax"] = [surely(gains)]
    return kind.name, drawn


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(seeds=1, keys=(1, 32), places=("all", "cross"), **TINY),
    reproduce=reproduce,
    expected=EXPECTED,
)
