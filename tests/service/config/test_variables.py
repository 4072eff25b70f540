"""Which TORCHGATE_ variables are known: all that something here reads, and no others."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from service.config.variables import OF_OTHERS, REMOVED, require_known
from tests.torchserve_process import ROOT

READ_AT = ("service", "handlers", "training", "deploy", "Makefile", "Dockerfile", "docker-compose.yml")
KINDS = {".py", ".sh", ".yml", ".yaml", ".conf", ""}


def used() -> dict[str, set[str]]:
    """Return the variables that programs here name, with the files that do."""
    found: dict[str, set[str]] = defaultdict(set)
    for place in READ_AT:
        for path in (path for path in [ROOT / place, *(ROOT / place).rglob("*")] if path.is_file()):
            if Path(path.name).suffix in KINDS:
                for name in re.findall(r"\bTORCHGATE_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()):
                    found[name].add(path.name)
    return found


def test_every_variable_of_this_repository_is_known() -> None:
    names = used().keys() - REMOVED.keys() - {"TORCHGATE_TORCHSERVE"}  # TORCHGATE_TORCHSERVE_*
    assert len(names) > 40
    require_known(names)


def test_what_other_programs_read_is_named_by_one() -> None:
    files = used()
    for name in OF_OTHERS:
        assert files[name] - {"variables.py"}, name


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("TORCHGATE_BACKND", "Did you mean TORCHGATE_BACKEND?"),
        ("torchgate_admin_tokn", "Did you mean TORCHGATE_ADMIN_TOKEN?"),
        ("TORCHGATE_PROCESSES", "several gateways on one TORCHGATE_DATABASE_URL"),
        ("TORCHGATE_FLUX_CAPACITOR", "`torchgate settings` lists all"),
    ],
)
def test_what_nothing_reads_is_refused_by_name(name: str, named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: ") as caught:
        require_known(["PATH", "TORCHGATE_PORT", name])
    assert named in str(caught.value)


def test_what_kubernetes_sets_for_a_service_called_torchgate_is_no_mistake() -> None:
    ports = [f"TORCHGATE_PORT_8000_TCP{end}" for end in ("", "_PROTO", "_PORT", "_ADDR")]
    require_known(["TORCHGATE_SERVICE_HOST", "TORCHGATE_SERVICE_PORT", "TORCHGATE_SERVICE_PORT_HTTP", *ports])
    require_known(["TORCHGATE_ADMIN_SERVICE_HOST", "torchgate_port"])
