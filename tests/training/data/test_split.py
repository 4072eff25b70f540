"""The split is stratified, and nothing but the images' names moves it."""

from collections import Counter
from itertools import chain

import pytest

from training.data.sources.digits import digits
from training.data.split import stratified_split


def test_digits_split_sizes_and_stratification() -> None:
    source = digits()
    split = stratified_split(source.labels, source.keys)
    assert {name: len(indices) for name, indices in split.items()} == {"train": 3500, "validation": 500, "test": 1000}
    for indices in split.values():
        per_class = Counter(source.labels[index] for index in indices)
        assert set(per_class.values()) == {len(indices) // 10}
    assert sorted(chain(*split.values())) == list(range(5000))


def test_digits_split_is_fixed() -> None:
    """A change of these moves images between training and test: figures of before and after no longer compare."""
    source = digits()
    split = stratified_split(source.labels, source.keys)
    assert split["test"][:8] == [8, 9, 13, 29, 41, 46, 47, 50]
    assert split["validation"][:8] == [39, 49, 51, 55, 65, 105, 109, 125]


@pytest.mark.parametrize("count", [3, 4, 9, 10, 11])
def test_small_classes_are_in_every_split(count: int) -> None:
    labels = [0] * count + [1] * 50
    split = stratified_split(labels, [str(index) for index in range(len(labels))])
    for indices in split.values():
        assert {labels[index] for index in indices} == {0, 1}
    assert sum(len(indices) for indices in split.values()) == len(labels)


def test_order_of_the_images_does_not_matter() -> None:
    keys = [f"{index}.png" for index in range(40)]
    labels = [index % 2 for index in range(40)]
    forward = stratified_split(labels, keys)
    backward = stratified_split(labels[::-1], keys[::-1])
    for name, indices in forward.items():
        assert {keys[index] for index in indices} == {keys[::-1][index] for index in backward[name]}
