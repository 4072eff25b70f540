"""A version in service is profiled in its workers, over each of the three backends."""

import base64
import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests import images
from tests.end_to_end.test_images import bars
from tests.gateway import AUTHORIZATION, GatewayProcess

STAGES = ["decode", "graph", "rank", "serialise"]
PATH = "/models/synthetic/versions/1.0/profile"
BARS = images.encode(bars(True), "PNG")


def profile(gateway: GatewayProcess, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{gateway.url}{PATH}", json=body, headers=AUTHORIZATION, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    info: dict[str, Any] = answer.json()
    return info


def predict(client: httpx.Client) -> Any:
    answer = client.post("/predict", content=BARS, params={"version": "1.0"}, headers={"Content-Type": "image/png"})
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


@contextmanager
def traffic(gateway: GatewayProcess, answers: list[Any]) -> Iterator[None]:
    """Two clients that ask all the time; what they are answered is in `answers` at the end."""
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as client:
            while not stop.is_set():
                answers.append(predict(client))

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for each in clients:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in clients:
            each.join(90)
            assert not each.is_alive()


def test_the_traffics_batches_are_profiled_and_answered_as_ever(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as client:
        expected = predict(client)
    answers: list[Any] = []
    with traffic(gateway, answers):
        info = profile(gateway, num_batches=5, wait_seconds=60, trace=True)
    assert (info["num_batches"], info["num_self_check"], info["num_traced"]) == (5, 0, 5)
    assert info["num_items"] >= 5
    assert [each["stage"] for each in info["stages"]] == STAGES
    # The fused form, if it was the fastest, has its convolutions in partitions of the graph.
    convolutions = [each for each in info["operators"] if re.search("conv|LlgaPartition", each["operator"])]
    # How large it is says nothing where the machine takes the processor away in the middle of another operator.
    assert sum(each["share"] for each in convolutions) > 0
    assert abs(sum(each["share"] for each in info["operators"]) - 1) < 1e-9
    events = json.loads(gzip.decompress(base64.b64decode(info["trace"])))["traceEvents"]
    assert [event["name"] for event in events].count("stage::graph") == 5
    assert len(answers) >= 5
    for (answer,) in answers:  # in whatever company, and profiled or not
        assert answer["label"] == expected[0]["label"]
        assert abs(answer["probability"] - expected[0]["probability"]) < 1e-4


def test_without_traffic_the_call_returns_all_the_same(gateway: GatewayProcess) -> None:
    before = httpx.get(f"{gateway.url}/metrics", timeout=30, trust_env=False).text
    info = profile(gateway, num_batches=3, wait_seconds=0)
    assert (info["num_batches"], info["num_self_check"]) == (3, 3)
    assert [each["stage"] for each in info["stages"]] == STAGES
    after = httpx.get(f"{gateway.url}/metrics", timeout=30, trust_env=False).text
    assert counts(after) == counts(before)


def counts(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.startswith("torchgate_inference_") and "_total" in line]
