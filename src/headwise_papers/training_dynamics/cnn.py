"""Do score and norm still grow together when attention looks at a convolution of the words?

Two Markov chains make sentences of 10 words; each chain has its own pairs of words that always
follow each other, and starts with one. Attn-TC-CNN mixes the embeddings of two neighbours by one
convolution and their keys by another, and attends to the 9 pairs. Appendix A of the paper, Fig. 8
and 9, says:

- the model reaches 99.89 % test accuracy;
- scores and embeddings of pairs that mark no topic are nearly unchanged beside those of topic pairs
  (Assumption 1), both centred by subtracting what they were at the start;
- embedding norm and score of a topic pair grow together.

The commands:

    headwise reproduce training_dynamics/cnn           # under a minute on a GPU; 15 minutes on two CPU cores
    headwise reproduce training_dynamics/cnn --smoke   # 3 seconds

How it is measured, and where the paper leaves a choice:

1. The paper does not give the width of the keys, nor the query. Keys have the width of embeddings,
   15. The query is fixed, and tried in two lengths: norm 1, which is about what the authors' code
   has in the main experiments, and entries from N(0, 1), with a norm near 4. The axis of Fig. 9
   goes to a score of 10; neither gets there, the second comes nearer. Keys of width 1 ended lower
   still. Both share sentences and everything else.
2. Convolutions start as PyTorch's layers do, with a bias; keys at 0, embeddings with a variance of
   1e-6, rate 0.1, as in Section 5.1.
3. A convolution over two words adds a part of the left word and a part of the right one. So a pair
   that shares a word with a topic pair must move when the topic pair does, whatever it marks. They
   are 8 % of all pairs. Both are measured: all 39,996 pairs that mark no topic, and those that
   share no word with a topic pair ("unrelated"). "Nearly unchanged" is read as: less than a tenth
   of the change of topic pairs, in the mean.
4. Eq. 10 is drawn with m = 8, the other pairs of a sentence. The paper does not claim that it holds
   here, since a step also moves the convolutions; the deviation at the end is reported.
5. "Grow together" is a rank correlation of score and norm over epochs above 0.9.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.bags import Bags
from headwise_papers.data.synthetic import PairTask
from headwise_papers.measures.sen import theoretical_norm
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.pair_stack import PairStack
from headwise_papers.recipes.descent import descend
from headwise_papers.training_dynamics._plots import draw_histogram, draw_sen, panels, save

QUERIES = ("unit query", "N(0, 1) query")
TOGETHER = 0.9  # least rank correlation of what grows together


@dataclass(frozen=True)
class Config:
    """Appendix A."""

    pairs: int = 2  # of words that mark each of the two topics
    dictionary: int = 200  # words
    length: int = 10  # words in a sentence; it has one pair less
    train: int = 4000  # sentences
    test: int = 1000
    width: int = 15  # of embeddings, the paper's d
    key_width: int = 15  # of keys and query, the paper's d'
    embedding_std: float = 1e-3  # a variance of 1e-6
    rate: float = 0.1  # the paper's eta for a query of norm 1
    epochs: int = 3000
    every: int = 10  # epochs between records
    seeds: int = 10
    device: str = "auto"  # a GPU where there is one


EXPECTED = tuple(
    item
    for query in QUERIES
    for item in (
        Expected(f"{query}: test accuracy", paper=0.9989, where="App. A", margin=0.001,
                 partly=0.005),
        Expected(f"{query}: topic pairs whose score and norm grow together", paper=1.0,
                 where="Fig. 9", partly=0.2),
        Expected(f"{query}: others' score over topic pairs'", paper=0.0, where="Fig. 8",
                 margin=0.1, partly=0.2),
        Expected(f"{query}: others' norm over topic pairs'", paper=0.0, where="Fig. 8",
                 margin=0.1, partly=0.2),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Moved:
    """How far pairs are from where they started; the first axis is the query, the second seeds."""

    scores_XSP: Tensor
    norms_XSP: Tensor


@dataclass(frozen=True)
class Trained:
    """All models after training, and what was recorded on the way."""

    curve_scores_EXSW: Tensor  # of topic pairs
    curve_norms_EXSW: Tensor
    everything: Moved  # pair (a, b) has number a * dictionary + b
    accuracy_XS: Tensor
    pairs_SW2: Tensor  # topic pairs


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train with both queries at once; each figure with one value a seed."""
    trained = _train(config, run)
    _draw_distributions(trained, config, run)
    _draw_curves(trained, config, run)
    figures: dict[str, list[float]] = {}
    for number, query in enumerate(QUERIES):
        values = _figures(trained, config, number)
        figures |= {f"{query}: {name}": values_S.tolist() for name, values_S in values.items()}
    return figures


