"""Section 5.1: do score and embedding of a topic word help each other to grow, or hinder?

The task of `synthetic` with larger initial embeddings, learned by Attn-TC, by KF (its scores are
frozen) and by EF (its embeddings are). A topic word is *diminished* if Eq. 8 gives its score a
negative speed at the start, else *enhanced*.

    headwise reproduce training_dynamics/ablation --jobs 3    # 3 minutes on a GPU, 20 on a CPU

- Converged means a loss below 0.05. "Grows faster" was to be asked then; as EF overtakes some words
  before, it is also asked when the loss has halved.
- Falling behind KF's norm was to be asked at the lowest score; it is also asked at any time until
  the loss has halved.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, curve, draw_lines, panels, share
from headwise_papers.models.bag import BagConfig
from headwise_papers.ops.sen import predicted_velocities
from headwise_papers.training_dynamics._topics import (
    SMALL_TASK,
    TopicModels,
    TopicTraining,
    build_stack,
    train_topics,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FROZEN = {"TC": "nothing", "KF": "scores", "EF": "embeddings"}
LABELS = {"TC": "Attn-TC", "KF": "Attn-TC-KF", "EF": "Attn-TC-EF"}
COLOURS = {"Attn-TC": "tab:orange", "Attn-TC-KF": "tab:red", "Attn-TC-EF": "tab:purple"}
CONVERGED = 0.05  # loss
SHOWN = 3000  # epochs in Fig. 3
CONFIG = TopicTraining(model=BagConfig(embedding_std=math.sqrt(0.1)), epochs=60_000)
SMOKE = replace(CONFIG, task=SMALL_TASK, epochs=1500, rate=0.2, seeds=2)

CLAIMS = (
    *(
        Claim.value(f"enhanced words with {what}, {when}", 1.0, margin=0.0, number=49,
                    where="Fig. 3", text="Enhanced words are ahead of the frozen variants")
        for when in ("loss halved", "converged")
        for what in ("score above EF's", "norm above KF's")
    ),
    Claim.value("words whose score EF overtakes", 1.0, margin=0.0, number=50, where="Sec. 5.1",
                text="EF's scores overtake"),
    Claim.share("seeds where TC's loss falls fastest", threshold=0.5, number=50, where="Fig. 3",
                text="Attn-TC's loss falls fastest"),
    *(
        Claim.value(f"{variant} test accuracy", 1.0, margin=0.0, number=51, where="Sec. 5.1",
                    text="Test accuracy")
        for variant in FROZEN
    ),
    Claim.value("epoch of TC's convergence", 1000.0, margin=200.0, number=52, where="Sec. 5.1",
                text="Epoch of Attn-TC's convergence"),
    *(
        Claim.value(f"diminished words behind KF's norm, {when}", 1.0, margin=0.0, number=53,
                    where="Eq. 8", text="Diminished words: norm behind KF's")
        for when in ("lowest score", "any time")
    ),
    Claim.value("diminished words that recover", 1.0, margin=0.0, number=53, where="Fig. 3",
                text="Diminished words recover"),
    Claim.value("epoch of faster norm than KF's", 370.0, margin=50.0, number=54, where="Fig. 3",
                text="Epoch of faster norm than KF's"),
)  # fmt: skip


def models(config: TopicTraining) -> Iterator[Job]:
    """List the three variants."""
    for frozen in FROZEN.values():
        yield Job(train_topics, config.of(freeze=frozen))


def run(config: TopicTraining, out: Run) -> dict[str, Result]:
    """Compare the three variants."""
    trained = {name: TopicModels.of(config.of(freeze=x)) for name, x in FROZEN.items()}
    diminished_SW = first_speeds(config) < 0
    return {
        **{f"{name} test accuracy": Result(x.accuracy.tolist()) for name, x in trained.items()},
        **enhancement(trained, diminished_SW),
        **diminution(trained, diminished_SW),
    }


def first_speeds(config: TopicTraining) -> Tensor:
    """Return (S, W): what Eq. 8 says of the scores of topic words in the initial state."""
    stack, train = build_stack(config), config.task.draw(range(config.seeds)).train
    gradient_SND = stack.context_gradients(stack.prepare(train)).cpu()
    scores_SV, vectors_SVD = stack.word_scores().cpu(), stack.word_vectors().cpu()
    speeds = [
        predicted_velocities(
            torch.arange(config.task.topic_words),
            scores=scores_SV[seed],
            vectors=vectors_SVD[seed],
            sentences=train.tokens[seed],
            gradient=gradient_SND[seed],
        ).scores
        for seed in range(stack.seeds)
    ]
    return torch.stack(speeds)


def enhancement(trained: dict[str, TopicModels], diminished_SW: Tensor) -> dict[str, Result]:
    """Ask which of two models is ahead, for enhanced words."""
    full, frozen_scores, frozen_embeddings = trained["TC"], trained["KF"], trained["EF"]
    higher_ESW = full.score > frozen_embeddings.score
    longer_ESW = full.norm > frozen_scores.norm
    converged_S, halved_S = first_below(full, CONVERGED), halved(full)
    results: dict[str, Result] = {}
    for when, at_S in (("loss halved", halved_S), ("converged", converged_S)):
        for what, ahead_ESW in (("score above EF's", higher_ESW), ("norm above KF's", longer_ESW)):
            ahead_SW = ahead_ESW[at_S, torch.arange(len(at_S))]
            results[f"enhanced words with {what}, {when}"] = shares(ahead_SW, ~diminished_SW)
    others_S = torch.minimum(halved(frozen_scores), halved(frozen_embeddings))
    return results | {
        "words whose score EF overtakes": Result((~higher_ESW[-1]).double().mean(1).tolist()),
        "seeds where TC's loss falls fastest": share((halved_S < others_S).tolist()),
        "epoch of TC's convergence": Result(full.epoch[converged_S].double().tolist()),
    }


def diminution(trained: dict[str, TopicModels], diminished_SW: Tensor) -> dict[str, Result]:
    """Ask what becomes of diminished words, in the model that trains both."""
    full = trained["TC"]
    lead_ESW = full.norm - trained["KF"].norm
    shorter_SW = lead_ESW.gather(0, full.score.argmin(0, keepdim=True))[0] < 0
    late_ES = torch.arange(len(lead_ESW))[:, None] > halved(full)
    behind_SW, record_SW = lead_ESW.masked_fill(late_ES[..., None], torch.inf).min(0)
    medians = [
        epoch_W[among_W].median().item()
        for epoch_W, among_W in zip(full.epoch[record_SW].double(), diminished_SW, strict=True)
        if among_W.any()
    ]
    return {
        "diminished words": Result(diminished_SW.double().mean(1).tolist()),
        "diminished words that first lose score": shares(full.score[1] < 0, diminished_SW),
        "enhanced words that first gain score": shares(full.score[1] > 0, ~diminished_SW),
        "diminished words behind KF's norm, lowest score": shares(shorter_SW, diminished_SW),
        "diminished words behind KF's norm, any time": shares(behind_SW < 0, diminished_SW),
        "enhanced words behind KF's norm, any time": shares(behind_SW < 0, ~diminished_SW),
        "diminished words that recover": shares(full.score[-1] > 0, diminished_SW),
        "epoch of faster norm than KF's": Result(medians),
    }


def halved(trained: TopicModels) -> Tensor:
    """Return (S,): the first record where the loss is below half of the initial one."""
    return first_below(trained, trained.loss[0].mean().item() / 2)


def first_below(trained: TopicModels, limit: float) -> Tensor:
    """Return (S,): the first record with a loss below a limit, or the last record."""
    below_ES = trained.loss[trained.epoch] < limit
    below_ES[-1] = True
    return below_ES.int().argmax(0)


def shares(holds_SW: Tensor, among_SW: Tensor) -> Result:
    """Return the share of some words for which something holds, for seeds that have such words."""
    pairs = zip(holds_SW, among_SW, strict=True)
    return Result([holds[among].double().mean().item() for holds, among in pairs if among.any()])


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 3, and how low scores get against what Eq. 8 said before training."""
    config = from_json(TopicTraining, out.config())
    trained = {LABELS[name]: TopicModels.of(config.of(freeze=x)) for name, x in FROZEN.items()}
    speed_SW = first_speeds(config)
    figure, ((axes,),) = panels(1, width=4.5)
    lowest_SW = trained["Attn-TC"].score.amin(0)
    axes.scatter((1000 * speed_SW).flatten().tolist(), lowest_SW.flatten().tolist(), s=14)
    axes.set(xlabel="1000 x initial speed of score by Eq. 8", ylabel="lowest score in training")
    return {"fig3-evolution": draw_evolution(trained, speed_SW), "foretold-by-eq8": figure}


