"""Does any single head of a guided encoder find what a pronoun or a name refers to?

Table 8: the best head at attending from a mention to an antecedent.

    headwise reproduce attention_guidance/probing --jobs 3   # H200: 40 minutes, estimated

- The paper does not say among what heads choose: both readings count. Other pairs are recorded.
- Differences are of heads chosen on other passages.
- The paper's 26.6 for a random model is taken for 0.266.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ALL,
    ENGLISH,
    GUIDED,
    MLM,
    encoder_config,
    trained,
)
from headwise_papers.attention_guidance._encoders import jobs as encoder_jobs
from headwise_papers.attention_guidance._probing import (
    BEST,
    OTHERS,
    OTHERS_AMONG_MENTIONS,
    RANDOM,
    RULE,
    SETS,
    SIEVE,
    SYNTHETIC,
    Found,
    Passages,
    Probing,
    Scores,
    draw_scores,
    encoder_scores,
    probe_encoder,
    probed,
    rule_scores,
)
from headwise_papers.core import Claim, Experiment, Job, Result
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.recipes.pretraining import PretrainingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSS = "MLM loss (valid)"
HALF = "guided 1/2"
ARMS = {MLM: MLM, HALF: GUIDED, ALL: ALL}  # names here, and of the settings
# among what heads choose, and the head that claims are about then
READINGS = {"among mentions": OTHERS_AMONG_MENTIONS, "among all tokens": OTHERS}
MENTIONS, TOKENS = READINGS
PAIRS = ((HALF, MLM), (ALL, MLM), (HALF, RANDOM), (ALL, HALF))  # the first is said to be below
BELOW = {
    ("litbank", MENTIONS): ((RULE, MLM), *PAIRS, (RANDOM, RULE)),
    ("litbank", TOKENS): PAIRS,
    (SYNTHETIC, TOKENS): ((RANDOM, MLM), *PAIRS[:2], (ALL, RANDOM)),
}
JUDGED = PAIRS[:3]  # of a guided encoder with one that is not
PAPER = {RANDOM: 0.266, MLM: 0.87, HALF: 0.84, ALL: 0.0}  # synthetic, Table 8


@dataclass(frozen=True)
class Config:
    """Settings: encoders and the sets they are probed with."""

    seeds: int = 3  # of trained encoders; 0 probes none
    models: tuple[str, ...] = ()  # of Hugging Face, each NAME=FOLDER
    layers: int = 12
    changes: tuple[str, ...] = ()  # of every pre-training
    sets: tuple[str, ...] = SETS
    convention: Literal["paper", "reference_code"] = "paper"
    samples: int = 10_000  # reflexives
    passages: int = 0  # of each other set, drawn by the seed; 0 takes all
    vocab_size: int = 8000  # of the untrained encoder that stands alone
    width: int = 768  # of that encoder
    batch_size: int = 256  # passages
    device: str = "auto"
    seed: int = 0  # of draws and intervals

    def __post_init__(self) -> None:
        unknown = set(self.sets) - set(SETS)
        if unknown or not self.sets:
            raise ValueError(f"sets are some of {', '.join(SETS)}, got {self.sets}.")
        taken = {*ARMS, RANDOM, RULE}
        for given in self.models:
            name, _, folder = given.partition("=")
            if not name or not folder:
                raise ValueError(
                    f"A model is given as NAME=FOLDER, e.g. bert=models/bert, got {given!r}."
                )
            if name in taken:
                raise ValueError(
                    f"Another model has the name {name!r} of {given!r}; choose another."
                )
            if not Path(folder).is_dir():
                raise ValueError(f"There is no folder {folder} with a model; check {given!r}.")
            taken |= {name, f"{name}, {RANDOM}"}


def below(name: str, reading: str, less: str, more: str) -> str:
    """Return the name of a difference.

    >>> below("litbank", "among mentions", "guided 1", "MLM")
    'litbank, among mentions: guided 1 - MLM'
    """
    return f"{name}, {reading}: {less} - {more}"


CLAIMS = (
    *(
        Claim.direction(
            below(name, reading, *pair),
            sign=-1,
            number=118 if name == "litbank" else 120,
            where="Table 8",
            text=f"Guided: worse best head {reading}",
            stands_for="LitBank" if name == "litbank" else "our sentences",
        )
        for (name, reading), pairs in BELOW.items()
        for pair in pairs
        if pair in JUDGED
    ),
    *(
        Claim.value(
            f"{arm}: {SYNTHETIC}: {BEST}",
            paper,
            margin=0.05,
            number=120,
            where="Table 8",
            text="Best head on synthetic reflexives",
            stands_for="our sentences",
        )
        for arm, paper in PAPER.items()
    ),
)


def _encoder(config: Config, arm: str, seed: int) -> PretrainingConfig:
    return encoder_config(ENGLISH, config.layers, ARMS[arm], seed, config.changes)


def _probings(config: Config) -> Iterator[Probing]:
    """Yield all encoders that are probed."""
    texts = Passages(config.sets, config.convention, config.samples, config.passages, config.seed)
    common: dict[str, Any] = {"batch_size": config.batch_size, "device": config.device}
    for arm in ARMS:
        for seed in range(config.seeds):
            encoder = _encoder(config, arm, seed)
            yield Probing(arm, seed, texts, encoder, **common)
            if arm == MLM:
                yield Probing(RANDOM, seed, texts, encoder, **common)
    for given in config.models:
        name, _, folder = given.partition("=")
        yield Probing(name, config.seed, texts, model=folder, **common)
        fresh = f"{name}, {RANDOM}"
        yield Probing(fresh, config.seed, texts, model=folder, fresh_weights=True, **common)
    if not config.seeds and not config.models:
        width = config.width
        shape = EncoderConfig(layers=config.layers, width=width, feed_forward=4 * width)
        yield Probing(
            RANDOM, config.seed, texts, shape=shape, vocab_size=config.vocab_size, **common
        )


def models(config: Config) -> Iterator[Job]:
    """List texts, encoders and probings."""
    listed = list(_probings(config))
    yield from encoder_jobs(dict.fromkeys(one.encoder for one in listed if one.encoder))
    yield from (Job(probe_encoder, one) for one in listed)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Probe all encoders; results have one value per seed."""
    found: Found = {}
    losses: Scores = {}
    for one in _probings(config):
        encoder = None if one.encoder is None else trained(one.encoder)
        if encoder is not None and encoder.diverged:
            continue
        found.setdefault(one.arm, {})[one.seed] = probed(one)
        if encoder is not None and one.arm != RANDOM:
            loss = float(encoder.run.figures()["validation_loss"])
            losses.setdefault(f"{one.arm}: {LOSS}", {})[one.seed] = loss
    scores, rules = encoder_scores(found), rule_scores(found)
    own = {name: Result([*values.values()]) for name, values in (losses | scores).items()}
    return {**rules, **own, **differences(scores, rules)}


