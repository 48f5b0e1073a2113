"""Does Eq. 10 hold for the words that attention picks out of real sentences?

Attn-FC and Attn-TC learn the sentiment of film reviews, with two classes (SST2) and with five
(SST5), by gradient descent with early stopping. Section 5.2 of the paper and Fig. 4 say:

- test accuracy is 76.68 % (FC) and 79.59 % (TC) on SST2, 38.49 % and 40.53 % on SST5;
- of the fifty words with the largest scores, most have curves of norm against score close to
  Eq. 10's, and so have the eight words that Fig. 4 shows;
- what deviates does so later: the relation holds "at least in initial training stages".

The commands, with HEADWISE_DATA naming a folder that holds `sst`:

    headwise reproduce training_dynamics/sst           # 2 minutes on a GPU; 3 hours on a CPU core
    headwise reproduce training_dynamics/sst --smoke   # 5 seconds
    headwise reproduce training_dynamics/sst --set fc_rate=10 --set fc_width=5 --set tc_rate=2 --set tc_width=50
                                         # almost the same figures, 3 minutes on a CPU core

How it is measured, and where ours differs from the paper or it leaves a choice:

1. Attn-FC is trained with rate 1, not 0.1. With an orthonormal classifier and rate 0.1 validation
   loss still falls after 30,000 epochs (accuracy 68.3 % on SST2 then), while the paper's Fig. 5
   ends after about 20,000 with scores above 3. With rate 1 the paper's accuracies come out, in
   15,700 epochs. Only the clock differs: losses after 1,000 and 3,000 epochs at rate 1 equal those
   after 10,000 and 30,000 at rate 0.1 to four digits. Attn-TC needs no such change: rate 0.1 stops
   after 12,900 epochs, where the axis of the paper's Fig. 5 ends.
2. Padding has no weight, as in the paper. (The authors' code gives it a score of its own.)
3. "Close" is read in two ways, "most" as more than half. *To the eye*: the norm is nowhere further
   from Eq. 10's than 10 % of its own largest value, the height of the curve in a figure like the
   paper's. *Point by point*: it is nowhere further than 10 % of Eq. 10's norm at that very score.
   This is much stricter where scores are small; up to 0.05 they do not count, as the norm is still
   that of the initial noise. It was tried first, and fails for most of the fifty and for the words
   of Fig. 4, although their curves look like the paper's; the reading to the eye was added then.
   m is the mean length of the word's training sentences, less one.
4. The fifty words are those of the largest scores at the epoch of the lowest validation loss, among
   words in at least three training sentences (the rarest of the fifty is in five). Curves end at
   that epoch, for all seeds at the earliest of theirs (seeds differ by about 2 %).
5. A word leaves at the first recorded epoch where it is further off than 10 %. "Most stay until"
   is the share of training after which at least half of the fifty have left, 1 if never.
6. Seeds share the data and differ in the initial noise only, hence the narrow intervals.
7. One accuracy is not known better than its test set allows: a standard error of 1.0 point on both.
   So a figure counts as reproduced within one point.
8. What does not come out is section 5.2's claim that most of the fifty words stay close: to the
   eye 52 and 48 % do on SST2 (Attn-FC, Attn-TC), 16 and 13 % on SST5; point by point 14, 34, 0 and
   5 %. Tried: both readings, d = 5 and 50 beside 200, and steps ten times as long: the same shares.
   "Point by point" does not count scores up to 0.05, "to the eye" has no such limit, so a word that
   has hardly moved is close by the former and may not be by the latter.
9. An embedding of as many entries as there are classes gives Attn-FC the same dynamics
   (`fc_width`); the paper has 200 throughout, the authors' code 100 for Attn-TC (`tc_width`).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.measures.sen import theoretical_norm
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.training_dynamics._plots import COLOURS, draw_band, draw_sen, panels, save
from headwise_papers.training_dynamics._sst_training import (
    Corpus,
    Curves,
    Trained,
    read_corpus,
    train,
)

DATA = ("sst2", "sst5")
MODELS = ("FC", "TC")
FIGURE_4 = {
    ("sst2", "FC"): ("stupid", "suffers"),
    ("sst2", "TC"): ("worst", "stupid"),
    ("sst5", "FC"): ("stupid", "ugly"),
    ("sst5", "TC"): ("bad", "stupid"),
}
ACCURACY = {
    ("sst2", "FC"): 0.7668,
    ("sst2", "TC"): 0.7959,
    ("sst5", "FC"): 0.3849,
    ("sst5", "TC"): 0.4053,
}
READINGS = ("to the eye", "point by point")  # of "close", see 3 above
MINIMUM = 3  # training sentences of a word that is followed


@dataclass(frozen=True)
class Config:
    """Section 5.2."""

    fc_width: int = 200  # of Attn-FC's embeddings; the number of classes does as well
    tc_width: int = 200  # of Attn-TC's
    embedding_std: float = 1e-3  # a variance of 1e-6
    fc_rate: float = 1.0  # of Attn-FC; 0.1 in the paper, see 1 above
    tc_rate: float = 0.1  # of Attn-TC
    epochs: int = 60_000  # at most
    patience: int = 100  # epochs to wait for a lower validation loss
    every: int = 100  # epochs between records
    words: int = 50  # of the largest scores
    close: float = 0.1  # deviation from Eq. 10 that counts as close
    start: float = 0.05  # scores up to this do not count
    seeds: int = 5
    thin: int = 1  # takes every so-manieth training sentence
    device: str = "auto"  # a GPU where there is one


EXPECTED = (
    *(
        Expected(f"{data.upper()} {model} test accuracy", paper=paper, where="Sec. 5.2",
                 margin=0.01, partly=0.02)
        for (data, model), paper in ACCURACY.items()
    ),
    *(
        Expected(f"{data.upper()} {model} most of the top words close {reading}", paper=1.0,
                 where="Sec. 5.2")
        for data, model in ACCURACY
        for reading in READINGS
    ),
    *(
        Expected(f"{data.upper()} {model} words of Fig. 4 close {reading}", paper=1.0,
                 where="Fig. 4", partly=0.5)
        for data, model in ACCURACY
        for reading in READINGS
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Followed:
    """One training: the words with the largest scores, and how far they went with Eq. 10."""

    trained: Trained
    epoch_E: Tensor
    names: list[list[str]]  # the top words by seed
    off_ESK: dict[str, Tensor]  # by reading: their deviation
    shown: dict[str, tuple[Tensor, Tensor, float]]  # Fig. 4: score (E, S), norm (E, S), m
    shown_off_ESX: dict[str, Tensor]  # by reading


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train both models on both sets; each figure with one value a seed."""
    results: dict[tuple[str, str], Followed] = {}
    for data in DATA:
        corpus = read_corpus(data, config)
        for model in MODELS:
            results[data, model] = _follow(data, model, corpus, config, run)
    figures: dict[str, list[float]] = {}
    for (data, model), result in results.items():
        own = _figures(result, config)
        figures |= {f"{data.upper()} {model} {name}": values for name, values in own.items()}
    run.write_json("top-words.json", {" ".join(key): x.names for key, x in results.items()})
    _draw_relations(results, config, run)
    _draw_closeness(results, config, run)
    return figures


