"""What the shapes of several models refuse alike."""

from typing import get_args

from headwise.models.attention import Phases
from headwise.ops.named import INSTEAD, check_attention, looks_at_places

__all__ = ["check_dropouts", "check_phases"]


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
    if looks_at_places(spec) and sparse_in == "training":
        raise ValueError(f"{spec!r} learns no scores; give it with sparse_in='both'.")


def check_dropouts(**shares: float) -> None:
    """Refuse what cannot be a share that is dropped."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {share}.")
