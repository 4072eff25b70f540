"""A real Prometheus scrapes the gateway: its own linter likes the page, and it has seen what the clients have.

`TORCHGATE_TEST_LOAD_SECONDS` is how long the load lasts, 10 unless it is set.
"""

import gc
import os
import subprocess
from bisect import bisect_left
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.load.generator import Generator, Plan
from benchmarks.load.open_loop import arrivals
from service.telemetry.metric_labels import DURATION_BUCKETS
from tests import images
from tests.end_to_end.test_images import bars
from tests.gateway import GatewayProcess
from tests.prometheus import Prometheus, prometheus_over, tool
from tests.stack import Trained, gateway_of_workers, gateway_over
from tests.torchserve_process import TorchServeProcess, free_ports

pytestmark = pytest.mark.system

NUM_REQUESTS = 20
LOAD_SECONDS = float(os.environ.get("TORCHGATE_TEST_LOAD_SECONDS", "10"))
RATE = 60.0
HTTP = 'torchgate_http_requests_total{route="/predict",code="200"}'
INFERENCE = 'torchgate_inference_requests_total{model="synthetic",version="1.0",role="primary",outcome="success"}'
ITEMS = 'torchgate_inference_items_total{model="synthetic",version="1.0"}'
HISTOGRAMS = (
    'torchgate_http_request_duration_seconds_bucket{route="/predict",code="200"}',
    'torchgate_inference_duration_seconds_bucket{outcome="success"}',
)


def test_promtool_finds_nothing_to_say(gateway: GatewayProcess) -> None:
    httpx.post(f"{gateway.url}/predict", content=images.encode(bars(True), "PNG"), timeout=30, trust_env=False)
    page = httpx.get(f"{gateway.url}/metrics", timeout=10, trust_env=False).content
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_counts_are_the_clients(gateway: GatewayProcess) -> None:
    series = 'torchgate_inference_requests_total{model="synthetic",version="1.0",role="primary",outcome="success"}'
    with prometheus_over(gateway.url) as prometheus:
        prometheus.until_scraped()
        before = prometheus.value(series)
        assert before is not None
        image = images.encode(bars(True), "PNG")
        for _ in range(NUM_REQUESTS):
            answer = httpx.post(f"{gateway.url}/predict", content=image, timeout=30, trust_env=False)
            assert answer.status_code == 200
        prometheus.until_scraped()
        assert prometheus.value(series) == before + NUM_REQUESTS
        assert prometheus.value('up{job="gateway"}') == 1


@pytest.mark.timeout(200 + 2 * LOAD_SECONDS)
@pytest.mark.parametrize("backend", ["grpc", "workers"])
def test_counts_and_quantiles_are_the_generators_across_a_restart(
    backend: str, request: pytest.FixtureRequest, trained: Trained, tmp_path: Path
) -> None:
    (port,) = free_ports(1)  # both of them on one, so that Prometheus takes them for one

    def gateway() -> GatewayProcess:
        if backend == "workers":
            return gateway_of_workers(trained.store, TORCHGATE_PORT=str(port))
        loaded: TorchServeProcess = request.getfixturevalue("loaded_torchserve")
        return gateway_over(loaded, TORCHGATE_BACKEND=backend, TORCHGATE_PORT=str(port))

    image = tmp_path / "image.png"
    image.write_bytes(images.encode(bars(True), "PNG"))
    first_times, second_times = arrivals(RATE, LOAD_SECONDS, seed=1), arrivals(RATE, 3, seed=2)
    with prometheus_over(f"http://127.0.0.1:{port}") as prometheus:
        with gateway() as first:
            first.until_every_version_is_ready()
            latencies = send(port, image, first_times)
            prometheus.until_scraped()
            for series in (HTTP, INFERENCE, ITEMS):
                assert prometheus.value(series) == len(first_times), series
            compare_quantiles(prometheus, latencies)
        with gateway() as second:
            second.until_every_version_is_ready()
            send(port, image, second_times)
            prometheus.until_scraped()
            for series in (HTTP, INFERENCE, ITEMS):
                assert prometheus.value(series) == len(second_times), series
                assert sum_over_resets(prometheus, series) == len(first_times) + len(second_times), series


@pytest.mark.timeout(200 + 2 * LOAD_SECONDS)
def test_counts_of_two_gateways_add_up_to_the_generators(loaded_torchserve: TorchServeProcess, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(images.encode(bars(True), "PNG"))
    state = {"TORCHGATE_DATABASE_URL": f"sqlite:///{tmp_path / 'state.db'}"}
    with (
        gateway_over(loaded_torchserve, **state) as one,
        gateway_over(loaded_torchserve, **state) as other,
        prometheus_over(one.url, other.url) as seen,
    ):
        latencies = []
        for seed, gateway in ((1, one), (2, other)):
            gateway.until_every_version_is_ready()
            latencies += send(int(gateway.url.rpartition(":")[2]), image, arrivals(RATE, LOAD_SECONDS / 2, seed))
        seen.until_scraped()
        for series in (HTTP, INFERENCE, ITEMS):
            assert seen.value(f"sum({series})") == len(latencies), series
        compare_quantiles(seen, latencies)


def send(port: int, image: Path, times: list[float]) -> list[float]:
    """Send a request at each time, see that all are answered, and return the seconds that each took."""
    headers = {"Content-Type": "image/png"}
    generator = Generator(Plan(port, "/predict", headers, [str(image)], times, [0] * len(times), objective_ms=100))
    try:
        generator.run()
    finally:
        gc.enable()  # which a generator on its own does without
    assert list(generator.statuses) == [200] * len(times)
    # How late a request left is the generator's matter, not one of the server that is compared with it.
    return [latency - lag for latency, lag in zip(generator.latencies, generator.lags, strict=True)]


def compare_quantiles(prometheus: Prometheus, latencies: list[float]) -> None:
    """See that each quantile is in the bucket of the generator's own, or in the next."""
    for histogram in HISTOGRAMS:
        for quantile in (0.5, 0.95, 0.99):
            seen = prometheus.value(f"histogram_quantile({quantile}, sum by (le) ({histogram}))")
            own = float(np.quantile(latencies, quantile))
            assert seen is not None
            print(f"{histogram.partition('{')[0]} p{quantile:.0%}: {seen * 1e3:.2f} ms, generator {own * 1e3:.2f} ms")
            apart = bisect_left(DURATION_BUCKETS, seen) - bisect_left(DURATION_BUCKETS, own)
            assert abs(apart) <= 1, (histogram, quantile, seen, own)


def sum_over_resets(prometheus: Prometheus, series: str) -> float:
    """Return how far a counter has come in all, from 0 on, as the scrapes saw it."""
    (found,) = prometheus.query(f"{series}[1h]")
    total, before = 0.0, 0.0
    for _, text in found["values"]:
        value = float(text)
        total += value - before if value >= before else value
        before = value
    assert prometheus.value(f"resets({series}[1h])") == 1
    return total
