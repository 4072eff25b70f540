"""Ranking: the same results row by row and by numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from handlers.ranking import FEW, rank, rank_few, rank_many

# Few different values, so that there are ties; and what is no number.
VALUES = st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, float("nan"), float("inf")]) | st.floats(0, 1, width=32)
ROWS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=VALUES)


@given(ROWS, st.integers(1, 15), st.booleans())
@settings(deadline=None)
def test_both_ways_have_the_same_results(rows: np.ndarray, top_k: int, whole: bool) -> None:
    assert rank_few(rows, top_k, whole) == rank_many(rows, top_k, whole)


@pytest.mark.parametrize("num_rows", [1, FEW // 10, FEW // 10 + 1])
def test_the_best_come_first_and_equal_ones_in_the_order_of_their_classes(num_rows: int) -> None:
    rows = np.array([[0.25, 0.5, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0]] * num_rows, np.float32)
    assert rank(rows, 3, False) == [{"top_k": [(1, 0.5), (0, 0.25), (4, 0.25)]}] * num_rows
    rows[0, 3] = np.nan
    first, *others = rank(rows, 1, True)
    assert first["error"]["code"] == "output_not_finite"
    assert others == [{"probabilities": row} for row in rows[1:].tolist()]
