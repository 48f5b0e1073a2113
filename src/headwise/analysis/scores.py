"""Scores of translations, texts and captions, each with the signature that says how it was made.

- `bleu`: sacreBLEU of raw text, cased: the figure to compare across papers.
- `tokenised_bleu`: BLEU of tokens as they are, like Moses' multi-bleu.perl; lower-cased it is what
  the Explicit Sparse Transformer reports for En-Vi and De-En.
- `bits_per_character`: from a cross-entropy in nats.
- `paired_bootstrap`: whether two systems differ on one test set.
- `caption_scores`: BLEU-4, METEOR and CIDEr as the COCO toolkit computes them.

For a difference over seeds take `headwise_papers.core.base.Estimate.of` of the differences.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal, cast

import torch

__all__ = [
    "CaptionScores",
    "Difference",
    "Score",
    "bits_per_character",
    "bleu",
    "caption_scores",
    "paired_bootstrap",
    "tokenised_bleu",
]

Tokens = Literal["13a", "none", "intl", "char"]


@dataclass(frozen=True)
class Score:
    """A figure and how it was computed."""

    value: float
    signature: str


@dataclass(frozen=True)
class Difference:
    """How much higher the first of two systems scores, with its 95 % interval."""

    value: float
    low: float
    high: float
    signature: str

    @property
    def is_real(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class CaptionScores:
    """What the COCO toolkit says of captions, all on its usual scale times 100."""

    bleu_4: Score
    cider: Score
    meteor: Score | None
    skipped: str = ""  # why there is no METEOR


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: Tokens = "13a",
) -> Score:
    """Corpus BLEU of raw text by sacreBLEU, 0 to 100; cased unless `lowercase`.

    >>> score = bleu(["A dog runs on the beach."], ["A dog runs on the beach."])
    >>> round(score.value), score.signature.partition("|version")[0]
    (100, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')

    Args:
        hypotheses: translations without traces of pieces or of tokenisation.
        references: one for each of them.
        lowercase: compare without case.
        tokenize: how sacreBLEU cuts words.
    """
    _check(hypotheses, references)
    return _score(_bleu_metric(lowercase, tokenize, "exp"), hypotheses, references)


def tokenised_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = True,
    tokenize: Tokens = "none",
) -> Score:
    """Corpus BLEU of tokens between spaces, without smoothing, as multi-bleu.perl computes it.

    Lower-cased this is the case-insensitive BLEU of Explicit Sparse Transformer (A.2) on En-Vi and
    De-En, whose texts are tokenised as they come. It compares only with figures on the same tokens.

    Args:
        hypotheses: tokens between spaces, tokenised as the references are.
        references: one for each of them.
        lowercase: compare without case; like `multi-bleu.perl -lc`.
        tokenize: "13a" where the texts are raw, so that both sides are cut the same way.
    """
    _check(hypotheses, references)
    return _score(_bleu_metric(lowercase, tokenize, "none"), hypotheses, references)


def bits_per_character(loss: float, *, tokens: int = 1, characters: int = 1) -> Score:
    """Bits a character from a mean cross-entropy in nats.

        BPC = loss * tokens / (characters * ln 2)

    >>> bits_per_character(math.log(2)).value
    1.0

    Args:
        loss: nats a predicted token.
        tokens: predicted in all, where tokens are not characters.
        characters: of the text they make up.
    """
    if not loss >= 0 or tokens < 1 or characters < 1:
        raise ValueError(
            "A loss of 0 or more, over one token and one character or more, was wanted, got "
            f"{loss}, {tokens} and {characters}."
        )
    unit = "nats a token / ln 2" if tokens == characters else "nats / characters / ln 2"
    return Score(loss * tokens / (characters * math.log(2)), f"bpc|{unit}")


def paired_bootstrap(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = 0,
    lowercase: bool = False,
    tokenize: Tokens = "13a",
) -> Difference:
    """By how much BLEU of one system exceeds that of another on the same sentences.

    Sentences are drawn with replacement, the same for both, and BLEU is computed anew (Koehn,
    2004); the interval holds the middle 95 % of the differences. It speaks of other test
    sentences, not of other seeds.

    Args:
        first: translations of one system.
        second: translations of the other.
        references: one for each sentence.
        samples: how often sentences are drawn.
        seed: of the drawing.
        lowercase: as for `bleu`.
        tokenize: as for `bleu`.
    """
    _check(first, references)
    _check(second, references)
    if samples < 40:
        raise ValueError(f"samples must be 40 or more for a 95 % interval, got {samples}.")
    metric = _bleu_metric(lowercase, tokenize, "exp")
    one, two = (_score(metric, system, references) for system in (first, second))
    counts = [_counts(metric, system, references) for system in (first, second)]
    rng = torch.Generator().manual_seed(seed)
    differences: list[float] = []
    for _ in range(samples):
        drawn = torch.randint(len(references), (len(references),), generator=rng)
        values = [_resampled(metric, count_NC[drawn].sum(0)) for count_NC in counts]
        differences.append(values[0] - values[1])
    ends = torch.tensor(differences, dtype=torch.float64).quantile(
        torch.tensor([0.025, 0.975], dtype=torch.float64)
    )
    signature = f"{one.signature}|bs:{samples}|seed:{seed}"
    return Difference(one.value - two.value, float(ends[0]), float(ends[1]), signature)


def caption_scores(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> CaptionScores:
    """BLEU-4, METEOR and CIDEr of captions by `pycocoevalcap`, times 100.

    The toolkit's own tokeniser needs Java, so words are compared as given; take them from
    `headwise_papers.data.captions.caption_words`, which like it lower-cases and drops marks. METEOR needs
    Java too, and is None where that is absent.

    Args:
        hypotheses: the words of one caption an image.
        references: for each image the words of each of its captions.
    """
    if len(hypotheses) != len(references) or not hypotheses or not all(references):
        raise ValueError(
            f"One caption and one reference or more for each image were wanted, got "
            f"{len(hypotheses)} captions and {len(references)} lists of references."
        )
    bleu_class, cider_class, meteor_class = _toolkit()
    said = {number: [" ".join(words)] for number, words in enumerate(hypotheses)}
    wanted = {number: [" ".join(words) for words in own] for number, own in enumerate(references)}
    made = f"words as given|pycocoevalcap:{metadata.version('pycocoevalcap')}"
    by_order, _ = bleu_class(4).compute_score(wanted, said, verbose=0)
    cider, _ = cider_class().compute_score(wanted, said)
    meteor = _meteor(meteor_class, wanted, said)
    return CaptionScores(
        Score(100 * float(by_order[3]), f"bleu-4|closest|{made}"),
        Score(100 * float(cider), f"cider|n:4|sigma:6|df of these references|{made}"),
        None if isinstance(meteor, str) else Score(100 * meteor, f"meteor|1.5 en norm|{made}"),
        meteor if isinstance(meteor, str) else "",
    )


def _toolkit() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The classes for BLEU, CIDEr and METEOR."""
    # lazy: only captions need it
    try:
        from pycocoevalcap.bleu.bleu import Bleu  # pyright: ignore[reportMissingImports]
        from pycocoevalcap.cider.cider import Cider  # pyright: ignore[reportMissingImports]
        from pycocoevalcap.meteor.meteor import Meteor  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            "Scores of captions need pycocoevalcap; install headwise[captions]."
        ) from None
    return cast("tuple[Any, Any, Any]", (Bleu, Cider, Meteor))


