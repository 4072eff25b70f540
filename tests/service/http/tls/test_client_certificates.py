"""Who may change things with a client certificate, and as whom the event log knows them."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.certificates import Files
from tests.gateway import AUTHORIZATION, Rig, running_gateway

pytestmark = pytest.mark.anyio

CHANGE = "/models/digits/labels/stable"
BODY = {"version": "1.0"}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path, trustme.CA())
    made.issue()
    return made


@asynccontextmanager
async def gateway_of(files: Files, **settings: Any) -> AsyncIterator[Rig]:
    async with running_gateway(
        files.folder,
        verify=files.trust,
        tls_cert_file=files.certificate,
        tls_key_file=files.key,
        tls_client_ca_file=files.write_ca(),
        **settings,
    ) as rig:
        yield rig


async def change(rig: Rig, trust: ssl.SSLContext, headers: dict[str, str]) -> httpx.Response:
    """Ask for a change on a connection of its own."""
    async with httpx.AsyncClient(base_url=rig.url, verify=trust, trust_env=False, timeout=20) as client:
        return await client.put(CHANGE, json=BODY, headers={"If-Match": "*", **headers})


async def last_actor(rig: Rig) -> str:
    events = (await rig.client.get("/models/digits/events")).json()["events"]
    return str(next(event["actor"] for event in events if event["subject"] == "stable"))


@pytest.mark.parametrize(
    ("setting", "has_certificate", "has_token", "actor"),
    [
        ("accept", True, False, "CN=alice"),
        ("accept", True, True, "CN=alice"),
        ("accept", False, True, "admin"),
        ("accept", False, False, None),
        ("require", True, True, "CN=alice"),
        ("require", True, False, None),
        ("require", False, True, None),
    ],
)
async def test_a_change_needs_what_the_setting_says(
    files: Files, setting: str, has_certificate: bool, has_token: bool, actor: str | None
) -> None:
    async with gateway_of(files, client_certificates=setting) as rig:
        trust = files.trust_as("alice") if has_certificate else files.trust
        answer = await change(rig, trust, dict(AUTHORIZATION) if has_token else {})
        if actor is None:
            assert (answer.status_code, answer.json()["code"]) == (401, "credentials_missing")
        else:
            assert answer.status_code == 200, answer.text
            assert actor in await last_actor(rig)
        assert (await rig.predict(b"class:1")).status_code == 200  # which needs none


async def test_a_certificate_without_a_subject_is_known_by_its_other_names(files: Files) -> None:
    async with gateway_of(files, client_certificates="accept") as rig:
        answer = await change(rig, files.trust_without_subject("spiffe://example.org/ops"), {})
        assert answer.status_code == 200, answer.text
        assert await last_actor(rig) == "URI=spiffe://example.org/ops"


async def test_a_certificate_of_another_ca_comes_in_nowhere(files: Files) -> None:
    async with gateway_of(files, client_certificates="accept") as rig:
        trust = files.trust
        trustme.CA().issue_cert("mallory@example.org", common_name="alice").configure_cert(trust)
        with pytest.raises(httpx.TransportError):
            await change(rig, trust, {})


async def test_a_proxys_certificate_does_not_speak_for_its_clients(files: Files) -> None:
    async with gateway_of(files, client_certificates="accept", trusted_proxies="127.0.0.1") as rig:
        answer = await change(rig, files.trust_as("proxy"), {"X-Forwarded-For": "203.0.113.7"})
        assert answer.status_code == 401


async def test_the_command_line_shows_its_certificate(files: Files) -> None:
    pem, ca = files.folder / "bob.pem", files.write_ca()
    pem.write_bytes(
        files.ca.issue_cert("bob@example.org", common_name="bob, or so").private_key_and_cert_chain_pem.bytes()
    )
    async with gateway_of(files, client_certificates="accept") as rig:
        command = [sys.executable, "-m", "service", "labels", "set", "digits", "stable", "1.0", "--url", rig.url]
        env = {**os.environ, "TORCHGATE_CA_FILE": str(ca), "TORCHGATE_CLIENT_CERT_FILE": str(pem)}

        async def run(**changes: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(
                subprocess.run, command, env={**env, **changes}, capture_output=True, text=True, timeout=60, check=False
            )

        done = await run()
        assert done.returncode == 0, done.stderr
        assert "CN=bob\\, or so (" in await last_actor(rig)
        done = await run(TORCHGATE_CA_FILE="")
        assert done.returncode == 1
        assert "certificate verify failed" in done.stderr.lower()
        assert "Name the CA of the gateway's certificate in TORCHGATE_CA_FILE" in done.stderr
        command[-1] = rig.url.replace("https:", "http:")
        done = await run()
        assert done.returncode == 1
        assert "its URL begins with https" in done.stderr
        command[-1] = rig.url
        done = await run(TORCHGATE_CLIENT_CERT_FILE=str(ca))
        assert done.returncode == 1
        assert "TORCHGATE_CLIENT_CERT_FILE" in done.stderr
