"""The documentation of POST /predict; service.http.predict answers it around ASGI."""

from typing import Annotated

from fastapi import APIRouter, Header, Query

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


def predict_routes() -> APIRouter:
    """Return the route for the OpenAPI document, and for the answer to other methods than POST."""
    routes = APIRouter(tags=["predict"])

    @routes.post(
        PATH,
        response_model=PredictAnswer,
        responses=problem_responses(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        openapi_extra={"requestBody": REQUEST_BODY, "parameters": HEADERS},
    )
    async def predict(query: Annotated[PredictQuery, Query()], headers: Annotated[PredictHeaders, Header()]) -> None:
        """Classify one or many images; an image that cannot be used fails alone."""
        raise RuntimeError(f"POST {PATH} came over ASGI; serve the gateway with BoundedHttpProtocol")

    return routes
