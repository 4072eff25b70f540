"""What is promised is exported, histograms have an edge on it, and fast answers are counted by it."""

from pathlib import Path
from typing import Any

import pytest

from service.config.settings import Settings
from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from service.telemetry.metric_labels import PREDICT_CODES
from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio

DURATIONS = (
    "torchgate_http_request_duration_seconds",
    "torchgate_inference_duration_seconds",
    "torchgate_inference_queue_seconds",
    "torchgate_inference_compute_seconds",
)


@pytest.mark.parametrize(("threshold_ms", "edge"), [(100, "0.1"), (137, "0.137"), (30_000, "30.0")])
async def test_every_duration_has_an_edge_on_the_threshold(tmp_path: Path, threshold_ms: int, edge: str) -> None:
    async with running_gateway(tmp_path, slo_latency_ms=threshold_ms) as rig:
        assert (await rig.predict(b"class:0")).status_code == 200
        assert await rig.metric("torchgate_slo_latency_threshold_seconds") == threshold_ms / 1000
        page = (await rig.client.get("/metrics")).text
        for name in DURATIONS:
            assert any(line.startswith(f"{name}_bucket") and f'le="{edge}"' in line for line in page.splitlines()), name


async def test_objectives_are_exported_and_the_batchers_one_is_the_default(tmp_path: Path) -> None:
    options: dict[str, Any] = {"latency_objective_ms": 250, "slo_latency_ratio": 0.95, "slo_availability_ratio": 0.995}
    async with running_gateway(tmp_path, **options) as rig:
        assert await rig.metric("torchgate_slo_latency_threshold_seconds") == 0.25
        assert await rig.metric("torchgate_slo_objective_ratio", objective="latency") == 0.95
        assert await rig.metric("torchgate_slo_objective_ratio", objective="availability") == 0.995


async def test_fast_answers_are_counted_and_neither_slow_ones_nor_failures(tmp_path: Path) -> None:
    fast, of_version = "torchgate_slo_fast_requests_total", {"model": "digits", "version": "1.0"}
    async with running_gateway(tmp_path, slo_latency_ms=10_000) as rig:
        for _ in range(3):
            assert (await rig.predict(b"class:0")).status_code == 200
        assert (await rig.predict(b"reject:bad_image")).status_code == 400
        rig.backend.fails_with = BackendFailed("broken")
        assert (await rig.predict(b"class:0")).status_code == 503
        assert await rig.metric(fast, **of_version) == 3
    async with running_gateway(tmp_path, slo_latency_ms=10) as rig:
        rig.backend.slow[Target("digits", "1.0")] = 0.05
        assert (await rig.predict(b"class:0")).status_code == 200
        assert await rig.metric(fast, **of_version) == 0
        assert await rig.metric("torchgate_inference_requests_total", outcome="success", **of_version) == 1


async def test_the_codes_of_predictions_are_there_before_the_first_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        page = (await rig.client.get("/metrics")).text
        for code in PREDICT_CODES:
            assert f'torchgate_http_requests_total{{code="{code}",method="POST",route="/predict"}} 0.0\n' in page


@pytest.mark.parametrize("name", ["slo_latency_ratio", "slo_availability_ratio"])
@pytest.mark.parametrize("value", [0.9, 1.0])
def test_an_objective_that_no_alert_could_watch_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Settings.model_validate({name: value})
