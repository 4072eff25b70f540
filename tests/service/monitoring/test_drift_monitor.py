"""What a version answers is counted and compared, after it was answered, and shown to who asks."""

import logging
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from service.domain.backend import BatchAnswer, Ranking, Target
from service.domain.contract import parse_contract
from service.monitoring.drift import DriftLimits
from service.monitoring.drift_monitor import DriftMonitor
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import DriftMetrics
from tests.fake_backend import FakeControl
from tests.gateway import Rig, running_gateway
from tests.service.operator import NEW, OLD, change
from tests.stores import make_contract, make_store

pytestmark = pytest.mark.anyio

TARGET = Target("digits", "1.0")


async def send(rig: Rig, *contents: bytes, **request: Any) -> dict[str, Any]:
    """Send images in one request, which must be answered."""
    instances = [{"b64": b64encode(content).decode()} for content in contents]
    answer = await rig.client.post("/predict", json={"instances": instances}, **request)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def quality(rig: Rig, version: str = "1.0") -> dict[str, Any]:
    document = (await rig.client.get("/models/digits/quality")).json()
    (found,) = (each for each in document["versions"] if each["version"] == version)
    assert isinstance(found, dict)
    return found


async def drift_score(rig: Rig, kind: str) -> tuple[float, float]:
    return (
        await rig.metric("torchgate_drift_score", version="1.0", kind=kind),
        await rig.metric("torchgate_drift_threshold", version="1.0", kind=kind),
    )


MIXED = [b"class:%d" % (index % 4) for index in range(100)]


