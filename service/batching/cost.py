"""What a batch costs: time(n) = fixed + per_item * n, learnt while the backend works, and what follows from it."""

import math
from collections import deque

WINDOW = 128
# How strongly the slope holds on to its last value while batches are all of one size, in squared images.
RIDGE = 4.0
# One hiccup of the machine must not look like a slow model; a model that did get slow is learnt within a few batches.
OUTLIER_RATIO = 4.0
SMALLEST_PER_ITEM_SECONDS = 1e-6


class CostModel:
    """Fits the service time of a batch to its size: least squares over the last WINDOW batches.

    The slope is shrunk towards its last value (ridge regression, Hoerl and Kennard 1970), since batches that are all
    of one size say nothing about it; neither part ever goes below zero.
    """

    def __init__(self) -> None:
        # Nothing is known at first, so that nobody is refused for a guess; the first batch ends that.
        self.fixed_seconds = 0.0
        self.per_item_seconds = SMALLEST_PER_ITEM_SECONDS
        self._seen: deque[tuple[int, float]] = deque()
        self._sum_n = self._sum_nn = 0
        self._sum_t = self._sum_nt = 0.0

    @property
    def is_known(self) -> bool:
        """Return whether anything was learnt."""
        return bool(self._seen)

    def seconds(self, num_items: int) -> float:
        """Return the time that a worker is expected to spend on a batch of `num_items`."""
        return self.fixed_seconds + self.per_item_seconds * num_items

    def learn(self, num_items: int, seconds: float) -> None:
        """Take in that a batch of `num_items` took `seconds`."""
        if self._seen:
            seconds = min(seconds, OUTLIER_RATIO * self.seconds(num_items))
        else:
            self.per_item_seconds = max(seconds / num_items, SMALLEST_PER_ITEM_SECONDS)
        self._seen.append((num_items, seconds))
        self._add(num_items, seconds, 1)
        if len(self._seen) > WINDOW:
            self._add(*self._seen.popleft(), -1)
        self._fit()

    def limit(self, seconds: float) -> int:
        """Return how many images a batch may have to be done within `seconds`.

        Not fewer than make the fixed part half of the whole: below that, a smaller batch costs more throughput than
        it saves time, and a queue that grows costs far more time than the batch.
        """
        within = math.floor((seconds - self.fixed_seconds) / self.per_item_seconds)
        knee = math.ceil(self.fixed_seconds / self.per_item_seconds)
        return max(1, knee, within)

    def _add(self, num_items: int, seconds: float, sign: int) -> None:
        self._sum_n += sign * num_items
        self._sum_nn += sign * num_items * num_items
        self._sum_t += sign * seconds
        self._sum_nt += sign * num_items * seconds

    def _fit(self) -> None:
        count = len(self._seen)
        mean_n, mean_t = self._sum_n / count, self._sum_t / count
        variance = self._sum_nn - self._sum_n * mean_n
        covariance = self._sum_nt - self._sum_n * mean_t
        slope = (covariance + RIDGE * self.per_item_seconds) / (variance + RIDGE)
        # At most all of the time, and something: a line through noise can have any slope.
        self.per_item_seconds = min(
            max(slope, SMALLEST_PER_ITEM_SECONDS), max(mean_t / mean_n, SMALLEST_PER_ITEM_SECONDS)
        )
        self.fixed_seconds = max(mean_t - self.per_item_seconds * mean_n, 0.0)
