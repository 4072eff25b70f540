"""axe-core finds no barrier on the gateway's pages, narrow and wide, light and dark."""

from pathlib import Path

import httpx
import pytest

from tests.gateway import GatewayProcess
from tests.system.axe import barriers
from tests.system.browser import Browser, chromium
from tests.system.status_page import draw, give_key, press, sign_in, start_rollout

pytestmark = [pytest.mark.system, pytest.mark.timeout(480)]  # the first one waits for a training

VIEWS = pytest.mark.parametrize(("width", "scheme"), [(w, s) for w in (390, 1300) for s in ("light", "dark")])


@VIEWS
def test_the_status_page_has_no_barrier(page: Browser, operator: httpx.Client, width: int, scheme: str) -> None:
    start_rollout(operator)
    page.show_as(width, 900, scheme, is_phone=width < 500)
    assert barriers(page) == []
    give_key(page)
    draw(page, "7")
    press(page, "wrong")
    sign_in(page)
    for panel in ("quality", "events", "rollouts"):
        page.until_text(panel, bool)
    page.until(lambda: page.run("return document.querySelectorAll('.guards tbody tr').length") == 4)
    assert barriers(page) == []
    page.run("document.querySelector('[data-kind=rollback]').click()")
    page.until_text("change-now", bool)
    assert barriers(page) == []
    page.run("document.getElementById('change').close(); document.getElementById('account').click()")
    press(page, "account")
    page.until(lambda: page.run("return document.getElementById('sign-in').open"))
    assert barriers(page) == []


@VIEWS
@pytest.mark.parametrize("path", ["docs", "errors"])
def test_the_other_pages_have_no_barrier(tmp_path: Path, path: str, width: int, scheme: str) -> None:
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path)) as gateway, chromium() as browser:
        browser.show_as(width, 900, scheme, is_phone=width < 500)
        browser.open(f"{gateway.url}/{path}")
        browser.until(lambda: browser.run("return document.querySelector('h1, h2')"))
        assert barriers(browser, "#swagger-ui") == []  # Swagger UI has many; its files are not ours


def test_a_barrier_is_found(page: Browser) -> None:
    page.run("document.getElementById('account').textContent = ''")
    assert any(each.startswith("button-name") for each in barriers(page))
