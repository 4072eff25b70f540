"""Every query of the dashboards gives data from a Prometheus that watched a real run."""

import asyncio
import contextlib
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from deploy.grafana.make import BOARDS
from deploy.grafana.panels import ROLLOUTS, VARIABLES, Query, Variable
from tests import images
from tests.end_to_end.test_images import bars
from tests.gateway import AUTHORIZATION, GatewayProcess
from tests.prometheus import prometheus_over
from tests.stack import Trained, gateway_of_workers, gateway_over
from tests.torchserve_process import TorchServeProcess, wait_until

pytestmark = pytest.mark.system

NUM_REQUESTS = 600
NUM_CLIENTS = 8
HEADERS = {"Content-Type": "image/png"}
SETTINGS = {"TORCHGATE_MODEL_STORE_POLICY": "all", "TORCHGATE_WORKERS_PER_VERSION": "1"}
QUERIES = [
    pytest.param(query, id=f"{board.uid}-{panel.title}-{number}".replace(" ", "_"))
    for board in BOARDS
    for row in board.rows
    for panel in row.panels
    for number, query in enumerate(panel.queries)
]
WINDOW = "10s"  # what $__rate_interval is here: four scrapes and more


@dataclass(frozen=True)
class Watched:
    """A Prometheus, when it watched a run, and what the boards' variables were."""

    url: str
    began: float
    ended: float

    def ask(self, path: str, **parameters: Any) -> Any:
        """Return the data of an answer."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=20, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def values(self, expr: str) -> list[float]:
        """Return all that an expression gave during the run, what is not a number left out."""
        for variable in VARIABLES:
            expr = expr.replace(
                f"${variable.name}", "|".join(map(re.escape, self.choices(variable))).replace("\\", r"\\")
            )
        expr = expr.replace("$__rate_interval", WINDOW)
        found = self.ask("query_range", query=expr, start=self.began, end=self.ended, step=1)["result"]
        return [number for series in found for _, text in series["values"] if (number := float(text)) == number]

    def choices(self, variable: Variable) -> list[str]:
        """Return what one may choose at the top of a board."""
        match = variable.metric.replace("$model", ".*")
        found: list[str] = self.ask(f"label/{variable.name}/values", **{"match[]": match})
        return found

    def has(self, query: Query) -> bool:
        """Return whether all metrics of a query are there."""
        names = re.findall(r"\b(?:torchgate_\w+|ts_\w+|Requests\dXX)", query.expr)
        return all(self.ask("query", query=f"count(max_over_time({name}[1h]))")["result"] for name in names)


@pytest.fixture(scope="module")
def watched(trained: Trained) -> Iterator[Watched]:
    """A run over workers and one over TorchServe: load, two versions, a shadow, feedback, rollouts, a dead worker."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="d-")))
        stores = [folder / "workers", folder / "torchserve"]
        for store in stores:
            shutil.copytree(trained.store, store, ignore=shutil.ignore_patterns("*.db*"))
        torchserve = stack.enter_context(TorchServeProcess(stores[1]))
        gateways = [
            stack.enter_context(gateway)
            # TorchServe counts times of what comes by REST, and of nothing else.
            for gateway in (
                gateway_of_workers(stores[0], **SETTINGS),
                gateway_over(torchserve, TORCHGATE_BACKEND="rest", **SETTINGS),
            )
        ]
        for gateway in gateways:
            gateway.until_every_version_is_ready()
        urls = [*(gateway.url for gateway in gateways), torchserve.metrics_url]
        prometheus = stack.enter_context(prometheus_over(*urls)).url
        until_scraped(prometheus)
        began = time.time()
        for gateway in gateways:
            asyncio.run(drive(gateway, prometheus))
        until_scraped(prometheus)
        yield Watched(prometheus, began, time.time())


