"""A model's probabilities become results: each item's best classes, or all of its probabilities.

The file travels inside every archive, beside the handler.
"""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING or __package__:  # in the repository
    from handlers.image_decoding import problem
else:  # in an archive
    from image_decoding import problem

NOT_FINITE = problem("output_not_finite", "The model's output for this item is not a finite number.")
# Up to so many probabilities, plain Python is faster than numpy, whose code a lone image finds in no cache.
FEW = 100


def rank(rows: npt.NDArray[np.float32], top_k: int, whole: bool) -> list[dict[str, Any]]:
    """Turn [N, num_classes] into results; the Python floats hold the float32 values exactly.

    Equal probabilities come in the order of their classes; an item with a number that is not finite gets an error.
    """
    return rank_few(rows, top_k, whole) if rows.size <= FEW else rank_many(rows, top_k, whole)


def rank_few(rows: npt.NDArray[np.float32], top_k: int, whole: bool) -> list[dict[str, Any]]:
    """Do it row by row."""
    return [_result(row, top_k, whole) if all(map(isfinite, row)) else {"error": NOT_FINITE} for row in rows.tolist()]


def _result(row: Sequence[float], top_k: int, whole: bool) -> dict[str, Any]:
    if whole:
        return {"probabilities": row}
    best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top_k]  # stable, in reverse, too
    return {"top_k": [(index, row[index]) for index in best]}


def rank_many(rows: npt.NDArray[np.float32], top_k: int, whole: bool) -> list[dict[str, Any]]:
    """Do it by numpy: a call of torch costs four times one of numpy for arrays this small."""
    are_finite = np.isfinite(rows).all(axis=1)
    if whole:
        results = [{"probabilities": values} for values in rows.tolist()]
    else:
        classes = (-rows).argsort(axis=1, kind="stable")[:, :top_k]
        values = rows[np.arange(len(rows))[:, np.newaxis], classes]
        pairs = zip(classes.tolist(), values.tolist(), strict=True)
        results = [{"top_k": list(zip(*pair, strict=True))} for pair in pairs]
    return [
        result if good else {"error": NOT_FINITE}
        for result, good in zip(results, np.atleast_1d(are_finite).tolist(), strict=True)
    ]