def _train(config: Config, run: Run) -> Trained:
    task = PairTask(
        pairs=config.pairs,
        dictionary=config.dictionary,
        length=config.length,
        train=config.train,
        test=config.test,
    )
    sentences = task.draw(range(config.seeds))
    stack = _stack(config)
    pairs_SW2 = sentences.pairs.flatten(1, 2)
    topic, every = _Centred(stack, _twice(pairs_SW2)), _Centred(stack, _all_pairs(config))
    curves = SenCurves(
        torch.arange(pairs_SW2.shape[1]),
        scores=topic.scores,
        vectors=topic.vectors,
        every=config.every,
    )
    descend(
        stack,
        _for_both(sentences.train),
        epochs=config.epochs,
        rate=config.rate,
        recorders=[curves],
        run=run,
    )
    recorded, shape = curves.tensors(), (len(QUERIES), config.seeds)
    norms_XP = every.vectors(stack).norm(dim=-1)
    return Trained(
        recorded["score"].unflatten(1, shape),
        recorded["norm"].unflatten(1, shape),
        Moved(every.scores(stack).cpu().unflatten(0, shape), norms_XP.cpu().unflatten(0, shape)),
        stack.evaluate(stack.prepare(_for_both(sentences.test))).accuracy.cpu().view(shape),
        pairs_SW2,
    )


class _Centred:
    """Scores and vectors of some pairs, less what they were when this was made."""

    def __init__(self, stack: PairStack, pairs_SP2: Tensor) -> None:
        self._pairs_SP2 = pairs_SP2.to(stack.parameters["embeddings"].device)
        self._scores_SP = stack.pair_scores(self._pairs_SP2)
        self._vectors_SPD = stack.pair_vectors(self._pairs_SP2)

    def scores(self, stack: PairStack) -> Tensor:
        return stack.pair_scores(self._pairs_SP2) - self._scores_SP

    def vectors(self, stack: PairStack) -> Tensor:
        return stack.pair_vectors(self._pairs_SP2) - self._vectors_SPD


