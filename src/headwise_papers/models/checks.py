"""What the shapes of several models refuse alike."""

from typing import get_args

from headwise.ops.named import INSTEAD, check_attention, is_positional
from headwise_papers.models.attention import Phases

__all__ = ["check_dropouts", "check_phases", "check_size", "check_vocab"]

MOST_LAYERS, MOST_PARAMETERS = 10_000, 10**11


def check_phases(
    spec: str, sparse_in: Phases, *, within: bool = True, instead: str = INSTEAD
) -> None:
    """Refuse attention that a model cannot have, or not in the phases given.

    Args:
        spec: as in `headwise.ops.named`.
        sparse_in: as `MultiHeadAttention` takes it.
        within: whether a text attends to itself and to all of it.
        instead: what to do where it does not, as the end of a sentence.
    """
    check_attention(spec, within=within, instead=instead)
    if sparse_in not in get_args(Phases):
        raise ValueError(f"sparse_in must be 'both' or 'training', got {sparse_in!r}.")
    if is_positional(spec) and sparse_in == "training":
        raise ValueError(f"{spec!r} learns no scores; give it with sparse_in='both'.")


def check_size(*, layers: int, width: int, feed_forward: int, rows: int) -> None:
    """Refuse a model that no machine could hold, before it is built layer by layer.

    Args:
        layers: of the model.
        width: of what they pass on.
        feed_forward: the inner width.
        rows: of the tables of words and positions.
    """
    parameters = layers * (4 * width**2 + 2 * width * feed_forward) + rows * width
    if layers > MOST_LAYERS or parameters > MOST_PARAMETERS:
        raise ValueError(
            f"A model of at most {MOST_LAYERS:,} layers and {MOST_PARAMETERS:,} parameters was "
            f"wanted, got {layers:,} layers and about {parameters:.3g} parameters; make layers, "
            "width, feed_forward, vocabulary or max_length smaller."
        )


def check_dropouts(**shares: float) -> None:
    """Refuse what cannot be a share that is dropped."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {share}.")


def check_vocab(*sizes: int) -> None:
    """Raise if a vocabulary is empty, as it is in the settings of a training before it begins."""
    for size in sizes:
        if size < 1:
            raise ValueError(f"A vocabulary must have at least 1 word, got {size}.")