def _follow(
    data: str, model: Literal["FC", "TC"], corpus: Corpus, config: Config, run: Run
) -> Followed:
    words_W = corpus.words_in(MINIMUM)
    recorder = SenCurves(words_W, every=config.every)
    trained = train(model, corpus, config, run, name=f"{data}-{model}", recorders=[recorder])
    curves = Curves.of(recorder, trained)
    off_ESW = _off(curves, corpus.m_V[words_W], config.start)
    top_SK = curves.score_ESW[-1].topk(config.words).indices
    shown = [int((words_W == corpus.number(word)).nonzero()) for word in FIGURE_4[data, model]]
    spelled = corpus.sst.vocabulary.words
    return Followed(
        trained,
        curves.epoch_E,
        [[spelled[words_W[place]] for place in top_K] for top_K in top_SK.tolist()],
        {reading: x.gather(2, top_SK.expand(len(x), -1, -1)) for reading, x in off_ESW.items()},
        {
            spelled[words_W[place]]: (
                curves.score_ESW[..., place],
                curves.norm_ESW[..., place],
                corpus.m_V[words_W[place]].item(),
            )
            for place in shown
        },
        {reading: x[..., shown] for reading, x in off_ESW.items()},
    )


def _off(curves: Curves, m_W: Tensor, start: float) -> dict[str, Tensor]:
    """How far each word is from Eq. 10, in both readings."""
    score_ESW, norm_ESW = curves.score_ESW, curves.norm_ESW
    theory_ESW = theoretical_norm(score_ESW, m_W)
    counts_ESW = score_ESW > start
    relative_ESW = torch.where(counts_ESW, (norm_ESW / theory_ESW - 1).abs(), 0)
    return {
        "to the eye": (norm_ESW - theory_ESW).abs() / norm_ESW.amax(0),
        "point by point": relative_ESW,
    }


