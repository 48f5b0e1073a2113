"""Encoders that are probed for coreference: opened, probed once and cached, and their scores."""

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from headwise.hf import adopt, release
from headwise.recording import Run
from headwise.workflows.inspect import (
    HuggingFaceSubject,
    Sentence,
    Subject,
    chosen_device,
    coreference_corpus,
    open_subject,
)
from headwise_papers.attention_guidance._encoders import pretrain_encoder
from headwise_papers.attention_guidance._probe import Probed, probe
from headwise_papers.core import Result, find_or_train, panels
from headwise_papers.data.annotations import read_reflexives, with_distractors
from headwise_papers.data.subword import ByteLevelCodec, train_byte_level
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.recipes.encoder_subject import encoder_subject
from headwise_papers.recipes.pretraining import PretrainingConfig, load_pretrained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SYNTHETIC, SIMPLE = "synthetic", "synthetic, level 0"
SETS = ("litbank", "gap", "winobias", "winogender", SYNTHETIC, SIMPLE)
RANDOM, RULE = "random", "rule"  # encoders before training, and what needs none
KINDS = ("nominal", "pronoun", "proper")
BEST, AMONG_WORDS, AMONG_MENTIONS = "best", "best among words", "best among mentions"
OTHERS = "chosen on other passages"  # among all tokens
OTHERS_AMONG_MENTIONS = f"{OTHERS}, among mentions"
SIEVE = "sieve"  # the one rule that encoders are compared with
TITLES = {
    BEST: "best head among all tokens",
    AMONG_WORDS: "best head among words",
    AMONG_MENTIONS: "best head among mentions",
}
SEED = "one seed"
Scores = dict[str, dict[int, float]]  # by name and seed
Found = dict[str, dict[int, dict[str, Probed]]]  # by arm, seed and set


@dataclass(frozen=True)
class Passages:
    """Texts with mentions whose antecedents are asked for."""

    sets: tuple[str, ...]
    convention: Literal["paper", "reference_code"]
    samples: int  # reflexives
    passages: int  # of each other set; 0 takes all
    seed: int  # of draws and intervals


@dataclass(frozen=True)
class Probing:
    """An encoder, and what it is probed with."""

    arm: str
    seed: int
    texts: Passages
    encoder: PretrainingConfig | None = None  # trained by us; with RANDOM before its training
    model: str = ""  # folder of a Hugging Face model
    fresh_weights: bool = False  # of that model
    shape: EncoderConfig | None = None  # of an encoder whose vocabulary is that of the texts
    vocab_size: int = 0  # of that encoder
    batch_size: int = 256
    device: str = "auto"


def probe_encoder(config: Probing, folder: Path) -> Run:
    """Probe all heads of an encoder on every set."""
    with Run.create(folder, config) as run:
        subject = None
        for name in config.texts.sets:
            if not run.has(_file(name)):
                subject = subject or _opened(config)
                found = probe(
                    subject,
                    read_passages(config.texts, name),
                    whole_words=config.texts.convention == "reference_code"
                    and name in (SYNTHETIC, SIMPLE),
                    batch_size=config.batch_size,
                    seed=config.texts.seed,
                )
                run.write_json(_file(name), found.to_json())
        run.save_figures({})
    return run


def probed(config: Probing) -> dict[str, Probed]:
    """Return what an encoder finds by set, from the cache or probed now."""
    run = find_or_train(probe_encoder, config)
    return {name: Probed.from_json(run.read_json(_file(name))) for name in config.texts.sets}


def _file(name: str) -> str:
    return f"{name.replace(', ', '-').replace(' ', '-')}.json"


@cache  # a process may probe several encoders
def read_passages(texts: Passages, name: str) -> list[Sentence]:
    """Read the passages of a set."""
    if name in (SYNTHETIC, SIMPLE):
        where = "after" if texts.convention == "paper" else "before"
        known = [one for one in read_reflexives() if name == SYNTHETIC or one.level == 0]
        drawn = with_distractors(known, where=where, count=texts.samples, seed=texts.seed)
        return [Sentence.of_passage(passage) for passage in drawn]
    every = list(coreference_corpus(name).read())
    count = min(texts.passages or len(every), len(every))
    chosen = sorted(random.Random(texts.seed).sample(range(len(every)), count))
    return [every[place] for place in chosen]


def _opened(config: Probing) -> Subject:
    device = chosen_device(config.device)
    if config.model:
        subject = open_subject(Path(config.model), device=config.device)
        return _redrawn(subject, config.seed, device) if config.fresh_weights else subject
    if config.encoder is None:
        assert config.shape is not None
        names = config.texts.sets
        lines = (one.text for name in names for one in read_passages(config.texts, name))
        pieces = train_byte_level(lines, size=config.vocab_size)
        shape = EncoderConfig.roberta(len(pieces), **_shape(config.shape))
        return _untrained(shape, pieces, config.seed, device)
    run = find_or_train(pretrain_encoder, config.encoder)
    if config.arm == RANDOM:
        pieces = ByteLevelCodec.load(run.path("tokenizer.json"))
        shape = run.read_settings("model.json", EncoderConfig)
        return _untrained(shape, pieces, config.seed, device)
    model, pieces = load_pretrained(run)
    return encoder_subject(model.encoder.to(device), pieces)


