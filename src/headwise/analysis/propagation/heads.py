"""Relevance of heads: how much of a logit comes through each (Voita et al., 2019, appendix A.3)."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.analysis._gates import check_dependence, constant_parameters, item_gates, slopes
from headwise.analysis._probing import undisturbed
from headwise.analysis.propagation.linearised import linearised
from headwise.analysis.propagation.settings import Bias, Product, Propagation, Rule
from headwise.sites import Where

Pick = Tensor | Callable[[Tensor], Tensor]


def head_relevance(
    model: nn.Module,
    forward: Callable[[], Tensor],
    pick: Pick,
    *,
    rule: Rule = "ratio",
    bias: Bias = "neuron",
    product: Product = "half",
    eps: float = 1e-5,
    centred: bool = False,
    normalise: bool = True,
    where: Where = "*",
) -> dict[str, Float[Tensor, "N H"]]:
    """What each head adds to chosen logits, by layer-wise relevance propagation.

    r_h = sum over the head's features and query positions of (out * coefficient) / |logit|, where
    the coefficient is the gradient of the logit in a model held linear at this input: attention
    weights and the standard deviations of norms are constant, non-linearities pass relevance on as
    it is, biases keep their share. With no biases and eps = 0, the heads of a site and the
    residual connection around it sum to the sign of the logit, 1 if it is positive.

    Relevance is positive where a head speaks for the logit and negative where it speaks against,
    whatever the logit's own sign: the same number added to all logits, which softmax ignores,
    changes neither signs nor order, and nothing at all of what is normalised. With
    rule="alpha_beta" or bias="spread" relevance is divided up and not added up, and r_h is a share
    of the logit as it is, its sign included; alpha-beta shares are never negative, but an output
    bias is one of the contributions they are divided by, unless bias="spread".

    One forward pass, and one backward pass for all heads of all layers. Where an item has several
    rows (the steps of one sentence), there is one more backward pass for each; rows of different
    items share theirs. The model is left as it was.

    Args:
        model: anything with sites.
        forward: calls the model and gives logits, (B, T, V) or (B, C).
        pick: which logits: rows (item, position, class), or (item, class) of a classifier; or a
            function from the logits to such rows, like `top_class(places)`.
        rule, bias, product, eps: see `Propagation`.
        centred: take the mean logit off first. The paper does not; but softmax ignores what all
            logits have in common, and where that is most of them (GPT-2) the plain share says
            little about the choice.
        normalise: divide by the sum of the site's absolute relevances instead of the logit, so that
            these sum to 1. Where all are positive this is the paper's; it stays finite where signs
            differ. The only head of a site would always have 1 or -1: it keeps r_h.
        where: the sites wanted.

    Returns:
        {site name: (N, H)}, a row for each row picked. A site called several times in a pass has
        the sum. 0 for a head that adds nothing; NaN where the model computes NaN, where relevance
        is infinite, or where it is a share of a logit of exactly 0.
    """
    settings = Propagation(rule, bias, product, eps)
    with undisturbed(model), constant_parameters(model):
        with linearised(model, settings) as mode, item_gates(model, where=where) as gates:
            logits = forward()
            if centred:
                logits = logits - logits.mean(-1, keepdim=True)
        check_dependence(logits, forward, "logits")
        mode.items = len(logits)
        rows = _checked(pick(logits.detach()) if callable(pick) else pick, logits)
        added = _sweeps(logits, rows, gates)
    logit_N1 = logits.detach()[tuple(rows.T)][:, None]
    # what is divided up has the sign of the logit; what is added up has one of its own
    sign_N1 = 1 if rule == "ratio" and bias == "neuron" else logit_N1.sign()
    return {
        name: sign_N1 * _relative(added_NH, logit_N1, normalise=normalise)
        for name, added_NH in added.items()
    }


def top_class(places: Int[Tensor, "N P"]) -> Callable[[Tensor], Tensor]:
    """A pick for `head_relevance`: the highest logit at each place, (item, position) or (item,).

    >>> top_class(torch.tensor([[0, 1]]))(torch.tensor([[[5.0, 1.0], [0.0, 2.0]]]))
    tensor([[0, 1, 1]])
    """

    def pick(logits: Tensor) -> Tensor:
        places_NP = places.to(logits.device)
        best_N = logits[tuple(places_NP.T)].argmax(-1)
        return torch.cat([places_NP, best_N[:, None]], dim=1)

    return pick


def _checked(rows: Tensor, logits: Tensor) -> Tensor:
    if rows.dim() != 2 or rows.shape[1] != logits.dim() or rows.is_floating_point():
        raise ValueError(
            f"pick must name one logit a row, {logits.dim()} whole numbers each for logits of "
            f"shape {tuple(logits.shape)}, got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    return rows.to(logits.device)


def _sweeps(logits: Tensor, rows: Tensor, gates: dict[str, Tensor]) -> dict[str, Tensor]:
    """What heads add, in units of the logit, {site name: (N, H)}.

    A backward pass for the first row of every item, one for the second, and so on.
    """
    found = {name: gate.new_zeros(len(rows), gate.shape[1]) for name, gate in gates.items()}
    rounds = _rounds(rows[:, 0].tolist())
    for number, chosen in enumerate(rounds):
        at = torch.tensor(chosen, device=rows.device)
        logit_N = logits[tuple(rows[at].T)]
        again = number < len(rounds) - 1
        for name, slope_BH in slopes(logit_N.sum(), gates, again=again).items():
            found[name][at] = slope_BH[rows[at, 0]]
    return found


def _rounds(items: Sequence[int]) -> list[list[int]]:
    """Row numbers such that no round has two rows of one item.

    >>> _rounds([0, 0, 1, 0])
    [[0, 2], [1], [3]]
    """
    seen: dict[int, int] = {}
    rounds: list[list[int]] = []
    for row, item in enumerate(items):
        turn = seen.get(item, 0)
        seen[item] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(row)
    return rounds


def _relative(added_NH: Tensor, logit_N1: Tensor, *, normalise: bool) -> Tensor:
    apart = normalise and added_NH.shape[1] > 1
    size_N1 = added_NH.abs().sum(1, keepdim=True) if apart else logit_N1.abs()
    size_N1 = size_N1.masked_fill((size_N1 == 0) | size_N1.isinf(), torch.nan)
    return torch.where(added_NH == 0, 0, added_NH / size_N1)
