"""Score and embedding norm (SEN): the formulas of "On the Dynamics of Training Attention Models".

Lu, Mao and Nayak (ICLR 2021) follow a bag-of-words attention classifier through gradient descent.
A word has a score s and a vector v; a sentence's context is the average of its words' vectors,
weighted by the softmax of their scores. For a word that tells the topic, among m words that do not,

    ||v|| = sqrt(2 (s + (exp(s) - 1) / m))                                             (Eq. 10)

at every moment of training, whatever classifies the context.

    S seeds   N sentences   T positions   V vocabulary   W chosen words   D width   C classes
    P pairs of a sentence and one of its words
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "Deviation",
    "Velocities",
    "class_counts",
    "companions",
    "deviation",
    "predicted_velocities",
    "theoretical_norm",
    "theoretical_score",
    "topic_purity",
]

NEWTON_STEPS = 16  # from the start below, 1e-12 takes at most 8, whatever the norm and m


def theoretical_norm(score: Float[Tensor, "*x"], m: Float[Tensor, "..."] | float | int) -> Tensor:
    """Return the embedding norm that Eq. 10 gives a word of this score.

    sqrt(2 (s + (exp(s) - 1) / m)), and 0 where that has no real root, for negative scores.

    Args:
        score: any shape; has a gradient.
        m: how many other words a sentence with the word has, broadcastable to the score.

    >>> theoretical_norm(torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64), 20)
    tensor([0.0000, 1.4737, 4.9741], dtype=torch.float64)
    """
    _check_company(m)
    square = 2 * (score + torch.expm1(score) / m)
    real = square > 0
    # the root is taken of 1 where there is none: 0 times an infinite gradient would be nan
    return torch.where(real, torch.where(real, square, 1).sqrt(), 0)


def theoretical_score(norm: Float[Tensor, "*x"], m: Float[Tensor, "..."] | float | int) -> Tensor:
    """Return the score that Eq. 10 gives a word of this norm, the inverse of `theoretical_norm`.

    Args:
        norm: not negative; any shape; has a (first) gradient.
        m: as in `theoretical_norm`.

    >>> theoretical_score(torch.tensor([4.9741], dtype=torch.float64), 20)
    tensor([5.0000], dtype=torch.float64)
    """
    _check_company(m)
    if bool((norm < 0).any()):
        raise ValueError(
            f"A norm is 0 or more, got {norm.min().item()}; hand in norms, not scores."
        )
    half = norm.square() / 2
    with torch.no_grad():
        # either bound neglects one of two positive terms, so the root lies below both; from there
        # Newton's steps on a rising convex function never overshoot
        score = torch.minimum(half, torch.log1p(m * half))
        for _ in range(NEWTON_STEPS):
            score = _newton(score, half, m)
    return _newton(score, half, m)  # once more outside: carries the gradient of the root


def _newton(score: Tensor, half: Tensor, m: Tensor | float | int) -> Tensor:
    grown = torch.expm1(score) / m
    return score - (score + grown - half) / (1 + grown + 1 / m)


def _check_company(m: Tensor | float | int) -> None:
    if bool((m <= 0).any() if isinstance(m, Tensor) else m <= 0):
        raise ValueError(
            f"m counts the other words of a sentence and must be positive, got {m}; "
            "leave out words that only stand alone."
        )


@dataclass(frozen=True)
class Deviation:
    """Deviation of curves from Eq. 10, |norm / theory - 1|; nan where a curve never started."""

    largest: Tensor  # over the curve
    final: Tensor  # at its last epoch


def deviation(
    scores: Float[Tensor, "E ..."],
    norms: Float[Tensor, "E ..."],
    m: Float[Tensor, "..."] | float | int,
    *,
    start: float = 0.05,
) -> Deviation:
    """Return the relative distance of empirical (score, norm) curves from Eq. 10.

    Args:
        scores: through training, epochs first.
        norms: likewise.
        m: other words in a sentence, broadcastable to one epoch's scores.
        start: scores up to this do not count: there the norm is still that of the initial noise.

    >>> s = torch.tensor([0.01, 1.0, 2.0], dtype=torch.float64)
    >>> deviation(s, 1.01 * theoretical_norm(s, 20), 20).largest
    tensor(0.0100, dtype=torch.float64)
    """
    if len(scores) == 0:
        raise ValueError("A curve needs at least one epoch, got none; record before comparing.")
    theory = theoretical_norm(scores, m)
    off = torch.where(scores > start, (norms / theory - 1).abs(), -torch.inf)
    largest, final = off.amax(dim=0), off[-1]
    return Deviation(*(torch.where(x < 0, torch.nan, x) for x in (largest, final)))


@dataclass(frozen=True)
class Velocities:
    """Velocities of words under gradient flow, per unit of eta; see `predicted_velocities`."""

    vectors: Tensor  # (W, D), Eq. 7
    scores: Tensor  # (W,), Eq. 8: Lemma 2's average over the sentences with the word
    exact_scores: Tensor  # (W,), Eq. 6: before that average is taken


def predicted_velocities(
    words: Int[Tensor, " W"],
    *,
    scores: Float[Tensor, " V"],
    vectors: Float[Tensor, "V D"],
    sentences: Int[Tensor, "N T"],
    gradient: Float[Tensor, "N D"],
    lengths: Int[Tensor, " N"] | None = None,
) -> Velocities:
    """Predict how gradient descent moves words next (Eq. 6 to 8), from the state of a model.

        dv/dt = -<gradient exp(s) / Z(x)> |sentences with the word| / |sentences|        (7)
        ds/dt = (v - <v(x without the word)>) . dv/dt / <Z(x) / Z(x without the word)>   (8)

    with <> the mean over the sentences that contain the word and Z the sum of exp(s) over a
    sentence. Velocities are per unit of eta = tau ||query||^2, with tau the learning rate and a
    fixed query (tau itself where scores are parameters): a step moves v by eta dv/dt and s by
    eta ds/dt, the latter exactly by Eq. 6; Eq. 8 replaces the mean of a product by the product of
    means. A word that comes twice in a sentence weighs twice. Works for any model whose words have
    a vector and a score.

    Args:
        words: the words to follow.
        scores: of every word.
        vectors: of every word, scaled by the norm of the query where that is not 1.
        sentences: word numbers.
        gradient: of each sentence's own loss (not divided by N) with respect to its context, the
            average of the vectors as scaled above.
        lengths: how many words of a row are real; all of them unless given.
    """
    sentence_P, word_P, times_P = _word_pairs(sentences, lengths, len(scores))
    state = _PairState.of(scores, vectors, sentence_P, word_P, times_P, n=len(sentences))

    def mean_VX(value_PX: Tensor) -> Tensor:
        """Average over the sentences with the word."""
        total_VX = value_PX.new_zeros(len(scores), *value_PX.shape[1:])
        number_V = torch.bincount(word_P, minlength=len(scores)).clamp(min=1)
        total_VX.index_add_(0, word_P, value_PX)
        return total_VX / number_V.view(-1, *[1] * (value_PX.dim() - 1))

    share_V = torch.bincount(word_P, minlength=len(scores)).to(scores) / len(sentences)
    pull_PD = -gradient[sentence_P] * state.weight_P[:, None]
    vector_speed_VD = mean_VX(pull_PD) * share_V[:, None]
    lead_VD = vectors - mean_VX(state.others_PD)
    score_speed_V = (lead_VD * vector_speed_VD).sum(-1) / mean_VX(state.ratio_P)
    exact_P = ((vectors[word_P] - state.context_ND[sentence_P]) * pull_PD).sum(-1)
    exact_V = mean_VX(exact_P) * share_V
    never_V = share_V == 0
    score_speed_V = score_speed_V.masked_fill(never_V, 0)
    return Velocities(vector_speed_VD[words], score_speed_V[words], exact_V[words])


@dataclass(frozen=True)
class _PairState:
    """A model's attention at each pair of a sentence and one of its words."""

    weight_P: Tensor  # attention weight of the word, all its places together
    context_ND: Tensor
    others_PD: Tensor  # context of the sentence without the word
    ratio_P: Tensor  # Z(x) / Z(x without the word)

    @staticmethod
    def of(
        scores_V: Tensor,
        vectors_VD: Tensor,
        sentence_P: Tensor,
        word_P: Tensor,
        times_P: Tensor,
        *,
        n: int,
    ) -> "_PairState":
        score_P = scores_V[word_P]
        highest_N = score_P.new_full((n,), -torch.inf)
        highest_N.scatter_reduce_(0, sentence_P, score_P, "amax")
        mass_P = times_P * (score_P - highest_N[sentence_P]).exp()
        total_N = mass_P.new_zeros(n).index_add_(0, sentence_P, mass_P)
        weight_P = mass_P / total_N[sentence_P]
        part_PD = weight_P[:, None] * vectors_VD[word_P]
        context_ND = part_PD.new_zeros(n, part_PD.shape[1]).index_add_(0, sentence_P, part_PD)
        # a word alone in its sentence has no others and keeps its score: as if they were like it
        alone_P = weight_P >= 1
        rest_P = torch.where(alone_P, 1, 1 - weight_P)
        others_PD = (context_ND[sentence_P] - part_PD) / rest_P[:, None]
        others_PD = torch.where(alone_P[:, None], vectors_VD[word_P], others_PD)
        return _PairState(weight_P, context_ND, others_PD, 1 / rest_P)


