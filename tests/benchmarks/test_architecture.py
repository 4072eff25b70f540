"""Reads the benchmark's imports: arrows between its packages point one way, and files and folders stay small."""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from benchmarks.environment.folders import ROOT

BENCHMARKS = ROOT / "benchmarks"
# A package may import itself and the packages of lower rows. "" are the modules in no package: the verbs.
ROWS = (
    "environment",
    "peers",
    "load",
    "workloads",
    "systems",
    "tasks",
    "costs",
    "suite",
    "report",
    "pairs",
    "training",
    "",
)
PACKAGES = {path.name for path in BENCHMARKS.iterdir() if (path / "__init__.py").is_file()}
MAX_MODULES, MAX_LINES, MAX_MEDIAN_LINES = 12, 300, 100
MAX_LINES_IN_ALL = 3_850


def sources() -> list[Path]:
    paths = (path.relative_to(BENCHMARKS) for path in BENCHMARKS.rglob("*.py"))
    return sorted(path for path in paths if path.parts[0] != "out")


def package(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else ""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((BENCHMARKS / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where an arrow points"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("row", ROWS)
def test_arrows_point_one_way(row: str) -> None:
    allowed = ROWS[: ROWS.index(row) + 1]
    of_row = [path for path in sources() if package(path) == row]
    assert of_row
    for path in of_row:
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "benchmarks" and parts[1] in PACKAGES:
                assert parts[1] in allowed, f"benchmarks/{path} imports {name}"
            assert parts[0] != "tests", f"benchmarks/{path} imports {name}"


def test_every_package_has_a_row() -> None:
    assert {package(path) for path in sources()} == set(ROWS)
    assert len(ROWS) <= 15


def test_files_and_folders_stay_small() -> None:
    lines = {path: len((BENCHMARKS / path).read_text().splitlines()) for path in sources()}
    modules = [path for path in lines if path.name != "__init__.py"]
    for row in ROWS:
        assert sum(package(path) == row for path in modules) <= MAX_MODULES, row
    assert max(lines.values()) <= MAX_LINES
    assert median(lines[path] for path in modules) <= MAX_MEDIAN_LINES
    assert sum(lines.values()) <= MAX_LINES_IN_ALL


@pytest.mark.parametrize("path", [path for path in sources() if package(path) == "peers"], ids=str)
def test_the_harness_imports_no_server(path: Path) -> None:
    """Servers import the peers' packages, which the project's own environment does not have."""
    if path.stem in ("__init__", "variables"):
        return
    for other in sources():
        if package(other) != "peers":
            assert not any(name.startswith(f"benchmarks.peers.{path.stem}") for name in imported(other)), other
