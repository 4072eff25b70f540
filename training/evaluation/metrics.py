"""How good probabilities are: formulas only, on arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_CALIBRATION_BINS = 15


@dataclass(frozen=True)
class ClassFigures:
    """One class; precision is 0 where the model never answers the class, recall where no image has it."""

    name: str
    precision: float
    recall: float
    num_samples: int


@dataclass(frozen=True)
class CalibrationBin:
    """The answers whose confidence lies in (low, high]; the means are 0 in an empty bin."""

    low: float
    high: float
    num_samples: int
    mean_confidence: float
    accuracy: float


def confusion_matrix(labels: NDArray[np.int64], answers: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """Return int64 [num_classes, num_classes]: rows are true classes, columns are answers."""
    cells = np.bincount(labels * num_classes + answers, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes).astype(np.int64)


def class_figures(confusion: NDArray[np.int64], classes: list[str]) -> list[ClassFigures]:
    """Return precision and recall of each class."""
    figures = []
    for index, name in enumerate(classes):
        hits = int(confusion[index, index])
        num_answers, num_samples = int(confusion[:, index].sum()), int(confusion[index].sum())
        precision = hits / num_answers if num_answers else 0.0
        recall = hits / num_samples if num_samples else 0.0
        figures.append(ClassFigures(name, precision, recall, num_samples))
    return figures


def negative_log_likelihood(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the mean of -ln p(true class) over float32 [N, num_classes] and int64 [N].

    Probabilities below the smallest normal float32 count as that number, so that one answer cannot make it infinite.
    """
    true = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())


def calibration_bins(
    probabilities: NDArray[np.float32], labels: NDArray[np.int64], num_bins: int = NUM_CALIBRATION_BINS
) -> list[CalibrationBin]:
    """Return equal-width bins of the confidence, the largest probability (Guo et al. 2017, arXiv 1706.04599)."""
    confidence = probabilities.max(axis=1).astype(np.float64)
    correct = probabilities.argmax(axis=1) == labels
    # Bins are open below and closed above, as in the paper: ((m - 1) / M, m / M].
    position = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    bins = []
    for index in range(num_bins):
        inside = position == index
        count = int(inside.sum())
        bins.append(
            CalibrationBin(
                low=index / num_bins,
                high=(index + 1) / num_bins,
                num_samples=count,
                mean_confidence=float(confidence[inside].mean()) if count else 0.0,
                accuracy=float(correct[inside].mean()) if count else 0.0,
            )
        )
    return bins


def expected_calibration_error(bins: list[CalibrationBin]) -> float:
    """Return the mean gap of accuracy and confidence over the bins, weighted by samples (Guo et al., equation 3)."""
    num_samples = sum(each.num_samples for each in bins)
    return sum(each.num_samples / num_samples * abs(each.accuracy - each.mean_confidence) for each in bins)