def _stack(config: Config) -> PairStack:
    """Models by query, then seed; those of a seed differ in the length of the query alone."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = BagConfig(
        vocabulary=config.dictionary,
        classes=2,
        width=config.width,
        key_width=config.key_width,
        query_std=1.0,
        embedding_std=config.embedding_std,
        convolution=True,
    )
    models: list[BagClassifier] = []
    for query in QUERIES:
        for seed in range(config.seeds):
            generator = torch.Generator().manual_seed(seed)
            own = BagClassifier(shape, generator=generator, dtype=torch.float64)
            if query == "unit query":
                own.query.data.div_(own.query.data.norm())
            models.append(own.to(device))
    return PairStack(models)


def _for_both(bags: Bags) -> Bags:
    return Bags.stack([bags] * len(QUERIES))


def _twice(pairs_SP2: Tensor) -> Tensor:
    return pairs_SP2.repeat(len(QUERIES), 1, 1)


def _all_pairs(config: Config) -> Tensor:
    words = torch.arange(config.dictionary)
    return _twice(torch.cartesian_prod(words, words).expand(config.seeds, -1, -1))


def _topic_and_others(trained: Trained, config: Config) -> tuple[Tensor, Tensor]:
    """(S, P) each: which pairs mark a topic, and which share no word with one that does."""
    pairs_SW2, seed_S1 = trained.pairs_SW2, torch.arange(config.seeds)[:, None]
    topic_SVV = torch.zeros(config.seeds, config.dictionary, config.dictionary, dtype=torch.bool)
    topic_SVV[seed_S1, pairs_SW2[..., 0], pairs_SW2[..., 1]] = True
    strange_SV = torch.ones(config.seeds, config.dictionary, dtype=torch.bool)
    strange_SV[seed_S1, pairs_SW2.flatten(1)] = False
    strange_SVV = strange_SV[:, :, None] & strange_SV[:, None]
    return topic_SVV.flatten(1), strange_SVV.flatten(1)


def _figures(trained: Trained, config: Config, query: int) -> dict[str, Tensor]:
    """For one query."""
    scores_ESW = trained.curve_scores_EXSW[:, query]
    norms_ESW = trained.curve_norms_EXSW[:, query]
    together_SW = _rank_correlation(scores_ESW, norms_ESW)
    topic_SP, strange_SP = _topic_and_others(trained, config)
    theory_SW = theoretical_norm(scores_ESW[-1], config.length - 2)
    figures = {
        "test accuracy": trained.accuracy_XS[query],
        "topic pairs whose score and norm grow together": (together_SW > TOGETHER).double().mean(1),
        "rank correlation of score and norm": together_SW.mean(1),
        "topic score": scores_ESW[-1].mean(1),
        "topic norm": norms_ESW[-1].mean(1),
        "norm over Eq. 10's at the end": (norms_ESW[-1] / theory_SW).mean(1),
    }
    for what, values_SP in (
        ("score", trained.everything.scores_XSP[query]),
        ("norm", trained.everything.norms_XSP[query]),
    ):
        change_S = _mean(values_SP.abs(), topic_SP)
        for whose, chosen_SP in (("others'", ~topic_SP), ("unrelated others'", strange_SP)):
            ratio_S = _mean(values_SP.abs(), chosen_SP) / change_S
            figures[f"{whose} {what} over topic pairs'"] = ratio_S
    return figures


def _mean(values_SP: Tensor, chosen_SP: Tensor) -> Tensor:
    return (values_SP * chosen_SP).sum(1) / chosen_SP.sum(1)


def _rank_correlation(x_EX: Tensor, y_EX: Tensor) -> Tensor:
    """Spearman's, over epochs."""
    ranks = [values.argsort(0).argsort(0).double() for values in (x_EX, y_EX)]
    first, second = (rank - rank.mean(0) for rank in ranks)
    return (first * second).sum(0) / (first.square().sum(0) * second.square().sum(0)).sqrt()


def _draw_distributions(trained: Trained, config: Config, run: Run) -> None:
    """Fig. 8: centred scores, then norms, of other pairs and topic pairs; a row a query."""
    figure, axes = panels(4, len(QUERIES))
    topic_SP, _ = _topic_and_others(trained, config)
    for number, (query, row) in enumerate(zip(QUERIES, axes, strict=True)):
        scores_SP = trained.everything.scores_XSP[number]
        norms_SP = trained.everything.norms_XSP[number]
        for axis, values_SP, chosen_SP, name in (
            (row[0], scores_SP, ~topic_SP, "centred score of other pairs"),
            (row[1], scores_SP, topic_SP, "centred score of topic pairs"),
            (row[2], norms_SP, ~topic_SP, "centred norm of other pairs"),
            (row[3], norms_SP, topic_SP, "centred norm of topic pairs"),
        ):
            chosen = values_SP[chosen_SP].view(config.seeds, -1)
            draw_histogram(axis, {"TC": chosen}, name=name, bins=8 if chosen_SP is topic_SP else 20)
            axis.set_ylabel(f"share of pairs ({query})" if axis is row[0] else "")
    save(figure, run, "fig8-distributions")


def _draw_curves(trained: Trained, config: Config, run: Run) -> None:
    """Fig. 9: norm against score of one topic pair, drawn at random in each seed."""
    figure, (axes,) = panels(len(QUERIES), width=4.2, height=3.4)
    names = [f"seed {seed}" for seed in range(config.seeds)]
    for number, (query, axis) in enumerate(zip(QUERIES, axes, strict=True)):
        scores_ES = trained.curve_scores_EXSW[:, number, :, 0]
        norms_ES = trained.curve_norms_EXSW[:, number, :, 0]
        draw_sen(axis, scores_ES, norms_ES, config.length - 2, names=names)
        axis.set(xlabel=f"score ({query})", ylabel="embedding norm")
    axes[0].legend(fontsize="x-small", ncols=2)
    save(figure, run, "fig9-sen")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(dictionary=40, length=6, train=200, test=100, epochs=400, rate=0.3, seeds=2),
    reproduce=reproduce,
    expected=EXPECTED,
)
