"""Smoke runs without what would be done over and over in them."""

from collections.abc import Iterator
from functools import cache

import pytest

from headwise_papers.attention_guidance import patterns
from headwise_papers.data.pretraining import read_pretraining
from headwise_papers.recipes import pretraining_data


@pytest.fixture(scope="package", autouse=True)
def texts_are_read_once() -> Iterator[None]:
    once = cache(read_pretraining)
    with pytest.MonkeyPatch.context() as patch:
        for module in (pretraining_data, patterns):
            patch.setattr(module, "read_pretraining", once)
        yield
