"""POST /predict, around ASGI: from a complete head to the answer, however the body comes.

begin ── feed ── feed ── ... ── finish ──> images ──> batches ──> answer
  └── refused at any point; the client may leave at any point
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect

from service.admin.access import Access
from service.errors.gateway import Draining, GatewayError, InternalError
from service.errors.request import BodyTimeout, ParameterInvalid
from service.http.body import BodyBudget, BodyLimits, BodyReader, Images
from service.http.direct_request import DirectRequest
from service.http.images.steps import Steps, Turns
from service.http.parameters import read_parameters
from service.http.prediction import Prediction, PredictionServices
from service.http.problems import problem
from service.http.request_context import CLIENT_CLOSED, RequestContext
from service.serving.router import Router
from service.telemetry.metric_labels import Rejection
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

PATH = "/predict"
# Why a request was refused at the door, by the error's code.
REJECTIONS: dict[str, Rejection] = {
    "queue_full": "queue_full",
    "share_exceeded": "share",
    "quota_exceeded": "quota",
    "deadline_unreachable": "deadline",
    "circuit_open": "circuit_open",
    "draining": "draining",
    "body_too_large": "too_large",
    "stream_too_large": "too_large",
    "too_many_images": "too_large",
    "buffers_full": "buffers_full",
}


@dataclass(frozen=True, slots=True)
class PredictLimits:
    """What one request may ask for."""

    body: BodyLimits
    max_buffered_bytes: int
    deadline_ms: int
    max_deadline_ms: int


class PredictApplication:
    """Answers POST /predict."""

    def __init__(
        self,
        router: Router,
        services: PredictionServices,
        access: Access,
        metrics: Metrics,
        limits: PredictLimits,
    ) -> None:
        self._router = router
        self._services = services
        self._access = access
        self._rejected = {code: metrics.rejected.labels(reason) for code, reason in REJECTIONS.items()}
        self._callers = metrics.callers
        self._limits = limits
        self._budget = BodyBudget(limits.max_buffered_bytes)
        self._arriving: set[PredictHandler] = set()
        self._turns = Turns()

    def handle(self, request: DirectRequest, context: RequestContext) -> "PredictHandler":
        """Return what answers one request."""
        return PredictHandler(self, request, context, BodyReader(self._limits.body, self._budget))

    def accept(self, context: RequestContext) -> Prediction:
        """Check the head of a request; raises what is wrong with it."""
        started = time.monotonic()
        headers = context.headers
        if (host := headers.get(b"host")) not in context.client.checks.known_hosts:
            context.client.checks.require_host(host)
        caller = self._access.require_caller(headers, context.client.address)
        if self._access.asks_for_key:
            context.caller, context.is_reader = caller.name, "read" in caller.scopes
        if caller.quota is not None:
            caller.require_quota()
        query, asked = read_parameters(context.query_string, headers)
        deadline_ms = asked.x_deadline_ms or self._limits.deadline_ms
        if deadline_ms > self._limits.max_deadline_ms:
            allowed = self._limits.max_deadline_ms
            raise ParameterInvalid(f"X-Deadline-Ms is {deadline_ms}, at most {allowed} is allowed")
        model_version = self._router.route(query.model, query.version, query.label, headers)
        is_dealt = query.version is None is query.label
        return Prediction(
            model_version,
            caller,
            min(query.top_k, len(model_version.contract.classes)),
            started + deadline_ms / 1000,
            deadline_ms,
            asked.x_priority,
            is_dealt,
            self._services,
            self._services.shadows.chosen(model_version) if is_dealt else (),
            context.span,
        )

    def hold_arrival(self, handler: "PredictHandler") -> ExitStack:
        """Bound the time for a body that is on its way, until the result is closed."""
        seconds = self._limits.body.timeout_seconds
        arrival = ExitStack()
        arrival.callback(asyncio.get_running_loop().call_later(seconds, handler.refuse, BodyTimeout(seconds)).cancel)
        self._arriving.add(handler)
        arrival.callback(self._arriving.discard, handler)
        return arrival

    def take_turns(self, handler: "PredictHandler") -> None:
        """Have a large body taken apart, in turn with others."""
        self._arriving.add(handler)
        self._turns.add(handler.take_step)

    def has_images(self, handler: "PredictHandler") -> None:
        """Note that a large body is taken apart, or is not needed any more."""
        self._arriving.discard(handler)

    def note_refusal(self, error: GatewayError, caller: str | None) -> None:
        """Count a request that is refused; `caller` is the name of its key's owner."""
        if rejected := self._rejected.get(error.code):
            rejected.inc()
            if caller is not None:
                self._callers.reject(caller, REJECTIONS[error.code])

    def close(self) -> None:
        """Refuse the requests whose images are not all there: the server's drain is over."""
        for handler in tuple(self._arriving):
            handler.refuse(Draining())


