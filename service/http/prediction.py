"""One prediction: from an accepted head to the answers of its images."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.requests import ClientDisconnect

from service.batching.request import InferenceRequest
from service.domain.backend import ItemError, ItemResult, Priority, Ranking
from service.domain.caller import Caller
from service.errors.gateway import CircuitOpen, DeadlineExceeded, Draining, GatewayError
from service.errors.overload import OverloadError
from service.errors.request import ImageRejected
from service.http.body import Images
from service.http.problems import HttpResponse
from service.monitoring.prediction_log.records import PredictionLog
from service.monitoring.signed_ids import NO_CLASS, PredictionIds
from service.serving.model_version import ModelVersion
from service.serving.shadow_traffic import MirroredRequest, Shadows
from service.telemetry.metric_labels import Outcome
from service.telemetry.tracing import OpenSpan

# The outcomes of requests that the version was given: not callers' mistakes, nor refusals at the door. Requests whose
# client left are among them. Without them, clients that leave early would hide slow answers and leave quick errors.
JUDGED: frozenset[Outcome] = frozenset({"success", "server_error", "expired", "cancelled"})


@dataclass(frozen=True, slots=True)
class PredictionServices:
    """What all predictions share."""

    shadows: Shadows
    prediction_ids: PredictionIds
    prediction_log: PredictionLog
    fair_seconds: float  # time after which a request without an answer is the version's failure


@dataclass(slots=True, eq=False)
class Prediction:
    """One request whose head was accepted: `start` it with its images, and `conclude` it when it has ended."""

    model_version: ModelVersion
    caller: Caller
    _top_k: int
    _deadline: float
    _deadline_ms: int
    _priority: Priority
    _is_dealt: bool  # by the traffic policy, not named by the caller
    _services: PredictionServices
    _shadow_versions: Sequence[ModelVersion]
    _span: OpenSpan | None  # None if the request is not recorded
    _call: InferenceRequest = field(init=False)
    _started: float = field(init=False)
    _seconds: float = field(init=False)
    _images: Images = ()  # kept for the shadows and for the prediction log
    error: Exception | None = None  # why there is no answer
    log: Mapping[str, Any] = field(default_factory=dict)

    def start(self, images: Images, on_end: Callable[[], None]) -> None:
        """Have the images answered; `on_end` is called once, maybe before this returns, and must not raise.

        Raises:
            NotReady: the version was unloaded while the body came.
            QuotaExceeded: the caller has sent as many images as it may.
        """
        self.model_version.require_open()
        target = self.model_version.target
        self.log = {"model": target.model, "version": target.version, "num_images": len(images)}
        self._started = time.monotonic()
        if self.caller.quota is not None:
            self.caller.charge(len(images))
        if self.caller.count_images is not None:
            self.caller.count_images(len(images))
        if self._shadow_versions or self._services.prediction_log.keeps_inputs:
            self._images = images
        call = self._call = InferenceRequest(
            len(images), self._top_k, self._deadline, on_end, self._priority, self._span, self.caller
        )
        payloads = call.sift(images)
        if call.is_done:
            return
        try:
            self.model_version.batcher.submit(call, payloads)
        except GatewayError as error:
            call.end(error)
        else:
            call.expire(self._deadline_ms)

    def leave(self) -> None:
        """End it: the client has left."""
        self._call.end(ClientDisconnect())

    def conclude(self) -> HttpResponse:
        """Count the prediction, which has ended, by its outcome, and return its answer.

        Raises:
            GatewayError: why there is no answer.
            ClientDisconnect: the client left.
        """
        call, metrics = self._call, self.model_version.metrics
        self.error = call.error or _why_none_is_answered(call)
        if self._span is not None:
            self._describe(self._span)
        outcome: Outcome = "success" if self.error is None else _outcome(self.error)
        metrics.requests[outcome].inc()
        seconds = self._seconds = time.monotonic() - self._started
        metrics.seconds[outcome].observe(seconds)
        if self._is_dealt and (outcome in JUDGED or isinstance(self.error, CircuitOpen)):
            had_seconds, fair_seconds = self._deadline - self._started, self._services.fair_seconds
            self.model_version.counts.judge(outcome, seconds, had_seconds, fair_seconds)
        if outcome == "success":
            if seconds <= metrics.fast_seconds:
                metrics.fast_requests.inc()
            metrics.queue_seconds.observe(call.queue_seconds)
            if self._shadow_versions:  # after the answer, which is written in this turn of the event loop
                copied = MirroredRequest(self.model_version, call, self._images, seconds)
                asyncio.get_running_loop().call_soon(self._services.shadows.copy, copied, self._shadow_versions)
        if self.error is not None:
            raise self.error
        return self._answer()

    def _answer(self) -> HttpResponse:
        model_version, call = self.model_version, self._call
        best = [result.top_k[0][0] if isinstance(result, Ranking) else NO_CLASS for result in call.results]
        answer_id = self._services.prediction_ids.issue(model_version.target_bytes, best, is_dealt=self._is_dealt)
        body = answer_body(model_version, call, answer_id)
        classes = model_version.contract.classes
        self._services.prediction_log.answered(
            answer_id, model_version.target, classes, call.results, self._seconds, self._images
        )
        return 200, answer_headers(model_version, call, len(body)), body

    def _describe(self, span: OpenSpan) -> None:
        """Describe the images' batch on the request's span."""
        call, target = self._call, self.model_version.target
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


def answer_body(model_version: ModelVersion, call: InferenceRequest, answer_id: str) -> bytes:
    """Return the JSON document of a call whose images are all answered."""
    classes, target = model_version.contract.classes, model_version.target
    predictions = [_document(result, call.top_k, classes) for result in call.results]
    document = {"id": answer_id, "model": target.model, "version": target.version, "predictions": predictions}
    try:
        return orjson.dumps(document)  # a float becomes the shortest text that reads back as the same float
    except orjson.JSONEncodeError:  # a name or a message that is not UTF-8
        return json.dumps(document).encode()


def answer_headers(model_version: ModelVersion, call: InferenceRequest, num_bytes: int) -> list[tuple[bytes, bytes]]:
    """Return the headers: the version that answered, and how the images were batched."""
    queue_ms = f"{call.queue_seconds * 1000:.3f}"
    compute_ms = f"{call.compute_seconds * 1000:.3f}"
    timing = (
        f'queue;dur={queue_ms}, compute;dur={compute_ms}, batches;desc="{call.num_batches}", '
        f'limit;desc="{call.batch_limit}", closed;desc="{call.close_reason}"'
    )
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(num_bytes).encode()),
        (b"x-model-version", model_version.target.version.encode()),
        (b"x-batch-size", str(call.largest_batch).encode()),
        (b"x-queue-ms", queue_ms.encode()),
        (b"server-timing", timing.encode()),
    ]


def _document(result: ItemResult | GatewayError | None, top_k: int, classes: Sequence[str]) -> dict[str, Any]:
    match result:
        case Ranking():
            # The batch was asked for the largest top_k in it; this caller may have wanted fewer.
            top = [{"label": classes[index], "probability": probability} for index, probability in result.top_k[:top_k]]
            return {**top[0], "top_k": top}
        case ItemError(code, message):
            return {"error": {"code": code, "message": message}}
        case GatewayError():
            return {"error": {"code": result.code, "message": str(result)}}
        case _:
            raise AssertionError(f"a call was answered with {result!r} in it")
