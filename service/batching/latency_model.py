"""The latency model: time(n) = fixed + per_item * n for a batch of n, and how far forecasts can be trusted."""

import math
from collections import deque

WINDOW = 128  # batches
# How strongly the slope keeps its last value while all batches have one size, in squared items.
RIDGE = 4.0
# A longer time is cut to this multiple of the forecast, so that one hiccup does not look like a slow model.
# A model that did become slow is still learnt within a few batches.
OUTLIER_RATIO = 4.0
SMALLEST_PER_ITEM_SECONDS = 1e-6
STRETCH_BOUNDS = (0.25, 8.0)
STRETCH_WEIGHT = 0.1
# The margin is the factor by which 3 of 1,000 answers exceed their forecast. A queue that may grow until the plain
# forecast meets the deadline misses half of its deadlines, and the compute for those answers is lost.
MARGIN_START = 1.5
MARGIN_BOUNDS = (1.1, 4.0)
MARGIN_STEP = 0.1
MARGIN_QUANTILE = 0.997


class LatencyModel:
    """Fits the service time of a batch to its size: least squares over the last WINDOW batches.

    The slope shrinks towards its last value (ridge regression, Hoerl and Kennard 1970), since batches of one size say
    nothing about it. Neither part is ever negative.
    """

    def __init__(self) -> None:
        # Zero until the first batch, so that a guess refuses nobody.
        self.fixed_seconds = 0.0
        self.per_item_seconds = SMALLEST_PER_ITEM_SECONDS
        self.is_known = False
        self.stretch = 1.0  # moving average of actual over expected round trips
        self.margin = MARGIN_START
        self._window: deque[tuple[int, float]] = deque()
        self._sum_n = self._sum_nn = 0
        self._sum_t = self._sum_nt = 0.0

    def seconds(self, num_items: int) -> float:
        """Return the service time to expect of a batch of `num_items`."""
        return self.fixed_seconds + self.per_item_seconds * num_items

    def max_items(self, seconds: float) -> int:
        """Return the largest batch that a worker finishes within `seconds`; at least 1."""
        return max(1, math.floor((seconds - self.fixed_seconds) / self.per_item_seconds))

    def num_in_time(self, num_items: int, seconds: float) -> int:
        """Return how many of `num_items` a worker finishes within `seconds`.

        All of them where not even one would be in time: an item that is late anyway must not slow the others.
        """
        return self.max_items(seconds) if self.seconds(1) <= seconds < self.seconds(num_items) else num_items

    def learn(self, num_items: int, seconds: float, round_trip_seconds: float, expected_round_trip: float) -> None:
        """Add a batch of `num_items`: its service time, and its round trip beside the expected one."""
        if self.is_known:  # the expectation was zero before
            lowest, highest = STRETCH_BOUNDS
            ratio = min(max(round_trip_seconds / expected_round_trip, lowest), highest)
            self.stretch += STRETCH_WEIGHT * (ratio - self.stretch)
            seconds = min(seconds, OUTLIER_RATIO * self.seconds(num_items))
        else:
            self.per_item_seconds = max(seconds / num_items, SMALLEST_PER_ITEM_SECONDS)
            self.is_known = True
        self._window.append((num_items, seconds))
        self._add(num_items, seconds, 1)
        if len(self._window) > WINDOW:
            self._add(*self._window.popleft(), -1)
        self._fit()

    def learn_wait(self, expected_seconds: float, actual_seconds: float) -> None:
        """Compare the time from submission to answer with its forecast, of a request that had others ahead.

        The margin follows a quantile of the ratio by steps that balance there (Robbins and Monro 1951).
        """
        exceeded = actual_seconds > self.margin * expected_seconds
        step = MARGIN_STEP * (MARGIN_QUANTILE if exceeded else MARGIN_QUANTILE - 1)
        lowest, highest = MARGIN_BOUNDS
        self.margin = min(max(self.margin + step, lowest), highest)

    def _add(self, num_items: int, seconds: float, sign: int) -> None:
        self._sum_n += sign * num_items
        self._sum_nn += sign * num_items * num_items
        self._sum_t += sign * seconds
        self._sum_nt += sign * num_items * seconds

    def _fit(self) -> None:
        count = len(self._window)
        mean_n, mean_t = self._sum_n / count, self._sum_t / count
        variance = self._sum_nn - self._sum_n * mean_n
        covariance = self._sum_nt - self._sum_n * mean_t
        slope = (covariance + RIDGE * self.per_item_seconds) / (variance + RIDGE)
        # A line through noise can have any slope: keep it positive, and within the whole time.
        self.per_item_seconds = max(min(slope, mean_t / mean_n), SMALLEST_PER_ITEM_SECONDS)
        self.fixed_seconds = max(mean_t - self.per_item_seconds * mean_n, 0.0)
