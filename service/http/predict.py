"""POST /predict: images in, classes out."""

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from service.admin.access import Access
from service.batching.request import Deadlines
from service.errors.gateway import GatewayError
from service.errors.request import ParameterInvalid
from service.http.body import BodyBudget, BodyLimits, BodyReader, RequestHeaders
from service.http.parameters import read_headers, read_query
from service.http.prediction import Images, Prediction
from service.http.problems import Answer, problem, problem_responses
from service.http.request_context import CLIENT_CLOSED, AnyExchange, Exchange, WholeExchange
from service.http.schemas.predict import PredictAnswer, PredictHeaders, PredictJson, PredictQuery
from service.monitoring.prediction_log.records import PredictionLog
from service.monitoring.signed_ids import PredictionIds
from service.serving.router import Router
from service.serving.shadow_traffic import Shadows
from service.telemetry.labels import Rejection
from service.telemetry.metrics import Metrics

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
# Headers that the router and the access rules read by themselves.
HEADERS = [
    {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": description}
    for name, description in (
        ("x-routing-key", "Requests with one key get one version, where several share the traffic."),
        ("x-api-key", "One of TORCHGATE_API_KEYS, where there are any."),
    )
]


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
        responses=problem_responses(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        openapi_extra={"requestBody": REQUEST_BODY, "parameters": HEADERS},
    )
    async def predict(query: Annotated[PredictQuery, Query()], headers: Annotated[PredictHeaders, Header()]) -> None:
        """Classify one or many images; an image that cannot be used fails alone."""

    return routes


class PredictApplication:
    """Answers POST /predict: as an ASGI application, and past ASGI where the body came with the head."""

    def __init__(
        self,
        router: Router,
        shadows: Shadows,
        prediction_ids: PredictionIds,
        prediction_log: PredictionLog,
        access: Access,
        metrics: Metrics,
        limits: PredictLimits,
    ) -> None:
        self._prediction_ids = prediction_ids
        self._prediction_log = prediction_log
        self._router = router
        self._shadows = shadows
        self._access = access
        self._rejected = {code: metrics.rejected.labels(reason) for code, reason in REJECTIONS.items()}
        self._limits = limits
        self._budget = BodyBudget(limits.max_buffered_bytes)
        self._deadlines = Deadlines()

    def answer_whole(self, exchange: WholeExchange) -> None:
        """Begin to answer a request that is there with its body."""
        reader = BodyReader(self._limits.body, self._budget)
        try:
            prediction = self._accept(exchange.query_string, exchange.headers)
            reader.take(exchange.body)
            images = prediction.split(exchange.body, exchange.headers)
            _introduce(prediction, exchange)
            exchange.when_gone(prediction.leave)
            prediction.start(images, partial(exchange.run, self._end_whole, exchange, prediction, reader))
        except GatewayError as error:
            reader.close()
            exchange.answer(*self._refusal(error, exchange))
        except BaseException:
            reader.close()
            raise

    def _end_whole(self, exchange: WholeExchange, prediction: Prediction, reader: BodyReader) -> None:
        reader.close()
        prediction.conclude()
        if isinstance(prediction.error, ClientDisconnect):
            exchange.left()
        else:
            exchange.answer(*self._answer(exchange, prediction))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body comes bit by bit."""
        exchange: Exchange = scope["state"]["exchange"]
        reader = BodyReader(self._limits.body, self._budget)
        try:
            prediction = self._accept(scope["query_string"], exchange.headers)
            with prediction.arriving():
                body = await reader.read(exchange.receive, exchange.headers)
            images = prediction.split(body, exchange.headers)
            del body
            _introduce(prediction, exchange)
            await _concluded(prediction, images, exchange)
        except GatewayError as error:
            await exchange.answer(*self._refusal(error, exchange))
            return
        finally:
            reader.close()
        if isinstance(prediction.error, ClientDisconnect):
            exchange.status = CLIENT_CLOSED
        else:
            await exchange.answer(*self._answer(exchange, prediction))

    def _accept(self, query_string: bytes, headers: RequestHeaders) -> Prediction:
        """Check the head of a request; raises what is wrong with it."""
        started = time.monotonic()
        self._access.require_key(headers)
        query, asked = read_query(query_string), read_headers(headers)
        deadline_ms = asked.x_deadline_ms or self._limits.deadline_ms
        if deadline_ms > self._limits.max_deadline_ms:
            allowed = self._limits.max_deadline_ms
            raise ParameterInvalid(f"X-Deadline-Ms is {deadline_ms}, at most {allowed} is allowed")
        model_version = self._router.route(query.model, query.version, query.label, headers)
        return Prediction(
            model_version,
            min(query.top_k, len(model_version.contract.classes)),
            started + deadline_ms / 1000,
            deadline_ms,
            asked.x_priority,
            self._limits.body.max_images,
            self._deadlines,
            self._shadows,
            self._prediction_ids,
            self._prediction_log,
            self._shadows.chosen(model_version) if query.version is None is query.label else (),
        )

    def _answer(self, exchange: AnyExchange, prediction: Prediction) -> Answer:
        if prediction.error is None:
            return prediction.answer()
        return self._refusal(prediction.error, exchange)

    def _refusal(self, error: Exception, exchange: AnyExchange) -> Answer:
        assert isinstance(error, GatewayError)
        if rejected := self._rejected.get(error.code):
            rejected.inc()
        exchange.error_code = error.code
        return problem(error, exchange.request_id)


def _introduce(prediction: Prediction, exchange: AnyExchange) -> None:
    """Tell the one what is recorded of the other."""
    prediction.span = exchange.span
    exchange.log, exchange.breakdown = prediction.log, prediction.breakdown


async def _concluded(prediction: Prediction, images: Images, exchange: Exchange) -> None:
    """Start the prediction and return when it was concluded."""
    ended = asyncio.Event()
    prediction.start(images, ended.set)
    exchange.when_gone(prediction.leave)
    try:
        await ended.wait()
    finally:
        exchange.when_gone(None)
        prediction.leave()
        prediction.conclude()
