"""Each formula against numbers worked out by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import log_loss, precision_recall_fscore_support

from training.evaluation.metrics import (
    calibration_bins,
    class_figures,
    confusion_matrix,
    expected_calibration_error,
    negative_log_likelihood,
)


def test_calibration_error_worked_out_by_hand() -> None:
    """Two answers at 0.8, one right: a gap of 0.3. Two at 0.6, both right: 0.4. Half the answers each: 0.35."""
    probabilities = np.array([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6], [0.6, 0.4]], dtype=np.float32)
    labels = np.array([0, 1, 1, 0])
    bins = calibration_bins(probabilities, labels)
    assert len(bins) == 15
    assert expected_calibration_error(bins) == pytest.approx(0.35, abs=1e-6)
    assert [(each.num_samples, each.accuracy) for each in bins if each.num_samples] == [(2, 1.0), (2, 0.5)]


def test_certain_and_right_answers_are_calibrated() -> None:
    probabilities = np.eye(3, dtype=np.float32)
    bins = calibration_bins(probabilities, np.array([0, 1, 2]))
    assert expected_calibration_error(bins) == 0
    assert bins[-1].num_samples == 3


def test_bins_are_open_below_and_closed_above() -> None:
    probabilities = np.array([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]], dtype=np.float32)
    bins = calibration_bins(probabilities, np.array([0, 0, 0]), num_bins=4)
    assert [each.num_samples for each in bins] == [0, 1, 1, 1]


def test_likelihood_worked_out_by_hand() -> None:
    probabilities = np.array([[0.5, 0.5], [0.25, 0.75]], dtype=np.float32)
    assert negative_log_likelihood(probabilities, np.array([0, 0])) == pytest.approx((math.log(2) + math.log(4)) / 2)
    impossible = np.array([[1.0, 0.0]], dtype=np.float32)
    assert 80 < negative_log_likelihood(impossible, np.array([1])) < 90


def test_figures_agree_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, size=200)
    probabilities = random.dirichlet(np.ones(4), size=200).astype(np.float32)
    answers = probabilities.argmax(axis=1)
    confusion = confusion_matrix(labels, answers, 4)
    assert (confusion == sklearn_confusion(labels, answers)).all()
    precision, recall, _, support = precision_recall_fscore_support(labels, answers)
    figures = class_figures(confusion, ["a", "b", "c", "d"])
    assert [each.precision for each in figures] == pytest.approx(list(precision))
    assert [each.recall for each in figures] == pytest.approx(list(recall))
    assert [each.num_samples for each in figures] == list(support)
    exact = probabilities.astype(np.float64)
    expected = log_loss(labels, exact / exact.sum(axis=1, keepdims=True))
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(expected, rel=1e-5)


def test_class_that_is_never_answered_or_never_there() -> None:
    confusion = confusion_matrix(np.array([0, 0, 2]), np.array([0, 1, 0]), 3)
    figures = class_figures(confusion, ["a", "b", "c"])
    assert [(each.precision, each.recall) for each in figures] == [(0.5, 0.5), (0.0, 0.0), (0.0, 0.0)]
