"""Does top-k attention translate better than softmax, and as well as other sparse attention?

    headwise reproduce sparse_transformer/translation --jobs 6    # 45 minutes on an H200
    headwise reproduce sparse_transformer/translation --smoke     # 15 seconds on a CPU

Table 1, and the BLEU of Table 4. The same attention is used everywhere, in training and prediction.
"BLEU" is cased, `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp`; "tokenised BLEU" is lower-cased,
`nrefs:1|case:lc|eff:no|tok:13a|smooth:none`, with `tok:none` on IWSLT'14. Differences are of BLEU
on en-de and of tokenised BLEU elsewhere, as in the paper. The part `longer` has twice the updates
at half the rate; it was added when entmax had come out far behind with the first recipe.

Deviations:

- Multi30k (29,000 captions) and Tatoeba (164,812 short sentences) for WMT'14 (4.5 million), 17,652
  of the 160,239 pairs of IWSLT'14, 15,356 help texts for IWSLT'15, whose talks are "out of domain".
- Models of width 256 with 3 + 3 layers, 1,500 updates; on Tatoeba `transformer_iwslt_de_en`, 3,000.
  Pre-norm, AdamW, cosine schedule, 8,000 joint subwords (Tatoeba 10,000).
- Weights are chosen by validation loss, and seeds averaged; the paper takes the best of three.
- k = 8 everywhere (the paper's En-Vi has 6); learned alphas are between 1.1 and 1.99.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    find_or_train,
)
from headwise_papers.recipes.translation import TranslationConfig, train_translation
from headwise_papers.sparse_transformer._costs import costs
from headwise_papers.sparse_transformer._translators import (
    KINDS,
    MAIN,
    TASKS,
    TINY,
    Part,
    bleu_figure,
    long_rows,
    score_job,
    scores,
    subtract,
    task_named,
    translator,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGER = f"{MAIN}-longer"
PAIRS = (
    ("topk:8", "softmax"),
    ("sparsemax", "softmax"),
    ("entmax:1.5", "softmax"),
    ("entmax:learned", "softmax"),
    ("topk:8", "sparsemax"),
    ("entmax:1.5", "topk:8"),
    ("entmax:learned", "topk:8"),
)
COSTS = {
    "updates": "updates",
    "minutes": "minutes",
    "tokens_per_second": "training pieces a second",
}


@dataclass(frozen=True)
class Config:
    """Settings; attentions are those of each corpus unless given."""

    corpora: tuple[str, ...] = tuple(corpus for corpus in TASKS if corpus != LONGER)
    attentions: tuple[str, ...] = ()
    seeds: int = 3
    changes: tuple[str, ...] = ()  # of every recipe, for example fit.steps=20


EN_DE = (MAIN, LONGER, "tatoeba-en-de")
DE_EN = ("iwslt14-de-en", "multi30k-de-en")
EN_VI = ("help-en-vi",)
CLAIMS = (
    *(
        Claim.direction(f"{corpus}: {pair}", paper=paper, number=number, where=where,
                        text=pair.replace(" - ", " translates better than "), stands_for=data)
        for number, pair, paper, where, data, corpora in (
            (66, "topk:8 - softmax", 0.3, "Table 1", "Multi30k and Tatoeba for WMT'14", EN_DE),
            (67, "topk:8 - softmax", 0.3, "Table 1", "a ninth of IWSLT'14, and Multi30k", DE_EN),
            (68, "topk:8 - softmax", 0.5, "Table 1", "help texts for IWSLT'15", EN_VI),
            (74, "entmax:1.5 - softmax", 0.3, "Table 4", "en-de for De-En", EN_DE),
            (75, "topk:8 - sparsemax", 4.4, "Table 4", "Multi30k", EN_DE[:2]),
            (86, "entmax:1.5 - softmax", 0.3, "Table 4", "help texts for IWSLT'15", EN_VI),
        )
        for corpus in corpora
    ),
    *(
        Claim.value(f"{corpus}: {pair}", paper, margin=abs(paper) / 4, number=73, where="Table 4",
                    text="sparsemax loses BLEU", stands_for="Multi30k")
        for corpus in EN_DE[:2]
        for pair, paper in (("sparsemax - softmax", -4.1), ("topk:8 - sparsemax", 4.4))
    ),
    *(  # the paper's differences are 0.2 BLEU or less
        Claim.comparable(f"{corpus}: {pair}", margin=0.5, number=74, where="Table 4",
                         text="entmax is like topk:8 and softmax", stands_for="en-de for De-En")
        for corpus in EN_DE
        for pair in ("entmax:learned - softmax", "entmax:1.5 - topk:8", "entmax:learned - topk:8")
        if pair.split(" - ")[0] in TASKS[corpus].attentions
    ),
)  # fmt: skip


def _translators(config: Config, corpus: str) -> dict[str, list[TranslationConfig]]:
    """Return settings by attention, one per seed."""
    return {
        attention: [translator(corpus, attention, s, config.changes) for s in range(config.seeds)]
        for attention in config.attentions or task_named(corpus).attentions
    }


def models(config: Config) -> Iterator[Job]:
    """Yield the translators first, then their scores on parts that training does not score."""
    for further in (False, True):
        for corpus in config.corpora:
            for part in task_named(corpus).parts if further else ("test",):
                for several in _translators(config, corpus).values():
                    yield from (score_job(model, part) for model in several)


def run(config: Config, out: Run) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for corpus in config.corpora:
        task, every = task_named(corpus), _translators(config, corpus)
        parts: tuple[Part, ...] = ("test", *task.parts)
        for part in parts:
            name = corpus if part == "test" else f"{corpus} {_shown(part)}"
            figures = {a: [scores(model, part) for model in every[a]] for a in every}
            for kind, shown in KINDS.items():
                bleu = {a: Result([one[kind] for one in figures[a]]) for a in every}
                results |= {f"{name}: {shown} of {a}": bleu[a] for a in every}
                if kind == task.judged and part != "valid":
                    results |= subtract(name, bleu, PAIRS)
        for attention, several in every.items():
            trained = [find_or_train(train_translation, model) for model in several]
            spent = costs(trained, COSTS)
            results |= {f"{corpus}: {name} of {attention}": spent[name] for name in spent}
        results[f"{corpus}: rows with more than 8 keys"] = long_rows(
            next(iter(every.values()))[0], 8
        )
    return results


def _shown(part: Part) -> str:
    return "validation" if part == "valid" else f"out of domain, {part}"


def draw(results: Mapping[str, Result], out: Run) -> "dict[str, Figure]":
    found = {
        corpus: {
            attention: results[f"{corpus}: {KINDS[task.judged]} of {attention}"]
            for attention in task.attentions
            if f"{corpus}: {KINDS[task.judged]} of {attention}" in results
        }
        for corpus, task in TASKS.items()
    }
    return {"table-1": bleu_figure({corpus: values for corpus, values in found.items() if values})}


SMOKE = Config((MAIN,), ("softmax", "topk:8", "entmax:learned"), seeds=2, changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
