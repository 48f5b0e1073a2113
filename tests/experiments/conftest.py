"""Smoke runs without what would be done over and over in them."""

from collections.abc import Iterator
from functools import cache

import pytest

from headwise.data import pretraining
from headwise.journeys import pretraining_text


@pytest.fixture(scope="package", autouse=True)
def texts_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining_text, "read_pretraining", cache(pretraining.read_pretraining))
        yield
