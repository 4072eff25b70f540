"""What a look says of versions, what of drift, and what it costs."""

import json
import statistics
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.admin.status.collector import StatusCollector
from service.batching.batcher import Batcher
from service.domain.archive import Archive
from service.domain.backend import Target
from service.domain.model_state import ModelState, VersionRecord
from service.domain.rollout import Rollout, RolloutSpec
from service.domain.traffic import Policy
from service.errors.reason import open_reason
from service.persistence.membership import Membership
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.serving.served_versions import ServedVersions
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics
from tests.fake_backend import FakeBackend
from tests.service.limits import LIMITS

pytestmark = pytest.mark.anyio


class Stage:
    """Versions of digits without a backend, all traffic at the first, and an observer of them."""

    def __init__(self, num_versions: int) -> None:
        self.metrics = Metrics()
        self.model_versions = [self._model_version(f"1.{i}") for i in range(num_versions)]
        view = ServedVersions({"digits": {each.target.version: each for each in self.model_versions}}, open_reason(""))
        state = ModelState("digits", policy=Policy.all_to("1.0") if num_versions else None)
        self.reconciler = cast(Reconciler, SimpleNamespace(view=view))
        self.registry = cast(Registry, SimpleNamespace(models={"digits": state}))
        membership = cast(Membership, SimpleNamespace(gateways=["a-host-0001", "a-host-0002"]))
        facts = {"version": "1"}
        self.observer = StatusCollector(self.reconciler, self.registry, membership, self.metrics, "/predict", facts)

    def _model_version(self, version: str) -> ModelVersion:
        target = Target("digits", version)
        metrics = VersionMetrics(self.metrics, target)
        archive = Archive(
            file="a.mar", model="digits", version=version, release=version, variant="fp32", sha256="0" * 64
        )
        batcher = Batcher(target, FakeBackend(), LIMITS, metrics)
        return ModelVersion(VersionRecord(archive), 1, 2, 2, batcher, metrics)

    async def look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        look = await self.observer.look()
        return json.loads(look.point), json.loads(look.now)


async def test_the_end_of_a_rollout_is_shown_for_an_hour_with_its_reason() -> None:
    stage = Stage(2)
    running = Rollout(1, RolloutSpec("1.1"), "1.0", started=time.time())
    state = stage.registry.models["digits"].rolled(running)
    ended = state.rolled(replace(running, state="rolled_back", reason="guard errors: 6 of 70"))
    long_ago = ended.rolled(replace(ended.rollouts[-1], ended=time.time() - 3601))
    next_one = ended.rolled(Rollout(2, RolloutSpec("1.1"), "1.0"))
    for now, expected in (
        (state, [(1, "running", "")]),
        (ended, [(1, "rolled_back", "guard errors: 6 of 70")]),
        (long_ago, []),
        (next_one, [(2, "running", "")]),
    ):
        stage.registry.models = {"digits": now}
        _, shown = await stage.look()
        assert [(each["id"], each["state"], each["reason"]) for each in shown["rollouts"]] == expected


async def test_rates_are_of_what_came_since() -> None:
    stage = Stage(2)
    ours = stage.model_versions[0].metrics
    ours.requests["success"].inc(100)
    stage.metrics.http_request("POST", "/predict", 200, 0.01)
    point, now = await stage.look()
    assert (point["rates"], now["versions"][0]["requests"], point["quantiles"]) == ({}, 0, None)
    ours.requests["success"].inc(6)
    ours.requests["shed"].inc(2)
    for code in (200, 200, 429, 400, 503, 499):
        stage.metrics.http_request("POST", "/predict", code, 0.01)
    stage.metrics.http_request("GET", "/models", 200, 0.01)
    stage.metrics.rejected.labels("deadline").inc()
    point, now = await stage.look()
    rates = point["rates"]
    assert set(rates) == {"ok", "overload", "client_error", "server_error", "cancelled"}
    assert rates["ok"] == pytest.approx(2 * rates["overload"], rel=1e-3)
    outcomes = now["versions"][0]["outcomes"]
    assert outcomes["success"] == pytest.approx(3 * outcomes["shed"], rel=1e-3)
    assert (list(now["rejected"]), now["versions"][1]["requests"]) == (["deadline"], 0)


async def test_no_version_is_no_trouble() -> None:
    point, now = await Stage(0).look()
    assert (point["heat"], point["quantiles"], now["versions"], now["edges"]) == ([], None, [], [])


async def test_drift_is_shown_where_it_is_measured() -> None:
    stage = Stage(2)
    stage.metrics.models.drift_score.labels("digits", "1.1", "class").set(0.25)
    _, now = await stage.look()
    assert [version["drift"] for version in now["versions"]] == [{}, {"class": 0.25}]


@pytest.mark.parametrize("num_versions", [1, 3, 50])
async def test_a_look_shows_every_version(num_versions: int) -> None:
    stage = Stage(num_versions)
    seconds = []
    for _ in range(20):
        started = time.thread_time()
        _, now = await stage.look()
        seconds.append(time.thread_time() - started)
    print(f"a look at {num_versions} versions: {statistics.median(seconds) * 1000:.1f} ms of CPU (median of 20)")
    assert len(now["versions"]) == num_versions
