"""How much text is there to pre-train and to fine-tune on, beside what the paper has?

Table 2 of the paper gives for each language the tokens to pre-train on, the share of them that is
held out, and the tasks that models are fine-tuned on, with their sizes. No training: texts are read
and counted.

The commands, with HEADWISE_DATA naming a folder that holds `debian-docs-en`, `wikitext-2`,
`alt-en-fil`, `filipino-lm`, `oromo-masakhanews`, `oromo_text`, `oromo-hornmt`, `libreoffice-help`,
`glue`, `sst`, `conll2003` and `masakhaner2`:

    headwise reproduce attention_guidance/data           # 10 seconds on a CPU core
    headwise reproduce attention_guidance/data --smoke   # 2 seconds

The texts are others than the paper's: its figures stand beside ours without a verdict. How it is
counted, and where ours differs from the paper:

1. The paper counts tokens and does not say of which tokenizer. Ours are words between white space;
   pieces of words are about 1.3 times as many.
2. The paper's English is Wikipedia. At hand are documentation of Debian packages, 0.8 % of that
   size, and WikiText-2, less than 0.1 %; the two are counted together.
3. The paper's Filipino is a Wikipedia of 36 million tokens, its Oromo a corpus of the LDC. At hand
   are other texts, see `headwise_papers.data.pretraining`.
4. Of the paper's tasks only a part of QNLI is at hand (5,463 pairs, published for development). The
   others stand in for them: CoLA, RTE, WNLI, MRPC and SST-2 for MNLI and QQP, topics of Oromo news
   for Oromo NER, NER in English and in Swahili. Nothing stands in for Filipino sentiment. Counted
   are all examples with labels, in all parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headwise.config import suggestion
from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.pretraining import Document, read_pretraining
from headwise_papers.data.tasks import TAGGING_SETS, TEXT_TASKS, read_tagged_task, read_text_task
from headwise_papers.sparse_transformer._drawing import panels, save


class Paper(NamedTuple):
    """What Table 2 has of a language's texts."""

    tokens: float  # to train on
    held_out: float  # share of all


TEXTS = {
    "English": ("debian-docs-en", "wikitext-2"),
    "Filipino": ("filipino",),
    "Oromo": ("oromo",),
}
PAPER = {
    "English": Paper(2116e6, 0.01),
    "Filipino": Paper(36e6, 0.10),
    "Oromo": Paper(4.6e6, 0.03),
}
PAPER_TASKS = {
    "mnli": 393e3,
    "qnli": 105e3,
    "qqp": 364e3,
    "filipino sentiment": 10e3,
    "oromo ner": 1e3,
}
WORDS, HELD_OUT, EXAMPLES = "words to train on", "share held out", "examples"


@dataclass(frozen=True)
class Config:
    """Which texts to count."""

    languages: tuple[str, ...] = tuple(TEXTS)
    tasks: tuple[str, ...] = tuple(TEXT_TASKS)
    tagged: tuple[str, ...] = ("conll2003", "masakhaner-swa")

    def __post_init__(self) -> None:
        known = {"languages": TEXTS, "tasks": TEXT_TASKS, "tagged": TAGGING_SETS}
        for setting, names in known.items():
            for name in getattr(self, setting):
                if name not in names:
                    raise ValueError(f"{setting} has no {name!r}. {suggestion(name, names)}")


EXPECTED = (
    *(
        Expected(f"{name}: {WORDS}", None, f"Table 2 has {row.tokens / 1e6:,g} million tokens")
        for name, row in PAPER.items()
    ),
    *(
        Expected(f"{name}: {HELD_OUT}", None, f"Table 2 has {row.held_out}")
        for name, row in PAPER.items()
    ),
    *(
        Expected(f"{name}: {EXAMPLES}", None, f"Table 2 has {count:,.0f}")
        for name, count in PAPER_TASKS.items()
    ),
)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Count; each figure has one value."""
    figures: dict[str, float] = {}
    for language in config.languages:
        texts = [read_pretraining(name) for name in TEXTS[language]]
        train, held = (
            sum(_words(part) for text in texts for part in parts(text))
            for parts in (lambda text: [text.train], lambda text: [text.valid, text.test])
        )
        figures[f"{language}: {WORDS}"] = float(train)
        figures[f"{language}: {HELD_OUT}"] = held / (train + held)
    for name in config.tasks:
        task = read_text_task(name)
        figures[f"{name}: {EXAMPLES}"] = float(len(task.train) + len(task.dev) + len(task.test))
    for name in config.tagged:
        tagged = read_tagged_task(name)
        figures[f"{name}: {EXAMPLES}"] = float(
            len(tagged.train) + len(tagged.dev) + len(tagged.test)
        )
    _draw(config, figures, run)
    return {name: [value] for name, value in figures.items()}


def _words(documents: Sequence[Document]) -> int:
    return sum(len(line.split()) for document in documents for line in document)


def _draw(config: Config, figures: dict[str, float], run: Run) -> None:
    """Table 2 as bars: texts on the left, tasks on the right."""
    figure, ((left, right),) = panels(2, width=5.0, height=3.4)
    for shift, (name, values) in enumerate(
        {
            "ours": [figures[f"{language}: {WORDS}"] for language in config.languages],
            "paper": [PAPER[language].tokens for language in config.languages],
        }.items()
    ):
        left.bar([place + 0.4 * shift for place in range(len(values))], values, 0.4, label=name)
    left.set_xticks([place + 0.2 for place in range(len(config.languages))], config.languages)
    left.set(yscale="log", ylabel=WORDS)
    left.legend(frameon=False)
    ours = {name: figures[f"{name}: {EXAMPLES}"] for name in (*config.tasks, *config.tagged)}
    both = {**ours, **{f"{name} (paper)": count for name, count in PAPER_TASKS.items()}}
    colours = ["tab:blue"] * len(ours) + ["tab:orange"] * len(PAPER_TASKS)
    right.bar(list(both), list(both.values()), color=colours)
    right.tick_params(axis="x", labelrotation=90, labelsize=7)
    right.set(yscale="log", ylabel=EXAMPLES)
    save(figure, run, "table2")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(languages=("Filipino", "Oromo"), tasks=("rte", "masakhanews-orm"), tagged=()),
    reproduce=reproduce,
    expected=EXPECTED,
    marks_trials=True,
)
