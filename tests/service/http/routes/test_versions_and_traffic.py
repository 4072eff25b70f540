"""Traffic and labels are changed over HTTP, rolled back, and kept."""

from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target
from tests.gateway import running_gateway
from tests.service.operator import NEW, OLD, change, events, shares

pytestmark = pytest.mark.anyio


async def test_traffic_is_divided_by_weight_and_labels_and_names_go_before(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        assert (await rig.client.get("/models/digits/traffic")).json()["weights"] == {"1.1": 100}
        answer = await change(rig, "PUT", "/traffic", {"weights": {"1.0": 90, "1.1": 10}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["weights"] == {"1.0": 90, "1.1": 10}
        assert await shares(rig, 200) == {"1.0": 180, "1.1": 20}
        await change(rig, "PUT", "/labels/canary", {"version": "1.1"})
        assert await shares(rig, 5, params={"label": "canary"}) == {"1.1": 5}
        assert await shares(rig, 5, params={"version": "1.0"}) == {"1.0": 5}
        both = await rig.predict(b"class:1", params={"label": "canary", "version": "1.0"})
        assert (both.status_code, both.json()["code"]) == (422, "parameter_invalid")
        missing = await rig.predict(b"class:1", params={"label": "stable"})
        assert (missing.status_code, missing.json()["code"]) == (404, "label_not_found")
        assert missing.json()["detail"] == "Model 'digits' has no label 'stable'; it has: canary."
        shown = (await rig.client.get("/models/digits")).json()
        assert [(v["version"], v["weight"], v["labels"], v["default"]) for v in shown["versions"]] == [
            ("1.0", 90, [], True),
            ("1.1", 10, ["canary"], False),
        ]


async def test_requests_with_one_key_stay_together(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 50, "1.1": 50}})
        for number in range(20):
            assert len(await shares(rig, 3, headers={"X-Routing-Key": f"user-{number}"})) == 1
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 50, "1.1": 50}, "sticky_header": None})
        assert len(await shares(rig, 100, headers={"X-Routing-Key": "user-1"})) == 2


async def test_a_version_that_is_not_ready_gets_no_traffic(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 50, "1.1": 50}})
        rig.control.num_ready_of[Target("digits", "1.1")] = 0
        await rig.until_state("1.1", "unavailable")
        assert await shares(rig, 40) == {"1.0": 40}
        assert (await rig.client.get("/readyz")).status_code == 200


async def test_a_rollback_goes_to_who_had_everything_last(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        nothing = await change(rig, "POST", "/rollback", if_match="")
        assert (nothing.status_code, nothing.json()["code"]) == (409, "nothing_earlier")
        for weights in ({"1.0": 90, "1.1": 10}, {"1.0": 50, "1.1": 50}):
            await change(rig, "PUT", "/traffic", {"weights": weights})
        back = await change(rig, "POST", "/rollback", if_match="")
        assert back.json()["weights"] == {"1.1": 100}
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 100}})
        assert (await change(rig, "POST", "/rollback", if_match="")).json()["weights"] == {"1.1": 100}
        # Once more, to be sure, does not lead to what was just left.
        again = await change(rig, "POST", "/rollback", if_match="")
        assert (again.status_code, again.json()["code"]) == (409, "nothing_earlier")


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 75, "1.1": 25}})
        await change(rig, "PUT", "/labels/canary", {"version": "1.1"})
        keys = [f"user-{number}" for number in range(50)]
        before = [await shares(rig, 1, headers={"X-Routing-Key": key}) for key in keys]
        state = (await rig.client.get("/models/digits/traffic")).json()
        log = await events(rig)
    again: dict[str, Any] = {"model_store": tmp_path / "store", "model_store_policy": "all"}
    async with running_gateway(tmp_path, (), control=rig.control, **again) as rig:
        await rig.until_every_version_is_ready()
        assert (await rig.client.get("/models/digits/traffic")).json() == state
        assert [await shares(rig, 1, headers={"X-Routing-Key": key}) for key in keys] == before
        assert await events(rig) == log


@pytest.mark.parametrize("name", ["a%0D%0AX-Evil:1", "a%00b", "%C3%BC", "a" * 101, "-a"])
async def test_a_name_that_is_none_reaches_neither_log_nor_database(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway(tmp_path, (OLD,)) as rig:
        for method, path in (
            ("POST", f"/models/{name}/versions"),
            ("DELETE", f"/models/digits/versions/{name}"),
            ("POST", f"/models/{name}/rollouts"),
        ):
            answer = await rig.client.request(method, path, json={"file": "a.mar"})
            assert (answer.status_code, answer.json()["code"]) == (422, "parameter_invalid"), answer.text
            assert "is not a name: allowed are letters" in answer.json()["detail"]
        assert all(event["outcome"] == "done" for event in await events(rig))
    assert not [record for record in caplog.records if "\n" in record.getMessage() or "\0" in record.getMessage()]
