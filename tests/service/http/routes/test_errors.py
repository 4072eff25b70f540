"""The page that a problem's `type` leads to."""

import re
from pathlib import Path

import pytest

from service.errors.catalog import IMAGE_CODES, errors_with_code
from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio


async def test_a_problem_leads_to_its_explanation(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        for problem, code in (
            (await rig.client.get("/nowhere"), "route_not_found"),
            (await rig.predict(b"reject:image_truncated"), "image_truncated"),
        ):
            path, _, anchor = problem.json()["type"].partition("#")
            assert anchor == problem.json()["code"] == code
            page = await rig.client.get(path)
            assert page.headers["content-type"].startswith("text/html")
            assert f'<section id="{anchor}">' in page.text
        found = set(re.findall(r'<section id="(\w+)">', page.text))
        assert found == {each.code for each in errors_with_code()} | set(IMAGE_CODES)
        assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
