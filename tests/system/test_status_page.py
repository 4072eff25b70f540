"""The status page in a real browser, over a real model: what it shows, what it asks, and who can use it."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.gateway import GatewayProcess
from tests.stack import Trained, gateway_of_workers
from tests.system.browser import Browser, chromium
from tests.system.status_page import KEY, change_figures, classify, draw, give_key, verdict
from tests.torchserve_process import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(480)]  # the first one waits for a training

SEVEN = [(0.28, 0.24), (0.7, 0.22), (0.6, 0.48), (0.48, 0.82)]  # of the pad's side, as a hand writes it


def test_traffic_is_shown_as_it_comes(page: Browser, served: GatewayProcess) -> None:
    page.until(lambda: page.text("requests") == "0")
    classify(served)
    page.until(lambda: page.text("requests") != "0", 5)
    assert float(page.text("p99")) > 0
    assert "digits 1.0" in page.text("versions")
    classify(served, "1.0-int8-static")
    page.until(lambda: "100 %" in page.text("sizes"), 5)
    lit = "const c = document.getElementById('heat'); return new Set(c.getContext('2d').getImageData(0, 0, c.width, "
    assert page.run(f"{lit}c.height).data).size") > 10  # something is painted on the strip


def test_a_drawn_seven_is_a_seven(page: Browser) -> None:
    give_key(page)
    pad = page.driver.find_element(By.ID, "pad")
    side = pad.size["width"]
    actions = ActionChains(page.driver, duration=30)
    for i, (x, y) in enumerate(SEVEN):
        actions.move_to_element_with_offset(pad, round((x - 0.5) * side), round((y - 0.5) * side))
        if i == 0:
            actions.click_and_hold()
    actions.release().perform()
    assert verdict(page) == "7"
    bars = page.run("return [...document.querySelectorAll('#classes li span')].map((each) => each.innerText)")
    assert sorted(bars) == [str(digit) for digit in range(10)]
    assert page.text("answer-meta").startswith("digits 1.0 ·")


def test_a_finger_draws_too(page: Browser) -> None:
    page.show_as(390, 844, is_phone=True)
    give_key(page)
    pad = page.driver.find_element(By.ID, "pad")
    page.run("arguments[0].scrollIntoView({block: 'center'})", pad)
    side = pad.size["width"]
    actions = ActionChains(page.driver, duration=30)
    actions.w3c_actions.add_pointer_input("touch", "finger")
    finger = next(device for device in actions.w3c_actions.devices if device.name == "finger")
    assert isinstance(finger, PointerInput)
    for i, (x, y) in enumerate(SEVEN):
        place = {"x": round((x - 0.5) * side), "y": round((y - 0.5) * side)}
        finger.create_pointer_move(duration=30, origin=pad, **place)
        if i == 0:
            finger.create_pointer_down(button=0)  # type: ignore[no-untyped-call]
    finger.create_pointer_up(0)  # type: ignore[no-untyped-call]
    actions.w3c_actions.perform()
    assert verdict(page) == "7"


def test_the_keyboard_alone_is_enough(page: Browser) -> None:
    def keys(*what: str) -> None:
        ActionChains(page.driver).send_keys(*what).perform()

    found = []
    for _ in range(13):
        keys(Keys.TAB)
        found.append(page.run("return document.activeElement.id || document.activeElement.innerText"))
    assert found[0].startswith("Skip")
    sent = ["ask", "clear", "file", "example", "key"]
    assert found[1:] == ["Metrics", "Models", "API", "Error codes", "account", "target", "pad", *sent]
    keys(KEY)
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(*[Keys.TAB] * 5).key_up(Keys.SHIFT).perform()
    assert page.run("return document.activeElement.id") == "pad"
    # A 7 by the arrows: along the top, then down to the left.
    keys(*[Keys.ARROW_LEFT] * 6, *[Keys.ARROW_UP] * 8, " ", *[Keys.ARROW_RIGHT] * 11)
    for _ in range(8):
        keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_LEFT)
    keys(" ", Keys.ENTER)
    assert verdict(page) == "7"
    keys(Keys.BACKSPACE)
    page.until(lambda: page.text("verdict") == "")
    keys("7")
    assert verdict(page) == "7"


def test_an_image_is_taken_and_a_wrong_key_is_told(page: Browser) -> None:
    file = page.driver.find_element(By.ID, "file")
    file.send_keys(str(ROOT / "samples" / "digit-4.png"))
    page.until(lambda: "API key" in page.text("verdict"))
    # Chromium itself writes a line for every answer that is no success.
    (line,) = page.complaints()
    assert "401" in line
    give_key(page)
    page.driver.find_element(By.ID, "ask").click()
    assert verdict(page) == "4"


LAYOUT = """
const box = (element) => element.getBoundingClientRect();
const texts = [...document.querySelectorAll('h1, h2, p, dd, dt, th, td, a, button, label, li, b, small, span')].filter(
  (each) => each.innerText?.trim() && !each.closest('svg, .skip, #pad-hint, .hidden') && box(each).width > 1);
