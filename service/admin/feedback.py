"""Right labels that come back: checked against the answer's id, counted once."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from service.admin.versions import loaded
from service.errors.admin import FeedbackExpired, FeedbackForged, FeedbackRepeated, LabelUnknown
from service.monitoring.prediction_log.records import PredictionLog
from service.monitoring.signed_ids import PredictionIdInvalid, PredictionIds
from service.persistence.feedback_store import FeedbackRecord, FeedbackStore
from service.serving.reconciler import Reconciler

# Guards count one label of an answer: the images of one request are often of one kind, and count as one trial.
JUDGED_ITEM = 0


@dataclass(frozen=True)
class TakenFeedback:
    """A label that was counted."""

    record: FeedbackRecord
    is_judged: bool  # by the guard of a rollout, too


class Feedback:
    """Takes labels for answers that are not older than `max_age_seconds`."""

    def __init__(
        self,
        reconciler: Reconciler,
        store: FeedbackStore,
        prediction_ids: PredictionIds,
        prediction_log: PredictionLog,
        max_age_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reconciler = reconciler
        self._store = store
        self._prediction_ids = prediction_ids
        self._prediction_log = prediction_log
        self._max_age_seconds = max_age_seconds
        self._clock = clock

    async def take(self, answer_id: str, item: int, label: str, *, is_trusted: bool) -> TakenFeedback:
        """Count a label; rollout guards count it only if who gave it `is_trusted`.

        Raises:
            FeedbackForged: no gateway of this database made the id, or the answer has no such image with a class.
            FeedbackExpired: the answer is too old.
            FeedbackRepeated: the image has its label already.
            VersionNotFound, LabelUnknown: the version is not loaded any more, or has no such class.
        """
        try:
            prediction_id = self._prediction_ids.read(answer_id)
        except PredictionIdInvalid as error:
            raise FeedbackForged("the id is none of this gateway's answers'") from error
        if self._clock() - prediction_id.issued_at > self._max_age_seconds:
            raise FeedbackExpired(round(self._max_age_seconds))
        index = prediction_id.classes[item] if item < len(prediction_id.classes) else None
        if index is None:
            raise FeedbackForged(f"the answer has no prediction at index {item}")
        target = prediction_id.target
        model_version = loaded(self._reconciler, target)
        classes = model_version.contract.classes
        if label not in classes:
            raise LabelUnknown(label, str(target), classes)
        digest = blake2b(answer_id.encode(), digest_size=16).hexdigest()
        if index >= len(classes):  # another archive has taken the version's name
            raise FeedbackForged(f"{target} has no class {index} any more")
        predicted = classes[index]
        kept = FeedbackRecord(digest, item, target.model, target.version, predicted, label, label == predicted)
        if not await self._store.database.call_for_caller(self._store.add, kept):
            raise FeedbackRepeated(item)
        # Nobody chooses what a guard sees: neither the version, nor the image of an answer that is labelled.
        is_judged = is_trusted and prediction_id.is_dealt and item == JUDGED_ITEM
        model_version.counts.label(is_correct=kept.is_correct, is_judged=is_judged)
        model_version.metrics.feedback[kept.is_correct].inc()
        self._prediction_log.labelled(answer_id, item, target, predicted, label)
        return TakenFeedback(kept, is_judged)
