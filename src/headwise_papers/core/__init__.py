"""Names an experiment file needs: results, claims, the cache of models, and plots."""

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

__all__ = ["Claim", "Experiment", "Job", "Result", "Verdict", "minus", "share", "verdict"]