def _figures(result: Followed, config: Config) -> dict[str, list[float]]:
    figures = {
        "test accuracy": result.trained.accuracy_S.tolist(),
        "epochs until stopping": result.trained.stopped_S.double().tolist(),
        "deviation at the end, median": (
            result.off_ESK["point by point"][-1].median(-1).values.tolist()
        ),
    }
    for reading, off_ESK in result.off_ESK.items():
        staying_ES = _staying(off_ESK, config.close).mean(-1)
        most_ES = staying_ES > 0.5
        reached_S = (most_ES.sum(0) - 1).clamp(min=0)  # the last record at which most had stayed
        until_S = result.epoch_E[reached_S].double() / result.epoch_E[-1].clamp(min=1)
        shown_SX = _staying(result.shown_off_ESX[reading], config.close)[-1]
        figures |= {
            f"most of the top words close {reading}": most_ES[-1].double().tolist(),
            f"share of the top words close {reading}": staying_ES[-1].tolist(),
            f"most stay close {reading} until, share of training": until_S.tolist(),
            f"most stay close {reading} until, epoch": result.epoch_E[reached_S].double().tolist(),
            f"words of Fig. 4 close {reading}": shown_SX.mean(-1).tolist(),
        }
    return figures


def _staying(off_ESK: Tensor, close: float) -> Tensor:
    """1 where a word has been close at every record so far, else 0."""
    return (off_ESK.cummax(0).values <= close).double()


def _draw_relations(results: dict[tuple[str, str], Followed], config: Config, run: Run) -> None:
    """Fig. 4: norm against score; a row a data set, two words a model."""
    figure, axes = panels(4, len(DATA), height=2.5)
    names = [f"seed {seed}" for seed in range(config.seeds)]
    for (data, model), result in results.items():
        for index, (word, (score_ES, norm_ES, m)) in enumerate(result.shown.items()):
            axis = axes[DATA.index(data)][2 * MODELS.index(model) + index]
            draw_sen(axis, score_ES, norm_ES, m, names=names)
            axis.set(xlabel=f"score (Attn-{model}) of “{word}”")
        axes[DATA.index(data)][0].set_ylabel(f"embedding norm, {data.upper()}")
    axes[0][0].legend(fontsize="small")
    save(figure, run, "fig4-words-of-large-scores")


def _draw_closeness(results: dict[tuple[str, str], Followed], config: Config, run: Run) -> None:
    """How many of the top words have stayed close to Eq. 10, through training."""
    figure, axes = panels(len(DATA), len(READINGS), height=2.4)
    for (data, model), result in results.items():
        progress_E = 100 * result.epoch_E.double() / result.epoch_E[-1].clamp(min=1)
        for row, (reading, off_ESK) in zip(axes, result.off_ESK.items(), strict=True):
            axis = row[DATA.index(data)]
            staying_ES = 100 * _staying(off_ESK, config.close).mean(-1)
            draw_band(axis, progress_E, staying_ES, label=f"Attn-{model}", colour=COLOURS[model])
            axis.set(ylim=(0, 103), title=f"{data.upper()}, {reading}")
            row[0].set_ylabel(f"% of the top {config.words}\nstill close to Eq. 10")
    for axis in axes[-1]:
        axis.set_xlabel("% of training")
    axes[0][0].legend(fontsize="small")
    save(figure, run, "share-of-top-words-close-to-theory")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(
        fc_width=5, tc_width=5, fc_rate=20.0, tc_rate=4.0, epochs=160, patience=20, every=5,
        seeds=2, thin=3,
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)  # fmt: skip