const own = texts.filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
const lines = own.map((each) => {
  const range = document.createRange();
  range.selectNodeContents(each);
  return [...range.getClientRects()];
});
const overlapping = [];
own.forEach((a, i) => own.slice(i + 1).forEach((b, j) => {
  if (a.contains(b) || b.contains(a)) return;
  if (lines[i].some((one) => lines[i + 1 + j].some((other) => overlap(one, other)))) {
    overlapping.push([a.innerText, b.innerText]);
  }
}));
return {
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  small: own.filter((each) => parseFloat(getComputedStyle(each).fontSize) < 12).map((each) => each.innerText),
  outside: own.filter((each) => box(each).right > innerWidth + 0.5 || box(each).left < -0.5).map((e) => e.innerText),
  cut: own.filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline'
    && getComputedStyle(e).overflow === 'hidden').map((e) => e.innerText),
  overlapping,
};
"""


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1300, 900), (1920, 1080)])
def test_it_can_be_read(page: Browser, served: GatewayProcess, width: int, height: int, scheme: str) -> None:
    page.show_as(width, height, scheme, is_phone=width < 500)
    give_key(page)
    draw(page, "7")
    for version in ("1.0", "1.0-int8-static", "1.0-int8-dynamic"):
        classify(served, version)
    page.until(lambda: page.text("requests") != "0")
    found = page.run(LAYOUT)
    assert found == {"wide": 0, "small": [], "outside": [], "cut": [], "overlapping": []}
    ink, paper = (page.run(f"return getComputedStyle(document.documentElement).{name}") for name in _COLOURS)
    assert _contrast(ink, paper) > 7  # WCAG 2.2, 1.4.6


TABLE = """
const panel = document.querySelector('.versions').getBoundingClientRect();
const cells = [...document.querySelectorAll('#versions td')].filter((each) => each.getBoundingClientRect().width);
const places = (row) => [...row.cells].map((cell) => cell.getBoundingClientRect());
return {
  cut: cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.innerText),
  outside: cells.filter((cell) => cell.getBoundingClientRect().right > panel.right).map((cell) => cell.innerText),
  labels: cells.slice(0, 13).map((cell) => cell.dataset.label),
  rows: [...document.querySelectorAll('#versions tr')].map((row) => new Set(places(row).map(({ top }) => top)).size),
};
"""
FULL = "version.drift = {prediction: 0.123, input: 1.25}; version.fixed_ms = 123.4; version.per_item_ms = 12.3;"


@pytest.mark.parametrize("width", [390, 1200, 1300, 1920])
def test_a_full_table_of_versions_fits(page: Browser, served: GatewayProcess, width: int) -> None:
    page.show_as(width, 900, is_phone=width < 500)
    change_figures(page, served, f"{FULL} version.labels = ['production'];")
    found = page.run(TABLE)
    assert found["labels"][-2:] == ["cost, ms", "drift"]
    assert (found["cut"], found["outside"]) == ([], [])
    if width > 500:
        assert found["rows"] == [1, 1, 1]  # one line of cells for each version


_COLOURS = ("color", "backgroundColor")


def _contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

    def luminance(colour: str) -> float:
        channels = [int(each) / 255 for each in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_it_says_when_the_gateway_is_gone(trained_digits: Trained) -> None:
    env = {"TORCHGATE_WORKERS_PER_VERSION": "1", "TORCHGATE_DRAIN_SECONDS": "300"}
    with gateway_of_workers(trained_digits.store, **env) as gateway, chromium() as browser:
        gateway.until_ready()
        browser.open(f"{gateway.url}/status")
        browser.until_text("requests", lambda text: text == "0")
        gateway.stop()  # which takes less than the drain: an open page does not hold it up
        browser.until_text("state-text", lambda text: "trying again" in text)