def differences(scores: Scores, rules: Mapping[str, Result]) -> dict[str, Result]:
    """Return differences of heads chosen on other passages; the rule is the sieve.

    Args:
        scores: of encoders; only seeds that both have are compared.
        rules: have no seeds, and are compared with all.
    """
    results: dict[str, Result] = {}
    for (name, reading), pairs in BELOW.items():
        for less, more in pairs:
            by = {arm: SIEVE if arm == RULE else READINGS[reading] for arm in (less, more)}
            named = [f"{arm}: {name}: {what}" for arm, what in by.items()]
            if not all(one in scores or one in rules for one in named):
                continue
            seeds = set[int].intersection(*(set(scores[one]) for one in named if one in scores))
            low, high = (
                scores[one] if one in scores else dict.fromkeys(seeds, rules[one].mean)
                for one in named
            )
            if seeds:
                gaps = [low[seed] - high[seed] for seed in sorted(seeds)]
                results[below(name, reading, less, more)] = Result(gaps, "difference")
    return results


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Table 8: the best head of each model, set by set."""
    config = from_json(Config, out.config())
    arms = list(dict.fromkeys(one.arm for one in _probings(config)))
    return {"table8": draw_scores(results, [RULE, *arms], config.sets)}


SMOKE = Config(
    seeds=0, sets=("winogender", SYNTHETIC), layers=2, samples=60, passages=40, vocab_size=1000,
    width=48, device="cpu",
)  # fmt: skip
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
