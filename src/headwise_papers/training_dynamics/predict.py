"""Does Eq. 8 tell, from the first tenth of training, which words will be attended in the end?

Not in the paper. Attn-FC and Attn-TC learn SST2, as in training_dynamics/sst. After the first tenth of training
Eq. 8 gives the speed of each word's score from the state of the model. Words are ranked by

- Eq. 8: the score so far, plus the speed times the nine tenths of training that are left;
- Eq. 8 speed: that speed alone;
- score so far: what needs no theory;
- occurrence and purity: what needs no model, the number of training sentences with the word and
  how surely it tells their class; and evidence, their product, |positive - negative sentences|.

Each ranking is compared with that of the scores at the end: by the rank correlation (Spearman's),
and by how many of the fifty words of the largest scores are among its own first fifty.

The commands, with HEADWISE_DATA naming a folder that holds `sst`:

    headwise reproduce training_dynamics/predict           # 1 minute on a GPU; an hour on a CPU core
    headwise reproduce training_dynamics/predict --smoke   # 3 seconds

Details:

1. The end is the epoch of the lowest validation loss. The model after a tenth of it (of the mean
   over seeds) is trained again from the start, from the same initial numbers; it sees nothing of
   the rest of training but its length.
2. Rank correlations are over words in at least ten training sentences ("common words") and over all
   words of the training sentences, where rare words are most and hardly move. Words of equal value
   share the mean of their ranks.
3. "Exact speed" is Eq. 6's, before Lemma 2 takes the mean over sentences: what Eq. 8 approximates.
4. What was found: over common words Eq. 8 beats occurrence and nothing else. It loses to purity,
   which needs no model (0.42 against 0.57 for Attn-FC, 0.05 against 0.68 for Attn-TC), to the score
   so far, and its speed to that of Eq. 6 (0.35 against 0.72, Attn-FC). Over all words, most of them
   rare, it beats purity. No ranking finds more than a third of the fifty. Lemma 2 was made for one
   topic word among words that stand still.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.measures.sen import predicted_velocities
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.recipes.descent import descend
from headwise_papers.training_dynamics._plots import panels, save
from headwise_papers.training_dynamics._sst_training import (
    Corpus,
    build_stack,
    rate_of,
    read_corpus,
    train,
)

MODELS = ("FC", "TC")
RANKINGS = ("Eq. 8", "Eq. 8 speed", "exact speed", "score so far", "evidence", "occurrence",
            "purity")  # fmt: skip


@dataclass(frozen=True)
class Config:
    """The training of Section 5.2."""

    fc_width: int = 200  # of Attn-FC's embeddings; 2 does as well
    tc_width: int = 200  # of Attn-TC's
    embedding_std: float = 1e-3  # a variance of 1e-6
    fc_rate: float = 1.0  # of Attn-FC; 0.1 in the paper, see training_dynamics/sst
    tc_rate: float = 0.1  # of Attn-TC
    epochs: int = 60_000  # at most
    patience: int = 100  # epochs to wait for a lower validation loss
    every: int = 100  # epochs between records; nothing is recorded here
    early: float = 0.1  # share of training to predict from
    common: int = 10  # training sentences of a common word
    words: int = 50  # of the largest scores
    seeds: int = 5
    thin: int = 1  # takes every so-manieth training sentence
    device: str = "auto"  # a GPU where there is one


EXPECTED = tuple(
    Expected(f"{model} {ranking}, {measure}")
    for model in MODELS
    for ranking in RANKINGS
    for measure in ("rank correlation, common words", "share of the top words found")
)


@dataclass(frozen=True)
class Forecast:
    """Rankings of words made early, and the scores at the end, of one model."""

    early: int  # epoch
    given_XSV: Tensor  # X in the order of RANKINGS
    final_SV: Tensor


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train both models on SST2, to the end and to a tenth; each figure with one value a seed."""
    corpus = read_corpus("sst2", config)
    forecasts = {model: _forecast(model, corpus, config, run) for model in MODELS}
    figures: dict[str, list[float]] = {}
    for model, forecast in forecasts.items():
        figures[f"{model} epochs seen"] = [float(forecast.early)]
        for ranking, given_SV in zip(RANKINGS, forecast.given_XSV, strict=True):
            for measure, values in _measures(given_SV, forecast, corpus, config).items():
                figures[f"{model} {ranking}, {measure}"] = values
    _draw(forecasts, corpus, config, run)
    return figures


