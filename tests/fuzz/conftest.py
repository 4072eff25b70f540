"""Counts the examples of a soak."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.profile import COUNTS


@pytest.fixture(autouse=True)
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Note how many examples the test sees."""
    handle = getattr(request.function, "hypothesis", None)
    if COUNTS is None or handle is None:
        yield
        return
    num_examples, inner = 0, handle.inner_test

    @functools.wraps(inner)
    def count(*args: object, **kwargs: object) -> object:
        nonlocal num_examples
        num_examples += 1
        return inner(*args, **kwargs)

    handle.inner_test = count
    try:
        yield
    finally:
        handle.inner_test = inner
        with Path(COUNTS).open("a") as file:
            file.write(f"{request.node.nodeid.rpartition('/')[2]} {num_examples}\n")
