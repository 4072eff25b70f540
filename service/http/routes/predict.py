"""The documentation of POST /predict; service.http.predict answers it around ASGI."""

from typing import Annotated

from fastapi import APIRouter, Header, Query

from service.http.admin_route import CREDENTIALS
from service.http.openapi import reference
from service.http.predict import PATH
from service.http.problems import problem_responses
from service.http.schemas.predict import PredictAnswer, PredictHeaders, PredictJson, PredictQuery

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
        "application/json": {"schema": reference(PredictJson)},
    },
}
# The router reads it by itself.
ROUTING_KEY = {
    "name": "x-routing-key",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "Requests with one key get one version, where several share the traffic.",
}
ANSWER_HEADERS = {
    name: {"description": description, "required": True, "schema": {"type": "string"}}
    for name, description in (
        ("X-Model-Version", "The version that answered."),
        ("X-Batch-Size", "Images in the largest of the batches that the request's images went in."),
        ("X-Queue-Ms", "The longest that one of them waited, milliseconds."),
        ("Server-Timing", "The same in more detail, as browsers show it."),
    )
}


def predict_routes(*, asks_for_key: bool) -> APIRouter:
    """Return the route for the OpenAPI document, and for the answer to other methods than POST."""
    routes = APIRouter(tags=["predict"])

    @routes.post(
        PATH,
        response_model=PredictAnswer,
        responses={
            200: {"headers": ANSWER_HEADERS},
            **problem_responses(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504),
        },
        openapi_extra={"requestBody": REQUEST_BODY, "parameters": [ROUTING_KEY]},
        dependencies=CREDENTIALS if asks_for_key else [],
    )
    async def predict(query: Annotated[PredictQuery, Query()], headers: Annotated[PredictHeaders, Header()]) -> None:
        """Classify one or many images. An unusable image fails alone."""
        raise RuntimeError(f"POST {PATH} came over ASGI; serve the gateway with BoundedHttpProtocol")

    return routes
