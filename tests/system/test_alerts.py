"""Faults in a real gateway make exactly the alerts that they should in a real Prometheus, and calm makes none.

The deployed rules with every duration shorter by FACTOR, so that an hour is half a minute; the shortest window is still
ten scrapes long.
"""

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.digits import inverted, png
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.prometheus import Prometheus, prometheus_over
from tests.rule_files import FILES, alerts, shortened
from tests.stack import Trained, gateway_of_workers

pytestmark = pytest.mark.system

FACTOR = 120
INTERVAL = "250ms"
NUM_CLIENTS = 2  # as many as workers, so that nothing queues
PAUSE_SECONDS = 0.1  # between a client's requests: else the fast ones outnumber those that are held up
NUM_CALM = 60
NUM_AFTER = 20  # requests that go on when the alerts are there, to see whether others follow
Body = Callable[[int], bytes]  # of a request's number
BURNS = ("BurnFast", "Burn", "BurnSlow")
AVAILABILITY = {f"TorchgateAvailability{burn}" for burn in BURNS}
LATENCY = {f"TorchgateLatency{burn}" for burn in BURNS}


class Load:
    """Clients that send what `body` makes of a request's number, until they are stopped."""

    def __init__(self, url: str, body: Body) -> None:
        self.body = body
        self.num_answered = 0
        self._numbers = count()  # each is one client's: with some sent twice and others never, classes would drift
        self._url = url
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def until(self, num_requests: int) -> None:
        """Return when so many more are answered."""
        wanted, deadline = self.num_answered + num_requests, time.monotonic() + 60
        while self.num_answered < wanted:
            assert time.monotonic() < deadline, "requests are not answered"
            time.sleep(0.02)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send."""
        threads = [threading.Thread(target=self._send) for _ in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(30)

    def _send(self) -> None:
        with httpx.Client(base_url=self._url, timeout=20, trust_env=False) as http:
            while not self._stop.wait(PAUSE_SECONDS):
                predict(http, self.body(next(self._numbers)))
                with self._lock:
                    self.num_answered += 1


def predict(http: httpx.Client, body: bytes) -> httpx.Response:
    return http.post("/predict", content=body, headers={"Content-Type": "image/png"})


def calm(number: int) -> bytes:
    return b"class:%d" % (number % 4)


def one_in_five_fails(number: int) -> bytes:
    return b"raise:a fault" if number % 5 == 0 else calm(number)


def held_up(number: int) -> bytes:
    return b"sleep:0.6"


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """Where a file keeps workers from loading."""
    return tmp_path / "no-more-workers"


@pytest.fixture
def gateway(flag: Path) -> Iterator[GatewayProcess]:
    with tempfile.TemporaryDirectory(prefix="a-") as name:
        scratch = Path(name) / "tmp"
        scratch.mkdir()
        store = make_odd_store(Path(name) / "store", f"assert not os.path.exists({str(flag)!r})")
        options = {
            "TMPDIR": str(scratch),
            "TORCHGATE_LATENCY_OBJECTIVE_MS": "100",
            # A machine that is busy with other things must not make an alert.
            "TORCHGATE_SLO_LATENCY_MS": "500",
            "TORCHGATE_SLO_LATENCY_RATIO": "0.97",
        }
        with gateway_of_workers(store, **options) as process:
            process.until_every_version_is_ready()
            yield process


@contextmanager
def watched(gateway: GatewayProcess, body: Body = calm) -> Iterator[tuple[Prometheus, Load, float]]:
    """Run load and Prometheus over the gateway, and give them when it was calm for a while without an alert."""
    load = Load(gateway.url, body)
    with load.running():
        load.until(10)
        rules = {file: shortened(file, FACTOR) for file in FILES}
        with prometheus_over(gateway.url, interval=INTERVAL, rules=rules) as prometheus:
            prometheus.until_scraped()
            started = time.time()
            load.until(NUM_CALM)
            prometheus.until_scraped()
            assert prometheus.value('job:torchgate_slo_errors:ratio_rate5m{job="gateway"}') == 0
            assert seen(prometheus, started) == set()
            yield prometheus, load, time.time()


def seen(prometheus: Prometheus, since: float) -> set[str]:
    """Return the alerts that were pending or firing at any time since then."""
    found = prometheus.query(f"count_over_time(ALERTS[{int((time.time() - since) * 1000)}ms])")
    return {each["metric"]["alertname"] for each in found}


def until_exactly(prometheus: Prometheus, load: Load, since: float, expected: set[str]) -> None:
    """Return when these alerts have been seen, and no others, nor after some more requests."""
    prometheus.until(lambda: expected <= seen(prometheus, since) or None, f"raise {sorted(expected)}", 60)
    load.until(NUM_AFTER)
    prometheus.until_scraped()
    assert seen(prometheus, since) == expected


def firing(prometheus: Prometheus, alert: str) -> bool | None:
    return bool(prometheus.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')) or None


def test_failures_use_up_the_budget_of_availability(gateway: GatewayProcess) -> None:
    with watched(gateway) as (prometheus, load, since):
        load.body = one_in_five_fails
        until_exactly(prometheus, load, since, AVAILABILITY)
        assert firing(prometheus, "TorchgateAvailabilityBurnFast")


def test_delays_use_up_the_budget_of_latency(gateway: GatewayProcess) -> None:
    with watched(gateway) as (prometheus, load, since):
        load.body = held_up
        until_exactly(prometheus, load, since, LATENCY)
        prometheus.until(lambda: firing(prometheus, "TorchgateLatencyBurnFast"), "page")


def test_a_worker_that_does_not_come_back_is_missed_until_it_does(gateway: GatewayProcess, flag: Path) -> None:
    with watched(gateway) as (prometheus, load, since):
        flag.touch()
        with httpx.Client(base_url=gateway.url, timeout=20, trust_env=False) as http:
            os.kill(int(predict(http, b"pid:").json()["detail"].split()[-1]), signal.SIGKILL)
        until_exactly(prometheus, load, since, {"TorchgateWorkersMissing"})
        prometheus.until(lambda: firing(prometheus, "TorchgateWorkersMissing"), "fire")
        flag.unlink()
        prometheus.until(lambda: not prometheus.query("ALERTS") or None, "see it end", 90)
        assert seen(prometheus, since) == {"TorchgateWorkersMissing"}


@pytest.mark.timeout(480)  # it may be the first to need the training
def test_other_images_than_were_learnt_are_noticed(
    trained_digits: Trained, held_out: tuple[list[Image.Image], list[int]]
) -> None:
    drawn = random.Random(0).sample(held_out[0], len(held_out[0]))  # they lie there by class
    digits, negatives = [png(image) for image in drawn], [png(inverted(image)) for image in drawn]
    options = {"TORCHGATE_DRIFT_WINDOW_ITEMS": "200", "TORCHGATE_SLO_LATENCY_RATIO": "0.97"}
    with gateway_of_workers(trained_digits.store, **options) as gateway:
        gateway.until_every_version_is_ready()
        with watched(gateway, lambda number: digits[number % len(digits)]) as (prometheus, load, since):
            prometheus.until(lambda: prometheus.query("torchgate_drift_score") or None, "get a score")
            load.body = lambda number: negatives[number % len(negatives)]
            until_exactly(prometheus, load, since, {"TorchgateDrift"})


def test_shorter_rules_are_the_same_rules() -> None:
    rules = [rule for group in shortened("alerts.yml", FACTOR)["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == list(alerts())
    fast = rules[0]
    assert (fast["for"], "ratio_rate1h" in fast["expr"]) == ("1000ms", True)
    recorded = str(shortened("recording.yml", FACTOR))
    assert "[2500ms]" in recorded
    assert "[5m]" not in recorded
