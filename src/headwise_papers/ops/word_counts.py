"""Counting words in labelled sentences: how often, in which classes, in what company.

S seeds   N sentences   T positions   V vocabulary   C classes   P pairs of sentence and word
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["class_counts", "companions", "topic_purity", "word_pairs"]


def class_counts(
    sentences: Int[Tensor, "*S N T"],
    labels: Int[Tensor, "*S N"],
    *,
    vocabulary: int,
    classes: int,
    lengths: Int[Tensor, "*S N"] | None = None,
) -> Int[Tensor, "*S V C"]:
    """In how many sentences of each class a word occurs; a sentence counts once a word.

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
    sentence_P, word_P, _ = word_pairs(sentences, lengths, vocabulary)
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
    """How surely a word tells the class, 0 to 1 (Section 5): |share positive - share negative|.

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
    """The m of Eq. 10 for each word of real text: mean length of its sentences, less one.

    Words that never occur, or only alone, get nan, as Eq. 10 says nothing about them. In float64.

    >>> companions(torch.tensor([[0, 1, 2], [1, 2, 2]]), lengths=torch.tensor([3, 2]), vocabulary=3)
    tensor([2.0000, 1.5000, 1.5000], dtype=torch.float64)
    """
    *seeds, n_sentences, width = sentences.shape
    sentence_P, word_P, _ = word_pairs(sentences, lengths, vocabulary)
    long_X = torch.full_like(sentences[..., 0], width) if lengths is None else lengths
    length_P = long_X.reshape(-1)[sentence_P]
    cell_P = sentence_P // n_sentences * vocabulary + word_P
    cells = sentences[..., 0].numel() // n_sentences * vocabulary
    number = torch.bincount(cell_P, minlength=cells)
    total = torch.bincount(cell_P, weights=length_P.double(), minlength=cells)
    mean = (total / number - 1).view(*seeds, vocabulary)
    return torch.where(mean > 0, mean, torch.nan)


def word_pairs(
    sentences: Tensor, lengths: Tensor | None, vocabulary: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each (sentence, word) that occurs, sentences counted through all seeds, and how often."""
    rows_XT = sentences.reshape(-1, sentences.shape[-1])
    number_XT = torch.arange(len(rows_XT), device=rows_XT.device)[:, None] * vocabulary + rows_XT
    if lengths is not None:
        place_T = torch.arange(rows_XT.shape[1], device=rows_XT.device)
        number_XT = number_XT[place_T < lengths.reshape(-1, 1)]
    pair_P, times_P = number_XT.reshape(-1).unique(return_counts=True)
    return pair_P // vocabulary, pair_P % vocabulary, times_P
