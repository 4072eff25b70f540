"""Watches one version's answers, after they went out, for drift from its contract."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

from service.domain.backend import BatchAnswer, ItemResult, Ranking, Target
from service.domain.contract import Contract
from service.monitoring.answer_window import NUM_BLOCKS, AnswerWindow, TopClass
from service.monitoring.drift import DriftLimits, Score, drift_scores
from service.telemetry.version_metrics import DriftMetrics

logger = logging.getLogger(__name__)

DriftState = Literal["ok", "drifting", "unknown"]

# Answers of this time are counted together, which is cheaper for each.
PAUSE_SECONDS = 0.05
# Blocks of the window that a score needs.
LEAST_BLOCKS = 2
# A drift ends when every score is below this share of its threshold, so that one at the edge does not fill the log.
CALM = 0.8


class DriftMonitor:
    """Counts a version's answers, shadow traffic included, and compares the last ones with its contract's reference."""

    def __init__(self, target: Target, contract: Contract, limits: DriftLimits, metrics: DriftMetrics) -> None:
        self._target = target
        self._num_classes = len(contract.classes)
        self._metrics = metrics
        self._reference = reference = contract.reference
        self._limits = limits
        self._least_items = limits.window_items // NUM_BLOCKS * LEAST_BLOCKS
        self._uncounted: list[Sequence[ItemResult]] = []
        self._is_drifting = False
        self.window = AnswerWindow(len(contract.classes), reference.edges if reference else (), limits.window_items)
        self.scores: tuple[Score, ...] = ()  # none before there are enough answers

    def take(self, answer: BatchAnswer) -> None:
        """Record a batch's answers; they are counted a moment later."""
        if not self._uncounted:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.count)
        self._uncounted.append(answer.results)

    def count(self) -> None:
        """Count the recorded answers now."""
        uncounted, self._uncounted = self._uncounted, []
        best: list[TopClass] = [
            result.top_k[0] for results in uncounted for result in results if isinstance(result, Ranking)
        ]
        # The contract may lack the class; that caller got a 500.
        answers = [each for each in best if each[0] < self._num_classes]
        if answers:
            self._metrics.count(answers)
            if self.window.add(answers):
                self._compare()

    def close(self) -> None:
        """Forget the recorded answers."""
        self._uncounted = []

    @property
    def state(self) -> DriftState:
        """Return whether the last answers drift from the reference."""
        if not self.scores:
            return "unknown"
        return "drifting" if self._is_drifting else "ok"

    @property
    def reason(self) -> str:
        """Return why there is no score, or nothing if there is one."""
        if self._reference is None:
            return "the contract has no reference to compare with"
        if not self.scores:
            num_items = self.window.num_items + self.window.num_filling
            return f"{num_items} of the {self._least_items} images that a score needs have come"
        return ""

    def _compare(self) -> None:
        window = self.window
        self._metrics.window_items.set(window.num_items)
        if self._reference is None or window.num_items < self._least_items:
            return
        self.scores = drift_scores(self._reference, self._limits, window.class_counts, window.confidence_counts)
        for score in self.scores:
            self._metrics.show_drift(score.kind, score.value, score.threshold)
        was_drifting = self._is_drifting
        bound = CALM if was_drifting else 1
        self._is_drifting = any(score.value > bound * score.threshold for score in self.scores)
        if self._is_drifting != was_drifting:
            said = "; ".join(f"{each.kind} {each.value:.3f}, threshold {each.threshold:.3f}" for each in self.scores)
            level = logging.WARNING if self._is_drifting else logging.INFO
            change = "drifts" if self._is_drifting else "drifts no more"
            logger.log(level, "%s %s: %s, over the last %d images", self._target, change, said, window.num_items)
