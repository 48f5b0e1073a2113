"""Names an experiment file needs: results, claims, the cache of models, and plots."""

from headwise_papers.core.cache import find_or_train, is_trained, trained_in_parallel, using_cache
from headwise_papers.core.experiment import (
    Claim,
    Experiment,
    Job,
    Result,
    Verdict,
    minus,
    share,
    verdict,
)
from headwise_papers.core.plots import (
    bar_chart,
    draw_bars,
    draw_lines,
    legend_beside,
    lines,
    metric_curve,
    panels,
)

__all__ = [
    "Claim",
    "Experiment",
    "Job",
    "Result",
    "Verdict",
    "bar_chart",
    "draw_bars",
    "draw_lines",
    "find_or_train",
    "is_trained",
    "legend_beside",
    "lines",
    "metric_curve",
    "minus",
    "panels",
    "share",
    "trained_in_parallel",
    "using_cache",
    "verdict",
]