async def test_classes_and_confidences_are_counted_for_each_version(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        await send(rig, b"class:1", b"class:1", b"class:3", b"reject:bad_image", params={"top_k": 2})
        await send(rig, b"class:0", params={"version": "1.0-int8-dynamic"})
        await rig.until("torchgate_prediction_confidence_ratio_count", 3, version="1.0")
        await rig.until("torchgate_prediction_confidence_ratio_count", 1, version="1.0-int8-dynamic")
        counts = {
            name: await rig.metric("torchgate_prediction_class_total", version="1.0", **{"class": name})
            for name in ("zero", "one", "two", "three")
        }
        assert counts == {"zero": 0, "one": 2, "two": 0, "three": 1}
        assert await rig.metric("torchgate_prediction_confidence_ratio_sum", version="1.0") == 3
        below = {"version": "1.0", "le": "0.9999"}
        assert await rig.metric("torchgate_prediction_confidence_ratio_bucket", **below) == 0
        assert await rig.metric("torchgate_prediction_confidence_ratio_bucket", version="1.0", le="1.0") == 3


async def test_a_drift_begins_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.monitoring.drift_monitor")
    async with running_gateway(tmp_path, drift_window_items=500) as rig:
        await send(rig, *MIXED[:99])
        found = await quality(rig)
        assert (found["state"], found["scores"]) == ("unknown", [])
        assert found["reason"] == "99 of the 100 images that a score needs have come"
        assert "torchgate_drift_score{" not in (await rig.client.get("/metrics")).text
        await send(rig, MIXED[99])
        found = await quality(rig)
        assert (found["state"], found["reason"], found["window_items"]) == ("ok", "", 100)
        assert {each["kind"]: each["value"] < each["threshold"] for each in found["scores"]} == {
            "class": True,
            "confidence": True,
        }
        assert found["classes"][2] == {"label": "two", "share": 0.25, "reference_share": 0.25}
        for _ in range(5):
            await send(rig, *[b"class:0"] * 100)
        found = await quality(rig)
        assert (found["state"], found["window_items"]) == ("drifting", 500)
        assert found["classes"][0]["share"] == 1
        score, threshold = await drift_score(rig, "class")
        assert score > threshold >= 0.1
        score, threshold = await drift_score(rig, "confidence")
        assert score == pytest.approx(0.05)
        assert await rig.metric("torchgate_drift_window_items", version="1.0") == 500
        for _ in range(5):
            await send(rig, *MIXED)
        assert (await quality(rig))["state"] == "ok"
        score, threshold = await drift_score(rig, "class")
        assert score < 0.8 * threshold
    first, last = (record for record in caplog.records if "drifts" in record.message)
    assert first.levelname == "WARNING"
    assert first.message.startswith("digits 1.0 drifts: class ")
    assert first.message.endswith("images")
    assert last.levelname == "INFO"
    assert last.message.startswith("digits 1.0 drifts no more: class ")


async def test_without_a_reference_nothing_is_compared_and_everything_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.serving.version_loader")
    store = tmp_path / "store"
    control = FakeControl(make_store(store, (OLD,), without="reference"))
    async with running_gateway(tmp_path, (), control=control, model_store=store, drift_window_items=100) as rig:
        await send(rig, *[b"class:0"] * 100)
        found = await quality(rig)
        assert (found["state"], found["scores"]) == ("unknown", [])
        assert found["reason"] == "the contract has no reference to compare with"
        assert found["classes"][0] == {"label": "zero", "share": 1.0, "reference_share": None}
        labels = {"version": "1.0", "class": "zero"}
        assert await rig.metric("torchgate_prediction_class_total", **labels) == 100
        assert "torchgate_drift_score{" not in (await rig.client.get("/metrics")).text
    assert "digits 1.0: its contract has no reference, so drift is not measured" in caplog.messages


async def test_accuracy_is_what_feedback_says(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        assert (await quality(rig))["feedback"] == {"num_labelled": 0, "accuracy": None}
        answer = await send(rig, *MIXED[:4])
        for index, label in enumerate(("zero", "one", "two", "two")):
            await rig.client.post("/feedback", json={"id": answer["id"], "index": index, "label": label})
        assert (await quality(rig))["feedback"] == {"num_labelled": 4, "accuracy": 0.75}


async def test_a_version_that_is_gone_leaves_nothing_among_the_metrics(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all", drift_window_items=100) as rig:
        await rig.until_every_version_is_ready()
        await send(rig, *MIXED, params={"version": "1.0"})
        await quality(rig)
        assert 'torchgate_drift_score{kind="class",model="digits",version="1.0"}' in (await metrics(rig))
        await send(rig, *MIXED, params={"version": "1.0"})  # the next count is due in a moment
        assert (await change(rig, "DELETE", "/versions/1.0", if_match="")).status_code == 204
        assert 'version="1.0"' not in await metrics(rig)
        await send(rig, *MIXED)
        # Counted after what the other version had left would have been.
        await rig.until("torchgate_prediction_confidence_ratio_count", 100, version="1.1")
        assert 'version="1.0"' not in await metrics(rig)
        unknown = await rig.client.get("/models/letters/quality")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "model_not_found")


async def metrics(rig: Rig) -> str:
    return (await rig.client.get("/metrics")).text


async def test_what_was_closed_counts_nothing_more() -> None:
    monitor, metrics = watched()
    monitor.take(BatchAnswer([Ranking([(0, 1.0)])] * 100, 0.0, 0.0))
    monitor.close()
    metrics.forget(TARGET)
    monitor.count()
    assert b'model="digits"' not in generate_latest(metrics.registry)


async def test_a_probability_that_was_rounded_up_counts_as_one() -> None:
    monitor, metrics = watched()
    monitor.take(BatchAnswer([Ranking([(0, 1.0000001)])], 0.0, 0.0))
    monitor.count()
    labels = {"model": "digits", "version": "1.0", "le": "1.0"}
    assert metrics.registry.get_sample_value("torchgate_prediction_confidence_ratio_bucket", labels) == 1


def watched() -> tuple[DriftMonitor, Metrics]:
    metrics = Metrics()
    contract = parse_contract(make_contract(TARGET.model, TARGET.version, "fp32"))
    limits = DriftLimits(100, 0.1, 0.1)
    return DriftMonitor(TARGET, contract, limits, DriftMetrics(metrics, TARGET, contract.classes)), metrics
