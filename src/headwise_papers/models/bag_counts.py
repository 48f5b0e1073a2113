"""Sentences as sparse matrices of word counts: all that a bag-of-words model needs of them."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise_papers.data.bags import Bags

__all__ = ["BagCounts", "csr"]


@dataclass(frozen=True)
class BagCounts:
    """Sentences of S seeds as one block-diagonal count matrix, and room to compute in.

    Made by `BagStack.prepare`. Padding is not in it, and a word twice in a sentence counts 2.
    """

    bags: Bags
    by_sentence: Tensor  # CSR (S*N, S*V)
    by_word: Tensor  # its transpose, CSR (S*V, S*N)
    target_SCN: Tensor  # 1/N at the label
    pooled_SNX: Tensor  # workspace: sums over each sentence's words, of X = outputs + 1 columns
    outputs_SON: Tensor  # workspace: their quotients

    @staticmethod
    def of(bags: Bags, *, vocabulary: int, classes: int, outputs: int, like: Tensor) -> "BagCounts":
        """Count words.

        Args:
            bags: the sentences.
            vocabulary: number of words.
            classes: number of labels.
            outputs: of the classifier's first layer.
            like: gives dtype and device.
        """
        bags = bags.to(like.device)
        _check(bags, vocabulary, classes)
        seeds, sentences = bags.labels.shape
        row_P, column_P, count_P = _entries(bags, vocabulary)
        shape = (seeds * sentences, seeds * vocabulary)
        target_SNC = torch.nn.functional.one_hot(bags.labels, classes).to(like) / sentences
        return BagCounts(
            bags,
            csr(row_P, column_P, count_P.to(like), shape),
            csr(column_P, row_P, count_P.to(like), shape[::-1]),
            target_SNC.mT.contiguous(),
            like.new_empty(seeds, sentences, outputs + 1),
            like.new_empty(seeds, outputs, sentences),
        )


def _check(bags: Bags, vocabulary: int, classes: int) -> None:
    words, labels = bags.tokens, bags.labels
    if int(words.max()) >= vocabulary or int(words.min()) < 0:
        raise ValueError(
            f"Word numbers run from 0 to {vocabulary - 1} here, got {int(words.min())} to "
            f"{int(words.max())}; set vocabulary to the size of the data's."
        )
    if int(labels.max()) >= classes or int(labels.min()) < 0:
        raise ValueError(
            f"Labels run from 0 to {classes - 1} here, got {int(labels.min())} to "
            f"{int(labels.max())}; set classes to the number of the data's."
        )


def _entries(bags: Bags, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of each entry of the block-diagonal matrix, by row and column."""
    seeds, sentences, width = bags.tokens.shape
    device = bags.tokens.device
    seed_S11 = torch.arange(seeds, device=device)[:, None, None]
    row_SN1 = torch.arange(seeds * sentences, device=device).view(seeds, sentences, 1)
    columns = seeds * vocabulary
    number_SNT = row_SN1 * columns + seed_S11 * vocabulary + bags.tokens
    real_SNT = torch.arange(width, device=device) < bags.lengths[..., None]
    number_P, count_P = number_SNT[real_SNT].unique(return_counts=True)
    return number_P // columns, number_P % columns, count_P


def csr(row_P: Tensor, column_P: Tensor, value_P: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A sparse matrix with these entries, each place at most once."""
    order_P = torch.argsort(row_P, stable=True)
    starts = torch.zeros(shape[0] + 1, dtype=torch.int32, device=row_P.device)
    starts[1:] = torch.bincount(row_P, minlength=shape[0]).cumsum(0)
    with warnings.catch_warnings():
        # PyTorch calls its CSR tensors a beta, and some versions speak of checks even when asked
        # for; the one product used here is tested
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
        return torch.sparse_csr_tensor(
            starts, column_P[order_P].int(), value_P[order_P], shape, check_invariants=True
        )
