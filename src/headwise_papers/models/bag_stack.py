"""Many bag-of-words attention classifiers trained together by full-batch gradient descent.

Parameters are stacked on a leading axis S. With e = exp(score), a sentence with word counts c has
Z = sum c e and context = sum c e v / Z. The classifier's first layer U is linear, so it may be
applied to the few thousand words instead of the contexts; then the sentences of all seeds are two
products with one sparse count matrix A, of one column more than that layer has outputs:

    forward    [Z U context, Z] = A [e U v, e]
    backward   [p, r] = A^T [g, g.(U context)] / Z       with g the gradient at U context
               dloss/dv = e U^T p     dloss/ds = e (p . U v - r)     dloss/dU = sum e p v^T

The cost is that of the words that occur, not of sentences times their longest length or width.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headwise_papers.data.bags import Bags
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.stacking import (
    Evaluation,
    best_device,
    common_config,
    load_into,
    stacked_parameters,
    unstacked,
)

__all__ = ["BagCounts", "BagStack", "csr"]


@dataclass(frozen=True)
class BagCounts:
    """Sentences of S seeds as one block-diagonal count matrix, and workspace.

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


class BagStack:
    """S bag classifiers of one shape, as stacked tensors.

    One seed of a stack goes through the same numbers as that seed alone, up to rounding. Scores of
    words may differ by up to 80 within a seed in float32 (700 in float64) before exp underflows.

    Args:
        models: of the same config, dtype and device; they are copied.

    >>> from headwise_papers.models.bag import BagConfig
    >>> models = [BagClassifier(BagConfig(vocabulary=9)) for seed in range(3)]
    >>> stack = BagStack(models)
    >>> data = stack.prepare(Bags.of([[1, 2, 3], [4]], [0, 1]).repeated(3))
    >>> stack.step(data, rate=0.1).shape
    torch.Size([3])
    """

    def __init__(self, models: Sequence[BagClassifier]) -> None:
        self.config = common_config(models)
        if self.config.convolution:
            raise ValueError("A convolution attends to pairs, not to words; use PairStack.")
        self.parameters = stacked_parameters(models)
        self._first = "hidden" if self.config.classifier == "TL" else "output"
        first_SOD, vectors_SVD = self._weight(self._first), self.parameters["embeddings"]
        seeds, words, outputs = len(models), vectors_SVD.shape[1], first_SOD.shape[1]
        self._words_SVX = vectors_SVD.new_empty(seeds, words, outputs + 1)  # workspace
        self._pull_SXV = vectors_SVD.new_empty(seeds, outputs + 1, words)

    @staticmethod
    def seeded(config: BagConfig, seeds: int) -> "BagStack":
        """Build untrained classifiers of seeds 0, 1, 2, ... in float64, on the GPU if any."""
        generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
        models = [BagClassifier(config, generator=own, dtype=torch.float64) for own in generators]
        return BagStack([model.to(best_device()) for model in models])

    @property
    def seeds(self) -> int:
        """Number of classifiers."""
        return len(self.parameters["embeddings"])

    def prepare(self, bags: Bags) -> BagCounts:
        """Convert sentences once, before training or evaluating on them."""
        if bags.seeds != self.seeds:
            raise ValueError(
                f"Sentences for {self.seeds} seeds were wanted, got {bags.seeds}; "
                "Bags.repeated gives every seed the same."
            )
        return BagCounts.of(
            bags,
            vocabulary=self.config.vocabulary,
            classes=self.config.classes,
            outputs=self._weight(self._first).shape[1],
            like=self._words_SVX,
        )

    @torch.no_grad()
    def step(self, data: BagCounts, *, rate: float) -> Float[Tensor, " S"]:
        """Do one step of gradient descent, and return each seed's mean loss before it."""
        mass_SV = self._mass()
        seen_SOV = self._project(mass_SV)
        output_SON = self._pool(data)
        layers = self._classify(output_SON)
        logp_SCN = layers[-1].log_softmax(1)
        loss_S = -(logp_SCN * data.target_SCN).sum(dim=(1, 2))
        error_SCN = logp_SCN.exp_().div_(logp_SCN.shape[2]).sub_(data.target_SCN)
        error_SON = self._upper_step(error_SCN, layers, rate)
        self._lower_step(data, mass_SV, seen_SOV, output_SON, error_SON, rate)
        return loss_S

    @torch.no_grad()
    def evaluate(self, data: BagCounts) -> Evaluation:
        """Return loss and accuracy of each seed."""
        logits_SCN = self._logits(data)
        loss_S = -(logits_SCN.log_softmax(1) * data.target_SCN).sum(dim=(1, 2))
        right_SN = logits_SCN.argmax(1) == data.bags.labels
        return Evaluation(loss_S, right_SN.to(loss_S).mean(-1))

    @torch.no_grad()
    def context_gradients(self, data: BagCounts) -> Float[Tensor, "S N D"]:
        """Return the gradient of each sentence's own loss by its context, the paper's -h.

        The context is that of `word_vectors`, scaled by the norm of the query. With a fixed query,
        what `predicted_velocities` makes of both is per unit of eta = tau ||query||^2, where tau is
        the rate of a step.
        """
        self._project(self._mass())
        layers = self._classify(self._pool(data))
        error_SCN = layers[-1].softmax(1) - data.target_SCN * data.target_SCN.shape[2]
        error_SON = self._upper_step(error_SCN, layers, 0.0)
        gradient_SND = torch.bmm(error_SON.mT, self._weight(self._first))
        if self._unit_query:
            return gradient_SND
        return gradient_SND / self.query_norms()[:, None, None]

    def word_scores(self) -> Float[Tensor, "S V"]:
        """Return the score of every word."""
        keys_SVE, query_SE = self.parameters["keys"], self.parameters["query"]
        if keys_SVE.shape[-1] == 1:
            return keys_SVE[..., 0] * query_SE
        return torch.bmm(keys_SVE, query_SE[..., None])[..., 0]

    def word_vectors(self) -> Float[Tensor, "S V D"]:
        """Return every word's embedding times the norm of the query: the paper's v."""
        vectors_SVD = self.parameters["embeddings"]
        if self._unit_query:
            return vectors_SVD  # no pass over the vocabulary
        return vectors_SVD * self.query_norms()[:, None, None]

    def query_norms(self) -> Float[Tensor, " S"]:
        """Return the norm of each seed's query."""
        return self.parameters["query"].norm(dim=-1)

    def model(self, seed: int) -> BagClassifier:
        """Copy one seed's classifier."""
        return unstacked(self.config, self.parameters, seed)

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Copy stacked parameters, for example those saved earlier."""
        load_into(self.parameters, parameters)

    @property
    def _unit_query(self) -> bool:
        """Whether the query's norm is 1 and stays so."""
        return self.config.query == "fixed" and not self.config.query_std

    def _weight(self, layer: str) -> Tensor:
        return self.parameters[f"{layer}.weight"]

    def _logits(self, data: BagCounts) -> Tensor:
        self._project(self._mass())
        return self._classify(self._pool(data))[-1]

    def _mass(self) -> Tensor:
        """Return exp(score), up to a factor for each seed."""
        score_SV = self.word_scores()
        return (score_SV - score_SV.amax(-1, keepdim=True)).exp_()

    def _project(self, mass_SV: Tensor) -> Tensor:
        """Apply the first layer to each word; its product with the mass goes to the workspace."""
        seen_SOV = torch.bmm(self._weight(self._first), self.parameters["embeddings"].mT)
        torch.mul(seen_SOV, mass_SV[:, None], out=self._words_SVX[..., :-1].mT)
        self._words_SVX[..., -1] = mass_SV
        return seen_SOV

    def _pool(self, data: BagCounts) -> Tensor:
        """Apply the first layer to each context, without its bias."""
        _product(data.by_sentence, self._words_SVX, out=data.pooled_SNX)
        pooled_SXN = data.pooled_SNX.mT
        return torch.div(pooled_SXN[:, :-1], pooled_SXN[:, -1:], out=data.outputs_SON)

    def _classify(self, output_SON: Tensor) -> list[Tensor]:
        """Return the outputs of each layer, the logits last."""
        if self.config.classifier != "TL":
            return [output_SON]
        hidden_SHN = (output_SON + self.parameters["hidden.bias"][..., None]).relu_()
        bias_SC1 = self.parameters["output.bias"][..., None]
        return [hidden_SHN, torch.baddbmm(bias_SC1, self._weight("output"), hidden_SHN)]

    def _upper_step(self, error_SCN: Tensor, layers: list[Tensor], rate: float) -> Tensor:
        """Update what lies above the first layer, and return the gradient at its outputs."""
        if self.config.classifier != "TL":
            return error_SCN
        hidden_SHN, weight_SCH = layers[0], self._weight("output")
        error_SHN = torch.bmm(weight_SCH.mT, error_SCN).mul_(hidden_SHN > 0)
        weight_SCH.baddbmm_(error_SCN, hidden_SHN.mT, alpha=-rate)
        self.parameters["output.bias"].sub_(error_SCN.sum(2), alpha=rate)
        self.parameters["hidden.bias"].sub_(error_SHN.sum(2), alpha=rate)
        return error_SHN

    def _lower_step(
        self,
        data: BagCounts,
        mass_SV: Tensor,
        seen_SOV: Tensor,
        output_SON: Tensor,
        error_SON: Tensor,
        rate: float,
    ) -> None:
        """Update words and the first layer, with the gradient at the outputs of that layer."""
        total_SN = data.pooled_SNX[..., -1].clone()
        blame_SN = (error_SON * output_SON).sum(1)
        torch.div(error_SON, total_SN[:, None], out=data.pooled_SNX[..., :-1].mT)
        torch.div(blame_SN, total_SN, out=data.pooled_SNX[..., -1])
        _product(data.by_word, data.pooled_SNX, out=self._words_SVX)
        # into its own workspace, because the product would come out word by word, and slow to sum
        pull_SXV = torch.mul(self._words_SVX.mT, mass_SV[:, None], out=self._pull_SXV)
        pull_SOV = pull_SXV[:, :-1]
        if self.config.freeze != "scores":
            self._scores_step((seen_SOV * pull_SOV).sum(1).sub_(pull_SXV[:, -1]), rate)
        weight_SOD, vectors_SVD = self._weight(self._first), self.parameters["embeddings"]
        trained = f"{self._first}.weight" in self.config.trainable
        gradient_SOD = torch.bmm(pull_SOV, vectors_SVD) if trained else None
        if self.config.freeze != "embeddings":
            vectors_SVD.baddbmm_(pull_SOV.mT, weight_SOD, alpha=-rate)
        if gradient_SOD is not None:
            weight_SOD.sub_(gradient_SOD, alpha=rate)

    def _scores_step(self, gradient_SV: Tensor, rate: float) -> None:
        keys_SVE, query_SE = self.parameters["keys"], self.parameters["query"]
        query_gradient_SE = None
        if "query" in self.config.trainable:
            query_gradient_SE = torch.bmm(gradient_SV[:, None], keys_SVE)[:, 0]
        keys_SVE.addcmul_(gradient_SV[..., None], query_SE[:, None], value=-rate)
        if query_gradient_SE is not None:
            query_SE.sub_(query_gradient_SE, alpha=rate)


def _product(counts: Tensor, x_SRX: Tensor, *, out: Tensor) -> None:
    """Compute counts @ x into `out`, with seeds and rows taken as one axis."""
    flat = out.view(-1, out.shape[-1])
    torch.addmm(flat, counts, x_SRX.view(-1, x_SRX.shape[-1]), beta=0, out=flat)


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
    """List row, column and value of the block-diagonal matrix's entries, by row and column."""
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
    """Build a sparse matrix of these entries, each place at most once."""
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
