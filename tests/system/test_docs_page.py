"""The API's documentation in a real browser: it works without the internet and within its policy."""

from pathlib import Path

import pytest

from tests.gateway import GatewayProcess
from tests.system.browser import chromium

pytestmark = pytest.mark.system


def test_the_documentation_works_within_its_policy(tmp_path: Path) -> None:
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path)) as gateway, chromium() as browser:
        browser.open(f"{gateway.url}/docs")
        operation = "return document.querySelector('[id$=healthz_healthz_get]')"
        browser.until(lambda: browser.run(operation))
        assert "torchgate" in browser.text("swagger-ui")
        browser.run(f"{operation.removeprefix('return ')}.querySelector('button').click()")
        for button in ("try-out__btn", "execute"):
            browser.until(lambda: browser.run(f"return document.querySelector('.{button}')"))  # noqa: B023
            browser.run(f"document.querySelector('.{button}').click()")
        browser.until(lambda: '"ok"' in browser.text("swagger-ui"))
        assert browser.complaints() == []
        assert browser.hosts() == {gateway.url.removeprefix("http://")}