def _forecast(model: Literal["FC", "TC"], corpus: Corpus, config: Config, run: Run) -> Forecast:
    trained = train(model, corpus, config, run, name=model, recorders=[])
    length = trained.best_S.double().mean().item()
    early = max(round(config.early * length), 1)
    stack, rate = build_stack(model, corpus, config), rate_of(model, config)
    descend(stack, corpus.sst.train.repeated(config.seeds), epochs=early, rate=rate)
    speed_SV, exact_SV = _speeds(stack, corpus)
    score_SV = stack.word_scores().cpu()
    ahead_SV = score_SV + rate * (length - early) * speed_SV
    occurrence_V = corpus.occurrence_V.double()
    known = (occurrence_V * corpus.purity_V, occurrence_V, corpus.purity_V)
    alike = [measure_V.expand_as(score_SV) for measure_V in known]
    return Forecast(
        early,
        torch.stack([ahead_SV, speed_SV, exact_SV, score_SV, *alike]),
        trained.stack.word_scores().cpu(),
    )


def _speeds(stack: BagStack, corpus: Corpus) -> tuple[Tensor, Tensor]:
    """Each word's ds/dt by Eq. 8 and by Eq. 6, seed by seed."""
    train = corpus.sst.train
    gradient_SND = stack.context_gradients(stack.prepare(train.repeated(stack.seeds)))
    device = gradient_SND.device
    speeds = [
        predicted_velocities(
            torch.arange(len(score_V), device=device),
            scores=score_V,
            vectors=vectors_VD,
            sentences=train.tokens[0].to(device),
            gradient=gradient_ND,
            lengths=train.lengths[0].to(device),
        )
        for score_V, vectors_VD, gradient_ND in zip(
            stack.word_scores(), stack.word_vectors(), gradient_SND, strict=True
        )
    ]
    by_mean, exact = ([x.scores for x in speeds], [x.exact_scores for x in speeds])
    return torch.stack(by_mean).cpu(), torch.stack(exact).cpu()


def _measures(
    given_SV: Tensor, forecast: Forecast, corpus: Corpus, config: Config
) -> dict[str, list[float]]:
    common_V, all_V = corpus.occurrence_V >= config.common, corpus.occurrence_V > 0
    final_SV = forecast.final_SV
    first_SK, top_SK = (_top(x_SV[:, all_V], config.words) for x_SV in (given_SV, final_SV))
    found_S = (first_SK[:, :, None] == top_SK[:, None]).any(-1).double().mean(-1)
    return {
        f"rank correlation, {name}": _rank_correlation(given_SV[:, of_V], final_SV[:, of_V])
        for name, of_V in (("common words", common_V), ("all words", all_V))
    } | {"share of the top words found": found_S.tolist()}


def _top(x_SV: Tensor, words: int) -> Tensor:
    return x_SV.topk(words).indices


def _rank_correlation(x_SV: Tensor, y_SV: Tensor) -> list[float]:
    """Spearman's, a value a seed."""
    pairs = zip(x_SV, y_SV, strict=True)
    return [
        torch.corrcoef(torch.stack([_ranks(x_V), _ranks(y_V)]))[0, 1].item() for x_V, y_V in pairs
    ]


def _ranks(x_V: Tensor) -> Tensor:
    """The rank of each value; equal values share the mean of theirs."""
    _, place_V, count_U = x_V.unique(return_inverse=True, return_counts=True)
    last_U = count_U.cumsum(0)
    return (last_U - (count_U - 1) / 2).double()[place_V]


def _draw(forecasts: dict[str, Forecast], corpus: Corpus, config: Config, run: Run) -> None:
    """Scores at the end against four of the rankings, common words of the first seed."""
    shown = ("Eq. 8", "score so far", "occurrence", "purity")
    figure, axes = panels(len(shown), len(MODELS), height=2.5)
    common_V = corpus.occurrence_V >= config.common
    for row, (model, forecast) in zip(axes, forecasts.items(), strict=True):
        for axis, ranking in zip(row, shown, strict=True):
            given_V = forecast.given_XSV[RANKINGS.index(ranking), 0, common_V]
            final_V = forecast.final_SV[0, common_V]
            value = _rank_correlation(given_V[None], final_V[None])[0]
            axis.plot(given_V.tolist(), final_V.tolist(), ".", markersize=2.5, alpha=0.5)
            axis.set(xlabel=ranking, title=f"Attn-{model}, rank correlation {value:.2f}")
            if ranking == "occurrence":
                axis.set_xscale("log")
        row[0].set_ylabel("score at the end")
    save(figure, run, "early-forecasts-against-final-scores")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    # the whole of training, with long steps
    smoke=Config(
        fc_width=2, tc_width=4, fc_rate=80.0, tc_rate=8.0, epochs=400, patience=10, seeds=1
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)
