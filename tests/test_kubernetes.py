"""deploy/kubernetes/torchgate.yaml agrees with the code and the images; no cluster runs it here."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.config.settings import Settings
from service.config.variables import require_known
from service.http.server.request_checks import PUBLIC_PATHS
from service.persistence.leader_lease import LOOPBACK, model_server_lease
from tests.torchserve_process import ROOT

PARTS: dict[str, dict[str, Any]] = {
    part["kind"]: part for part in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "torchgate.yaml").read_text())
}
POD: dict[str, Any] = PARTS["Deployment"]["spec"]["template"]["spec"]
CONTAINERS: dict[str, dict[str, Any]] = {each["name"]: each for each in POD["initContainers"] + POD["containers"]}
GATEWAY = CONTAINERS["gateway"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
STOP_SECONDS = 10  # as docs/how-to/operate/upgrades.md says


def environment(container: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in CONTAINERS[container].get("env", ())}


def of_image(name: str) -> str:
    """Return an image's own instructions."""
    return DOCKERFILE.split(f" AS {name}\n")[1].split("\nFROM ")[0]


def settings(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Settings:
    """Return the settings by the environments of image and pod, with the pod's folders and secrets in `folder`."""
    for name in [name for name in os.environ if name.startswith("TORCHGATE_")]:
        monkeypatch.delenv(name)
    (folder / "archives").mkdir(mode=0o700)
    for volume in POD["volumes"]:
        for item in volume.get("secret", {}).get("items", ()):
            (folder / item["path"]).write_text("postgresql://gate@database/gate\n")
    values = dict(re.findall(r"(TORCHGATE_\w+)=(\S+)", of_image("base") + of_image("gateway"))) | environment("gateway")
    require_known(values)
    for name, value in values.items():
        monkeypatch.setenv(name, re.sub(r"^/(secrets|shared)/", f"{folder}/", value))
    return Settings()


def test_the_gateway_starts_with_this_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = settings(monkeypatch, tmp_path)
    assert made.state_url.startswith("postgresql://")  # as several gateways need
    assert made.admin_token is not None
    assert made.keys
    assert made.host == "0.0.0.0"  # noqa: S104 - the kubelet and the service come from outside
    assert {each["containerPort"] for each in GATEWAY["ports"]} == {made.port}


def test_secrets_come_as_files_into_the_gateway_alone() -> None:
    (secret,) = [volume for volume in POD["volumes"] if "secret" in volume]
    keys = {item["path"] for item in secret["secret"]["items"]}
    assert {value for name, value in environment("gateway").items() if name.endswith("_FILE")} == {
        f"/secrets/{key}" for key in keys
    }
    holders = [name for name, each in CONTAINERS.items() if secret["name"] in mounts(each)]
    assert holders == ["gateway"]


def mounts(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in container["volumeMounts"]}


def test_the_probes_ask_what_every_listener_answers() -> None:
    paths = {kind: GATEWAY[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")}
    assert paths["liveness"]["path"] == "/healthz"
    assert paths["readiness"]["path"] == "/readyz"
    assert {each["path"] for each in paths.values()} <= PUBLIC_PATHS
    names = {each["name"] for each in GATEWAY["ports"]}
    assert {each["port"] for each in paths.values()} == names
    assert {each["targetPort"] for each in PARTS["Service"]["spec"]["ports"]} == names


def test_torchserve_is_asked_as_its_image_asks() -> None:
    probe = CONTAINERS["torchserve"]["livenessProbe"]["exec"]["command"]
    (asked,) = re.findall(r"HEALTHCHECK .*?\\\n\s*(\[.*\])", of_image("torchserve"))
    assert yaml.safe_load(asked) == probe


def test_there_is_time_to_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = settings(monkeypatch, tmp_path)
    (torchserve,) = re.findall(r"^stop_seconds=(\d+)$", (ROOT / "deploy" / "torchserve.sh").read_text(), re.MULTILINE)
    needed = made.lame_duck_seconds + made.drain_seconds + STOP_SECONDS + int(torchserve)
    assert POD["terminationGracePeriodSeconds"] >= needed
    probe = GATEWAY["readinessProbe"]
    assert made.lame_duck_seconds > probe["periodSeconds"] * probe["failureThreshold"]
    # A sidecar stops after the gateway, an ordinary container beside it.
    assert CONTAINERS["torchserve"]["restartPolicy"] == "Always"
    assert CONTAINERS["torchserve"] in POD["initContainers"]


def test_pods_on_one_node_have_model_servers_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host, port = settings(monkeypatch, tmp_path).model_server
    assert host in LOOPBACK
    assert isinstance(port, int)
    names = set()
    for pod in ("torchgate-a", "torchgate-b"):
        monkeypatch.setattr("socket.gethostname", lambda pod=pod: pod)
        names.add(model_server_lease(host, port))
    assert len(names) == 2
    assert not POD.get("hostNetwork")


def test_both_use_one_folder_that_the_gateway_alone_writes() -> None:
    name = "TORCHGATE_VERIFIED_ARCHIVES_DIR"
    assert environment("torchserve")[name] == environment("gateway")[name] == CONTAINERS["folders"]["command"][-1]
    assert mounts(CONTAINERS["torchserve"])["shared"]["readOnly"]
    assert not mounts(GATEWAY)["shared"].get("readOnly")
    assert set(environment("torchserve")) <= set(
        re.findall(r"TORCHGATE_\w+", (ROOT / "deploy/torchserve.sh").read_text())
    )


def test_no_service_variable_takes_the_place_of_a_setting() -> None:
    assert PARTS["Service"]["metadata"]["name"].upper() == "TORCHGATE"
    assert "port" in Settings.model_fields
    assert POD["enableServiceLinks"] is False


def test_the_images_commands_run() -> None:
    commands = {"gateway": ["torchgate", "serve"], "torchserve": ["deploy/torchserve.sh"]}
    for name, command in commands.items():
        assert not {"command", "args"} & set(CONTAINERS[name])
        (given,) = re.findall(r"^CMD (\[.*\])", of_image(name), re.MULTILINE)
        assert yaml.safe_load(given) == command
    assert CONTAINERS["folders"]["command"][:-1] == ["mkdir", "-p", "-m", "700"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_each_container_has_no_privileges(name: str) -> None:
    container = CONTAINERS[name]
    (user,) = re.findall(r"useradd --uid (\d+)", DOCKERFILE)
    assert POD["securityContext"]["runAsUser"] == int(user)
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    if name != "folders":
        assert "/tmp" in {each["mountPath"] for each in container["volumeMounts"]}  # noqa: S108 - all else is read-only
        assert container["resources"]["limits"]["memory"]
        assert f" AS {name}\n" in DOCKERFILE
        assert container["image"] == f"torchgate-{name}:latest"


def test_memory_is_as_with_compose() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("gateway", "torchserve"):
        given = CONTAINERS[name]["resources"]["limits"]["memory"]
        assert given.removesuffix("Gi") == compose[name]["mem_limit"].removesuffix("g")
