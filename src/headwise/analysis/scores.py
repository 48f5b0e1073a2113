"""BLEU of translations, with the signature that says how it was computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tokens = Literal["13a", "none", "intl", "char"]


@dataclass(frozen=True)
class Score:
    """Metric and how it was computed."""

    value: float
    signature: str


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: Tokens = "13a",
    smooth: Literal["exp", "none"] = "exp",
) -> Score:
    """Compute corpus BLEU by sacreBLEU, 0 to 100; cased unless `lowercase`.

    >>> score = bleu(["A dog runs on the beach."], ["A dog runs on the beach."])
    >>> round(score.value), score.signature.partition("|version")[0]
    (100, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')

    Args:
        hypotheses: detokenised translations.
        references: one per translation.
        lowercase: ignore case.
        tokenize: tokenizer of sacreBLEU.
        smooth: smoothing of n-gram orders without a match.
    """
    from sacrebleu.metrics.bleu import BLEU  # lazy: reading a table does not need it

    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(
            f"One reference for each of one translation or more was wanted, got {len(hypotheses)} "
            f"translations and {len(references)} references."
        )
    # force: no warning about text that seems tokenised, which some callers want
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, smooth_method=smooth, force=True)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(float(score.score), str(metric.get_signature()))
