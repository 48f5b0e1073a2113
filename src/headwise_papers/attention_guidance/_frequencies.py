"""What a model loses that knows how common pieces are, and nothing of what stands around them.

An encoder that does not converge stays at this loss: the plateau of Fig. 3 of the paper.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise_papers.data.masking import HIDDEN, RANDOM
from headwise_papers.recipes.pretraining_data import PretrainingText

__all__ = ["CONVERGED", "best_without_context", "drawn_right", "frequency_loss"]

# nats below that loss at which an encoder counts as converged; fixed before any result, and what
# other thresholds would say stands beside, see attention_guidance/robust
CONVERGED = 1.0


def frequency_loss(text: PretrainingText) -> float:
    """That loss, in nats a hidden piece, of frequencies in the training part on the other one."""
    marks, vocabulary = text.pieces.marks, len(text.pieces)
    train_V, valid_V = (part.counts(vocabulary)[marks:] for part in (text.train, text.valid))
    return best_without_context(train_V, valid_V)


def drawn_right(text: PretrainingText) -> float:
    """How often a piece drawn by its frequency in the training part is the true one, held out."""
    marks, vocabulary = text.pieces.marks, len(text.pieces)
    known_V, asked_V = (part.counts(vocabulary)[marks:] for part in (text.train, text.valid))
    shares_V = known_V.double() / known_V.sum()
    return float((asked_V.double() / asked_V.sum() * shares_V).sum())


def best_without_context(
    known: Int[Tensor, " V"] | Float[Tensor, " V"], asked: Int[Tensor, " V"] | Float[Tensor, " V"]
) -> float:
    """The cross-entropy of the best guess from the piece that is shown at a hidden place.

    With p_v the frequency of piece v of V: of places that are masked, 80 %, the guess is p. Of
    places that show v, half show it because it stands there and half because it was drawn from all
    alike, so that v is the guess with p_v (1 + 1/V) / (p_v + 1/V), and any other t with
    (p_t / V) / (p_v + 1/V).

    Args:
        known: how often each piece occurs where frequencies are learnt; one is added to each.
        asked: how often it is to be guessed.

    >>> round(best_without_context(torch.ones(1000), torch.ones(1000)), 2)  # 0.9 ln 1000 + 0.2 ln 2
    6.35
    """
    p_V = (known.double() + 1) / (known.double() + 1).sum()
    asked_V = asked.double() / asked.sum()
    number = torch.tensor(float(len(p_V)), dtype=torch.float64)
    shown_V = (p_V + 1 / number).log()
    masked = -(asked_V * p_V.log()).sum()
    kept = (asked_V * (shown_V - (p_V * (1 + 1 / number)).log())).sum()
    # a drawn piece is the right one by chance once in V times
    drawn = masked + number.log() + shown_V.mean() - (number + 1).log() / number
    return float(HIDDEN * masked + (1 - HIDDEN - RANDOM) * kept + RANDOM * drawn)
