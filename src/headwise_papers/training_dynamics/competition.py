"""Section 5.2: does a purer but rarer word ("powerful") win attention over a commoner one ("best")?

"best" is in 128 training sentences of SST2, 103 of them positive, "powerful" in 36, all positive.

    headwise reproduce training_dynamics/competition    # the models of `sst`

- "At first" is after a tenth of training. A drop is more than 1 % of the highest score.
- Weights in a sentence are ordered as scores, so they are drawn and not judged.
- Seeds differ by noise alone: this is one pair of words, five times.
"""

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Result,
    curve,
    draw_lines,
    draw_paths,
    minus,
    panels,
    share,
)
from headwise_papers.ops.sen import theoretical_norm, theoretical_score
from headwise_papers.training_dynamics._sst import (
    SENTENCE,
    SMOKE,
    Curves,
    SstConfig,
    SstTraining,
    Trained,
    read_corpus,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("FC", "TC")
WORDS = ["powerful", "best"]  # the purer first
PLACES = [SENTENCE.index(word) for word in WORDS]
COLOURS = {"powerful": "tab:red", "best": "tab:blue"}
EARLY = 0.1  # share of training that is "at first"
DROP = 0.01  # of the highest score

CLAIMS = tuple(
    claim
    for model in MODELS
    for claim in (
        Claim.share(f"{model} best has the longer embedding at first", threshold=0.5, number=59,
                    where="Fig. 5", text='"best" has the longer embedding at first'),
        Claim.share(f"{model} best has the higher score at first", threshold=0.5, number=59,
                    where="Fig. 5", text='"best" has the higher score at first'),
        Claim.direction(f"{model} score of powerful - best at the end", number=59,
                        where="Fig. 5", text='"powerful" has the higher score at the end'),
        Claim.share(f"{model} score of best drops", threshold=0.5, number=59,
                    where="Fig. 5", text='The score of "best" drops'),
        Claim.direction(f"{model} Eq. 10's score - score of powerful at the end", number=59,
                        where="Fig. 5", text='Eq. 10 overestimates the score of "powerful"'),
        Claim.direction(f"{model} norm of best - Eq. 10's norm at the end", number=59,
                        where="Fig. 5", text='Eq. 10 fails for "best" at the end'),
    )
)  # fmt: skip


def run(config: SstConfig, out: Run) -> dict[str, Result]:
    """Compare the two words in both models."""
    results: dict[str, Result] = {}
    for model, training in config.trainings().items():
        own = measures(Trained.of(training).curves("sentence"), companions_of(training))
        results |= {f"{model} {name}": result for name, result in own.items()}
    return results


def companions_of(training: SstTraining) -> Tensor:
    """Return the m of Eq. 10 of the two words."""
    corpus = read_corpus(training)
    return corpus.m_V[corpus.numbers(WORDS)]


def measures(curves: Curves, m_X: Tensor) -> dict[str, Result]:
    """Return the results of one model."""
    score_ESX, norm_ESX = curves.score_ESW[..., PLACES], curves.norm_ESW[..., PLACES]
    first = int((curves.epoch_E <= EARLY * curves.epoch_E[-1]).sum()) - 1
    share_E = curves.epoch_E.double() / curves.epoch_E[-1].clamp(min=1)
    results: dict[str, Result] = {}
    for name, x_ESX in (("score", score_ESX), ("norm", norm_ESX)):
        powerful_ES, best_ES = x_ESX.unbind(-1)
        early = {"norm": "longer embedding", "score": "higher score"}[name]
        led_S = best_ES[first] > powerful_ES[first]
        results[f"best has the {early} at first"] = share(led_S.tolist())
        behind_ES = powerful_ES <= best_ES  # the last such record is when powerful overtakes
        results[f"powerful overtakes in {name}, share of training"] = Result(
            (behind_ES * share_E[:, None]).amax(0).tolist()
        )
        for word, x_ES in zip(WORDS, (powerful_ES, best_ES), strict=True):
            results[f"{name} of {word} at the end"] = Result(x_ES[-1].tolist())
    peak = score_ESX[..., 1].max(0)
    dropped_S = score_ESX[-1, :, 1] < (1 - DROP) * peak.values
    given_SX, theory_SX = theoretical_score(norm_ESX[-1], m_X), theoretical_norm(score_ESX[-1], m_X)
    powerful, best = (results[f"score of {word} at the end"] for word in WORDS)
    return results | {
        "score of best, highest": Result(peak.values.tolist()),
        "score of best is highest at, share of training": Result(share_E[peak.indices].tolist()),
        "score of best drops": share(dropped_S.tolist()),
        "score of powerful - best at the end": minus(powerful, best),
        "Eq. 10's score - score of powerful at the end": minus(
            Result(given_SX[:, 0].tolist()), powerful
        ),
        "norm of best - Eq. 10's norm at the end": minus(
            results["norm of best at the end"], Result(theory_SX[:, 1].tolist())
        ),
    }


def weights(curves: Curves) -> Tensor:
    """Return (E, S, X): attention weights of the two words in the sentence."""
    return curves.score_ESW.softmax(-1)[..., PLACES]


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 5: two SEN curves, then norms, scores and weights through training."""
    config = from_json(SstConfig, out.config())
    figure, rows = panels(5, len(MODELS), width=2.9, height=2.5)
    for row, (model, training) in zip(rows, config.trainings().items(), strict=True):
        curves, m_X = Trained.of(training).curves("sentence"), companions_of(training)
        score_ESX, norm_ESX = curves.score_ESW[..., PLACES], curves.norm_ESW[..., PLACES]
        for index, word in enumerate(WORDS):
            own = (score_ESX[..., index], norm_ESX[..., index])
            theory = partial(theoretical_norm, m=m_X[index].item())
            draw_paths(row[index], *own, theory=theory, label="Eq. 10")
            row[index].set(xlabel=f"score (Attn-{model}) of “{word}”", ylabel="embedding norm")
        for axes, ylabel, x_ESX in (
            (row[2], "embedding norm", norm_ESX),
            (row[3], "score", score_ESX),
            (row[4], "weight in one sentence", weights(curves)),
        ):
            both = zip(WORDS, x_ESX.unbind(-1), strict=True)
            lines = {word: curve(curves.epoch_E / 1000, x_ES) for word, x_ES in both}
            draw_lines(axes, lines, xlabel="thousand epochs", ylabel=ylabel, colours=COLOURS)
    rows[0][0].legend(fontsize="small")
    return {"fig5-powerful-against-best": figure}


experiment = Experiment(SstConfig(), SMOKE, SstConfig.models, run, draw, CLAIMS)
