"""A headless Chromium from Debian, and what it has noticed: its console and the addresses that it asked."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from tests.prometheus import tool

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root, in containers
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
)


class Browser:
    """A page in a browser, as a user has it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.urls: list[str] = []

    def open(self, url: str) -> None:
        """Go to a page."""
        self.driver.get(url)

    def until(self, look: Callable[[], Any], seconds: float = 20) -> Any:
        """Return what `look` returns once it is something."""
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: look())

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page; the policy does not hold for the one who drives."""
        return self.driver.execute_script(script, *arguments)

    def text(self, element_id: str) -> str:
        """Return what an element shows."""
        return str(self.run("return document.getElementById(arguments[0]).innerText", element_id)).strip()

    def until_text(self, element_id: str, wanted: Callable[[str], bool], seconds: float = 20) -> str:
        """Return an element's text once it is as wanted."""
        self.until(lambda: wanted(self.text(element_id)), seconds)
        return self.text(element_id)

    def show_as(self, width: int, height: int, scheme: str = "dark", *, is_phone: bool = False) -> None:
        """Have a window of this size, on a machine with this colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self._command("Emulation.setDeviceMetricsOverride", size)
        self._command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def complaints(self) -> list[str]:
        """Return the console's errors and warnings since they were last asked for."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] in {"SEVERE", "WARNING"}]

    def hosts(self) -> set[str]:
        """Return every host that the page has asked for something, by its requests and its sockets."""
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.urls.append(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                self.urls.append(message["params"]["url"])
        # Neither what is made in the page (data:, blob:) nor the browser's own first tab (chrome:).
        return {parts.netloc for parts in map(urlsplit, self.urls) if parts.scheme in {"http", "https", "ws", "wss"}}

    def _command(self, name: str, arguments: dict[str, Any]) -> None:
        self.driver.execute_cdp_cmd(name, arguments)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a Chromium with a profile of its own."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = tool("chromium")
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # With the driver's path selenium looks for none, here or elsewhere.
        service = Service(tool("chromedriver"), env={**os.environ, "NO_PROXY": "127.0.0.1", "SE_OFFLINE": "true"})
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
