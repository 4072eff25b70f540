"""What an operator does over HTTP, for tests of versions, traffic and labels."""

from collections import Counter
from typing import Any

import httpx

from tests.gateway import Rig

OLD, NEW = ("digits", "1.0", "fp32"), ("digits", "1.1", "fp32")


async def change(rig: Rig, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """Send a change that is based on what is there now."""
    if "if_match" not in headers:
        headers["if_match"] = (await rig.client.get("/models/digits/traffic")).headers["etag"]
    headers = {name.replace("_", "-"): value for name, value in headers.items() if value}
    return await rig.client.request(method, f"/models/digits{path}", json=body, headers=headers)


async def events(rig: Rig) -> list[dict[str, Any]]:
    """Return the log, the oldest first."""
    found: list[dict[str, Any]] = (await rig.client.get("/models/digits/events")).json()["events"]
    return found[::-1]


async def shares(rig: Rig, num_requests: int, **request: Any) -> Counter[str]:
    """Send requests, all of which must be answered; return how many each version had."""
    answers = [await rig.predict(b"class:1", **request) for _ in range(num_requests)]
    assert {answer.status_code for answer in answers} == {200}
    for answer in answers:
        assert answer.json()["version"] == answer.headers["x-model-version"]
    return Counter(answer.json()["version"] for answer in answers)
