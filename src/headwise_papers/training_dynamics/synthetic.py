"""Do score and embedding norm of a topic word grow together as Eq. 10 says, whatever classifies?

Each sentence has one topic word among 20 words that say nothing; a bag-of-words attention model
with one of three classifiers learns the topic by gradient descent: Attn-FC (linear, fixed), Attn-TC
(linear, trained), Attn-TL (two layers, trained). Section 5.1 of the paper, Fig. 1 and 2, says:

- all three reach a training loss near zero and 100 % test accuracy;
- the curve of embedding norm against score of a topic word is Eq. 10's in all three;
- words that say nothing hardly move (Assumption 1), and the scores of topic words exceed theirs by
  two orders of magnitude;
- Attn-FC comes to attend to the topic word of every sentence (Theorem 2);
- the less a classifier can do, the larger scores and norms of topic words get: FC > TC > TL.

The commands:

    headwise reproduce training_dynamics/synthetic           # 1 minute on one CPU core
    headwise reproduce training_dynamics/synthetic --smoke   # 1 second

Where the paper leaves a choice:

1. The query is fixed with norm 1, so that a word's score is a free number and the rate is eta. The
   authors' code has keys of width 10 and a random query, with eta 0.09 on average.
2. Trained classifiers start as PyTorch's layers do.
3. The largest deviation from Eq. 10 is over all topic words and over epochs with scores above 0.05;
   before, the norm is that of the initial noise. "Coincide" is read as within 2 %, the width of a
   line in the paper's figure. "Near zero" is a loss below 0.05, against 1.386 at the start.
4. "Hardly move" is read as: the norms of other words change by less than a fiftieth of what those
   of topic words do, in the mean.
5. "Two orders of magnitude" compares means over words, of the size of scores.
6. Each seed draws its own sentences and its own initial parameters. The topic word drawn in Fig. 2
   is the same in all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.synthetic import TopicSentences, TopicTask
from headwise_papers.measures.sen import deviation
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.recipes.descent import descend
from headwise_papers.training_dynamics._plots import (
    COLOURS,
    draw_band,
    draw_histogram,
    draw_sen,
    panels,
    save,
)

MODELS = ("FC", "TC", "TL")


@dataclass(frozen=True)
class Config:
    """Section 5.1."""

    topics: int = 4
    words_per_topic: int = 2
    others: int = 20  # words that say nothing in a sentence, the paper's m
    dictionary: int = 5000  # words that say nothing in all
    train: int = 800  # sentences
    test: int = 200
    width: int = 15  # of embeddings
    hidden: int = 10  # of Attn-TL
    embedding_std: float = 1e-3  # a variance of 1e-6
    rate: float = 0.1  # the paper's eta
    epochs: int = 5000
    seeds: int = 5
    word: int = 3  # the topic word that Fig. 2 shows
    device: str = "auto"  # a GPU where there is one


EXPECTED = (
    *(
        Expected(f"{model} test accuracy", paper=1.0, where="Sec. 5.1", margin=0.0, partly=0.02)
        for model in MODELS
    ),
    *(
        Expected(f"{model} training loss", paper=0.0, where="Sec. 5.1", margin=0.05, partly=0.2)
        for model in MODELS
    ),
    *(
        Expected(f"{model} deviation", paper=0.0, where="Fig. 2", margin=0.02, partly=0.1)
        for model in MODELS
    ),
    *(
        Expected(f"{model} others' change of norm", paper=0.0, where="Fig. 1", margin=0.02)
        for model in MODELS
    ),
    *(
        Expected(f"{model} topic scores 100 times others'", paper=1.0, where="Fig. 1", partly=0.5)
        for model in MODELS
    ),
    Expected("FC sentences whose topic word is attended", paper=1.0, where="Theorem 2"),
    *(
        Expected(f"{more} {what} above {less}", paper=1.0, where="Fig. 1", partly=0.5)
        for what in ("scores", "norms")
        for more, less in (("FC", "TC"), ("TC", "TL"))
    ),
)


@dataclass(frozen=True)
class Trained:
    """One classifier's models after training, and what was recorded on the way."""

    scores_SV: Tensor
    norms_SV: Tensor
    first_norms_SV: Tensor
    curve_scores_ESW: Tensor  # of topic words
    curve_norms_ESW: Tensor
    loss_ES: Tensor
    accuracy_S: Tensor


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train the three models; each figure with one value a seed."""
    task = TopicTask(
        topics=config.topics,
        words_per_topic=config.words_per_topic,
        others=config.others,
        dictionary=config.dictionary,
        train=config.train,
        test=config.test,
    )
    sentences = task.draw(range(config.seeds))
    trained = {model: _train(model, config, task, sentences, run) for model in MODELS}
    figures: dict[str, list[float]] = {}
    for model, result in trained.items():
        figures |= _figures(model, result, task)
    figures["FC sentences whose topic word is attended"] = _attended(
        trained["FC"], sentences, task
    ).tolist()
    figures["FC weight of the topic word"] = _topic_weight(trained["FC"], sentences, task).tolist()
    figures |= _capacity(trained, task)
    _draw_distributions(trained, task, run)
    _draw_curves(trained, config, run)
    _draw_losses(trained, run)
    return figures


def _train(
    model: str, config: Config, task: TopicTask, sentences: TopicSentences, run: Run
) -> Trained:
    stack = BagStack([_classifier(model, config, task, seed) for seed in range(config.seeds)])
    first_norms_SV = stack.word_vectors().norm(dim=-1).cpu()
    curves = SenCurves(torch.arange(task.topic_words))
    with Run.create(run.path(model), config) as own:
        descent = descend(
            stack,
            sentences.train,
            epochs=config.epochs,
            rate=config.rate,
            recorders=[curves],
            run=own,
        )
    recorded = curves.tensors()
    return Trained(
        scores_SV=stack.word_scores().cpu(),
        norms_SV=stack.word_vectors().norm(dim=-1).cpu(),
        first_norms_SV=first_norms_SV,
        curve_scores_ESW=recorded["score"],
        curve_norms_ESW=recorded["norm"],
        loss_ES=descent.loss,
        accuracy_S=stack.evaluate(stack.prepare(sentences.test)).accuracy.cpu(),
    )


def _classifier(model: str, config: Config, task: TopicTask, seed: int) -> BagClassifier:
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = BagConfig(
        vocabulary=task.vocabulary,
        classes=config.topics,
        width=config.width,
        classifier=model,  # pyright: ignore[reportArgumentType]
        hidden=config.hidden,
        embedding_std=config.embedding_std,
    )
    generator = torch.Generator().manual_seed(seed)
    return BagClassifier(shape, generator=generator, dtype=torch.float64).to(device)


def _figures(model: str, result: Trained, task: TopicTask) -> dict[str, list[float]]:
    topic, rest = slice(None, task.topic_words), slice(task.topic_words, None)
    off_SW = deviation(result.curve_scores_ESW, result.curve_norms_ESW, task.others).largest
    moved_SV = (result.norms_SV - result.first_norms_SV).abs()
    topic_score_S = result.scores_SV[:, topic].mean(1)
    other_score_S = result.scores_SV[:, rest].abs().mean(1)
    figures = {
        "test accuracy": result.accuracy_S,
        "training loss": result.loss_ES[-1],
        "deviation": off_SW.nan_to_num(0).amax(1),  # a word that never got going has no curve
        "topic words with a score above 0.05": (~off_SW.isnan()).double().mean(1),
        "others' change of norm": moved_SV[:, rest].mean(1) / moved_SV[:, topic].mean(1),
        "topic scores 100 times others'": (topic_score_S > 100 * other_score_S).double(),
        "topic score": topic_score_S,
        "topic norm": result.norms_SV[:, topic].mean(1),
        "others' score": other_score_S,
    }
    return {f"{model} {name}": values_S.tolist() for name, values_S in figures.items()}


def _attended(result: Trained, sentences: TopicSentences, task: TopicTask) -> Tensor:
    """Share of training sentences where the topic word has the largest weight."""
    tokens_SNT = sentences.train.tokens
    score_SNT = result.scores_SV.gather(1, tokens_SNT.flatten(1)).view(tokens_SNT.shape)
    word_SN = tokens_SNT.gather(-1, score_SNT.argmax(-1, keepdim=True))[..., 0]
    return (word_SN < task.topic_words).double().mean(1)


def _topic_weight(result: Trained, sentences: TopicSentences, task: TopicTask) -> Tensor:
    """Mean weight of the topic word in its training sentence, at the end."""
    tokens_SNT = sentences.train.tokens
    score_SNT = result.scores_SV.gather(1, tokens_SNT.flatten(1)).view(tokens_SNT.shape)
    on_topic_SNT = score_SNT.softmax(-1) * (tokens_SNT < task.topic_words)
    return on_topic_SNT.sum(-1).mean(1)


def _capacity(trained: dict[str, Trained], task: TopicTask) -> dict[str, list[float]]:
    """Whether a classifier that can do less has larger scores and norms of topic words."""
    scores = {name: x.scores_SV[:, : task.topic_words].mean(1) for name, x in trained.items()}
    norms = {name: x.norms_SV[:, : task.topic_words].mean(1) for name, x in trained.items()}
    return {
        f"{more} {what} above {less}": (values[more] > values[less]).double().tolist()
        for what, values in (("scores", scores), ("norms", norms))
        for more, less in (("FC", "TC"), ("TC", "TL"))
    }


def _draw_distributions(trained: dict[str, Trained], task: TopicTask, run: Run) -> None:
    """Fig. 1: scores, then norms, of other words and topic words."""
    figure, (axes,) = panels(4)
    topic, rest = slice(None, task.topic_words), slice(task.topic_words, None)
    scores = {f"Attn-{model}": x.scores_SV for model, x in trained.items()}
    norms = {f"Attn-{model}": x.norms_SV for model, x in trained.items()}
    for axis, table, words, name in (
        (axes[0], scores, rest, "score of other words"),
        (axes[1], scores, topic, "score of topic words"),
        (axes[2], norms, rest, "norm of other words"),
        (axes[3], norms, topic, "norm of topic words"),
    ):
        chosen = {label: values[:, words] for label, values in table.items()}
        draw_histogram(axis, chosen, name=name)
    axes[0].legend()
    save(figure, run, "fig1-distributions")


def _draw_curves(trained: dict[str, Trained], config: Config, run: Run) -> None:
    """Fig. 2: norm against score of one topic word."""
    figure, (axes,) = panels(3)
    names = [f"seed {seed}" for seed in range(config.seeds)]
    for axis, (model, result) in zip(axes, trained.items(), strict=True):
        scores_ES = result.curve_scores_ESW[..., config.word]
        norms_ES = result.curve_norms_ESW[..., config.word]
        draw_sen(axis, scores_ES, norms_ES, config.others, names=names)
        axis.set(xlabel=f"score (Attn-{model})", ylabel="embedding norm")
    farthest = 1.05 * max(
        x.curve_scores_ESW[..., config.word].max().item() for x in trained.values()
    )
    for axis in axes:
        axis.set_xlim(-0.02 * farthest, farthest)
    axes[0].legend(fontsize="small")
    save(figure, run, "fig2-sen")


def _draw_losses(trained: dict[str, Trained], run: Run) -> None:
    figure, ((axis,),) = panels(1, width=4.5)
    for model, result in trained.items():
        epochs_E = torch.arange(len(result.loss_ES), dtype=torch.float64)
        draw_band(axis, epochs_E, result.loss_ES, label=f"Attn-{model}", colour=COLOURS[model])
    axis.set(xlabel="epoch", ylabel="training loss")
    axis.legend()
    save(figure, run, "loss")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(dictionary=300, others=5, train=200, test=50, epochs=600, rate=0.5, seeds=2),
    reproduce=reproduce,
    expected=EXPECTED,
)
