"""How fast are five ways to attend, in training and in translation?

    headwise reproduce sparse_transformer/speed            # 8 minutes on an H200
    headwise reproduce sparse_transformer/speed --smoke    # 5 seconds on a CPU

Table 4: tokens per second. Models with the same random weights train on the same batches, translate
the same sentences, and take turns; a ratio is taken within a turn. "Chosen" is this library's
attention, "eager" the definitions with whole matrices of weights, the nearest to what the paper
timed, and "replayed" training steps as CUDA graphs. Chosen and eager attention must give the same
loss before anything is timed. The part `cpu` has a smaller model and no GPU.

Deviations:

- Transformer-base on an H200 in bfloat16, not compiled; the paper has an RTX 2080 Ti or Titan RTX
  in fp16, and a smaller model (`--set size=iwslt`).
- Random words in sentences as long as those of IWSLT'14 or Multi30k. Tokens are target words, end
  marks included; a turn of training is 10 updates of 4,096 positions.
- Inference is of 128 sentences with beam 5; they are made to end as long as their sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from headwise.config import override
from headwise.recording import Run
from headwise.training import progress_bar
from headwise_papers.core import Claim, Experiment, Result, draw_bars, panels, share
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.ops.named import check_attention
from headwise_papers.sparse_transformer._speed import (
    Training,
    check_loss,
    drawn_batches,
    drawn_sources,
    eager,
    make_model,
    take_turns,
    translated,
)
from headwise_papers.sparse_transformer._speed_lengths import LENGTHS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Speeds = dict[str, list[float]]  # tokens per second by attention, one value per turn

PHASES = ("training", "inference")
PAPER = {  # thousand tokens per second, by phase
    "softmax": (49.0, 7.0),
    "topk:8": (48.0, 6.6),
    "sparsemax": (39.0, 3.0),
    "entmax:1.5": (40.0, 4.9),
    "entmax:learned": (13.0, 0.6),
}
RATIOS = {  # over softmax, by phase
    attention: tuple(round(own / base, 2) for own, base in zip(both, PAPER["softmax"], strict=True))
    for attention, both in PAPER.items()
    if attention != "softmax"
}
CORPORA = ("iwslt14", "multi30k")  # whose lengths sentences have
DATA = "random words"
CLAIMS = (
    *(
        Claim.value(f"{corpus}, eager: {attention} over softmax, {phase}", ratios[place],
                    margin=0.05, number=76 + place, where="Table 4", stands_for=DATA,
                    text=f"speed of {phase} over softmax")
        for place, phase in enumerate(PHASES)
        for attention, ratios in RATIOS.items()
        for corpus in CORPORA
    ),
    *(
        Claim.value(f"{corpus}, eager: topk:8 over {other}, inference", paper, margin=margin,
                    number=78, where="Section 5.1", stands_for=DATA,
                    text='"2x faster than sparsemax and 10x faster than Entmax-alpha"')
        for other, paper, margin in (("sparsemax", 2.2, 0.3), ("entmax:learned", 11.0, 2.0))
        for corpus in CORPORA
    ),
    *(
        Claim.share(f"{corpus}, {block}: topk:8 at least the paper's ratio, {phase}", threshold=0.9,
                    text="our kernels reach the paper's ratio of top-k to softmax")
        for corpus in CORPORA
        for block, phase in (("replayed", "training"), ("chosen", "inference"))
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Settings; the defaults are for a GPU."""

    corpora: tuple[str, ...] = CORPORA
    attentions: tuple[str, ...] = tuple(PAPER)
    blocks: tuple[Literal["chosen", "eager", "replayed"], ...] = ("chosen", "eager", "replayed")
    size: Literal["small", "iwslt", "base"] = "base"
    changes: tuple[str, ...] = ()  # of the model, for example width=32
    vocab: int = 10_000  # of both languages
    tokens: int = 4096  # of a batch
    steps: int = 10  # of a turn
    batches: int = 20  # different ones
    sentences: int = 128  # translated together
    beams: int = 5
    turns: int = 5
    device: str = "auto"  # a GPU where there is one

    def __post_init__(self) -> None:
        if "softmax" not in self.attentions or self.turns < 1 or self.steps < 1:
            raise ValueError(
                "attentions need softmax, and turns and steps are at least 1; got "
                f"{', '.join(self.attentions)}, turns={self.turns} and steps={self.steps}."
            )
        if strange := [corpus for corpus in self.corpora if corpus not in LENGTHS]:
            raise ValueError(f"corpora are some of {', '.join(LENGTHS)}; got {strange[0]!r}.")
        for attention in self.attentions:
            check_attention(attention)

    def shape(self, attention: str) -> TransformerConfig:
        """Return the settings of a model that attends so everywhere."""
        shape: TransformerConfig = getattr(TransformerConfig, self.size)(
            self.vocab,
            self.vocab,
            share_embeddings="all",
            encoder_attention=attention,
            decoder_attention=attention,
            cross_attention=attention,
        )
        return override(shape, self.changes)


