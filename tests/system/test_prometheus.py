"""A real Prometheus scrapes the gateway: its own linter likes the page, its counts are the client's."""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import images
from tests.end_to_end.test_images import bars
from tests.gateway import GatewayProcess
from tests.torchserve_process import free_ports

pytestmark = pytest.mark.system

NUM_REQUESTS = 20


def tool(name: str) -> str:
    """Return the path of one of Debian's programs; it is an error, not a skip, if it is missing."""
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed; make system-packages installs it"
    return path


@contextmanager
def prometheus_over(gateway_url: str) -> Iterator[str]:
    """Run a Prometheus that scrapes `gateway_url` every half second; give its own address."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="prometheus-") as name:
        folder = Path(name)
        target = gateway_url.removeprefix("http://")
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 500ms}\n"
            f"scrape_configs: [{{job_name: gateway, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    tool("prometheus"),
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    try:
        answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}, timeout=5, trust_env=False)
    except httpx.TransportError:
        return []
    if answer.status_code != 200:
        return []
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def test_promtool_finds_nothing_to_say(gateway: GatewayProcess) -> None:
    httpx.post(f"{gateway.url}/predict", content=images.encode(bars(True), "PNG"), timeout=30, trust_env=False)
    page = httpx.get(f"{gateway.url}/metrics", timeout=10, trust_env=False).content
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_counts_are_the_clients(gateway: GatewayProcess) -> None:
    name = "torchgate_inference_requests_total"
    series = f'{name}{{model="synthetic",version="1.0",outcome="success"}}'
    with prometheus_over(gateway.url) as prometheus:
        before = _settled(prometheus, series, None)
        image = images.encode(bars(True), "PNG")
        for _ in range(NUM_REQUESTS):
            answer = httpx.post(f"{gateway.url}/predict", content=image, timeout=30, trust_env=False)
            assert answer.status_code == 200
        assert _settled(prometheus, series, before + NUM_REQUESTS) == before + NUM_REQUESTS
        (up,) = query(prometheus, 'up{job="gateway"}')
        assert up["value"][1] == "1"


def _settled(prometheus: str, series: str, expected: float | None) -> float:
    """Return the series' value once it is `expected`, or once a scrape has come; 0 if it is not there yet."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        # Asked before the series is: a scrape that comes between the two questions must not be taken for an empty one.
        is_scraped = bool(query(prometheus, "torchgate_backend_up"))
        found = query(prometheus, series)
        value = float(found[0]["value"][1]) if found else 0.0
        if value == expected or (expected is None and is_scraped):
            return value
        time.sleep(0.1)
    raise AssertionError(f"{series} is {query(prometheus, series)}, expected {expected}")
