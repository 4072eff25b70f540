"""What an operator does and reads on the status page: signing in, changes by hand, rollouts, events."""

from typing import Any

import httpx
import pytest
from selenium.webdriver.common.by import By

from tests.gateway import TOKEN
from tests.system.browser import Browser
from tests.system.status_page import KEY, OTHER, give_token, press, set_traffic, sign_in, start_rollout, weights
from tests.torchserve_process import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(480)]  # the first one waits for a training


BUTTON = """
const buttons = [...document.querySelectorAll('[data-kind]')];
return buttons.find((each) => each.innerText === arguments[0] && each.offsetParent);
"""


def press_change(page: Browser, name: str) -> None:
    """Press one of the buttons that change something, as soon as it is there."""
    button = page.until(lambda: page.run(BUTTON, name))
    page.run("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()


def confirm(page: Browser) -> None:
    page.until_text("change-now", lambda text: text.startswith("Traffic at present"))
    press(page, "change-confirm")


def stored(page: Browser) -> Any:
    return page.run("return [sessionStorage.length, Object.values(sessionStorage), localStorage.length]")


def test_a_token_typed_once_lets_roll_back(page: Browser, operator: httpx.Client) -> None:
    assert set_traffic(operator, {OTHER: 100}).status_code == 200
    press_change(page, "Roll back digits")
    give_token(page, "a-guess")
    page.until_text("sign-in-problem", lambda text: text.startswith("This token is wrong."))
    (line,) = page.complaints()  # Chromium's own, for each answer that is no success
    assert "403" in line
    assert stored(page) == [0, [], 0]
    give_token(page)
    assert page.until_text("change-now", bool) == f"Traffic at present: {OTHER} 100 %."
    assert weights(operator) == {OTHER: 100}  # nothing is changed before it is confirmed
    page.driver.find_element(By.ID, "change-reason").send_keys("too many mistakes")
    confirm(page)
    assert page.until_text("change-outcome", bool) == "Done: Roll back digits."
    assert page.run("return document.activeElement.id") == "change-outcome"
    assert weights(operator) == {"1.0": 100}
    page.until_text("events", lambda text: "too many mistakes" in text)
    assert stored(page) == [1, [TOKEN], 0]

    page.driver.refresh()
    page.until_text("state-text", lambda text: text == "Live")
    assert page.text("account") == "Sign out"
    page.hosts()
    assert not [url for url in page.urls if TOKEN in url]
    press(page, "account")
    assert page.text("account") == "Sign in"
    assert stored(page) == [0, [], 0]
    press_change(page, "Roll back digits")  # which asks again
    page.until(lambda: page.run("return document.getElementById('sign-in').open"))


def test_a_change_holds_only_for_what_was_shown(page: Browser, operator: httpx.Client) -> None:
    assert set_traffic(operator, {OTHER: 100}).status_code == 200
    sign_in(page)
    press_change(page, "Roll back digits")
    page.until_text("change-now", lambda text: f"{OTHER} 100 %" in text)
    assert set_traffic(operator, {"1.0": 40, OTHER: 60}).status_code == 200
    press(page, "change-confirm")
    page.until_text("change-now", lambda text: f"1.0 40 %, {OTHER} 60 %" in text)
    assert "revision" in page.text("change-problem")
    (line,) = page.complaints()
    assert "412" in line
    assert weights(operator) == {"1.0": 40, OTHER: 60}
    press(page, "change-confirm")  # now that it is known
    page.until_text("change-outcome", bool)
    assert weights(operator) == {OTHER: 100}  # the version that last had everything


@pytest.mark.parametrize(("button", "state", "winner"), [("Promote", "succeeded", OTHER), ("Abort", "aborted", "1.0")])
def test_a_rollout_is_ended_by_hand(
    page: Browser, operator: httpx.Client, button: str, state: str, winner: str
) -> None:
    number = start_rollout(operator)
    press_change(page, button)
    give_token(page)
    confirm(page)
    assert page.until_text("change-outcome", bool) == f"Done: {button} rollout {number} of digits."
    assert weights(operator) == {winner: 100}
    assert operator.get(f"/models/digits/rollouts/{number}").json()["state"] == state
    page.until_text("rollouts", lambda text: f"{button.lower().rstrip('e')}ed by hand" in text)
    buttons = page.driver.find_elements(By.CSS_SELECTOR, "#rollouts [data-kind]")
    assert not [each for each in buttons if each.is_displayed()]


def judge(client: httpx.Client, num_requests: int = 10) -> None:
    """Send requests, and say that the new version is always wrong and the stable one always right."""
    sample = (ROOT / "samples" / "digit-3.png").read_bytes()
    key = {"X-API-Key": KEY, "Authorization": ""}
    for _ in range(num_requests):
        answer = client.post("/predict", content=sample, headers={**key, "Content-Type": "image/png"}).json()
        label = "8" if answer["version"] == OTHER else answer["predictions"][0]["label"]
        given = client.post("/feedback", json={"id": answer["id"], "label": label}, headers=key)
        assert given.status_code == 200, given.text


def test_a_rollout_says_why_it_waits_and_why_it_ended(page: Browser, operator: httpx.Client) -> None:
    number = start_rollout(operator)
    page.until_text("rollouts", lambda text: "No request has been judged in this step" in text)
    assert "Waits at 50 % for 10.0k of 10.0k judged requests" in page.text("rollouts")
    for _ in range(20):
        judge(operator)
        if operator.get(f"/models/digits/rollouts/{number}").json()["state"] != "running":
            break
    page.until_text("rollouts", lambda text: "rolled back" in text and "guard accuracy" in text)

    def guard() -> dict[str, str]:
        """Return the cells of the broken guard, by their headings."""
        cells = "[...document.querySelectorAll('#rollouts tr.broken td')]"
        return dict(page.run(f"return {cells}.map((each) => [each.dataset.label, each.innerText])"))

    page.until(guard)
    assert guard()["new version"].endswith("(100 %)")
    assert "of 8.00" in guard()["evidence / limit"] or "of 8" in guard()["evidence / limit"]
    assert "broken" in guard()["evidence / limit"]
    page.driver.refresh()  # who comes later sees it, too
    page.until(guard)
    assert "fixed limit" in page.text("rollouts")  # of the guard agreement


def test_events_and_refusals_are_listed_the_newest_first(page: Browser, operator: httpx.Client) -> None:
    assert set_traffic(operator, {"1.0": 70, OTHER: 30}).status_code == 200
    refused = operator.put(
        "/models/digits/traffic?reason=a+try",
        json={"weights": {"7.0": 100}},
        headers={"If-Match": "*", "X-Actor": "ann"},
    )
    assert refused.status_code == 404

    def listed() -> list[str]:
        found: list[str] = page.run("return [...document.querySelectorAll('#events li')].map((each) => each.innerText)")
        return found

    page.until(lambda: any("ann" in line for line in listed()))
    lines = listed()
    assert 2 <= len(lines) <= 15
    assert "traffic digits" in lines[0]
    assert "refused" in lines[0]
    assert "admin (ann)" in lines[0]
    assert "a try" in lines[0]
    assert "details after signing in" in lines[0]  # a stranger is not told why
    assert f"traffic: 1.0 70 %, {OTHER} 30 %" in lines[1]
    sign_in(page)
    page.until(lambda: "7.0" in listed()[0])  # the refusal names the version


def test_the_process_is_named_with_its_host_for_readers(page: Browser) -> None:
    page.until_text("gateways", lambda text: "shares its state with no other gateway" in text)
    short = page.run("return document.querySelector('#facts dd').innerText")
    assert len(short) == 8
    sign_in(page)
    page.until(lambda: page.run("return document.querySelector('#facts dd').innerText").endswith(f"-{short}"))
