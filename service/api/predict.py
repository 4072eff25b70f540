"""POST /predict: images in, classes out."""

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive

from service.api.body import BodyLimits, read_body, split_body
from service.api.problems import problem_responses
from service.backend import ItemError, ItemResult, Ranking
from service.batcher import Call
from service.deployment import Deployment
from service.errors import DeadlineExceeded, Draining, GatewayError, ImageRejected, ParameterInvalid, QueueFull
from service.metrics import Metrics, Outcome, Rejection
from service.router import Router
from service.schemas import PredictAnswer, PredictHeaders, PredictJson, PredictQuery

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
    deadline_ms: int
    max_deadline_ms: int


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request is of no use any more."""

    at: float  # time.monotonic()
    milliseconds: int  # as it was asked for


# Why a request was refused at the door, by the error's code.
REJECTIONS: dict[str, Rejection] = {
    "queue_full": "queue_full",
    "draining": "draining",
    "body_too_large": "too_large",
    "stream_too_large": "too_large",
    "too_many_images": "too_large",
}


def predict_routes(router: Router, metrics: Metrics, limits: PredictLimits) -> APIRouter:
    """Return the route that predicts."""
    routes = APIRouter(tags=["predict"])

    @routes.post(
        "/predict",
        responses={
            200: {"model": PredictAnswer},
            **problem_responses(400, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        },
        response_class=JSONResponse,
        openapi_extra={"requestBody": REQUEST_BODY},
    )
    async def predict(
        request: Request, query: Annotated[PredictQuery, Query()], headers: Annotated[PredictHeaders, Header()]
    ) -> Response:
        """Classify one or many images; an image that cannot be used fails alone."""
        deadline_ms = headers.x_deadline_ms or limits.deadline_ms
        if deadline_ms > limits.max_deadline_ms:
            raise ParameterInvalid(f"X-Deadline-Ms is {deadline_ms}, at most {limits.max_deadline_ms} is allowed")
        deadline = Deadline(time.monotonic() + deadline_ms / 1000, deadline_ms)
        try:
            deployment = router.route(query.model, query.version)
            body = await read_body(request.receive, request.headers, limits.body)
            images = split_body(body, request.headers, limits.body.max_images)
            deployment.require_ready()  # it may have gone while the body came
            request.state.log = {
                "model": deployment.target.model,
                "version": deployment.target.version,
                "num_images": len(images),
            }
            call = await _ask(deployment, images, query.top_k, deadline, request.receive)
        except GatewayError as error:
            if reason := REJECTIONS.get(error.code):
                metrics.rejected.labels(reason).inc()
            raise
        return _answer(deployment, call)

    return routes


async def _ask(
    deployment: Deployment, images: Sequence[bytes | ItemError], top_k: int, deadline: Deadline, receive: Receive
) -> Call:
    """Return the call once every image is answered; counted by how it ends."""
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    outcome: Outcome = "server_error"
    call = Call(len(images), min(top_k, len(deployment.contract.classes)), deadline.at, loop.create_future())
    watcher = loop.create_task(_cancel_when_gone(receive, call))
    try:
        for index, image in enumerate(images):
            if isinstance(image, ItemError):
                call.answer(index, image)
        if call.num_missing:
            deployment.batcher.submit(call, [None if isinstance(image, ItemError) else image for image in images])
            async with asyncio.timeout(deadline.at - time.monotonic()):
                await call.future
        _raise_if_none_answered(call)
        outcome = "success"
    except TimeoutError as error:
        outcome = "expired"
        raise DeadlineExceeded(deadline.milliseconds) from error
    except asyncio.CancelledError as error:
        outcome = "cancelled"
        if watcher.done():  # the client left; nobody cancelled us
            raise ClientDisconnect from error
        raise
    except (QueueFull, Draining):
        outcome = "shed"
        raise
    except ImageRejected:
        outcome = "client_error"
        raise
    finally:
        call.future.cancel()  # whatever of it still waits is dead now
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        deployment.metrics.requests[outcome].inc()
        deployment.metrics.seconds[outcome].observe(time.monotonic() - started)
    deployment.metrics.queue_seconds.observe(call.queue_seconds)
    return call


async def _cancel_when_gone(receive: Receive, call: Call) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call.future.cancel()


def _raise_if_none_answered(call: Call) -> None:
    """Raise what went wrong if no image has an answer: of a batch what the server did, of one image its own error."""
    if any(isinstance(result, Ranking) for result in call.results):
        return
    for result in call.results:
        if isinstance(result, GatewayError):
            raise result
    if call.num_items == 1 and isinstance(call.results[0], ItemError):
        raise ImageRejected(call.results[0].code, call.results[0].message)


def _answer(deployment: Deployment, call: Call) -> Response:
    classes = deployment.contract.classes
    document = {
        "id": secrets.token_hex(16),
        "model": deployment.target.model,
        "version": deployment.target.version,
        "predictions": [_prediction(result, call.top_k, classes) for result in call.results],
    }
    queue_ms = call.queue_seconds * 1000
    headers = {
        "X-Model-Version": deployment.target.version,
        "X-Batch-Size": str(call.largest_batch),
        "X-Queue-Ms": f"{queue_ms:.3f}",
        "Server-Timing": (
            f"queue;dur={queue_ms:.3f}, compute;dur={call.compute_seconds * 1000:.3f}, "
            f'batches;desc="{call.num_batches}"'
        ),
    }
    return Response(json.dumps(document, separators=(",", ":")), 200, headers, "application/json")


def _prediction(result: ItemResult | GatewayError | None, top_k: int, classes: Sequence[str]) -> dict[str, Any]:
    match result:
        case Ranking(ranking):
            # The batch was asked for the largest top_k in it; this caller may have wanted fewer.
            top = [{"label": classes[index], "probability": probability} for index, probability in ranking[:top_k]]
            return {**top[0], "top_k": top}
        case ItemError(code, message):
            return {"error": {"code": code, "message": message}}
        case GatewayError():
            return {"error": {"code": result.code, "message": str(result)}}
        case _:
            raise AssertionError(f"a call was answered with {result!r} in it")