def _meteor(
    meteor_class: Callable[..., Any],
    wanted: Mapping[int, list[str]],
    said: Mapping[int, list[str]],
) -> float | str:
    """METEOR, or why there is none."""
    if not shutil.which("java"):
        return "METEOR needs Java, and there is no java on the PATH"
    scorer = meteor_class()
    try:
        return float(scorer.compute_score(wanted, said)[0])
    except (ValueError, OSError) as problem:
        return f"METEOR's Java program failed ({problem})"
    finally:
        if scorer.lock.locked():  # its own end would wait for this for ever
            scorer.lock.release()
        scorer.meteor_p.stdout.close()
        scorer.meteor_p.stderr.close()


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(
            f"One reference for each of one translation or more was wanted, got {len(hypotheses)} "
            f"translations and {len(references)} references."
        )


def _bleu_metric(lowercase: bool, tokenize: Tokens, smooth: Literal["exp", "none"]) -> Any:
    from sacrebleu.metrics.bleu import BLEU  # lazy: reading a table does not need it

    # force: it would warn of text that looks tokenised, which here is meant
    return BLEU(lowercase=lowercase, tokenize=tokenize, smooth_method=smooth, force=True)


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(float(score.score), str(metric.get_signature()))


def _counts(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> torch.Tensor:
    """Matches and n-grams of each order, then both lengths, for each sentence."""
    scores = [
        metric.corpus_score([hypothesis], [[reference]])
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    rows = [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
    return torch.tensor(rows)


def _resampled(metric: Any, count_C: torch.Tensor) -> float:
    """BLEU of summed counts."""
    counts = cast("list[int]", count_C.tolist())
    score = metric.compute_bleu(
        counts[:4], counts[4:8], counts[8], counts[9], smooth_method=metric.smooth_method
    )
    return float(score.score)
