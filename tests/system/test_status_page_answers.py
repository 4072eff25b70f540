"""What one can do with an answer on the status page: repeat its request, judge it, or ask with an image alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.gateway import GatewayProcess
from tests.system.browser import Browser
from tests.system.status_page import KEY, change_figures, draw, give_key, press, verdict
from tests.torchserve_process import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(480)]  # the first one waits for a training

COLOURED = "if (version.version === '1.0-int8-static') version.input = {channels: 3, height: 224, width: 224};"


def choose(page: Browser, name: str) -> None:
    """Choose which version is asked."""
    Select(page.driver.find_element(By.ID, "target")).select_by_visible_text(name)


def copied(page: Browser, served: GatewayProcess, element_id: str) -> str:
    """Press a button that copies; return what the clipboard holds then."""
    allowed = {"origin": served.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    press(page, element_id)
    page.until_text("copied", lambda text: text == "Copied")
    return str(page.run("return navigator.clipboard.readText()"))


def run(command: list[str], folder: Path) -> str:
    env = {**os.environ, "GATEWAY_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("button", ["copy-curl", "copy-python"])
def test_a_copied_command_repeats_the_request(
    page: Browser, served: GatewayProcess, tmp_path: Path, button: str
) -> None:
    name = "it's a four.png"
    shutil.copy(ROOT / "samples" / "digit-4.png", tmp_path / name)
    give_key(page)
    choose(page, "digits 1.0-int8-static")
    page.driver.find_element(By.ID, "file").send_keys(str(tmp_path / name))
    assert verdict(page) == "4"
    text = copied(page, served, button)
    assert KEY not in text
    assert served.url in text
    if button == "copy-curl":
        answer = run(["sh", "-c", text], tmp_path)
        assert '"version":"1.0-int8-static"' in answer
        assert '"label":"4"' in answer
    else:
        assert 'version="1.0-int8-static"' in text
        assert run([sys.executable, "-c", text], tmp_path).startswith("4 ")


def test_a_drawing_has_a_file_name_in_its_command(page: Browser, served: GatewayProcess) -> None:
    give_key(page)
    draw(page, "7")
    assert "'@digit.png'" in copied(page, served, "copy-curl")


def test_without_a_clipboard_the_command_is_selected(page: Browser) -> None:
    give_key(page)
    draw(page, "7")
    page.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    press(page, "copy-curl")
    page.until_text("copied", lambda text: "Copy the selected text" in text)
    assert page.run("return document.activeElement.id") == "command"
    assert page.run("return window.getSelection().toString()").startswith("curl --data-binary")


def feedback(served: GatewayProcess) -> tuple[int, int]:
    """Return how often the version was right and how often it was wrong, by what people said."""
    answer = httpx.get(f"{served.url}/models/digits/quality", headers={"X-API-Key": KEY}, trust_env=False)
    (counted,) = [each["feedback"] for each in answer.json()["versions"] if each["version"] == "1.0"]
    num_right = round(counted["num_labelled"] * (counted["accuracy"] or 0))
    return num_right, counted["num_labelled"] - num_right


def test_right_is_counted_once(page: Browser, served: GatewayProcess) -> None:
    num_right, num_wrong = feedback(served)
    give_key(page)
    draw(page, "7")
    press(page, "right")
    assert page.until_text("outcome", bool) == "Counted for digits 1.0: right."
    assert not page.driver.find_element(By.ID, "right").is_displayed()
    assert page.run("return document.activeElement.id") == "outcome"
    assert feedback(served) == (num_right + 1, num_wrong)
    draw(page, "1")
    assert page.driver.find_element(By.ID, "right").is_displayed()
    assert page.text("outcome") == ""


def test_wrong_asks_for_the_right_class_by_the_keyboard(page: Browser, served: GatewayProcess) -> None:
    num_right, num_wrong = feedback(served)
    give_key(page)
    draw(page, "7")
    page.run("document.getElementById('wrong').focus()")
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    page.until(lambda: page.run("return document.activeElement.id") == "right-class")
    offered = [each.text for each in Select(page.driver.find_element(By.ID, "right-class")).options]
    assert offered == [str(digit) for digit in range(10) if digit != 7]
    assert page.run("return document.getElementById('wrong').ariaExpanded") == "true"
    ActionChains(page.driver).send_keys("1", Keys.TAB, Keys.ENTER).perform()
    assert page.until_text("outcome", bool) == "Counted for digits 1.0: wrong, it is 1."
    assert feedback(served) == (num_right, num_wrong + 1)


def test_feedback_that_is_refused_can_be_sent_again(page: Browser) -> None:
    give_key(page)
    draw(page, "7")
    page.driver.find_element(By.ID, "key").clear()
    press(page, "right")
    page.until_text("outcome", lambda text: "API key" in text)
    (line,) = page.complaints()
    assert "401" in line
    give_key(page)
    press(page, "right")
    page.until_text("outcome", lambda text: text.startswith("Counted"))


def test_one_draws_only_for_small_grey_inputs(page: Browser, served: GatewayProcess) -> None:
    change_figures(page, served, COLOURED)
    give_key(page)
    pad, help_text = (page.driver.find_element(By.ID, name) for name in ("pad", "drop-help"))
    assert (pad.is_displayed(), help_text.is_displayed()) == (True, False)
    draw(page, "7")
    choose(page, "digits 1.0-int8-static")
    assert (pad.is_displayed(), help_text.is_displayed()) == (False, True)
    assert page.text("verdict") == ""  # a drawing is no image for this version
    skip = page.driver.find_element(By.CLASS_NAME, "skip")
    assert skip.get_attribute("textContent") == "Skip to the choice of an image"
    press(page, "ask")
    assert page.text("verdict") == "Choose an image first."
    page.driver.find_element(By.ID, "file").send_keys(str(ROOT / "samples" / "digit-4.png"))
    assert verdict(page) == "4"
    choose(page, "digits 1.0")
    assert pad.is_displayed()
