"""Drift, feedback and classes on the status page; and a model of colour images, which nobody draws."""

import base64
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.by import By

from tests.gateway import GatewayProcess
from tests.stack import Trained, gateway_of_workers, train
from tests.system.browser import Browser, chromium
from tests.system.status_page import KEY, draw, give_key, give_token, press, verdict
from tests.torchserve_process import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(480)]  # the first one waits for a training


@pytest.fixture(scope="module")
def served(trained_digits: Trained) -> Iterator[GatewayProcess]:
    """One version, whose drift is known after few images."""
    options = {"TORCHGATE_WORKERS_PER_VERSION": "1", "TORCHGATE_DRIFT_WINDOW_ITEMS": "100"}
    with gateway_of_workers(trained_digits.store, TORCHGATE_API_KEYS=KEY, **options) as gateway:
        gateway.until_every_version_is_ready()
        yield gateway


LINES = """
return [...document.querySelectorAll(`#quality article:first-child ul:nth-of-type(${arguments[0]}) li`)]
  .map((line) => [...line.querySelectorAll('span, em')].map((part) => part.innerText));
"""


def card(page: Browser) -> str:
    return str(page.run("return document.querySelector('#quality article')?.innerText ?? ''"))


def test_drift_is_shown_against_its_thresholds(page: Browser, served: GatewayProcess) -> None:
    page.until(lambda: "drift: unknown" in card(page))
    assert "10 classes" in card(page)
    assert "no feedback yet" in card(page)
    assert "in validation" in card(page)
    three = base64.b64encode((ROOT / "samples" / "digit-3.png").read_bytes()).decode()
    body = {"instances": [{"b64": three}] * 25}
    for _ in range(5):  # all of one class, which validation images are not
        answer = httpx.post(
            f"{served.url}/predict?version=1.0", json=body, headers={"X-API-Key": KEY}, timeout=60, trust_env=False
        )
        assert answer.status_code == 200, answer.text
    page.until(lambda: "drift: drifting" in card(page))
    (line,) = [line for line in page.run(LINES, 1) if line[0] == "drift of class"]
    value, threshold = map(float, line[1].split(" of "))
    assert value > threshold > 0
    (most, *_) = page.run(LINES, 2)
    assert most[0] == "3"
    assert most[1].startswith("100 %")

    give_key(page)
    draw(page, "7")
    press(page, "right")
    page.until(lambda: "100 % right of 1 by feedback" in card(page))


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three classes of colour images, as the training pipeline leaves them."""
    return train(tmp_path_factory.mktemp("coloured"), "--channels", "3", "--epochs", "1")


def self_check_image(store: Path) -> bytes:
    (archive,) = store.glob("*-1.0.mar")
    with zipfile.ZipFile(archive) as opened:
        contract = json.loads(opened.read("contract.json"))
    assert contract["input"]["channels"] == 3
    assert len(contract["classes"]) == 3
    return base64.b64decode(contract["self_check"]["cases"][0]["image_b64"])


def test_a_colour_model_is_asked_by_images_alone(coloured: Trained) -> None:
    with gateway_of_workers(coloured.store, TORCHGATE_WORKERS_PER_VERSION="1") as gateway, chromium() as page:
        gateway.until_every_version_is_ready()
        page.show_as(1300, 900, "light")
        page.open(f"{gateway.url}/status")
        page.until_text("state-text", lambda text: text == "Live")
        pad, help_text = (page.driver.find_element(By.ID, name) for name in ("pad", "drop-help"))
        page.until(help_text.is_displayed)
        assert not pad.is_displayed()
        press(page, "example")  # an image of the training's, for readers alone
        give_token(page)
        said = verdict(page)
        picked = "const image = document.getElementById('picked'); return [image.naturalWidth, image.naturalHeight]"
        assert page.until(lambda: 0 not in (size := page.run(picked)) and size) == [12, 12]
        image = self_check_image(coloured.store)
        headers = {"Content-Type": "image/png"}
        answer = httpx.post(f"{gateway.url}/predict", content=image, headers=headers, timeout=30, trust_env=False)
        assert answer.json()["predictions"][0]["label"] == said
        bars = page.run("return [...document.querySelectorAll('#classes li span')].map((each) => each.innerText)")
        assert sorted(bars) == ["horizontal", "square", "vertical"]
        assert page.complaints() == []
