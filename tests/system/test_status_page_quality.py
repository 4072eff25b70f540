"""Drift, feedback and classes on the status page; and a model of colour images, which nobody draws."""

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from selenium.webdriver.common.by import By

from tests import images
from tests.gateway import GatewayProcess
from tests.handlers.archives import make_archive, self_check_case, toy_contract, toy_graph
from tests.stack import Trained, gateway_of_workers
from tests.stores import archive_entry, write_manifest
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


CLASSES = ["autumn", "spring", "winter"]


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with a toy that puts colour images into three classes."""
    store, graph = tmp_path_factory.mktemp("store"), toy_graph(num_classes=3)
    with torch.inference_mode():
        probabilities = graph(torch.from_numpy(images.pattern()).permute(2, 0, 1)[None])[0].tolist()
    check = {"tolerance": 1e-4, "cases": [self_check_case(images.rgb_png(), probabilities)]}
    contract = toy_contract(num_classes=3, classes=CLASSES, weights_sha256="0" * 64, self_check=check)
    archive = make_archive(store, tmp_path_factory.mktemp("archive"), contract, graph)
    write_manifest(store, [archive_entry(archive, "toy", "1.0", "fp32")])
    return store


def test_a_colour_model_is_asked_by_images_alone(coloured: Path) -> None:
    with gateway_of_workers(coloured, TORCHGATE_WORKERS_PER_VERSION="1") as gateway, chromium() as page:
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
        assert page.until(lambda: 0 not in (size := page.run(picked)) and size) == [32, 32]
        headers = {"Content-Type": "image/png"}
        answer = httpx.post(f"{gateway.url}/predict", content=images.rgb_png(), headers=headers, trust_env=False)
        assert answer.json()["predictions"][0]["label"] == said
        bars = page.run("return [...document.querySelectorAll('#classes li span')].map((each) => each.innerText)")
        assert sorted(bars) == CLASSES
        assert page.complaints() == []
