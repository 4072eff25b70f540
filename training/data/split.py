"""Which images train, which choose the best epoch, which are only ever tested on."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Sequence

from training.artifacts import Split

VALIDATION_FRACTION = 0.1
TEST_FRACTION = 0.2
LEAST_PER_CLASS = 3


def stratified_split(
    labels: Sequence[int], keys: Sequence[str], test: Collection[int] | None = None
) -> dict[Split, list[int]]:
    """Return the indices of each split, in rising order: of every class 70 % train, 10 % validate, 20 % test.

    Where a test split was published, it stays the test split, and 10 % of the others validate.

    It depends on the keys alone, through a hash: no seed moves it, and neither does another release of a library
    whose random numbers have changed. Every class, of three images or more, is in every split.
    """
    published = frozenset(test or ())
    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        if index not in published:
            by_class[label].append(index)
    split: dict[Split, list[int]] = {"train": [], "validation": [], "test": sorted(published)}
    for members in by_class.values():
        assert len(members) >= LEAST_PER_CLASS - bool(published), "sources refuse smaller classes"
        shuffled = sorted(members, key=lambda index: hashlib.sha256(os.fsencode(keys[index])).digest())
        num_validation = max(1, round(VALIDATION_FRACTION * len(members)))
        num_test = 0 if published else max(1, round(TEST_FRACTION * len(members)))
        split["validation"] += shuffled[:num_validation]
        split["test"] += shuffled[num_validation : num_validation + num_test]
        split["train"] += shuffled[num_validation + num_test :]
    return {name: sorted(indices) for name, indices in split.items()}
