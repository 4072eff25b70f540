"""deploy/locked has what pyproject.toml asks for, by the versions of constraints.txt; the images' SBOMs are whole."""

import json
import re
import runpy
import shutil
import subprocess
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.requirements import OWN, parts

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / "deploy" / "locked"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
ASKED = parts()
LOCKED_PARTS = ("base", "build", "postgres", "prediction-log", "setup", "tracing", "torchserve", "training")
PARTS: dict[str, set[str]] = {part: ASKED[part] for part in LOCKED_PARTS}
PARTS["shared"] = PARTS["torchserve"] & PARTS["training"]
PARTS["serve"] = PARTS["base"] | PARTS["setup"] | PARTS["training"] | PARTS["torchserve"]
PARTS["all"] = PARTS["serve"] | ASKED["dev"]
# No hash fits torch's files on both indexes; cuda.in has what only one of them asks for.
NOT_LOCKED = {"torch", *(LOCKED / "cuda.in").read_text().splitlines()[1:]}


def pins(text: str) -> dict[str, Requirement]:
    """Return the requirements of a file, by name, without their hashes."""
    lines = [HASH.sub("", line).strip() for line in text.replace("\\\n", "").splitlines()]
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): each for each in requirements}


def here(requirement: Requirement, extras: set[str] | None = None) -> bool:
    """Whether the requirement holds on this machine, for one of these extras or for none."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def needed(wanted: set[str]) -> set[str]:
    """Return the names of all that these need, by the metadata of what is installed."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(each) for each in wanted]
    while waiting:
        one = waiting.pop()
        key = canonicalize_name(one.name), frozenset(one.extras)
        if key in found or key[0] in NOT_LOCKED - {"torch"}:
            continue
        found.add(key)
        needs = [Requirement(each) for each in requires(one.name) or ()]
        waiting += [each for each in needs if here(each, {"", *one.extras})]
    return {name for name, _ in found} - NOT_LOCKED


CONSTRAINTS = pins((ROOT / "constraints.txt").read_text())


def test_each_part_has_a_lock() -> None:
    assert {path.stem for path in LOCKED.glob("*.txt")} == PARTS.keys()


@pytest.mark.parametrize("part", PARTS)
def test_a_lock_has_all_that_its_part_needs_and_nothing_else(part: str) -> None:
    locked = {name for name, requirement in pins((LOCKED / f"{part}.txt").read_text()).items() if here(requirement)}
    assert locked == needed(PARTS[part]), "run `make lock`"


@pytest.mark.parametrize("part", PARTS)
def test_a_lock_has_the_versions_of_the_constraints_and_a_hash_for_each(part: str) -> None:
    text = (LOCKED / f"{part}.txt").read_text()
    for name, requirement in pins(text).items():
        assert requirement.specifier == CONSTRAINTS[name].specifier, f"{name}: run `make lock`"
    assert all(HASH.search(entry) for entry in text.replace("\\\n", "").splitlines() if "==" in entry)
    assert "://" not in text


def test_the_client_is_installed_from_here_and_never_looked_up() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert OWN in pyproject["project"]["dependencies"]
    assert not any(OWN in wanted for wanted in ASKED.values())
    assert not any(OWN in (LOCKED / f"{part}.txt").read_text() for part in PARTS)
    # The two places that install torchgate: neither lets pip look for what is missing.
    assert "--no-deps --no-build-isolation -e . -e client" in (ROOT / "Makefile").read_text()
    assert re.search(r"pip wheel .*--no-deps .* /build /build/client\n", (ROOT / "Dockerfile").read_text())


def test_who_serves_installs_no_tools_of_developers() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^serve: \$\(RUNNABLE\) ", makefile, re.MULTILINE)
    assert not {"ruff", "mypy", "pytest", "selenium"} & pins((LOCKED / "serve.txt").read_text()).keys()


def test_every_constraint_is_locked() -> None:
    assert CONSTRAINTS.keys() - pins((LOCKED / "all.txt").read_text()).keys() == {"torch"}


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="images have Debian's packages")
def test_an_sbom_lists_debian_and_python_packages() -> None:
    sbom = json.loads(json.dumps(runpy.run_path(str(ROOT / "deploy" / "sbom.py"))["sbom"]("torchgate-test")))
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", "torchgate-test")
    purls = [component["purl"] for component in sbom["components"]]
    assert len(purls) == len(set(purls))
    python = {f"pkg:pypi/{name}@{next(iter(each.specifier)).version}" for name, each in CONSTRAINTS.items()}
    locked = {name for name in needed(PARTS["all"]) if name != "torch"}
    assert {purl for purl in python if purl.partition("@")[0].removeprefix("pkg:pypi/") in locked} <= set(purls)
    debian = subprocess.run(["dpkg", "-l"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert sum(purl.startswith("pkg:deb/") for purl in purls) == len(re.findall(r"^[ih]i", debian, re.MULTILINE))
