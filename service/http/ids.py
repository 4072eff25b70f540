"""Ids of requests and answers: unique, which is all that is asked of them."""

import random

# Seeded by the system once; asking it for every id is a system call each.
_numbers = random.Random()  # noqa: S311 - ids are no secrets


def new_id() -> str:
    """Return 32 hexadecimal digits that were not there before."""
    return f"{_numbers.getrandbits(128):032x}"
