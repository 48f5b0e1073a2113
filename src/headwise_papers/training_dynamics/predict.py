"""Our question: does Eq. 8 tell, after a tenth of training, which words will be attended?

Words of SST2 are ranked by several measures, and compared with their scores at the end.

    headwise reproduce training_dynamics/predict    # the models of `sst`

- *Eq. 8* is the score so far plus its speed times the rest of training; *exact speed* is Eq. 6's,
  before Lemma 2 takes means. Occurrence and purity need no model.
- Common words are in ten or more training sentences. Over all words Eq. 8 beats purity.
- No ranking finds more than a third of the fifty words of the largest scores.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Result, minus, panels
from headwise_papers.measures.ranks import rank_correlation
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.ops.sen import predicted_velocities
from headwise_papers.recipes.descent import descend
from headwise_papers.training_dynamics._sst import (
    SMOKE,
    Corpus,
    SstConfig,
    SstTraining,
    Trained,
    build_stack,
    read_corpus,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("FC", "TC")
RANKINGS = ("Eq. 8", "Eq. 8 speed", "exact speed", "score so far", "evidence", "occurrence",
            "purity")  # fmt: skip
SHOWN = ("Eq. 8", "score so far", "occurrence", "purity")
EARLY = 0.1  # share of training to predict from
COMMON = 10  # training sentences of a common word
WORDS = 50  # of the largest scores
PAIRS = (("Eq. 8", "occurrence"), ("Eq. 8", "purity"), ("Eq. 8", "score so far"),
         ("Eq. 8 speed", "exact speed"))  # fmt: skip

CLAIMS = tuple(
    Claim.direction(f"{model} {one} - {other}, rank correlation, common words",
                    text=f"{one} ranks common words better than {other}")
    for one, other in PAIRS
    for model in MODELS
)  # fmt: skip


class Forecast(NamedTuple):
    """Rankings of words made early, and the scores at the end, of one model."""

    early: int  # epoch
    given_XSV: Tensor  # X in the order of RANKINGS
    final_SV: Tensor


def run(config: SstConfig, out: Run) -> dict[str, Result]:
    """Compare early rankings with the scores at the end; keeps them for `draw`."""
    results: dict[str, Result] = {}
    for model, training in config.trainings().items():
        corpus = read_corpus(training)
        forecast = predict(training, corpus)
        kept = {"given": forecast.given_XSV, "final": forecast.final_SV}
        out.save_tensors(f"forecast-{model}.safetensors", kept)
        results[f"{model} epochs seen"] = Result([float(forecast.early)])
        for ranking, given_SV in zip(RANKINGS, forecast.given_XSV, strict=True):
            for measure, values_S in measures(given_SV, forecast.final_SV, corpus).items():
                results[f"{model} {ranking}, {measure}"] = Result(values_S.tolist())
        what = "rank correlation, common words"
        for one, other in PAIRS:
            pair = (results[f"{model} {ranking}, {what}"] for ranking in (one, other))
            results[f"{model} {one} - {other}, {what}"] = minus(*pair)
    return results


def predict(training: SstTraining, corpus: Corpus) -> Forecast:
    """Rank words after a tenth of training."""
    trained = Trained.of(training)
    length = trained.best_S.double().mean().item()
    early = max(round(EARLY * length), 1)
    stack = build_stack(training, corpus)
    sentences = corpus.sst.train.repeated(training.seeds)
    descend(stack, sentences, epochs=early, rate=training.rate)
    speed_SV, exact_SV = speeds(stack, corpus)
    score_SV = stack.word_scores().cpu()
    ahead_SV = score_SV + training.rate * (length - early) * speed_SV
    occurrence_V = corpus.occurrence_V.double()
    known = (occurrence_V * corpus.purity_V, occurrence_V, corpus.purity_V)
    alike = [measure_V.expand_as(score_SV) for measure_V in known]
    given_XSV = torch.stack([ahead_SV, speed_SV, exact_SV, score_SV, *alike])
    return Forecast(early, given_XSV, trained.score_SV)


def speeds(stack: BagStack, corpus: Corpus) -> tuple[Tensor, Tensor]:
    """Return each word's ds/dt by Eq. 8 and by Eq. 6, seed by seed."""
    train = corpus.sst.train
    gradient_SND = stack.context_gradients(stack.prepare(train.repeated(stack.seeds)))
    device = gradient_SND.device
    found = [
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
    by_mean, exact = ([x.scores for x in found], [x.exact_scores for x in found])
    return torch.stack(by_mean).cpu(), torch.stack(exact).cpu()


def measures(given_SV: Tensor, final_SV: Tensor, corpus: Corpus) -> dict[str, Tensor]:
    """Return how near a ranking is to the scores at the end, one value per seed."""
    common_V, all_V = corpus.occurrence_V >= COMMON, corpus.occurrence_V > 0
    first_SK, top_SK = (x_SV[:, all_V].topk(WORDS).indices for x_SV in (given_SV, final_SV))
    found_S = (first_SK[:, :, None] == top_SK[:, None]).any(-1).double().mean(-1)
    return {
        f"rank correlation, {name}": rank_correlation(given_SV[:, of_V], final_SV[:, of_V])
        for name, of_V in (("common words", common_V), ("all words", all_V))
    } | {"share of the top words found": found_S}


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw scores at the end against four of the rankings, common words of the first seed."""
    config = from_json(SstConfig, out.config())
    figure, rows = panels(len(SHOWN), len(MODELS), width=3.2, height=2.5)
    for row, (model, training) in zip(rows, config.trainings().items(), strict=True):
        common_V = read_corpus(training).occurrence_V >= COMMON
        kept = out.load_tensors(f"forecast-{model}.safetensors")
        final_V = kept["final"][0, common_V]
        for axes, ranking in zip(row, SHOWN, strict=True):
            given_V = kept["given"][RANKINGS.index(ranking), 0, common_V]
            rho = rank_correlation(given_V, final_V).item()
            axes.plot(given_V.tolist(), final_V.tolist(), ".", markersize=2.5, alpha=0.5)
            axes.set(xlabel=ranking, title=f"Attn-{model}, rank correlation {rho:.2f}")
            if ranking == "occurrence":
                axes.set_xscale("log")
        row[0].set_ylabel("score at the end")
    return {"early-forecasts-against-final-scores": figure}


experiment = Experiment(SstConfig(), SMOKE, SstConfig.models, run, draw, CLAIMS)
