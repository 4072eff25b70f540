"""A window counts the last answers, however they come."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from service.monitoring.answer_window import AnswerWindow

EDGES = (0.0, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("largest_batch", [1, 7, 95, 400])
def test_it_holds_what_a_list_of_the_last_would(largest_batch: int) -> None:
    random_ = random.Random(largest_batch)
    window = AnswerWindow(3, EDGES, 100)
    come: list[tuple[int, float]] = []
    num_moves = 0
    for _ in range(300):
        answers = [(random_.randrange(3), random_.random()) for _ in range(random_.randint(1, largest_batch))]
        before = len(come)
        come += answers
        assert window.add(answers) == (len(come) // 10 > before // 10)
        num_moves += len(come) // 10 > before // 10
        counted = come[: len(come) // 10 * 10][-100:]
        assert window.num_items == len(counted)
        assert window.num_filling == len(come) % 10
        classes = Counter(index for index, _ in counted)
        assert window.class_counts == [classes[index] for index in range(3)]
        confidences = [confidence for _, confidence in counted]
        pairs = pairwise(EDGES)
        assert window.confidence_counts == [sum(low <= each < high for each in confidences) for low, high in pairs]
    assert num_moves


def test_what_is_beyond_the_edges_counts_next_to_them() -> None:
    window = AnswerWindow(2, (0.1, 0.5, 1.0), 10)
    window.add([(0, 0.0), (1, 1.0), (1, 1.0000001)])
    window.add([(0, 0.5)] * 7)
    assert window.confidence_counts == [1, 9]


def test_it_says_since_when_it_counts() -> None:
    now = 0.0
    window = AnswerWindow(2, (), 20, clock=lambda: now)
    assert window.seconds == 0
    for _ in range(15):
        now += 1
        window.add([(0, 1.0)] * 2)
    assert window.num_items == 20
    assert window.seconds == pytest.approx(9)  # the first of those twenty came at 6