def class_counts(
    sentences: Int[Tensor, "*S N T"],
    labels: Int[Tensor, "*S N"],
    *,
    vocabulary: int,
    classes: int,
    lengths: Int[Tensor, "*S N"] | None = None,
) -> Int[Tensor, "*S V C"]:
    """Count the sentences of each class in which a word occurs, each sentence once per word.

    Args:
        sentences: word numbers.
        labels: the class of each sentence.
        vocabulary: number of words.
        classes: number of classes.
        lengths: how many words of a row are real; all of them unless given.

    >>> class_counts(torch.tensor([[0, 1, 1], [1, 2, 2]]), torch.tensor([0, 1]),
    ...              vocabulary=3, classes=2)
    tensor([[1, 0],
            [1, 1],
            [0, 1]])
    """
    sentence_P, word_P, _ = _word_pairs(sentences, lengths, vocabulary)
    *seeds, n_sentences = labels.shape
    label_P = labels.reshape(-1)[sentence_P]
    seed_P = sentence_P // n_sentences
    cell_P = (seed_P * vocabulary + word_P) * classes + label_P
    cells = labels.numel() // n_sentences * vocabulary * classes
    return torch.bincount(cell_P, minlength=cells).view(*seeds, vocabulary, classes)


def topic_purity(
    sentences: Int[Tensor, "*S N T"],
    labels: Int[Tensor, "*S N"],
    *,
    vocabulary: int,
    classes: int = 2,
    lengths: Int[Tensor, "*S N"] | None = None,
) -> Float[Tensor, "*S V"]:
    """Measure how surely a word tells the class (Section 5): |share positive - share negative|.

    The shares are of the sentences that contain the word, each counted once. With more than two
    classes it is the largest share less the mean of the others, which for two is the same: 1 for
    a word of one class only, 0 for a word equally common in all. Words that never occur get 0.
    Arguments as in `class_counts`. In float64.

    >>> topic_purity(torch.tensor([[0, 1, 1], [1, 2, 2]]), torch.tensor([0, 1]), vocabulary=3)
    tensor([1., 0., 1.], dtype=torch.float64)
    """
    count_VC = class_counts(
        sentences, labels, vocabulary=vocabulary, classes=classes, lengths=lengths
    ).double()
    total_V = count_VC.sum(-1)
    largest_V = count_VC.amax(-1)
    others_V = (total_V - largest_V) / (classes - 1)
    return (largest_V - others_V) / total_V.clamp(min=1)


