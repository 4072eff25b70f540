"""docker-compose.yml keeps its services apart and bounded; tests/compose.sh runs it."""

from typing import Any

import pytest
import yaml

from tests.torchserve_process import ROOT

FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]


def neighbours(service: str) -> set[str]:
    """Return whom a service reaches."""
    networks = set(SERVICES[service].get("networks", ()))
    return {other for other in SERVICES if other != service and networks & set(SERVICES[other].get("networks", ()))}


def test_each_service_reaches_only_whom_it_needs() -> None:
    assert neighbours("grafana") == {"prometheus"}
    assert neighbours("torchserve") == {"gateway", "prometheus"}
    assert neighbours("gateway") == {"torchserve", "prometheus"}
    assert not neighbours("trainer")


def test_there_is_no_way_out() -> None:
    for name, network in FILE["networks"].items():
        masquerades = network.get("driver_opts", {}).get("com.docker.network.bridge.enable_ip_masquerade", "true")
        assert network.get("internal") or masquerades == "false", name


def test_registration_is_a_socket_of_two_services() -> None:
    mounted = {name for name, each in SERVICES.items() if "management:/run/torchserve" in each.get("volumes", ())}
    sockets = {
        name: each["environment"]["TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET"]
        for name, each in SERVICES.items()
        if "TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET" in each.get("environment", ())
    }
    assert mounted == {"torchserve", "gateway"}
    assert sockets == dict.fromkeys(mounted, "/run/torchserve/management")


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_is_bounded_and_has_no_privileges(service: str) -> None:
    settings = SERVICES[service]
    assert settings["pids_limit"] == 512
    assert settings["mem_limit"]
    assert settings["read_only"]
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("service", ["gateway", "torchserve", "trainer"])
def test_our_services_have_room_for_temporary_files(service: str) -> None:
    assert SERVICES[service]["tmpfs"][0].startswith("/tmp")  # noqa: S108 - all else is read-only
