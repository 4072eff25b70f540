"""The page of the HTTP API, from the OpenAPI document that the gateway answers at /openapi.json."""

from collections.abc import Iterator, Mapping
from typing import Any

from deploy.reference.form import page, table
from service.app import create_app
from service.config.settings import Settings
from service.http.request_middleware import RequestMiddleware

INTRODUCTION = """\
The gateway answers these routes on `TORCHGATE_PORT`. `/docs` on a running gateway shows the same in a browser, where \
you can try each call; `/openapi.json` is the machine-readable form. Where `GET` is allowed, `HEAD` is, too.

Errors are explained under [Errors](errors.md). Every answer has `X-Request-Id`: your own, if you sent one.

Calls that change something need the admin token, or the key of a client with the scope `change` \
([how](../how-to/serve/clients-and-keys.md)). They take `?reason=` (at most 500 characters) for the event log. Their \
bodies have at most 64 KiB."""
TITLES = {
    "predict": "Predictions",
    "feedback": "Feedback",
    "models": "Models",
    "control": "Changes",
    "rollouts": "Rollouts",
    "health": "Health and metrics",
    "status": "Status page",
    "errors": "Errors",
}
EVERYWHERE = {"reason", "x-actor"}  # the introduction explains them
NOTES = {
    ("post", "/predict"): """\
Headers of the answer: `X-Model-Version`; `X-Batch-Size` and `X-Queue-Ms`, the largest over the request's images; and \
`Server-Timing` with the longest wait (`queue`) and round trip (`compute`) in milliseconds, the number of `batches`, \
the batch `limit` at that time, and why the last batch closed.

```sh
curl --data-binary @samples/digit-7.png -H 'Content-Type: image/png' localhost:8000/predict
curl -F file=@samples/digit-1.png -F file=@samples/digit-2.png 'localhost:8000/predict?top_k=1'
```"""
}

Document = Mapping[str, Any]


def http_api_page() -> str:
    """Return the page."""
    document = openapi()
    sections = []
    for tag, title in TITLES.items():
        operations = [_operation(document, *each) for each in _operations(document) if each[2]["tags"] == [tag]]
        sections += [f"## {title}", *operations]
    schemas = [_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return page("HTTP API", INTRODUCTION, *sections, "## Bodies and answers", *filter(None, schemas))


def openapi() -> Document:
    """Return the OpenAPI document; it does not depend on the settings."""
    app = create_app(Settings.model_construct())
    assert isinstance(app, RequestMiddleware)
    document: Document = app._app.openapi()  # type: ignore[attr-defined]
    return document


def _operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


def _operation(document: Document, method: str, path: str, operation: Document) -> str:
    parts = [f"### `{method.upper()} {path}`", operation["description"]]
    parameters = [each for each in operation.get("parameters", ()) if each["name"] not in EVERYWHERE]
    if parameters:
        rows = [(f"`{each['name']}`", each["in"], *_type(each["schema"]), _meaning(each)) for each in parameters]
        parts.append(table(("parameter", "in", "type", "default", "meaning"), rows))
    if (body := operation.get("requestBody")) is not None:
        parts.append(f"**Body:** {', '.join(_content(body))}")
    answers = []
    for status, answer in sorted(operation["responses"].items()):
        if int(status) < 400:
            answers.append(f"{status} {', '.join(_content(answer)) or 'without a body'}")
    errors = ", ".join(sorted(status for status in operation["responses"] if int(status) >= 400))
    parts.append(f"**Answer:** {'; '.join(answers)}. **Errors:** {errors}.")
    if (note := NOTES.get((method, path))) is not None:
        parts.append(note)
    return "\n\n".join(parts)


def _content(message: Document) -> Iterator[str]:
    for media_type, content in message.get("content", {}).items():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        yield f"`{media_type}` ([{name}](#{name.lower()}))" if name else f"`{media_type}`"


def _schema(name: str, schema: Document) -> str:
    fields = schema.get("properties", {})
    rows = [(f"`{field}`", *_type(kind), _meaning(kind)) for field, kind in fields.items()]
    head = ("field", "type", "default", "meaning")
    return "\n\n".join((f"### {name}", schema.get("description", "").split("\n\n")[0], table(head, rows)))


def _type(schema: Document) -> tuple[str, str]:
    """Return a schema's type and default, as cells."""
    default = schema.get("default")
    return _kind(schema), "" if default in (None, "") else f"`{default}`"


def _kind(schema: Document) -> str:  # noqa: PLR0911 - one for each form of a schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if (choices := schema.get("anyOf") or schema.get("oneOf")) is not None:
        return " or ".join(_kind(each) for each in choices)
    if "enum" in schema:
        return " ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {_kind(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def _meaning(schema: Document) -> str:
    return str(schema.get("description", ""))
