"""Scores of the papers: BLEU of tokens, bits per character, paired bootstrap, captions.

- `tokenised_bleu`: BLEU of tokens as they are, like Moses' multi-bleu.perl; lower-cased it is what
  the Explicit Sparse Transformer reports for En-Vi and De-En.
- `bits_per_character`: from a cross-entropy in nats.
- `paired_bootstrap`: whether two systems differ on one test set.
- `caption_scores`: BLEU-4, METEOR and CIDEr as the COCO toolkit computes them.

BLEU of raw text is `headwise.analysis.scores.bleu`.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, cast

import torch

from headwise.analysis import Score, bleu
from headwise.analysis.scores import Tokens


@dataclass(frozen=True)
class Difference:
    """Difference of two systems' scores, first minus second, with its 95 % interval."""

    value: float
    low: float
    high: float
    signature: str

    @property
    def is_real(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class CaptionScores:
    """Scores of captions by the COCO toolkit, times 100."""

    bleu_4: Score
    cider: Score
    meteor: Score | None
    skipped: str = ""  # why there is no METEOR


def tokenised_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = True,
    tokenize: Tokens = "none",
) -> Score:
    """Compute corpus BLEU of tokens between spaces, without smoothing, like multi-bleu.perl.

    Lower-cased this is the case-insensitive BLEU of Explicit Sparse Transformer (A.2) on En-Vi and
    De-En, whose texts are tokenised as they come. It compares only with scores on the same tokens.

    Args:
        hypotheses: tokens between spaces, tokenised like the references.
        references: one per hypothesis.
        lowercase: ignore case, like `multi-bleu.perl -lc`.
        tokenize: "13a" for raw texts, so that both sides are tokenised the same way.
    """
    return bleu(hypotheses, references, lowercase=lowercase, tokenize=tokenize, smooth="none")


def bits_per_character(loss: float, *, tokens: int = 1, characters: int = 1) -> Score:
    """Convert a mean cross-entropy in nats to bits per character.

        BPC = loss * tokens / (characters * ln 2)

    >>> bits_per_character(math.log(2)).value
    1.0

    Args:
        loss: nats per predicted token.
        tokens: number of predicted tokens, where tokens are not characters.
        characters: number of characters of their text.
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
    """Compare BLEU of two systems on the same sentences by bootstrap (Koehn, 2004).

    Sentences are drawn with replacement, the same for both. The interval holds the middle 95 % of
    the differences; it is about other test sentences, not other seeds.

    Args:
        first: translations of one system.
        second: translations of the other.
        references: one per sentence.
        samples: number of bootstrap samples.
        seed: of the samples.
        lowercase: see `bleu`.
        tokenize: see `bleu`.
    """
    if samples < 40:
        raise ValueError(f"samples must be 40 or more for a 95 % interval, got {samples}.")
    systems = (first, second)
    one, two = (
        bleu(system, references, lowercase=lowercase, tokenize=tokenize) for system in systems
    )
    metric = _bleu_metric(lowercase, tokenize)
    counts = [_counts(metric, system, references) for system in systems]
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
    """Compute BLEU-4, METEOR and CIDEr of captions by `pycocoevalcap`, times 100.

    The toolkit's own tokeniser needs Java, so words are compared as given; take them from
    `headwise_papers.data.captions.caption_words`, which lower-cases and drops punctuation like it.
    METEOR needs Java too, and is None without it.

    Args:
        hypotheses: the words of one caption per image.
        references: for each image, the words of each of its captions.
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
    """Import the classes for BLEU, CIDEr and METEOR."""
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
    """Return METEOR, or why there is none."""
    if not shutil.which("java"):
        return "METEOR needs Java, and there is no java on the PATH"
    scorer = meteor_class()
    try:
        return float(scorer.compute_score(wanted, said)[0])
    except (ValueError, OSError) as problem:
        return f"METEOR's Java program failed ({problem})"
    finally:
        if scorer.lock.locked():  # else its destructor waits for ever
            scorer.lock.release()
        scorer.meteor_p.stdout.close()
        scorer.meteor_p.stderr.close()


def _bleu_metric(lowercase: bool, tokenize: Tokens) -> Any:
    from sacrebleu.metrics.bleu import BLEU  # lazy: only scoring needs it

    return BLEU(lowercase=lowercase, tokenize=tokenize, force=True)


def _counts(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> torch.Tensor:
    """Return matches and n-grams of each order, then both lengths, for each sentence."""
    scores = [
        metric.corpus_score([hypothesis], [[reference]])
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    rows = [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
    return torch.tensor(rows)


def _resampled(metric: Any, count_C: torch.Tensor) -> float:
    """Compute BLEU from summed counts."""
    counts = cast("list[int]", count_C.tolist())
    score = metric.compute_bleu(
        counts[:4], counts[4:8], counts[8], counts[9], smooth_method=metric.smooth_method
    )
    return float(score.score)
