"""The status page in a browser, over a gateway with a real model that needs a key."""

from collections.abc import Iterator

import httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.gateway import AUTHORIZATION, TOKEN, GatewayProcess
from tests.stack import Trained, gateway_of_workers
from tests.system.browser import Browser, chromium
from tests.torchserve_process import ROOT

KEY = "a-key-of-the-test"
OTHER = "1.0-int8-static"
# A guard that feedback breaks after some answers, and a step that only requests can end.
ROLLOUT = {"version": OTHER, "steps": [50, 100], "min_requests": 10_000, "min_seconds": 0, "error_rate": 0.5}


@pytest.fixture(scope="module")
def served(trained_digits: Trained) -> Iterator[GatewayProcess]:
    with gateway_of_workers(trained_digits.store, TORCHGATE_API_KEYS=KEY, TORCHGATE_WORKERS_PER_VERSION="1") as gateway:
        gateway.until_every_version_is_ready()
        yield gateway


@pytest.fixture
def page(served: GatewayProcess) -> Iterator[Browser]:
    """The status page, up to date; at the end nothing is on the console, and nobody else was asked."""
    with chromium() as browser:
        browser.show_as(1400, 900)
        browser.open(served.url)
        browser.until_text("state-text", lambda text: text == "Live")
        yield browser
        assert browser.complaints() == []
        assert browser.hosts() == {served.url.removeprefix("http://")}
        assert f"{served.url}/status/events" in browser.urls


@pytest.fixture
def operator(served: GatewayProcess) -> Iterator[httpx.Client]:
    """A client with the admin token; at the end no rollout is left, and version 1.0 has all the traffic again."""
    with httpx.Client(base_url=served.url, headers=AUTHORIZATION, timeout=30, trust_env=False) as client:
        yield client
        rollouts = client.get("/models/digits/rollouts").json()["rollouts"]
        for each in (each for each in rollouts if each["ended"] is None):
            assert client.post(f"/models/digits/rollouts/{each['id']}/abort").status_code == 200
        assert set_traffic(client, {"1.0": 100}).status_code == 200


def set_traffic(client: httpx.Client, weights: dict[str, float]) -> httpx.Response:
    return client.put("/models/digits/traffic", json={"weights": weights}, headers={"If-Match": "*"})


def weights(client: httpx.Client) -> dict[str, float]:
    found: dict[str, float] = client.get("/models/digits/traffic").json()["weights"]
    return {version: weight for version, weight in found.items() if weight}


def start_rollout(client: httpx.Client) -> int:
    begun = client.post("/models/digits/rollouts", json=ROLLOUT)
    assert begun.status_code == 201, begun.text
    number: int = begun.json()["id"]
    return number


def classify(gateway: GatewayProcess, version: str = "1.0") -> None:
    sample = (ROOT / "samples" / "digit-3.png").read_bytes()
    headers = {"X-API-Key": KEY, "Content-Type": "image/png"}
    answer = httpx.post(
        f"{gateway.url}/predict?version={version}", content=sample, headers=headers, timeout=30, trust_env=False
    )
    assert answer.status_code == 200, answer.text


def verdict(page: Browser) -> str:
    """Return the class that the page says, once it says one."""
    return str(page.until(lambda: page.run("return document.querySelector('#verdict b')?.innerText")))


def give_key(page: Browser) -> None:
    page.driver.find_element(By.ID, "key").send_keys(KEY)


def draw(page: Browser, digit: str) -> str:
    """Draw a digit by its key; return the class that the page says."""
    page.run("document.getElementById('pad').focus()")
    ActionChains(page.driver).send_keys(digit).perform()
    return verdict(page)


def change_figures(page: Browser, served: GatewayProcess, script: str) -> None:
    """Open the page again, with a script that changes each `version` of the figures before the page reads them."""
    source = (
        "const parse = JSON.parse; JSON.parse = (...all) => { const read = parse(...all); "
        f"for (const version of read?.now?.versions ?? []) {{ {script} }} return read; }};"
    )
    page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    page.open(served.url)
    page.until_text("state-text", lambda text: text == "Live")


def press(page: Browser, element_id: str) -> None:
    page.driver.find_element(By.ID, element_id).click()


def give_token(page: Browser, token: str = TOKEN) -> None:
    """Type a token into the dialog that asks for it, and send it."""
    page.until(lambda: page.run("return document.getElementById('sign-in').open"))
    field = page.driver.find_element(By.ID, "token")
    field.clear()
    field.send_keys(token, Keys.ENTER)


def sign_in(page: Browser) -> None:
    press(page, "account")
    give_token(page)
    page.until_text("account", lambda text: text == "Sign out")
