"""Loading and saving models of transformers without its own bars and reports."""

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["quiet_transformers"]


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Without transformers' own bars and report: what matters of them we say ourselves."""
    from transformers.utils import logging  # lazy: takes seconds

    shown, before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()
