"""Does any single head of a guided encoder find what a pronoun or a name refers to?

Table 8 of the paper: of all heads of an encoder the best one at looking from a mention to one of
its antecedents. Guided encoders are better language models here than the plain one, and have no
such head. No training: encoders that `attention_guidance/pretrain` (MLM, and half of the heads guided) and
`attention_guidance/fraction` (all of them guided) have pre-trained are handed in, and models of Hugging Face
if there are any.

    headwise reproduce attention_guidance/probing \\
        --set trained=runs/attention_guidance/pretrain,runs/attention_guidance/fraction \\
        --set models=minilm=FOLDER                  # 20 minutes on an H200, estimated
    headwise reproduce attention_guidance/probing --smoke     # 5 seconds on a CPU core

`trained` are folders of runs with `mlm-12-seed-0`, `guided-12-seed-0` or `guided-1-12-seed-0` below
them. Without any, rules and an encoder that nobody trained are measured. `at_once=4` asks four
encoders at a time, each in a process of its own.

How it is measured, and where ours differs from the paper:

1. The paper's CoNLL-2012 cannot be had freely. In its place stand LitBank (passages of novels of up
   to 128 words; all mentions whose entity was mentioned before), GAP, WinoBias and Winogender
   (pronouns). Kinds of mentions are told by rule: a list of pronouns; a capitalised head word is
   a proper name; all others are nominal. So the paper's figures on CoNLL stand beside ours without
   a verdict; its claims about which model has the better head are judged.
2. A mention is asked at its head word: the last one before what only describes it. It is resolved
   if of all tokens most weight lies on a word of an antecedent; weights of pieces are added up to
   words. `<s>` and `</s>` count as what can be looked at, as in the paper's code. "Among words" is
   the same without them, as `headwise inspect` measures it: what a head would point at if it
   were not resting. "Among mentions" is the same where only words of gold mentions count, of
   antecedents and of other entities. On LitBank and Winogender all of these stand before the
   mention. On synthetic, where another sentence comes after, and in a part of GAP heads may choose
   words that stand after it; the rules look back only. The paper does not say among which words a
   head chose on CoNLL-2012; that a randomly initialised model reaches 0.50 there suggests mentions
   alone, as the rule chooses. So its figures stand beside these.
3. "rule: … sieve" is the rule of Clark et al. (2019), the paper's "Rule-Based": the nearest gold
   mention with the same words, else the same head word, else the same number, gender and person,
   which lists of words tell here (see `headwise.analysis.antecedents`), else any. On LitBank, whose
   passages are short and full of pronouns, it reaches 0.78 on all of them (0.83 on those that small
   encoders can read), where the paper has 0.66 on CoNLL-2012.
   Beside it, without a verdict: the word before, the first word, a random one, the nearest that
   looks like a noun, the commonest distance, and, which take gold mentions too, the nearest mention
   and the nearest one with the same head word.
4. The best of 144 heads is better by luck too. "Chosen on other passages" is the head that is best
   on every other passage, scored on the rest, with the ends of its 95 % interval (bootstrap over
   passages). Claims about which model is below which are judged by this score. Those of CoNLL-2012
   are on LitBank, by both readings, as their labels say: among mentions and among all tokens; what
   is said of the rule, which chooses among mentions, by the first and the sieve. Those of synthetic
   are judged among all tokens, as the published code has it. A claim holds if the 95 % interval of
   the differences between three seeds or more is on its side of 0, does not if it is on the other,
   and else is undecided.
5. *Synthetic* are reflexives of Lin et al. (2019) with a sentence that names somebody else, drawn
   from nine levels of difficulty; see `headwise_papers.data.annotations`. `convention=paper` puts that
   sentence after, `reference_code` before, and asks only where every word is one token. The
   sentences are ours, and differ from the published code's. That code reads lines with three
   numbers, which only level 0 has, so the paper's 10,000 sentences may be those of level 0; ours
   are 2,000 of it, measured as "synthetic, level 0". What is meant is always the first noun phrase:
   a head that looks at the first word of a text, no matter what it says, is always right where the
   other sentence comes after.
6. The paper prints 26.6 for a randomly initialised model where other rows have shares; it is taken
   for 0.266.

Found so far, with the encoders of 12 layers of `attention_guidance/pretrain` and `attention_guidance/fraction`, three
seeds, up to 1,500 passages of a set and 4,000 reflexives: among all tokens those with all heads
guided (λ = 1) find next to nothing, as the paper has it, since every head looks where it was told:
0.02 on LitBank, 0.00 on GAP, 0.03 on WinoBias, where plain ones have 0.14, 0.09 and 0.59. On
synthetic it is sure, 0.08 for 0.39; on LitBank undecided, for plain ones differ so much (0.18, 0.07
and 0.18). Among mentions no loss is sure: on LitBank they have 0.50, plain ones 0.49, those with
half of the heads guided 0.48; on GAP 0.59 and 0.58 with guidance and 0.45 without, with every seed,
though random encoders have 0.48; on WinoBias 0.70 for 0.75 of plain ones, lower with every seed,
which is not sure. So guidance changes where heads rest; whether it changes what they could tell is
undecided.

Whether encoders with half of the heads guided have worse heads than plain ones is undecided on
LitBank by both readings, and on synthetic. Among LitBank's mentions they have a better head than
random encoders, 0.48 to 0.37, where the paper has them far below; the rule has 0.77. On synthetic,
among all tokens, no encoder is surely better than random ones, where the paper has 0.87 of plain
ones: random encoders find 0.47, plain ones 0.39 and those with half of the heads guided 0.36, which
is surely below random. In the command `runs/english` has the encoders of `attention_guidance/pretrain`, and
`runs/guided1` those with λ = 1.

Before, in small (`results/guidance/earlier/probing.json`): encoders of 4 layers with 4 heads, three
seeds. Among all tokens no head of encoders that are guided throughout finds anything: 0.3 to 0.5 %
on LitBank, nothing on synthetic, as in the paper. Among mentions, chosen on other passages, they
have as good a head as plain ones: 0.63 on LitBank both, random ones 0.59, the sieve 0.83. What
guided heads lose is told by where they rest, not by which mention they prefer.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

from headwise.recording.run import Run
from headwise.workflows.inspect.corpus import coreference_corpus
from headwise.workflows.inspect.sentence import Sentence
from headwise_papers.attention_guidance._probe import Probed, probe
from headwise_papers.attention_guidance._probing_plots import draw_scores
from headwise_papers.attention_guidance._probing_scores import (
    AMONG_MENTIONS,
    BEST,
    KINDS,
    OTHERS,
    OTHERS_AMONG_MENTIONS,
    SIEVE,
    BySeed,
    Figures,
    Found,
    of_encoders,
    of_rules,
)
from headwise_papers.attention_guidance._subjects import (
    ARMS,
    RANDOM,
    RULE,
    Arm,
    check_given,
    check_layers,
    given_arms,
    trained_arms,
    untrained,
)
from headwise_papers.core.at_once import make_at_once
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.core.claims import sure, sure_claim
from headwise_papers.data.annotations import read_reflexives, with_distractors
from headwise_papers.data.subword import train_byte_level
from headwise_papers.models.encoder import EncoderConfig

SYNTHETIC, SIMPLE = "synthetic", "synthetic, level 0"
SETS = ("litbank", "gap", "winobias", "winogender", SYNTHETIC, SIMPLE)
LOSS = "MLM loss (valid)"


@dataclass(frozen=True)
class Config:
    """Which encoders are asked, and what."""

    trained: tuple[str, ...] = ()  # folders of runs with pre-trained encoders
    models: tuple[str, ...] = ()  # of Hugging Face, each NAME=FOLDER
    layers: int = 12  # of the pre-trained encoders
    sets: tuple[str, ...] = SETS
    convention: Literal["paper", "reference_code"] = "paper"
    samples: int = 10_000  # reflexives
    passages: int = 0  # of each other set, drawn by the seed; 0 takes all
    pieces: int = 8000  # of the encoder that stands alone, where none is given
    width: int = 768  # of that encoder
    batch_size: int = 256  # passages; sentences are short, and a batch is thousands of small steps
    at_once: int = 1  # encoders at a time, each in a process of its own
    device: str = "auto"
    seed: int = 0  # of draws and intervals

    def __post_init__(self) -> None:
        unknown = set(self.sets) - set(SETS)
        if unknown or not self.sets:
            raise ValueError(f"sets are some of {', '.join(SETS)}, got {self.sets}.")
        for folder in self.trained:  # refused before there is a run
            check_layers(folder, self.layers)
        check_given(self.models)


def _paper(arm: str, row: Sequence[float]) -> Iterator[Expected]:
    """A row of Table 8: CoNLL-2012, its nominal, pronominal and proper mentions, synthetic."""
    what = SIEVE if arm == RULE else AMONG_MENTIONS
    for label, value in zip(("", *(f", {kind}" for kind in KINDS)), row[:4], strict=True):
        where = f"Table 8 has {value} on CoNLL-2012"
        yield Expected(f"{arm}: litbank{label}: {what}", None, where)
    if len(row) > 4:
        yield Expected(f"{arm}: {SYNTHETIC}: {BEST}", row[4], "Table 8", 0.05, 0.15)


# among what heads choose, and the head that claims are about then
READINGS = {"among mentions": OTHERS_AMONG_MENTIONS, "among all tokens": OTHERS}
MENTIONS, TOKENS = READINGS
# arms of which the first is said to be below the second
OF_ENCODERS = (
    ("guided 1/2", "MLM"),
    ("guided 1", "MLM"),
    ("guided 1/2", "random"),
    ("guided 1", "guided 1/2"),
)
CLAIMS = {
    ("litbank", MENTIONS): ((RULE, "MLM"), *OF_ENCODERS, ("random", RULE)),
    ("litbank", TOKENS): OF_ENCODERS,
    (SYNTHETIC, TOKENS): (("random", "MLM"), *OF_ENCODERS[:2], ("guided 1", "random")),
}


def below(name: str, reading: str, less: str, more: str) -> str:
    """The name of a claim.

    >>> below("litbank", "among mentions", "guided 1", "MLM")
    'litbank, among mentions: guided 1 is below MLM'
    """
    return f"{name}, {reading}: {less} is below {more}"


EXPECTED = (
    *_paper(RULE, (0.66, 0.48, 0.72, 0.73)),
    *_paper("random", (0.50, 0.41, 0.47, 0.60, 0.266)),
    *_paper("MLM", (0.68, 0.58, 0.69, 0.73, 0.87)),
    *_paper("guided 1/2", (0.28, 0.21, 0.32, 0.29, 0.84)),
    *_paper("guided 1", (0.21, 0.13, 0.21, 0.28, 0.00)),
    Expected(f"MLM: {LOSS}", None, "Table 8 has 2.47 on Wikipedia"),
    Expected(f"guided 1/2: {LOSS}", None, "Table 8 has 2.29 on Wikipedia"),
    Expected(f"guided 1: {LOSS}", None, "Table 8 has 2.31 on Wikipedia"),
    *(
        sure_claim(below(name, reading, *pair), "Table 8")
        for (name, reading), pairs in CLAIMS.items()
        for pair in pairs
    ),
)


def reproduce(config: Config, run: Run) -> Figures:
    """Ask all encoders that are given; each figure has a value a seed."""
    arms = _arms(config)
    left = [arm.folder for arm in arms if not all(map(run.has, _files(config, arm).values()))]
    make_at_once(partial(_probe_one, config), left, run=run, processes=config.at_once)
    found: Found = {}
    losses: BySeed = {}
    for arm in arms:
        found.setdefault(arm.name, {})[arm.seed] = _probed(config, run, arm)
        if arm.run is not None and (loss := arm.run.figures().get("validation_loss")):
            losses.setdefault(f"{arm.name}: {LOSS}", {})[arm.seed] = float(loss)
    run.write_json("skipped.json", [name for name in (RANDOM, *ARMS) if name not in found])
    scores, rules = of_encoders(found), of_rules(found)
    figures = rules | {name: [*values.values()] for name, values in (losses | scores).items()}
    figures |= claims(scores, rules)
    draw_scores(figures, [RULE, *found], list(config.sets), run)
    return figures


def _arms(config: Config) -> list[Arm]:
    """All encoders that are asked; none is opened yet."""
    arms = [
        *trained_arms(config.trained, layers=config.layers, device=config.device),
        *given_arms(config.models, seed=config.seed, device=config.device),
    ]
    return arms or [_alone(config)]


@cache  # a process may ask several encoders
def _passages(config: Config, name: str) -> list[Sentence]:
    if name in (SYNTHETIC, SIMPLE):
        where = "after" if config.convention == "paper" else "before"
        known = [one for one in read_reflexives() if name == SYNTHETIC or one.level == 0]
        drawn = with_distractors(known, where=where, count=config.samples, seed=config.seed)
        return [Sentence.of_passage(passage) for passage in drawn]
    every = list(coreference_corpus(name).read())
    count = min(config.passages or len(every), len(every))
    chosen = sorted(random.Random(config.seed).sample(range(len(every)), count))
    return [every[place] for place in chosen]


def _alone(config: Config) -> Arm:
    """An encoder that nobody trained, with pieces of the very texts it is asked about."""
    lines = (sentence.text for name in config.sets for sentence in _passages(config, name))
    pieces = train_byte_level(lines, size=config.pieces)
    width = config.width
    shape = EncoderConfig.roberta(
        len(pieces), layers=config.layers, width=width, feed_forward=4 * width
    )
    return untrained(shape, pieces, seed=config.seed, device=config.device)


def _probe_one(config: Config, run: Run, folder: str) -> None:
    """Ask the encoder whose results have this folder; in a process that has to find it first."""
    (arm,) = (arm for arm in _arms(config) if arm.folder == folder)
    _probed(config, run, arm)


def _files(config: Config, arm: Arm) -> dict[str, str]:
    """Where the results of each set are."""
    return {
        name: f"probed/{arm.folder}/{name.replace(', ', '-').replace(' ', '-')}.json"
        for name in config.sets
    }


def _probed(config: Config, run: Run, arm: Arm) -> dict[str, Probed]:
    """What an encoder finds; sets that were asked before are not asked again."""
    files = _files(config, arm)
    missing = [
        name
        for name, file in files.items()
        if not (run.has(file) and Probed.is_whole(run.read_json(file)))
    ]
    subject = arm.open() if missing else None
    for name in missing:
        assert subject is not None
        code = config.convention == "reference_code" and name in (SYNTHETIC, SIMPLE)
        found = probe(
            subject,
            _passages(config, name),
            whole_words=code,
            batch_size=config.batch_size,
            seed=config.seed,
        )
        run.write_json(files[name], found.to_json())
    return {name: Probed.from_json(run.read_json(file)) for name, file in files.items()}


def claims(scores: BySeed, rules: Figures) -> Figures:
    """Whether the head of one that was chosen on other passages is surely below that of the other.

    See `sure`; the rule is the sieve.

    Args:
        scores: of encoders; only seeds that both have are compared.
        rules: have no seeds, and are compared with all.
    """
    claims: Figures = {}
    for (name, reading), pairs in CLAIMS.items():
        for less, more in pairs:
            by = {arm: SIEVE if arm == RULE else READINGS[reading] for arm in (less, more)}
            named = [f"{arm}: {name}: {what}" for arm, what in by.items()]
            if not all(one in scores or one in rules for one in named):
                continue
            seeds = set.intersection(*(set(scores[one]) for one in named if one in scores))
            low, high = (
                scores[one] if one in scores else dict.fromkeys(seeds, rules[one][0])
                for one in named
            )
            if seeds:
                gains = [high[seed] - low[seed] for seed in sorted(seeds)]
                claims[below(name, reading, less, more)] = [sure(gains)]
    return claims


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(
        sets=("winogender", SYNTHETIC),
        layers=2,
        samples=60,
        passages=40,
        pieces=1000,
        width=48,
        device="cpu",
    ),
    reproduce=reproduce,
    expected=EXPECTED,
    marks_trials=True,
)
