"""A real Prometheus over a gateway, for tests that ask what it has seen."""

import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.torchserve_process import free_ports

T = TypeVar("T")


def tool(name: str) -> str:
    """Return the path of one of Debian's programs; it is an error, not a skip, if it is missing."""
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed; make system-packages installs it"
    return path


@dataclass(frozen=True)
class Prometheus:
    """One that runs, at `url`."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression is now; nothing while Prometheus cannot be asked."""
        try:
            answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=5, trust_env=False)
        except httpx.TransportError:
            return []
        if answer.status_code != 200:
            return []
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def value(self, expression: str) -> float | None:
        """Return the value of the one series that an expression gives, None if there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def until(self, look: Callable[[], T | None], what: str, timeout_seconds: float = 30) -> T:
        """Return what `look` gives once it is not None."""
        deadline = time.monotonic() + timeout_seconds
        while (found := look()) is None:
            assert time.monotonic() < deadline, f"Prometheus did not {what}"
            time.sleep(0.05)
        return found

    def until_scraped(self) -> None:
        """Return once it has scraped every gateway after this call."""
        since = time.time()

        def is_later() -> bool | None:
            scraped = self.value('min(timestamp(torchgate_backend_up{job="gateway"}))')
            return (scraped is not None and scraped > since) or None

        self.until(is_later, "scrape the gateway")


@contextmanager
def prometheus_over(
    *urls: str, interval: str = "500ms", rules: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes /metrics at `urls`, and evaluates these files of rules, every `interval`."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="prometheus-") as name:
        folder = Path(name)
        for file, document in (rules or {}).items():
            (folder / file).write_text(json.dumps(document))  # JSON is YAML
        targets = [url.removeprefix("http://") for url in urls]
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": list(rules or {}),
            "scrape_configs": [{"job_name": "gateway", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
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
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