def until_scraped(prometheus: str) -> None:
    """Return once every target has been scraped from now on."""
    now = time.time()

    def is_done() -> bool:
        try:
            found = httpx.get(f"{prometheus}/api/v1/query", params={"query": "timestamp(up)"}, trust_env=False)
        except httpx.TransportError:
            return False
        result = found.json()["data"]["result"] if found.status_code == 200 else []
        return len(result) == 3 and all(float(series["value"][1]) > now for series in result)

    wait_until(is_done)


async def drive(gateway: GatewayProcess, prometheus: str) -> None:
    """Send what there are panels for."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as http:

        async def change(method: str, path: str, body: object) -> None:
            headers = {"If-Match": "*", **AUTHORIZATION}
            answer = await http.request(method, f"/models/synthetic{path}", json=body, headers=headers)
            assert answer.is_success, answer.text

        (other, *_) = [each for each in await versions(http) if each != "1.0"]
        await change("PUT", "/labels/stable", {"version": "1.0"})
        await change("PUT", "/traffic", {"weights": {"1.0": 80, other: 20}, "shadows": {other: 100}})
        await send_all(http, NUM_REQUESTS // 2)
        await change("PUT", "/traffic", {"weights": {"1.0": 100}, "shadows": {other: 100}})
        for _ in range(2):
            await asyncio.to_thread(until_scraped, prometheus)
            await change("POST", "/rollouts", {"version": other})
            await change("POST", "/rollback", None)
        await send_all(http, NUM_REQUESTS // 2, partial(kill_workers, gateway))


async def versions(http: httpx.AsyncClient) -> list[str]:
    document = (await http.get("/models/synthetic")).json()
    return [version["version"] for version in document["versions"]]


async def send_all(http: httpx.AsyncClient, num_requests: int, in_the_middle: Callable[[], None] | None = None) -> None:
    """Send images of both classes, broken ones among them, and say for some what they were."""
    pictures = {"horizontal": bars(True), "vertical": bars(False)}
    bodies = [(label, images.encode(picture, "PNG")) for label, picture in pictures.items()]
    left = iter(range(num_requests))

    async def client() -> None:
        for number in left:
            label, body = bodies[number % 2]
            if number == num_requests // 2 and in_the_middle is not None:
                in_the_middle()  # of the others' batches, too
            if number % 20 == 0:
                assert (await http.post("/predict", content=b"no image", headers=HEADERS)).status_code in {400, 503}
                continue
            answer = await http.post("/predict", content=body, headers=HEADERS)
            assert answer.status_code in {200, 503, 504}, answer.text
            if number % 4 == 1 and answer.status_code == 200:
                given = {"id": answer.json()["id"], "label": label}
                assert (await http.post("/feedback", json=given)).status_code == 200

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))


def kill_workers(gateway: GatewayProcess) -> None:
    """Kill the workers that are the gateway's own, if it has any."""
    assert gateway.process is not None
    for child in psutil.Process(gateway.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
            if any(part.endswith("launch.py") for part in child.cmdline()):
                child.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_data(watched: Watched, query: Query) -> None:
    # What stands in for nothing must not be taken for data.
    found = watched.values(query.expr.replace(" or vector(0)", ""))
    if query.optional and not watched.has(query):
        pytest.skip("this gateway has no such metric")
    assert found, query.expr


def test_rollouts_are_marked(watched: Watched) -> None:
    if not watched.has(ROLLOUTS):
        pytest.skip("this gateway has no such metric")
    assert max(watched.values(ROLLOUTS.expr)) > 0


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_there_is_something_to_choose(watched: Watched, variable: Variable) -> None:
    assert watched.choices(variable)


def test_a_heatmap_has_rows(watched: Watched) -> None:
    for board in BOARDS:
        for panel in (panel for row in board.rows for panel in row.panels if panel.kind == "heatmap"):
            (query,) = panel.queries
            if not query.optional or watched.has(query):
                assert max(watched.values(query.expr)) > 0, panel.title