def _shape(shape: EncoderConfig) -> dict[str, int]:
    return {
        "layers": shape.layers,
        "width": shape.width,
        "feed_forward": shape.feed_forward,
    }


def _untrained(
    shape: EncoderConfig, pieces: ByteLevelCodec, seed: int, device: torch.device
) -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return encoder_subject(Encoder(shape).to(device), pieces)


def _redrawn(subject: Subject, seed: int, device: torch.device) -> Subject:
    assert isinstance(subject, HuggingFaceSubject)
    release(subject.model)
    config = copy.deepcopy(subject.model.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = type(subject.model)(config).eval()
    return HuggingFaceSubject(adopt(model.to(device)), subject.tokenizer)


def _labels(name: str) -> dict[str, str]:
    """Return names of a set and its kinds of mentions, with those that `Probed` has."""
    kinds = KINDS if name == "litbank" else ()
    return {name: "coreference"} | {f"{name}, {kind}": f"coreference_{kind}" for kind in kinds}


def rule_scores(found: Found) -> dict[str, Result]:
    """Return what rules reach, on the passages that the first model can read."""
    results: dict[str, Result] = {}
    first = next(iter(found.values()))
    for name, one in next(iter(first.values())).items():
        for label, theirs in _labels(name).items():
            if theirs in one.rules:
                results[f"{RULE}: {label}: {SIEVE}"] = Result([one.rules[theirs][SIEVE]])
        for rule, reached in one.rules.get("coreference", {}).items():
            results[f"{RULE}: {name}: {rule.replace('_', ' ')}"] = Result([reached])
        results[f"{name}: mentions"] = Result([float(one.mentions.get("coreference", 0))])
    return results


def encoder_scores(found: Found) -> Scores:
    """Return what the heads of encoders reach, by arm and metric."""
    scores: Scores = {}
    for arm, seeds in found.items():
        for seed, by_set in seeds.items():
            for one in by_set.items():
                for metric, value in _set_scores(*one):
                    scores.setdefault(f"{arm}: {metric}", {})[seed] = value
    return scores


def _set_scores(name: str, one: Probed) -> Iterator[tuple[str, float]]:
    for label, theirs in _labels(name).items():
        if theirs in one.tokens:
            yield f"{label}: {BEST}", one.tokens[theirs].best
            yield f"{label}: {AMONG_MENTIONS}", one.candidates[theirs].best
    if "coreference" not in one.tokens:  # no passage was of whole words
        return
    yield f"{name}: {AMONG_WORDS}", one.words["coreference"].best
    for chosen, by_label in ((OTHERS, one.tokens), (OTHERS_AMONG_MENTIONS, one.candidates)):
        score = by_label["coreference"]
        yield f"{name}: {chosen}", score.held_out
        yield f"{name}: {chosen}, low end", score.held_out_low
        yield f"{name}: {chosen}, high end", score.held_out_high


def draw_scores(
    results: Mapping[str, Result], arms: Sequence[str], sets: Sequence[str]
) -> "Figure":
    """Draw the best head of each arm by set, among all tokens, among words and among mentions."""
    width = max(5.0, 0.5 + 0.22 * len(sets) * (1 + len(arms)))
    figure, axes = panels(1, len(TITLES), width=width, height=2.2)
    for (panel,), (what, title) in zip(axes, TITLES.items(), strict=True):
        _bars(panel, results, arms, sets, what)
        panel.set_title(title, fontsize=9)
        panel.set_xticks(range(len(sets)), sets, fontsize=8)
        panel.tick_params(axis="y", labelsize=8)
        panel.set(ylim=(0, 1.02), xlim=(-0.5, len(sets) - 0.5))
        panel.set_ylabel("mentions resolved", fontsize=8)
    known = dict(zip(*reversed(axes[0][0].get_legend_handles_labels()), strict=True))
    shown = [name for name in (*arms, SEED) if name in known]
    handles = [known[name] for name in shown]
    place = "outside upper center"
    figure.legend(handles, shown, loc=place, ncols=len(shown), frameon=False, fontsize=8)
    return figure


def _bars(
    axes: "Axes", results: Mapping[str, Result], arms: Sequence[str], sets: Sequence[str], what: str
) -> None:
    """Draw means, and each seed as a dot; what was not measured has no bar."""
    width = 0.8 / len(arms)
    dots: list[tuple[float, float]] = []
    for index, arm in enumerate(arms):
        # the rule chooses among mentions, whatever heads choose among
        named = SIEVE if arm == RULE else what
        found = [results.get(f"{arm}: {name}: {named}") for name in sets]
        at = [place + width * (index + 0.5) - 0.4 for place in range(len(sets))]
        heights = [float("nan") if one is None else one.mean for one in found]
        axes.bar(at, heights, width, color=f"C{index}", label=arm)
        for place, one in zip(at, found, strict=True):
            if one is not None and len(one.values) > 1:
                dots += [(place, value) for value in one.values]
    if dots:
        axes.plot(*zip(*dots, strict=True), ".", color="black", markersize=3, label=SEED)
