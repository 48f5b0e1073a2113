"""Section 5.1: do a topic word's score and embedding norm grow as Eq. 10 says, whatever classifies?

Each sentence has one topic word among 20 words that say nothing.

    headwise reproduce training_dynamics/synthetic    # 1 minute on a CPU core

- The query is fixed with norm 1, so the rate is eta; the authors' code draws it at random.
- Deviation is the largest over topic words and epochs, at scores above 0.05 (before, the norm is
  initial noise). Its margin is the width of a line in Fig. 2.
- Topic scores are compared with the largest other score, a criterion chosen after the run: the
  first one, of means, was an identity.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    curve,
    draw_histogram,
    draw_lines,
    draw_paths,
    minus,
    panels,
)
from headwise_papers.data.synthetic import TopicTask
from headwise_papers.ops.sen import deviation, theoretical_norm
from headwise_papers.training_dynamics._topics import (
    SMALL_TASK,
    TopicModels,
    TopicTraining,
    train_topics,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("FC", "TC", "TL")
SHOWN = 3  # topic word of Fig. 2
SMOKE = TopicTraining(SMALL_TASK, epochs=600, rate=0.5, seeds=2)

CLAIMS = (
    *(
        claim
        for model in MODELS
        for claim in (
            Claim.value(f"{model} test accuracy", 1.0, margin=0.0, number=42,
                        where="Sec. 5.1", text="Test accuracy"),
            Claim.value(f"{model} training loss", 0.0, margin=0.05, number=42,
                        where="Sec. 5.1", text="Training loss"),
            Claim.value(f"{model} deviation", 0.0, margin=0.02, number=43,
                        where="Fig. 2", text="Deviation from Eq. 10"),
            Claim.value(f"{model} others' change of norm", 0.0, margin=0.02, number=44,
                        where="Fig. 1", text="Change of other words' norm, relative"),
            Claim.value(f"{model} orders of magnitude of topic scores", 2.0, margin=0.5, number=45,
                        where="Fig. 1", text="Orders of magnitude of topic scores"),
        )
    ),
    Claim.value("FC sentences whose topic word is attended", 1.0, margin=0.0, number=46,
                where="Theorem 2", text="Topic words attended"),
    *(
        Claim.direction(f"{more} topic {what} - {less} topic {what}", number=47, where="Fig. 1",
                        text=f"The simpler classifier has the larger topic {what}")
        for what in ("score", "norm")
        for more, less in (("FC", "TC"), ("TC", "TL"))
    ),
)  # fmt: skip


def models(config: TopicTraining) -> Iterator[Job]:
    """List the three classifiers."""
    for model in MODELS:
        yield Job(train_topics, config.of(classifier=model))


def run(config: TopicTraining, out: Run) -> dict[str, Result]:
    """Measure the three classifiers."""
    results: dict[str, Result] = {}
    for model in MODELS:
        trained = TopicModels.of(config.of(classifier=model))
        own = measures(trained, config.task)
        if model == "FC":
            own |= attention_to_topics(trained, config)
        results |= {f"{model} {name}": Result(values.tolist()) for name, values in own.items()}
    for what in ("score", "norm"):
        for more, less in (("FC", "TC"), ("TC", "TL")):
            first, second = f"{more} topic {what}", f"{less} topic {what}"
            results[f"{first} - {second}"] = minus(results[first], results[second])
    return results


def measures(trained: TopicModels, task: TopicTask) -> dict[str, Tensor]:
    """Return what is measured of every classifier, one value per seed."""
    topic, rest = slice(None, task.topic_words), slice(task.topic_words, None)
    off_SW = deviation(trained.score, trained.norm, task.others).largest
    moved_SV = (trained.final_norms - trained.first_norms).abs()
    topic_score_S = trained.final_scores[:, topic].mean(1)
    other_SV = trained.final_scores[:, rest].abs()
    return {
        "test accuracy": trained.accuracy,
        "training loss": trained.loss[-2],  # before the last update
        "deviation": off_SW.nan_to_num(0).amax(1),  # a word that hardly moves has no curve
        "topic words with a score above 0.05": (~off_SW.isnan()).double().mean(1),
        "others' change of norm": moved_SV[:, rest].mean(1) / moved_SV[:, topic].mean(1),
        "topic score": topic_score_S,
        "topic norm": trained.final_norms[:, topic].mean(1),
        "others' score": other_SV.mean(1),
        "orders of magnitude of topic scores": (topic_score_S / other_SV.amax(1)).log10(),
    }


def attention_to_topics(trained: TopicModels, config: TopicTraining) -> dict[str, Tensor]:
    """Return where the training sentences are attended at the end, one value per seed."""
    tokens_SNT = config.task.draw(range(config.seeds)).train.tokens
    score_SNT = trained.final_scores.gather(1, tokens_SNT.flatten(1)).view(tokens_SNT.shape)
    is_topic_SNT = tokens_SNT < config.task.topic_words
    attended_SN = is_topic_SNT.gather(-1, score_SNT.argmax(-1, keepdim=True))[..., 0]
    return {
        "sentences whose topic word is attended": attended_SN.double().mean(1),
        "weight of the topic word": (score_SNT.softmax(-1) * is_topic_SNT).sum(-1).mean(1),
    }


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 1 and 2, and the training loss."""
    config = from_json(TopicTraining, out.config())
    trained = {f"Attn-{x}": TopicModels.of(config.of(classifier=x)) for x in MODELS}
    loss, ((axes,),) = panels(1, width=4.5)
    epochs = torch.arange(config.epochs + 1, dtype=torch.float64)
    losses = {label: curve(epochs, x.loss) for label, x in trained.items()}
    draw_lines(axes, losses, xlabel="epoch", ylabel="training loss")
    return {
        "fig1-distributions": draw_distributions(trained, config.task),
        "fig2-sen": draw_curves(trained, config.task),
        "loss": loss,
    }


def draw_distributions(trained: dict[str, TopicModels], task: TopicTask) -> "Figure":
    """Draw Fig. 1: scores, then norms, of other words and topic words."""
    figure, (row,) = panels(4, width=3.2, height=2.7)
    topic, rest = slice(None, task.topic_words), slice(task.topic_words, None)
    scores = {label: x.final_scores for label, x in trained.items()}
    norms = {label: x.final_norms for label, x in trained.items()}
    for axes, table, words, name in (
        (row[0], scores, rest, "score of other words"),
        (row[1], scores, topic, "score of topic words"),
        (row[2], norms, rest, "norm of other words"),
        (row[3], norms, topic, "norm of topic words"),
    ):
        shown = {label: x[:, words] for label, x in table.items()}
        draw_histogram(axes, shown, xlabel=name, ylabel="share of words")
    row[0].legend()
    return figure


def draw_curves(trained: dict[str, TopicModels], task: TopicTask) -> "Figure":
    """Draw Fig. 2: norm against score of one topic word."""
    figure, (row,) = panels(len(trained), width=3.2, height=2.7)
    theory = partial(theoretical_norm, m=task.others)
    farthest = 1.05 * max(x.score[..., SHOWN].max().item() for x in trained.values())
    for axes, (label, x) in zip(row, trained.items(), strict=True):
        draw_paths(axes, x.score[..., SHOWN], x.norm[..., SHOWN], theory=theory, label="Eq. 10")
        axes.set(xlabel=f"score ({label})", ylabel="embedding norm")
        axes.set_xlim(-0.02 * farthest, farthest)
    row[0].legend(fontsize="small")
    return figure


experiment = Experiment(TopicTraining(), SMOKE, models, run, draw, CLAIMS)
