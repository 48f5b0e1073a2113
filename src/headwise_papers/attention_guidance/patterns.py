"""Where do guided heads attend, and how soon?

Fig. 2 shows patterns; Fig. 1 heads before pre-training, after 1 % and at its end.

    headwise reproduce attention_guidance/patterns --jobs 2   # H200: 15 minutes, estimated

- "Visibly": the best head of a layer has on average 0.05 more weight there than without guidance.
- Recorded with 1,500 updates, of which 1 % are 15; the paper's are thousands.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.config import changed, from_json, override
from headwise.guidance import pattern
from headwise.recording import Run
from headwise.training import CHECKPOINT
from headwise.training.checkpoint import FOLDER
from headwise_papers.attention_guidance._encoders import cached_text, text_jobs
from headwise_papers.attention_guidance._maps import (
    attention_maps,
    draw_heads,
    draw_patterns,
    pattern_matrices,
    weight_on_patterns,
)
from headwise_papers.core import Claim, Experiment, Job, Result, find_or_train, share
from headwise_papers.data.pretraining import read_pretraining
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.recipes.guiding import GuideSettings
from headwise_papers.recipes.pretraining import PretrainingConfig, load_pretrained, pretrain
from headwise_papers.recipes.pretraining_data import fresh_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = ("<s>", "Welcome", "to", "EMNLP", ".", "</s>")  # Fig. 2
OTHER = ("<s>", "Yes", ".", "</s>", "Works", "</s>")  # as long, and two texts in one
TEXT = "Welcome to EMNLP."
STATIC = ("next", "prev", "first")
ARMS = ("guided", "MLM")
SEEN = 0.05  # of attention: so much more can be seen in a figure
ENCODER = PretrainingConfig(
    vocab_size=8000,
    model=EncoderConfig(layers=6, width=384, heads=12, feed_forward=1536, max_length=256),
    guide=GuideSettings("next=1,prev=1,first=4", alpha=50.0, schedule="linear"),
    batch_size=64,
    fit=replace(
        PretrainingConfig.fit,
        steps=3000,
        learning_rate=3e-4,
        warmup=0,  # the paper's for guided models
        checkpoint_every=500,
        evaluate_every=3000,
        compile=False,  # which takes longer than to train so small an encoder
    ),
)
CLAIMS = tuple(
    Claim.share(
        f"1 %: sooner at {name}",
        threshold=0.9,
        number=90,
        where="Fig. 1",
        text="After 1 % guided heads visibly follow patterns",
        stands_for="4 layers",
    )
    for name in STATIC
)


@dataclass(frozen=True)
class Watched:
    """A pre-training whose attention is measured in its course."""

    encoder: PretrainingConfig
    lines: int
    longest: int


@dataclass(frozen=True)
class Config:
    """The guided encoder, and what is measured; plain ones have the same settings but the plan."""

    encoder: PretrainingConfig = ENCODER
    lines: int = 100  # of the validation part
    longest: int = 128  # tokens of a line
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.longest > (most := self.encoder.model.max_length):
            raise ValueError(
                f"longest must be at most encoder.model.max_length={most}, the most positions that "
                f"encoders learn, got {self.longest}."
            )

    def watched(self, arm: str, seed: int) -> Watched:
        """Return the settings of one encoder."""
        plan = self.encoder.guide.plan if arm == "guided" else ""
        changes = {"fit.seed": seed, "guide.plan": plan}
        return Watched(changed(self.encoder, changes), self.lines, self.longest)


def models(config: Config) -> Iterator[Job]:
    """List the text and encoders."""
    yield from text_jobs([config.encoder])
    for seed in range(config.seeds):
        yield from (Job(watch, config.watched(arm, seed)) for arm in ARMS)


def one_per_cent(steps: int) -> int:
    """Return the update after which 1 % of a training is done.

    >>> one_per_cent(3000), one_per_cent(250), one_per_cent(40)
    (30, 3, 1)
    """
    return math.ceil(steps / 100)


def watch(config: Watched, folder: Path) -> Run:
    """Pre-train an encoder; measure weights on patterns, and maps of one text, at three moments."""
    early = one_per_cent(config.encoder.fit.steps)
    with Run.create(folder, config) as run:
        text = cached_text(config.encoder)
        done = pretrain(config.encoder, folder / "encoder", keep_at=(early,), text=text)
        pieces = load_pretrained(done).pieces
        held_out = pieces.encode_all(_held_out(config.encoder.corpus)[: config.lines])
        lines = [[pieces.begin, *ids[: config.longest - 2], pieces.end] for ids in held_out]
        ids = [pieces.begin, *pieces.encode(TEXT), pieces.end]
        weights: dict[str, float] = {}
        maps: dict[str, Tensor] = {}
        for per_cent, encoder in _moments(done, config.encoder):
            maps[str(per_cent)] = attention_maps(encoder, ids)
            for name, value in _weights(encoder, lines).items():
                weights[f"{per_cent} %: weight on {name}"] = value
        run.save_tensors("maps.safetensors", maps)
        run.write_json("tokens.json", [pieces.piece(number).replace("Ġ", "") for number in ids])
        for name in (CHECKPOINT, "text.safetensors"):
            done.path(name).unlink(missing_ok=True)
        rmtree(done.path(FOLDER), ignore_errors=True)
        run.save_figures(weights)
    return run


def _moments(run: Run, config: PretrainingConfig) -> Iterator[tuple[int, Encoder]]:
    """Yield the encoder before training, after 1 % and at the end, with the per cent."""
    model, pieces = load_pretrained(run)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.fit.seed)  # as the training began
        yield 0, fresh_model(config, config.shape(len(pieces))).eval().encoder
    young = fresh_model(config, model.encoder.config)
    early = f"{FOLDER}/{one_per_cent(config.fit.steps)}.safetensors"
    young.load_state_dict(run.load_tensors(early))
    yield 1, young.eval().encoder
    yield 100, model.encoder


def _weights(encoder: Encoder, lines: list[list[int]]) -> dict[str, float]:
    """Return the weight on each pattern of the best head of each layer, averaged over layers."""
    aims = {name: pattern(name) for name in STATIC}
    found = [weight_on_patterns(attention_maps(encoder, ids), ids, aims) for ids in lines]
    return {
        name: float(torch.stack([line[name] for line in found]).mean(0).amax(dim=1).mean())
        for name in aims
    }


@cache
def _held_out(corpus: str) -> list[str]:
    return [line for document in read_pretraining(corpus).valid for line in document]


def run(config: Config, out: Run) -> dict[str, Result]:
    """Measure the patterns themselves, then encoders in the course of their training."""
    ours, other = (_matrices(words, config) for words in (WORDS, OTHER))
    rows_X = torch.cat([matrix_TT.sum(dim=1) for matrix_TT in ours.values()])
    depend = sum(not torch.equal(ours[name], other[name]) for name in ours)
    results = {
        "patterns: rows that sum to 1": Result([float(((rows_X - 1).abs() < 1e-6).float().mean())]),
        "patterns: depend on the text": Result([float(depend)]),
    }
    for arm in ARMS:
        seeds = [
            find_or_train(watch, config.watched(arm, seed)).figures()
            for seed in range(config.seeds)
        ]
        results |= {f"{arm}, {name}": Result([one[name] for one in seeds]) for name in seeds[0]}
    return results | sooner(results)


def sooner(results: Mapping[str, Result]) -> dict[str, Result]:
    """Return, per seed, whether guided heads visibly attend to a pattern after 1 %."""
    found: dict[str, Result] = {}
    for name in STATIC:
        both = [results[f"{arm}, 1 %: weight on {name}"].values for arm in ARMS]
        found[f"1 %: sooner at {name}"] = share(a - b >= SEEN for a, b in zip(*both, strict=True))
    return found


def _matrices(words: tuple[str, ...], config: Config) -> dict[str, Tensor]:
    numbers = {word: number for number, word in enumerate(dict.fromkeys(WORDS + OTHER))}
    aims = {name: pattern(name) for name in STATIC}
    aims["delim"] = pattern("delim", tokens=(numbers["<s>"], numbers["</s>"]))
    aims["period"] = pattern("period", tokens=(numbers["."],))
    ids = [numbers[word] for word in words]
    return pattern_matrices(ids, aims, convention=config.encoder.guide.convention)


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 2, and Fig. 1 of the first seed."""
    config = from_json(Config, out.config())
    maps: dict[str, dict[str, Tensor]] = {}
    tokens: list[str] = []
    for arm in ARMS:
        one = find_or_train(watch, config.watched(arm, 0))
        kept, tokens = one.load_tensors("maps.safetensors"), one.read_json("tokens.json", [str])
        maps[arm] = {f"{share} %": kept[share] for share in sorted(kept, key=int)}
    layer = config.encoder.model.layers // 2
    return {
        "patterns": draw_patterns(_matrices(WORDS, config), WORDS),
        "heads": draw_heads(maps, tokens, layer),
    }


TINY = (
    "corpus=oromo", "train_documents=30", "valid_documents=2", "vocab_size=400", "batch_size=4",
    "model.layers=2", "model.width=32", "model.heads=4", "model.feed_forward=128",
    "model.max_length=32", "guide.plan=next=1,prev=1,first=1", "guide.alpha=100", "fit.steps=40",
    "fit.learning_rate=0.01", "fit.evaluate_every=40",
)  # fmt: skip
SMOKE = Config(encoder=override(ENCODER, TINY), lines=4, longest=32, seeds=1)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
