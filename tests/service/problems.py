"""What every error of the gateway looks like."""

from typing import Any

import httpx


def problem_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem that an answer must be."""
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["status"], document["code"]) == (status, status, code), document
    assert document["request_id"] == answer.headers["x-request-id"]
    assert document["detail"]
    assert document["title"]
    return document