def companions(
    sentences: Int[Tensor, "*S N T"],
    *,
    vocabulary: int,
    lengths: Int[Tensor, "*S N"] | None = None,
) -> Float[Tensor, "*S V"]:
    """Return the m of Eq. 10 for words of real text: mean length of their sentences, less one.

    Words that never occur, or only alone, get nan, as Eq. 10 says nothing about them. In float64.

    >>> companions(torch.tensor([[0, 1, 2], [1, 2, 2]]), lengths=torch.tensor([3, 2]), vocabulary=3)
    tensor([2.0000, 1.5000, 1.5000], dtype=torch.float64)
    """
    *seeds, n_sentences, width = sentences.shape
    sentence_P, word_P, _ = _word_pairs(sentences, lengths, vocabulary)
    long_X = torch.full_like(sentences[..., 0], width) if lengths is None else lengths
    length_P = long_X.reshape(-1)[sentence_P]
    cell_P = sentence_P // n_sentences * vocabulary + word_P
    cells = sentences[..., 0].numel() // n_sentences * vocabulary
    number = torch.bincount(cell_P, minlength=cells)
    total = torch.bincount(cell_P, weights=length_P.double(), minlength=cells)
    mean = (total / number - 1).view(*seeds, vocabulary)
    return torch.where(mean > 0, mean, torch.nan)


def _word_pairs(
    sentences: Tensor, lengths: Tensor | None, vocabulary: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sentence, word and count of each pair; sentences are numbered through all seeds."""
    rows_XT = sentences.reshape(-1, sentences.shape[-1])
    number_XT = torch.arange(len(rows_XT), device=rows_XT.device)[:, None] * vocabulary + rows_XT
    if lengths is not None:
        place_T = torch.arange(rows_XT.shape[1], device=rows_XT.device)
        number_XT = number_XT[place_T < lengths.reshape(-1, 1)]
    pair_P, times_P = number_XT.reshape(-1).unique(return_counts=True)
    return pair_P // vocabulary, pair_P % vocabulary, times_P
