"""One evaluation, for any callable that turns pixels into probabilities."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import stats
from torch import Tensor

from training.artifacts import VARIANTS, Run
from training.data.dataset import load_split
from training.errors import RunError
from training.evaluation.evaluate import (
    batch_dependence,
    confidence_edges,
    evaluate_model,
    load_evaluation,
    predict,
    reference,
)


def answers_the_first_class(images: Tensor) -> Tensor:
    assert images.dtype == torch.uint8
    return torch.tensor([[0.5, 0.3, 0.2]]).repeat(len(images), 1)


def test_any_callable_is_evaluated(exported: Run) -> None:
    found = evaluate_model(answers_the_first_class, exported)
    assert found.report.num_samples == 60
    assert found.report.accuracy == pytest.approx(1 / 3)
    assert found.report.expected_calibration_error == pytest.approx(0.5 - 1 / 3, abs=1e-6)
    assert found.report.negative_log_likelihood == pytest.approx(-np.log([0.5, 0.3, 0.2]).mean(), rel=1e-5)
    assert found.report.confusion_matrix == [[20, 0, 0]] * 3
    assert found.reference.class_prior == [1, 0, 0]
    assert sum(found.reference.histogram_counts) == 30
    assert found.batch_dependence.max_abs_difference == 0


def test_predict_does_not_depend_on_the_last_batch(exported: Run) -> None:
    images, _ = load_split(exported, "test")
    sizes: list[int] = []

    def counting(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return answers_the_first_class(batch)

    assert predict(counting, images[:11], batch_size=4).shape == (11, 3)
    assert sizes == [4, 4, 3]


def test_batch_dependence_sees_a_model_that_looks_at_its_neighbours(exported: Run) -> None:
    images, _ = load_split(exported, "test")

    def sociable(batch: Tensor) -> Tensor:
        share = torch.full((len(batch),), 0.9 if len(batch) == 1 else 0.4)
        return torch.stack([share, 1 - share], dim=1)

    found = batch_dependence(sociable, images, predict(sociable, images))
    assert found.max_abs_difference == pytest.approx(0.5)
    assert found.num_class_changes == 60


def test_histogram_counts_certain_answers() -> None:
    probabilities = np.array([[1.0, 0.0], [0.49, 0.51], [1 + 1e-7, 0]], dtype=np.float32)
    found = reference(probabilities, "validation")
    assert len(found.histogram_edges) == len(found.histogram_counts) + 1
    assert found.histogram_counts[-1] == 2
    (place,) = np.flatnonzero(found.histogram_counts[:-1])
    assert found.histogram_edges[place] <= 0.51 < found.histogram_edges[place + 1]
    assert found.histogram_counts[place] == 1


def test_edges_tell_certain_answers_from_more_certain_ones() -> None:
    edges = confidence_edges()
    assert edges[0] == 0
    assert edges[-1] == 1
    assert (np.diff(edges) > 0).all()
    assert len(set(edges.astype(np.float32))) == len(edges)
    places = np.searchsorted(edges, [0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99995, 0.99999])
    assert len(set(places)) == 7


def test_edges_show_a_small_loss_of_certainty_that_equal_bins_hardly_do() -> None:
    """Confidences of a good model, and of the same one when its images are a little worse: by formula, not trained."""
    quantiles = np.array([NormalDist(9, 3).inv_cdf((each + 0.5) / 1000) for each in range(1000)])
    before, after = (1 / (1 + np.exp(-np.maximum(log_odds, 0))) for log_odds in (quantiles, quantiles - 1))

    def distance(edges: NDArray[np.float64]) -> float:
        first, second = (np.cumsum(np.histogram(each, bins=edges)[0]) / 1000 for each in (before, after))
        return float(np.abs(first - second).max())

    exact = stats.ks_2samp(before, after).statistic
    assert distance(confidence_edges()) > 0.9 * exact
    assert distance(np.arange(21) / 20) < 0.5 * exact


@pytest.mark.parametrize("variant", VARIANTS)
def test_stage_leaves_figures_and_pictures(exported: Run, variant: str) -> None:
    assert variant in ("fp32", "int8-dynamic", "int8-static")
    found = load_evaluation(exported, variant)  # type: ignore[arg-type]
    assert found.report.accuracy >= 0.9
    assert sum(map(sum, found.report.confusion_matrix)) == 60
    for path in (exported.confusion_matrix(variant), exported.reliability(variant), exported.learning_curves):  # type: ignore[arg-type]
        with Image.open(path) as picture:
            assert min(picture.size) >= 400
            extremes = picture.convert("L").getextrema()
        assert extremes[0] != extremes[1]


def test_untrained_run_says_which_stage_is_missing(prepared: Run) -> None:
    with pytest.raises(RunError, match="training evaluate"):
        load_evaluation(prepared, "fp32")
    with pytest.raises(RunError, match="training quantize"):
        load_evaluation(prepared, "int8-dynamic")
