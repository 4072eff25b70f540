"""A gateway with two listeners: the public one predicts, the other answers everything."""

import socket
from pathlib import Path

import httpx

from service.app import create_app
from service.config.settings import Settings
from service.http.request_middleware import RequestMiddleware
from service.http.server.request_checks import PUBLIC_PATHS
from tests.fake_backend import FakeBackend, FakeControl
from tests.gateway import AUTHORIZATION, GatewayProcess
from tests.service.test_main import torchgate


def paths_of_the_api() -> set[str]:
    app = create_app(Settings.model_construct(), FakeBackend(), FakeControl({}))
    assert isinstance(app, RequestMiddleware)
    document = app._app.openapi()  # type: ignore[attr-defined]
    return {path.format_map(_Names()) for path in document["paths"]}


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "digits"


def test_the_public_listener_only_predicts(tmp_path: Path) -> None:
    env = {"TORCHGATE_MODEL_STORE": str(tmp_path), "TORCHGATE_ADMIN_PORT": "0"}
    with (
        GatewayProcess(**env) as gateway,
        httpx.Client(base_url=gateway.url, trust_env=False, headers=AUTHORIZATION) as public,
        httpx.Client(base_url=gateway.admin_url, trust_env=False, headers=AUTHORIZATION) as admin,
    ):
        assert public.get("/healthz").status_code == 200
        assert public.get("/readyz").status_code == 503  # no TorchServe
        for client in (public, admin):
            refused = client.post("/predict", content=b"an image", headers={"Content-Type": "image/png"})
            assert refused.json()["code"] != "admin_listener_only"
            assert client.post("/feedback", json={}).json()["code"] != "admin_listener_only"
        paths = paths_of_the_api() | {"/docs", "/openapi.json", "/docs/swagger-ui.css", "/nowhere", "/predict/", "//"}
        assert paths > PUBLIC_PATHS
        for path in paths - PUBLIC_PATHS:
            for method in ("GET", "PUT", "POST", "DELETE"):
                answer = public.request(method, path)
                assert (answer.status_code, answer.json()["code"]) == (404, "admin_listener_only"), path
                assert "TORCHGATE_ADMIN_PORT" in answer.json()["detail"]
        for path in ("/metrics", "/status", "/docs", "/models"):
            assert admin.get(path).status_code == 200
        change = admin.put("/models/digits/labels/stable", json={"version": "1.0"}, headers={"If-Match": "*"})
        assert change.json()["code"] in {"model_not_found", "state_unavailable"}  # by how far the start is


def test_each_listener_has_its_own_hosts(tmp_path: Path) -> None:
    env = {"TORCHGATE_MODEL_STORE": str(tmp_path), "TORCHGATE_ADMIN_PORT": "0", "TORCHGATE_HOST": "0.0.0.0"}  # noqa: S104
    with GatewayProcess(**env) as gateway:
        headers = {"Host": "rebound.example"}
        public = gateway.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        assert httpx.get(f"{public}/healthz", headers=headers, trust_env=False).status_code == 200
        assert httpx.get(f"{gateway.admin_url}/metrics", headers=headers, trust_env=False).status_code == 421
        assert httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).status_code == 200


def test_a_taken_admin_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = torchgate("check", TORCHGATE_PORT="0", TORCHGATE_ADMIN_PORT=port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "TORCHGATE_ADMIN_PORT" in done.stderr
