"""The OpenAPI document against the gateway that it describes; tests/fuzz/test_openapi.py asks it at random."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

KEY = "a-key-of-the-tests"
NAMES = {"model": "digits", "version": "1.0", "label": "stable", "rollout": "1"}
SECOND = "1.0-int8-dynamic"

Document = dict[str, Any]


async def document_of(rig: Rig) -> Document:
    document: Document = (await rig.client.get("/openapi.json")).json()
    return document


def operations(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path with names in it, and what the document says."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path.format(**NAMES), operation


def nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a document."""
    if isinstance(part, dict):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from nodes(each)


async def test_every_reference_leads_somewhere(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        document = await document_of(rig)
    references = {node["$ref"] for node in nodes(document) if "$ref" in node}
    assert "#/components/schemas/PredictJson" in references
    for reference in references:
        found = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]


async def test_every_error_is_a_problem(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        document = await document_of(rig)
    for method, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status >= "4":
                assert list(answer["content"]) == ["application/problem+json"], (method, path, status)
        assert {"421", "500", "503"} <= set(operation["responses"]), (method, path)
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])


async def test_a_method_that_a_path_does_not_take(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        taken: dict[str, set[str]] = {}
        for method, path, _ in operations(await document_of(rig)):
            taken.setdefault(path, set()).update({method, "HEAD"} if method == "GET" else {method})
        for path, methods in taken.items():
            answer = await rig.client.options(path)
            assert answer.status_code == 405, path
            assert set(answer.headers["allow"].split(", ")) == methods, path


async def test_what_is_shown_has_the_type_that_is_documented(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        for method, path, operation in operations(await document_of(rig)):
            if method != "GET" or "/rollouts/" in path:
                continue
            async with rig.client.stream("GET", path) as answer:
                documented = operation["responses"][str(answer.status_code)]
                if answer.status_code == 200:
                    assert answer.headers["content-type"].partition(";")[0] in documented["content"], path
                for name, header in documented["headers"].items():
                    assert name in answer.headers or not header.get("required"), (path, name)


async def test_a_body_that_is_no_json(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        for method, path, operation in operations(await document_of(rig)):
            if "requestBody" in operation:
                headers = {"content-type": "application/json", "if-match": "*"}
                answer = await rig.client.request(method, path, content=b"\0", headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (400, "body_invalid"), path
                assert "400" in operation["responses"], path


async def test_what_a_change_takes_beside_its_body(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        described = {
            (method, path): {each["name"]: each["required"] for each in operation.get("parameters", ())}
            for method, path, operation in operations(await document_of(rig))
        }
        for (method, path), parameters in described.items():
            is_change = method != "GET" and path not in {"/predict", "/feedback"}
            assert ({"reason", "x-actor"} <= set(parameters)) == is_change, path
            if is_change:
                answer = await rig.client.request(method, path, json={"wait_seconds": 0})
                assert (answer.status_code == 428) == parameters.get("if-match", False), path


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/models/digits/versions/1.0/profile", {"trace": 0}),
        ("POST", "/models/digits/versions/1.0/profile", {"num_batches": "3"}),
        ("PATCH", "/models/digits/versions/1.0", {"num_workers": "1"}),
        ("PATCH", "/models/digits/versions/1.0", {"num_workers": True}),
        ("PATCH", "/models/digits/versions/1.0", {"num_workers": 1.5}),
        ("POST", "/models/digits/rollouts", {"version": "1.0", "error_rate": "0.1"}),
        ("PUT", "/models/digits/traffic", {"weights": {"1.0": "100"}}),
    ],
)
async def test_a_value_of_another_type(tmp_path: Path, method: str, path: str, body: dict[str, Any]) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.client.request(method, path, json=body, headers={"if-match": "*"})
        assert (answer.status_code, answer.json()["code"]) == (422, "parameter_invalid")


async def test_a_whole_number_may_be_written_as_a_float(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        assert (await rig.client.patch("/models/digits/versions/1.0", json={"num_workers": 2.0})).status_code == 200
        id_ = (await rig.predict(b"class:1")).json()["id"]
        answer = await rig.client.post("/feedback", json={"id": id_, "index": 0.0, "label": "one"})
        assert answer.status_code == 200


@pytest.mark.parametrize("closed", [{}, {"api_keys": KEY}, {"api_keys": KEY, "reads_need_key": True}])
async def test_what_asks_for_credentials_says_so(tmp_path: Path, closed: dict[str, Any]) -> None:
    async with running_gateway(tmp_path, **closed) as rig:
        document = await document_of(rig)
        assert set(document["components"]["securitySchemes"]) == {"token", "key"}
        async with httpx.AsyncClient(base_url=rig.url, trust_env=False) as stranger:
            for method, path, operation in operations(document):
                async with stranger.stream(method, path) as answer:
                    assert (answer.status_code == 401) == ("security" in operation), (method, path)
                    if answer.status_code == 401:
                        (name,) = set(operation["responses"]["401"]["headers"]) - {"X-Request-Id"}
                        assert answer.headers[name] == "Bearer"


# Links, as a client follows them.


def value_of(expression: str, request: httpx.Request, path: str, answer: httpx.Response) -> Any:
    """Return what an expression of a link means for an exchange."""
    if expression.startswith("$request.path."):
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
        matched = re.fullmatch(pattern, request.url.path)
        assert matched is not None
        return matched[expression.removeprefix("$request.path.")]
    if expression.startswith("$response.header."):
        return answer.headers[expression.removeprefix("$response.header.")]
    found = answer.json()
    for step in expression.removeprefix("$response.body#/").split("/"):
        found = found[int(step) if isinstance(found, list) else step]
    return found


async def follow(
    rig: Rig, document: Document, source: str, answer: httpx.Response, target: str, body: Any = None, **names: str
) -> httpx.Response:
    """Make the request that the link from one operation to another describes."""
    method, _, path = source.partition(" ")
    links = document["paths"][path][method.lower()]["responses"][str(answer.status_code)]["links"]
    next_method, _, next_path = target.partition(" ")
    operation = document["paths"][next_path][next_method.lower()]
    (link,) = (link for link in links.values() if link["operationId"] == operation["operationId"])
    given = {name: value_of(each, answer.request, path, answer) for name, each in link["parameters"].items()}
    known = {each["name"]: each["in"] for each in operation["parameters"]} if "parameters" in operation else {}
    assert set(given) <= set(known)
    derived = {name: value_of(each, answer.request, path, answer) for name, each in link.get("requestBody", {}).items()}
    return await rig.client.request(
        next_method,
        next_path.format(**{**names, **given}),
        json={**derived, **(body or {})} if "requestBody" in operation else None,
        headers={name: value for name, value in given.items() if known[name] == "header"},
    )


async def test_links_lead_from_one_answer_to_the_next_request(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        await rig.until_every_version_is_ready()
        document = await document_of(rig)
        label, traffic = "PUT /models/{model}/labels/{label}", "GET /models/{model}/traffic"
        register, version = "POST /models/{model}/versions", "/models/{model}/versions/{version}"
        rollout = "/models/{model}/rollouts/{rollout}"

        predicted = await rig.predict(b"class:1")
        described = document["paths"]["/predict"]["post"]["responses"]["200"]["headers"]
        assert set(described) <= {name.title() for name in predicted.headers}
        judged = await follow(rig, document, "POST /predict", predicted, "POST /feedback")
        assert judged.json()["correct"]

        shown = await rig.client.get("/models/digits/traffic")
        put = await follow(rig, document, traffic, shown, label, {"version": "1.0"}, label="stable")
        assert put.json()["labels"] == {"stable": "1.0"}
        events = await follow(rig, document, label, put, "GET /models/{model}/events")
        assert events.json()["events"][0]["action"] == "label"
        undone = await follow(rig, document, label, put, "DELETE /models/{model}/labels/{label}")
        assert undone.json()["labels"] == {}

        assert (await rig.client.delete(f"/models/digits/versions/{SECOND}")).status_code == 204
        registered = await rig.client.post("/models/digits/versions", json={"file": f"digits-{SECOND}.mar"})
        assert registered.status_code == 201, registered.text
        scaled = await follow(rig, document, register, registered, f"PATCH {version}", {"num_workers": 2})
        assert scaled.json()["num_workers"] == 2
        started = await follow(rig, document, register, registered, "POST /models/{model}/rollouts")
        assert started.json()["version"] == SECOND
        paused = await follow(rig, document, "POST /models/{model}/rollouts", started, f"POST {rollout}/pause")
        assert paused.json()["state"] == "paused"
        ended = await follow(rig, document, "POST /models/{model}/rollouts", started, f"POST {rollout}/abort")
        assert ended.json()["state"] == "aborted"


async def test_every_link_names_what_there_is(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        document = await document_of(rig)
    known = {operation["operationId"]: operation for _, _, operation in operations(document)}
    links = [link for node in nodes(document) for link in node.get("links", {}).values()]
    assert len(links) > 10
    for link in links:
        names = {each["name"] for each in known[link["operationId"]].get("parameters", ())}
        assert set(link["parameters"]) <= names, link