class PredictHandler:
    """One POST /predict: takes the body, has its images predicted and sends the answer."""

    __slots__ = ("_application", "_arrival", "_body", "_context", "_has_started", "_prediction", "_request", "_steps")

    _prediction: Prediction

    def __init__(
        self, application: PredictApplication, request: DirectRequest, context: RequestContext, body: BodyReader
    ) -> None:
        self._application = application
        self._request = request
        self._context = context
        self._body = body
        self._arrival: ExitStack | None = None  # of a body that is on its way
        self._has_started = False
        self._steps: Steps[Images] | None = None  # of taking a large body apart

    def begin(self) -> None:
        """Check the head; see `DirectHandler` for this and the next three."""
        self._run(self._begin)

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._run(self._body.feed, piece)

    def finish(self) -> None:
        """Predict."""
        self._run(self._predict)

    def leave(self) -> None:
        """Give up, since the client has left."""
        self._run(self._leave)

    def refuse(self, error: GatewayError) -> None:
        """Answer with a problem."""
        self._run(self._refuse, error)

    def take_step(self) -> bool:
        """Go on taking a large body apart; return whether there is more to do."""
        if self._steps is not None:
            self._run(self._take_step)
        return self._steps is not None

    def _run(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step towards the answer. This is the border: no exception passes it."""
        try:
            step(*arguments)
        except GatewayError as error:
            self._refuse(error.without_traceback())
        except Exception:
            logger.exception("unexpected error", extra=self._context.ids())
            if self._context.status is None:
                self._refuse(InternalError())

    def _begin(self) -> None:
        self._prediction = self._application.accept(self._context)
        self._body.caller = self._prediction.caller
        self._body.require_length(self._context.headers)
        if not self._request.is_body_complete:
            self._arrival = self._application.hold_arrival(self)
            self._arrival.enter_context(self._prediction.model_version.arriving())

    def _predict(self) -> None:
        """Take the body's images to the batcher: the one way of every prediction."""
        self._end_arrival()
        images = self._body.images(self._context.headers)
        if isinstance(images, Sequence):
            self._start(images)
        else:
            self._steps = images
            self._application.take_turns(self)

    def _take_step(self) -> None:
        assert self._steps is not None
        try:
            next(self._steps)
        except StopIteration as end:
            self._end_arrival()
            self._start(end.value)

    def _start(self, images: Images) -> None:
        self._has_started = True
        self._prediction.start(images, self._conclude)

    def _conclude(self) -> None:
        """Answer: the prediction has ended."""
        if self._context.status is None:
            self._run(self._answer)

    def _answer(self) -> None:
        self._context.describe(self._prediction.log, self._prediction.breakdown)
        try:
            answer = self._prediction.conclude()
        except ClientDisconnect as error:
            error.__traceback__ = None  # see GatewayError.without_traceback
            self._drop()
        else:
            self._send(*answer)

    def _leave(self) -> None:
        if self._has_started:
            self._prediction.leave()  # which concludes it
        else:
            self._drop()

    def _refuse(self, error: GatewayError) -> None:
        self._application.note_refusal(error, self._context.caller)
        self._context.refuse(error)
        # Only the key that let the caller in counts. Its other credentials are not for us: a token that a proxy wants
        # would be a wrong one here, and an outage would have everybody at that address wait.
        self._send(*problem(error, self._context.request_id, may_read=self._context.is_reader is True))

    def _send(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._release()
        headers.append((b"x-request-id", self._context.request_id.encode()))
        self._request.answer(status, headers, body)
        self._context.end(status)

    def _drop(self) -> None:
        self._release()
        self._request.drop()
        self._context.end(CLIENT_CLOSED)

    def _release(self) -> None:
        self._end_arrival()
        self._body.close()

    def _end_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.close()
            self._arrival = None
        if self._steps is not None:
            self._steps = None
            self._application.has_images(self)