def run(config: Config, out: Run) -> dict[str, Result]:
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if config.device == "auto" else config.device)
    blocks = [one for one in config.blocks if device.type == "cuda" or one != "replayed"]
    if not blocks:
        raise ValueError("Replayed steps need a GPU, and no other block was asked for.")
    results: dict[str, Result] = {}
    rounds = [(corpus, block) for corpus in config.corpora for block in blocks]
    with progress_bar(len(rounds), label="blocks") as show:
        for number, (corpus, block) in enumerate(rounds, start=1):
            lengths = corpus if device.type == "cuda" else f"{corpus} on a CPU"
            for phase, speeds in _block(config, corpus, block, device).items():
                found = {name: Result(values) for name, values in speeds.items()}
                for name, result in (found | _ratios(speeds, phase)).items():
                    results[f"{lengths}, {block}: {name}, {phase}"] = result
            show(number, {})
    return results


def _block(config: Config, corpus: str, block: str, device: torch.device) -> dict[str, Speeds]:
    """Return speeds by phase, with one kind of code."""
    models = {name: make_model(config.shape(name), device) for name in config.attentions}
    batches = drawn_batches(
        corpus, vocab=config.vocab, tokens=config.tokens, count=config.batches, device=device
    )
    source, lengths = drawn_sources(
        corpus, vocab=config.vocab, count=config.sentences, device=device
    )
    replayed = block == "replayed"
    trainings = {
        name: Training(model, batches, steps=config.steps, replayed=replayed)
        for name, model in models.items()
    }
    for name, training in trainings.items():
        check_loss(name, training)
    if replayed:
        twice = -(-2 * config.batches // config.steps)  # turns after which all are recorded
        return {"training": take_turns(trainings, device, turns=config.turns, warm=twice)}
    changes = [eager(model) for model in models.values()] if block == "eager" else []

    def translate(model: Transformer) -> int:
        found = translated(model, source, lengths, beams=config.beams)
        if [len(one.ids) + one.ended for one in found] != lengths.tolist():
            raise ValueError("A sentence did not end where it was made to end; nothing is timed.")
        return int(lengths.sum())

    speeds = {"training": take_turns(trainings, device, turns=config.turns)}
    for model in models.values():
        model.eval()
        if device.type == "cuda":
            model.bfloat16()
    plays = {name: lambda model=model: translate(model) for name, model in models.items()}
    speeds["inference"] = take_turns(plays, device, turns=config.turns)
    for change in changes:
        change.close()
    return speeds


def _ratios(speeds: Speeds, phase: str) -> dict[str, Result]:
    """Return turn by turn: each over softmax, and top-k over some others."""

    def over(first: str, second: str) -> list[float]:
        return [a / b for a, b in zip(speeds[first], speeds[second], strict=True)]

    others = [name for name in speeds if name != "softmax"]
    results = {f"{name} over softmax": Result(over(name, "softmax")) for name in others}
    if "topk:8" in speeds:
        least = RATIOS["topk:8"][PHASES.index(phase)]
        reached = share(ratio >= least for ratio in over("topk:8", "softmax"))
        results["topk:8 at least the paper's ratio"] = reached
        for other in ("sparsemax", "entmax:learned"):
            if other in speeds:
                results[f"topk:8 over {other}"] = Result(over("topk:8", other))
    return results


def draw(results: Mapping[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw mean ratios to softmax, with the paper's as marks."""
    lengths = list(dict.fromkeys(name.partition(", ")[0] for name in results))
    figure, axes = panels(len(PHASES), len(lengths), width=5.0, height=3.2)
    for row, corpus in zip(axes, lengths, strict=True):
        for place, (panel, phase) in enumerate(zip(row, PHASES, strict=True)):
            bars = {
                block: {
                    name: results[f"{corpus}, {block}: {name} over softmax, {phase}"]
                    for name in RATIOS
                    if f"{corpus}, {block}: {name} over softmax, {phase}" in results
                }
                for block in ("chosen", "eager", "replayed")
            }
            marks = [ratios[place] for ratios in RATIOS.values()]
            panel.plot(range(len(marks)), marks, "k_", markersize=26, label="paper")
            measured = {block: own for block, own in bars.items() if own}
            draw_bars(panel, measured, ylabel="speed over softmax")
            panel.axhline(1, color="grey", linewidth=0.8)
            panel.set_title(f"{corpus}, {phase}", fontsize=9)
            panel.set_ylim(0, 1.7)
    return {"speed": figure}


SMOKE = Config(("multi30k",), size="small", vocab=50, tokens=128, steps=1, batches=1, sentences=2,
               changes=("width=32", "encoder_layers=1", "decoder_layers=1"), beams=2, turns=2,
               device="cpu")  # fmt: skip
experiment = Experiment(Config(), SMOKE, None, run, draw, CLAIMS)
