"""Two scores and their thresholds: right by other people's formulas, quiet about noise, loud about a change."""

import math
import random
from bisect import bisect_right
from collections.abc import Sequence

import pytest
from scipy import stats

from service.domain.contract import Reference
from service.monitoring.drift import (
    FALSE_ALARM_RATE,
    DriftLimits,
    chi_square_quantile,
    distance_reached_by_noise,
    drift_scores,
    index_reached_by_noise,
    kolmogorov_smirnov,
    population_stability_index,
)

EDGES = tuple(1 / (1 + math.exp(-x / 2)) for x in range(29))
LIMITS = DriftLimits(1000, 0.1, 0.1)
# Of a sample of a good model: most are nearly certain, few are not.
ODDS_MEAN, ODDS_SPREAD = 9.0, 3.0


def draw(random_: random.Random, num_items: int, shares: Sequence[float], odds_mean: float) -> Reference:
    """Return a sample of answers."""
    classes = random_.choices(range(len(shares)), shares, k=num_items)
    confidences = [1 / (1 + math.exp(-abs(random_.gauss(odds_mean, ODDS_SPREAD)))) for _ in range(num_items)]
    counts = [0] * (len(EDGES) - 1)
    for confidence in confidences:
        counts[bisect_right(EDGES[1:-1], confidence)] += 1
    prior = tuple(classes.count(index) / num_items for index in range(len(shares)))
    histogram = {"edges": EDGES, "counts": counts}
    return Reference.model_validate({"class_prior": prior, "confidence_histogram": histogram})


def class_counts(sample: Reference) -> list[int]:
    return [round(count) for count in sample.class_counts]


def test_the_index_is_the_sum_over_both_shares() -> None:
    assert population_stability_index([500, 500], [50, 50]) == pytest.approx(0, abs=1e-12)
    expected = (0.6 - 0.5) * math.log(0.6 / 0.5) + (0.4 - 0.5) * math.log(0.4 / 0.5)
    assert population_stability_index([60_000, 40_000], [50_000, 50_000]) == pytest.approx(expected, rel=1e-3)
    assert math.isfinite(population_stability_index([1000, 0, 0], [0, 300, 200]))


def test_a_class_of_ten_may_become_2_1_times_as_frequent_but_not_2_2_times() -> None:
    """docs/how-to/operate/drift.md says so."""
    before = [100] * 10
    for times, is_over in ((2.1, False), (2.2, True)):
        now = [100 * times, *[(1000 - 100 * times) / 9] * 9]
        assert (population_stability_index(now, before) > 0.1) is is_over


def test_the_distance_is_that_of_the_samples_themselves() -> None:
    random_ = random.Random(0)
    ours, theirs = [[random_.choice(EDGES[:-1]) for _ in range(300)] for _ in range(2)]
    counts = [[sample.count(edge) for edge in EDGES[:-1]] for sample in (ours, theirs)]
    assert kolmogorov_smirnov(*counts) == pytest.approx(stats.ks_2samp(ours, theirs).statistic)
    assert kolmogorov_smirnov([0, 0, 5], [7, 0, 0]) == 1
    assert kolmogorov_smirnov([1, 2, 3], [10, 20, 30]) == 0


@pytest.mark.parametrize("degrees", [1, 2, 3, 9, 99, 999])
def test_quantiles_of_chi_square_are_close_and_not_too_small(degrees: int) -> None:
    exact = stats.chi2.isf(FALSE_ALARM_RATE, degrees)
    assert exact <= chi_square_quantile(1 - FALSE_ALARM_RATE, degrees) <= exact * 1.08


def test_noise_thresholds_are_the_ones_that_are_promised() -> None:
    assert index_reached_by_noise(1000, 500, 10) == pytest.approx(
        (1 / 1000 + 1 / 500) * stats.chi2.isf(FALSE_ALARM_RATE, 9), rel=0.02
    )
    effective = math.sqrt(1000 * 500 / 1500)
    assert distance_reached_by_noise(1000, 500) * effective == pytest.approx(
        stats.kstwobign.isf(FALSE_ALARM_RATE), rel=1e-3
    )


@pytest.mark.parametrize(
    ("num_items", "num_reference", "num_classes"), [(1000, 500, 10), (200, 500, 10), (200, 200, 40)]
)
def test_answers_of_one_kind_stay_under_the_thresholds(num_items: int, num_reference: int, num_classes: int) -> None:
    random_ = random.Random(1)
    shares = [1.0] * num_classes
    highest = {"class": 0.0, "confidence": 0.0}
    for _ in range(300):
        reference = draw(random_, num_reference, shares, ODDS_MEAN)
        sample = draw(random_, num_items, shares, ODDS_MEAN)
        for score in drift_scores(reference, LIMITS, class_counts(sample), sample.confidence_counts):
            assert score.value <= score.threshold, score
            highest[score.kind] = max(highest[score.kind], score.value / score.threshold)
    # The noise is there: a threshold far above it would see nothing.
    assert min(highest.values()) > 0.4, highest


def test_changed_answers_are_over_them() -> None:
    random_ = random.Random(2)
    shares = [1.0] * 10
    reference = draw(random_, 500, shares, ODDS_MEAN)
    skewed = draw(random_, 1000, [5.0, *shares[1:]], ODDS_MEAN)
    unsure = draw(random_, 1000, shares, ODDS_MEAN - 2)
    for sample, over in ((skewed, {"class"}), (unsure, {"confidence"})):
        scores = drift_scores(reference, LIMITS, class_counts(sample), sample.confidence_counts)
        assert {score.kind for score in scores if score.value > score.threshold} == over


def test_thresholds_are_the_settings_where_noise_is_less_and_grow_where_images_are_few() -> None:
    reference = draw(random.Random(3), 100_000, [1.0] * 10, ODDS_MEAN)
    limits = DriftLimits(1000, 0.25, 0.2)
    many, few = (drift_scores(reference, limits, [n] * 10, [n * 10, *[0] * 27]) for n in (10_000, 5))
    assert [score.threshold for score in many] == [0.25, 0.2]
    assert all(score.threshold > limit for score, limit in zip(few, (0.25, 0.2), strict=True))
