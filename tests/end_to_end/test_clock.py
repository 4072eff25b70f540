"""The clock is set far ahead and back under a running gateway."""

import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx

from tests.faults import HEADERS, predict, put_traffic, recovery, until
from tests.gateway import AUTHORIZATION, GatewayProcess
from tests.odd_archive import make_odd_store
from tests.signing import new_key, sign, trust
from tests.stack import gateway_of_workers

QUOTA, BURST = 5, 40
DAY_SECONDS = 86400
# Debian's libfaketime moves the monotonic clock too, or breaks Python's sleep. A set clock does neither.
SERVE = """
import runpy, sys, time
from pathlib import Path

real, ahead = time.time, Path(sys.argv.pop(1))
time.time = lambda: real() + float(ahead.read_text())
runpy.run_module("service", run_name="__main__", alter_sys=True)
"""


def over_clock(clock: Path, store: Path, trusted: Path) -> GatewayProcess:
    """Return a gateway, not started yet, whose clock is set by the file `clock`."""
    gateway = gateway_of_workers(
        store,
        TORCHGATE_WORKERS_PER_VERSION="1",
        TORCHGATE_TRUSTED_KEYS_DIR=str(trusted),
        TORCHGATE_DATABASE_URL=f"sqlite:///{trusted.parent}/state.db",
        TORCHGATE_QUOTA_IMAGES_PER_SECOND=str(QUOTA),
        TORCHGATE_QUOTA_BURST_IMAGES=str(BURST),
    )
    gateway.command = [sys.executable, "-c", SERVE, str(clock), "serve"]
    return gateway


def set_clock(clock: Path, days: int) -> None:
    """Have the gateway's clock be so many days ahead from now on; nobody reads half of it."""
    new = clock.with_suffix(".new")
    new.write_text(str(days * DAY_SECONDS))
    new.rename(clock)


def feedback(gateway: GatewayProcess, answer_id: str) -> int:
    body = {"id": answer_id, "index": 0, "label": "one"}
    return httpx.post(
        f"{gateway.url}/feedback", json=body, headers=AUTHORIZATION, timeout=60, trust_env=False
    ).status_code


def is_ahead(gateway: GatewayProcess, days: int) -> bool:
    """Return whether the gateway's log is so many days ahead of the clock; its thread writes a moment later."""
    gateway.get("/readyz")
    said = datetime.fromisoformat(gateway.records()[-1]["time"])
    return round((said - datetime.now(UTC)).total_seconds() / DAY_SECONDS) == days


def use_up(gateway: GatewayProcess) -> None:
    """Send images until the quota refuses one."""
    with httpx.Client(base_url=gateway.url, headers=HEADERS, timeout=60, trust_env=False) as client:
        while (answer := client.post("/predict", content=b"class:1")).status_code == 200:
            pass
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")


def num_taken(gateway: GatewayProcess) -> int:
    """Send a burst, and return how much of it the quota lets through."""
    with httpx.Client(base_url=gateway.url, headers=HEADERS, timeout=60, trust_env=False) as client:
        return [client.post("/predict", content=b"class:1").status_code for _ in range(BURST)].count(200)


def test_the_clock_jumps(tmp_path: Path) -> None:
    store, clock, key = make_odd_store(tmp_path / "store"), tmp_path / "clock", new_key()
    sign(store, key, 1, days=30)
    trusted = trust(tmp_path / "keys", key)
    set_clock(clock, 0)
    with over_clock(clock, store, trusted) as gateway:
        gateway.until_every_version_is_ready()
        assert put_traffic(gateway, {"1.0": 100}).status_code == 200
        answer_id = predict(gateway).json()["id"]
        for days in (60, -60, 0):
            use_up(gateway)
            began = time.monotonic()
            with recovery(f"the clock is set {days} days ahead"):
                set_clock(clock, days)
                until(lambda: predict(gateway).status_code == 200, gateway)
            until(partial(is_ahead, gateway, days), gateway)
            taken = num_taken(gateway)
            assert taken <= 1 + QUOTA * (time.monotonic() - began), "the jump filled the bucket"
            assert gateway.get("/readyz").status_code == 200
            assert put_traffic(gateway, {"1.0": 100}).status_code == 200
        assert feedback(gateway, answer_id) == 200
        leads = [each["message"] for each in gateway.records() if "leads" in each["message"]]
        assert len(leads) == len(set(leads)), "a lease was lost"
    set_clock(clock, 60)
    with over_clock(clock, store, trusted) as gateway:  # the manifest's signature is not valid that long
        until(lambda: "(expired)" in gateway.get("/readyz").json().get("detail", ""), gateway)
        until(lambda: any("(expired)" in record["message"] for record in gateway.records()), gateway)