def draw_evolution(trained: dict[str, TopicModels], speed_SW: Tensor) -> "Figure":
    """Draw Fig. 3: enhancement and loss over all seeds, then the word of the lowest speed."""
    figure, (row,) = panels(5, width=2.9, height=2.7)
    seed, word = divmod(int(speed_SW.argmin()), speed_SW.shape[1])
    one, some = f"seed {seed}, topic word {word}", "mean of enhanced words"
    enhanced_SW = speed_SW >= 0

    def mean(curves_ESW: Tensor) -> Tensor:
        return ((curves_ESW * enhanced_SW).sum(2) / enhanced_SW.sum(1))[:, enhanced_SW.any(1)]

    for axes, title, ylabel, without, read in (
        (row[0], some, "score", "Attn-TC-KF", lambda x: mean(x.score)),
        (row[1], some, "embedding norm", "Attn-TC-EF", lambda x: mean(x.norm)),
        (row[2], "", "training loss", "", lambda x: x.loss[x.epoch]),
        (row[3], one, "score", "Attn-TC-KF", lambda x: x.score[:, seed, word, None]),
        (row[4], one, "embedding norm", "Attn-TC-EF", lambda x: x.norm[:, seed, word, None]),
    ):
        curves = {
            label: curve(x.epoch[x.epoch <= SHOWN], read(x)[x.epoch <= SHOWN])
            for label, x in trained.items()
            if label != without
        }
        draw_lines(axes, curves, xlabel="epoch", ylabel=ylabel, title=title, colours=COLOURS)
    return figure


experiment = Experiment(CONFIG, SMOKE, models, run, draw, CLAIMS)
