"""What the OpenAPI document says beyond what the framework derives: bodies and headers made around it, and links."""

from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from service.http.schemas.predict import PredictJson, Problem

REFERENCE = "#/components/schemas/{model}"
# Written or read around the framework, which so does not know of them.
MODELS = (PredictJson, Problem)
# The framework's own form of a 422. Every one here is a Problem.
UNUSED = ("HTTPValidationError", "ValidationError")
REQUEST_ID = {
    "description": "The request's id, as the log has it: the X-Request-Id that was sent, or a new one.",
    "schema": {"type": "string"},
}
# Headers of the answers of a route.
ETAG = {"ETag": {"description": "The revision of the model's traffic and labels.", "schema": {"type": "string"}}}

MODEL = {"model": "$request.path.model"}
VERSION = {**MODEL, "version": "$response.body#/version"}
ROLLOUT = {**MODEL, "rollout": "$response.body#/id"}
REVISION = {**MODEL, "if-match": "$response.header.ETag"}
SAME_VERSION = {"version": "$response.body#/version"}
# What an answer is good for: operation -> the next one -> where its parameters and its body come from.
LINKS: dict[str, dict[str, tuple[dict[str, str], dict[str, str] | None]]] = {
    "POST /predict": {
        "POST /feedback": ({}, {"id": "$response.body#/id", "label": "$response.body#/predictions/0/label"})
    },
    "GET /models/{model}/traffic": {
        "PUT /models/{model}/traffic": (REVISION, None),
        "PUT /models/{model}/labels/{label}": (REVISION, None),
        "DELETE /models/{model}/labels/{label}": (REVISION, None),
        "POST /models/{model}/rollback": (REVISION, None),
    },
    "PUT /models/{model}/traffic": {
        "GET /models/{model}/events": (MODEL, None),
        "POST /models/{model}/rollback": (MODEL, None),
    },
    "PUT /models/{model}/labels/{label}": {
        "GET /models/{model}/events": (MODEL, None),
        "DELETE /models/{model}/labels/{label}": ({**REVISION, "label": "$request.path.label"}, None),
    },
    "POST /models/{model}/versions": {
        "PATCH /models/{model}/versions/{version}": (VERSION, None),
        "DELETE /models/{model}/versions/{version}": (VERSION, None),
        "POST /models/{model}/versions/{version}/profile": (VERSION, None),
        "PUT /models/{model}/labels/{label}": (MODEL, SAME_VERSION),
        "POST /models/{model}/rollouts": (MODEL, SAME_VERSION),
    },
    "POST /models/{model}/rollouts": {
        "GET /models/{model}/rollouts/{rollout}": (ROLLOUT, None),
        "POST /models/{model}/rollouts/{rollout}/pause": (ROLLOUT, None),
        "POST /models/{model}/rollouts/{rollout}/resume": (ROLLOUT, None),
        "POST /models/{model}/rollouts/{rollout}/promote": (ROLLOUT, None),
        "POST /models/{model}/rollouts/{rollout}/abort": (ROLLOUT, None),
    },
}


def reference(model: type) -> dict[str, str]:
    """Return the schema of one of MODELS, as a reference."""
    return {"$ref": REFERENCE.format(model=model.__name__)}


def describe(app: FastAPI) -> None:
    """Have the application's document made complete."""
    derive = app.openapi
    app.openapi = cache(lambda: _completed(derive()))  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    _, definitions = models_json_schema([(model, "validation") for model in MODELS], ref_template=REFERENCE)
    schemas = document["components"]["schemas"]
    schemas.update(definitions["$defs"])
    for name in UNUSED:
        schemas.pop(name, None)
    document["components"]["headers"] = {"X-Request-Id": REQUEST_ID}
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    for operation in operations.values():
        responses = operation["responses"]
        if "application/json" in responses.get("422", {}).get("content", {}):
            del responses["422"]  # assumed of every route with parameters; routes that answer it say so
        for response in responses.values():
            response.setdefault("headers", {})["X-Request-Id"] = {"$ref": "#/components/headers/X-Request-Id"}
    for name, links in LINKS.items():
        (status,) = (status for status in operations[name]["responses"] if status.startswith("2"))
        operations[name]["responses"][status]["links"] = {
            operations[target]["operationId"]: {
                "operationId": operations[target]["operationId"],
                "parameters": parameters,
                **({} if body is None else {"requestBody": body}),
            }
            for target, (parameters, body) in links.items()
        }
    return document
