"""POST /predict: images in, classes out."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.answer import answer_body, answer_headers
from service.api.body import BodyBudget, BodyLimits, BodyReader, RequestHeaders, split_body
from service.api.edge import Exchange
from service.api.parameters import read_headers, read_query
from service.api.problems import problem, problem_responses
from service.backend import ItemError, Ranking
from service.deployment import Deployment
from service.errors import CircuitOpen, DeadlineExceeded, Draining, GatewayError, OverloadError
from service.metrics import Metrics, Outcome, Rejection
from service.queue import Call
from service.request_errors import ImageRejected, ParameterInvalid
from service.router import Router
from service.schemas import PredictAnswer, PredictHeaders, PredictJson, PredictQuery

PATH = "/predict"
BINARY = {"schema": {"type": "string", "format": "binary"}}
REQUEST_BODY = {
    "required": True,
    "description": "One image as it is, or many in a form or in JSON.",
    "content": {
        "image/*": BINARY,
        "application/octet-stream": BINARY,
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "array", "items": {"type": "string", "format": "binary"}}},
            }
        },
        "application/json": {"schema": PredictJson.model_json_schema()},
    },
}


@dataclass(frozen=True, slots=True)
class PredictLimits:
    """What one request may ask for."""

    body: BodyLimits
    max_buffered_bytes: int
    deadline_ms: int
    max_deadline_ms: int


# Why a request was refused at the door, by the error's code.
REJECTIONS: dict[str, Rejection] = {
    "queue_full": "queue_full",
    "deadline_unreachable": "deadline",
    "circuit_open": "circuit_open",
    "draining": "draining",
    "body_too_large": "too_large",
    "stream_too_large": "too_large",
    "too_many_images": "too_large",
    "buffers_full": "buffers_full",
}


def predict_routes(application: ASGIApp) -> APIRouter:
    """Return the route that predicts: documented by FastAPI, answered by `application` without it."""

    class PlainRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            await (application if scope["method"] == "POST" else super().handle)(scope, receive, send)

    routes = APIRouter(tags=["predict"], route_class=PlainRoute)

    @routes.post(
        PATH,
        response_model=PredictAnswer,
        responses=problem_responses(400, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        openapi_extra={"requestBody": REQUEST_BODY},
    )
    async def predict(query: Annotated[PredictQuery, Query()], headers: Annotated[PredictHeaders, Header()]) -> None:
        """Classify one or many images; an image that cannot be used fails alone."""

    return routes


class PredictApplication:
    """The ASGI application behind POST /predict."""

    def __init__(self, router: Router, metrics: Metrics, limits: PredictLimits) -> None:
        self._router = router
        self._metrics = metrics
        self._limits = limits
        self._budget = BodyBudget(limits.max_buffered_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange: Exchange = scope["state"]["exchange"]
        reader = BodyReader(self._limits.body, self._budget)
        try:
            deployment, call = await self._predict(scope, exchange, reader)
        except GatewayError as error:
            if reason := REJECTIONS.get(error.code):
                self._metrics.rejected.labels(reason).inc()
            await exchange.answer(*problem(error, scope))
            return
        finally:
            reader.close()
        body = answer_body(deployment, call)
        await exchange.answer(200, answer_headers(deployment, call, len(body)), body)

    async def _predict(self, scope: Scope, exchange: Exchange, reader: BodyReader) -> tuple[Deployment, Call]:
        started = time.monotonic()
        state = scope["state"]
        headers: RequestHeaders = state["headers"]
        query = read_query(scope["query_string"])
        asked = read_headers(headers)
        deadline_ms = asked.x_deadline_ms or self._limits.deadline_ms
        if deadline_ms > self._limits.max_deadline_ms:
            allowed = self._limits.max_deadline_ms
            raise ParameterInvalid(f"X-Deadline-Ms is {deadline_ms}, at most {allowed} is allowed")
        deployment = self._router.route(query.model, query.version)
        body = await reader.read(exchange.take_body, exchange.receive, headers)
        images = split_body(body, headers, self._limits.body.max_images)
        deployment.require_ready()  # it may have gone while the body came
        state["log"] = {
            "model": deployment.target.model,
            "version": deployment.target.version,
            "num_images": len(images),
        }
        top_k = min(query.top_k, len(deployment.contract.classes))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = Call(len(images), top_k, started + deadline_ms / 1000, future, asked.x_priority)
        await _ask(deployment, call, images, deadline_ms, exchange.when_gone)
        return deployment, call


async def _ask(
    deployment: Deployment,
    call: Call,
    images: Sequence[bytes | ItemError],
    deadline_ms: int,
    when_gone: Callable[[Callable[[], None] | None], None],
) -> None:
    """Return once every image is answered; counted by how it ends."""
    started = time.monotonic()
    outcome: Outcome = "server_error"
    alarm: asyncio.TimerHandle | None = None
    try:
        for index, image in enumerate(images):
            if isinstance(image, ItemError):
                call.answer(index, image)
        if call.num_missing:
            deployment.batcher.submit(call, [None if isinstance(image, ItemError) else image for image in images])
            late = DeadlineExceeded(deadline_ms)
            alarm = asyncio.get_running_loop().call_later(call.deadline - started, _end, call, late)
            when_gone(partial(_end, call, ClientDisconnect()))
            await call.future
        _raise_if_none_answered(call)
        outcome = "success"
    except DeadlineExceeded:
        outcome = "expired"
        raise
    except (ClientDisconnect, asyncio.CancelledError):
        outcome = "cancelled"
        raise
    except (OverloadError, CircuitOpen, Draining):
        outcome = "shed"
        raise
    except ImageRejected:
        outcome = "client_error"
        raise
    finally:
        call.future.cancel()  # whatever of it still waits is dead now
        if alarm is not None:
            alarm.cancel()
            when_gone(None)
        deployment.metrics.requests[outcome].inc()
        deployment.metrics.seconds[outcome].observe(time.monotonic() - started)
    deployment.metrics.queue_seconds.observe(call.queue_seconds)


def _end(call: Call, why: Exception) -> None:
    if not call.future.done():
        call.future.set_exception(why)


def _raise_if_none_answered(call: Call) -> None:
    """Raise what went wrong if no image has an answer: of a batch what the server did, of one image its own error."""
    if any(isinstance(result, Ranking) for result in call.results):
        return
    for result in call.results:
        if isinstance(result, GatewayError):
            raise result
    if call.num_items == 1 and isinstance(call.results[0], ItemError):
        raise ImageRejected(call.results[0].code, call.results[0].message)
