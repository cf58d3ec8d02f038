"""Settings that every test over a package shares."""

from collections.abc import Iterator

import pytest

import dutyfree


@pytest.fixture(autouse=True)
def _nothing_stays_accelerated() -> Iterator[None]:
    yield
    dutyfree.restore()
