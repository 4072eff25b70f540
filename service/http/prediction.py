"""One request to POST /predict, whichever way it came: from an accepted head to the images' answers."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect

from service.batching.request import Deadlines, InferenceRequest
from service.domain.backend import ItemError, Priority, Ranking
from service.errors.gateway import CircuitOpen, DeadlineExceeded, Draining, GatewayError, OverloadError
from service.errors.request import ImageRejected
from service.http.answer import answer_body, answer_headers, issue_id
from service.http.body import RequestHeaders, split_body
from service.http.problems import Answer
from service.monitoring.prediction_log.records import PredictionLog
from service.monitoring.signed_ids import PredictionIds
from service.serving.model_version import ModelVersion
from service.serving.shadow_traffic import MirroredRequest, Shadows
from service.telemetry.labels import Outcome
from service.telemetry.tracing import OpenSpan

Images = Sequence[bytes | ItemError]
# What tells something about the version: not what the caller did wrong, nor what was refused at the door.
COUNTED: frozenset[Outcome] = frozenset({"success", "server_error", "expired"})


@dataclass(slots=True, eq=False)
class Prediction:
    """One request whose head was accepted: `split` its body, `start` it, `conclude` it, then take its `answer`."""

    _deployment: ModelVersion
    _top_k: int
    _deadline: float
    _deadline_ms: int
    _priority: Priority
    _max_images: int
    _deadlines: Deadlines
    _shadows: Shadows
    _prediction_ids: PredictionIds
    _prediction_log: PredictionLog
    _copied_to: Sequence[ModelVersion] = ()
    _call: InferenceRequest = field(init=False)
    _started: float = field(init=False)
    _seconds: float = field(init=False)
    _images: Images = ()  # kept for the copies and for the prediction log
    error: Exception | None = None  # what the request ended with instead of an answer
    log: Mapping[str, Any] = field(default_factory=dict)
    span: OpenSpan | None = None  # if it is recorded

    def arriving(self) -> AbstractContextManager[None]:
        """Return what holds the version while the body is on its way."""
        return self._deployment.arriving()

    def split(self, body: bytes, headers: RequestHeaders) -> Images:
        """Return the images of the body, which has just come; raises what is wrong with it."""
        images = split_body(body, headers, self._max_images)
        self._deployment.require_open()  # it may have gone while the body came
        target = self._deployment.target
        self.log = {"model": target.model, "version": target.version, "num_images": len(images)}
        return images

    def start(self, images: Images, on_end: Callable[[], None]) -> None:
        """Have the images answered; `on_end` is called once, maybe before this returns, and must not raise."""
        self._started = time.monotonic()
        if self._copied_to or self._prediction_log.keeps_inputs:
            self._images = images
        call = self._call = InferenceRequest(
            len(images), self._top_k, self._deadline, on_end, self._priority, self.span
        )
        payloads = call.sift(images)
        if call.is_done:
            return
        try:
            self._deployment.batcher.submit(call, payloads)
        except GatewayError as error:
            call.end(error)
        else:
            self._deadlines.watch(call, self._deadline_ms)

    def leave(self) -> None:
        """Take in that nobody waits for it any more."""
        self._call.end(ClientDisconnect())

    def conclude(self) -> None:
        """Take in that it has ended: what it ended with, and count it by that."""
        call, metrics = self._call, self._deployment.metrics
        self.error = call.error or _why_none_is_answered(call)
        if self.span is not None:
            self._describe(self.span)
        outcome: Outcome = "success" if self.error is None else _outcome(self.error)
        metrics.requests[outcome].inc()
        seconds = self._seconds = time.monotonic() - self._started
        metrics.seconds[outcome].observe(seconds)
        if outcome in COUNTED or isinstance(self.error, CircuitOpen):
            self._deployment.counts.count(seconds, is_error=outcome != "success")
        if outcome == "success":
            if seconds <= metrics.fast_seconds:
                metrics.fast_requests.inc()
            metrics.queue_seconds.observe(call.queue_seconds)
            if self._copied_to:  # after the answer, which is written in this turn of the event loop
                copied = MirroredRequest(self._deployment, call, self._images, seconds)
                asyncio.get_running_loop().call_soon(self._shadows.copy, copied, self._copied_to)

    def answer(self) -> Answer:
        """Return the answer to a request that was concluded without an error."""
        model_version, call = self._deployment, self._call
        answer_id = issue_id(model_version, call, self._prediction_ids)
        body = answer_body(model_version, call, answer_id)
        classes = model_version.contract.classes
        self._prediction_log.answered(
            answer_id, model_version.target, classes, call.results, self._seconds, self._images
        )
        return 200, answer_headers(model_version, call, len(body)), body

    def _describe(self, span: OpenSpan) -> None:
        """Note on the request's span what became of its images."""
        call, target = self._call, self._deployment.target
        span.attributes = {
            "torchgate.model.name": target.model,
            "torchgate.model.version": target.version,
            "torchgate.num_images": call.num_items,
            "torchgate.batch.size": call.largest_batch,
            "torchgate.queue.wait_ms": round(call.queue_seconds * 1000, 3),
        }
        if isinstance(self.error, DeadlineExceeded | ClientDisconnect) and not call.sent_at:
            span.child().end("queue", "internal", self._started, time.monotonic(), {}, error="not_sent")

    def breakdown(self, arrived: float, ended: float) -> Mapping[str, float]:
        """Return where the time of a request went that came at `arrived` and was answered at `ended`.

        Of several batches it is the one that was sent last that counts. `batch_wait_ms` is what the backend kept the
        batch for beyond what its worker spent on it: the way, and its turn behind others.
        """
        call, parts = self._call, {"read": self._started - arrived}
        times = call.last_batch
        if times is not None and call.sent_at <= times.sent_at:
            handler_seconds = times.decode_seconds + times.compute_seconds
            parts |= {
                "queue": times.sent_at - self._started,
                "batch_wait": max(times.seconds - handler_seconds, 0.0),
                "decode": times.decode_seconds,
                "compute": times.compute_seconds,
                "serialise": ended - times.sent_at - times.seconds,
            }
        elif call.sent_at:
            parts |= {"queue": call.sent_at - self._started, "batch_wait": ended - call.sent_at}
        else:
            parts["queue"] = ended - self._started
        return {f"{name}_ms": round(seconds * 1000, 3) for name, seconds in parts.items()}


def _why_none_is_answered(call: InferenceRequest) -> GatewayError | None:
    """Return what went wrong if no image has an answer: of a batch what the server did, of one image its own error."""
    if isinstance(call.results[0], Ranking) or any(isinstance(result, Ranking) for result in call.results):
        return None
    for result in call.results:
        if isinstance(result, GatewayError):
            return result
    if call.num_items == 1 and isinstance(call.results[0], ItemError):
        return ImageRejected(call.results[0].code, call.results[0].message)
    return None


def _outcome(error: Exception) -> Outcome:
    match error:
        case DeadlineExceeded():
            return "expired"
        case ClientDisconnect():
            return "cancelled"
        case OverloadError() | CircuitOpen() | Draining():
            return "shed"
        case ImageRejected():
            return "client_error"
    return "server_error"
