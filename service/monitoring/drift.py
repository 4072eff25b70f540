"""Drift: two distances of a version's answers from those to its validation images, and the noise of each.

Classes are compared by the population stability index (N. Siddiqi, Credit Risk Scorecards, Wiley 2006), confidences by
the two-sample Kolmogorov-Smirnov statistic. Nearly all confidences lie close to 1, so most bins of their histogram are
empty. The statistic looks at cumulated shares, which empty bins do not disturb.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Literal

from service.domain.contract import Reference

DriftKind = Literal["class", "confidence"]
# Chance that one score of answers of the reference's kind is over its threshold, by the luck of both samples.
FALSE_ALARM_RATE = 1e-4
# Counted in addition for each class (Jeffreys' prior), or one that never came would make the index infinite.
PRIOR_COUNT = 0.5


@dataclass(frozen=True, slots=True)
class DriftLimits:
    """The window of a score, and the thresholds above which a score is drift unless noise explains it."""

    window_items: int
    class_threshold: float
    confidence_threshold: float


@dataclass(frozen=True, slots=True)
class Score:
    """A distance and its threshold: the setting, or the noise level if that is higher."""

    kind: DriftKind
    value: float
    threshold: float


def drift_scores(
    reference: Reference, limits: DriftLimits, class_counts: Sequence[int], confidence_counts: Sequence[int]
) -> tuple[Score, Score]:
    """Return both scores of a window; the confidences are counted between the reference's edges."""
    num_items, num_reference = sum(class_counts), reference.num_items
    index = population_stability_index(class_counts, reference.class_counts)
    index_noise = index_reached_by_noise(num_items, num_reference, len(class_counts))
    distance = kolmogorov_smirnov(confidence_counts, reference.confidence_counts)
    distance_noise = distance_reached_by_noise(num_items, num_reference)
    return (
        Score("class", index, max(limits.class_threshold, index_noise)),
        Score("confidence", distance, max(limits.confidence_threshold, distance_noise)),
    )


def population_stability_index(counts: Sequence[float], reference_counts: Sequence[float]) -> float:
    """Return the sum of (p - q) ln(p / q) over the shares p and q of two samples: 0 for equal ones, no upper bound."""
    total = sum(counts) + PRIOR_COUNT * len(counts)
    reference_total = sum(reference_counts) + PRIOR_COUNT * len(counts)
    index = 0.0
    for count, reference_count in zip(counts, reference_counts, strict=True):
        p, q = (count + PRIOR_COUNT) / total, (reference_count + PRIOR_COUNT) / reference_total
        index += (p - q) * math.log(p / q)
    return index


def index_reached_by_noise(num_items: int, num_reference: int, num_classes: int) -> float:
    """Return the index that two samples of one distribution pass at FALSE_ALARM_RATE.

    It is distributed as (1/n + 1/m) times chi-square with one degree of freedom less than there are classes
    (B. Yurdakul, Statistical Properties of Population Stability Index, Western Michigan University 2018).
    """
    return (1 / num_items + 1 / num_reference) * chi_square_quantile(1 - FALSE_ALARM_RATE, num_classes - 1)


def chi_square_quantile(probability: float, degrees: int) -> float:
    """Return a quantile as E. B. Wilson and M. M. Hilferty approximate it (PNAS 17, 1931): never far too small."""
    variance = 2 / (9 * degrees)
    return degrees * (1 - variance + NormalDist().inv_cdf(probability) * math.sqrt(variance)) ** 3


def kolmogorov_smirnov(counts: Sequence[float], reference_counts: Sequence[float]) -> float:
    """Return the largest difference of two samples' cumulated shares at the edges of their bins: 0 to 1."""
    total, reference_total = sum(counts), sum(reference_counts)
    pairs = zip(accumulate(counts), accumulate(reference_counts), strict=True)
    return max(abs(below / total - reference_below / reference_total) for below, reference_below in pairs)


def distance_reached_by_noise(num_items: int, num_reference: int) -> float:
    """Return the distance that two samples of one distribution pass at FALSE_ALARM_RATE, or less often.

    The first term of the limiting distribution (N. Smirnov, Annals of Mathematical Statistics 19, 1948); looking at
    bins instead of every value can only make the distance smaller.
    """
    return math.sqrt(-math.log(FALSE_ALARM_RATE / 2) / 2 * (1 / num_items + 1 / num_reference))
