"""Reads the imports: arrows between packages point one way, and only data crosses between the rooms."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("service", "handlers", "training")

# What each room may not import: the other rooms, and outside packages that weigh.
FORBIDDEN = {
    "service": ("handlers", "training", "benchmarks", "tests", "torch", "numpy", "PIL", "ts"),
    "handlers": ("service", "training", "benchmarks", "tests", "ts", "fastapi", "httpx"),
    "training": ("service", "handlers", "benchmarks", "tests", "ts", "fastapi", "httpx"),
    "client": ("service", "handlers", "training", "benchmarks", "tests", "torch", "pydantic", "fastapi"),
}
# Runs in processes of its own, where torch and TorchServe are.
WORKERS_PROGRAM = "service.backends.embedded.launch"
# The gateway's packages: each may import itself, what its row names, and what those may import in turn.
PACKAGES: dict[str, tuple[str, ...]] = {
    "__main__": ("app", "cli", "doctor"),
    "app": ("http",),
    "http": ("admin", "process"),
    "admin": ("serving",),
    "serving": ("batching", "monitoring"),
    "batching": ("backends", "persistence"),
    "monitoring": ("backends", "persistence"),
    "backends": ("telemetry",),
    "persistence": ("telemetry",),
    "telemetry": ("domain",),
    "process": ("config", "errors"),
    "domain": ("config", "errors"),
    "config": (),
    "errors": (),
    "cli": ("config",),
    "doctor": ("serving", "process"),
}
# Outside packages that are known in one place alone.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "grpc": ("backends/torchserve/",),
    "google": ("backends/torchserve/",),
    "httpx": ("backends/torchserve/", "cli/token.py"),
    "torchgate_client": ("cli/",),
    "fastapi": ("http/", "app.py"),
    "fastapi_swagger": (),  # only its files are read
    "starlette": ("http/", "app.py"),
    "uvicorn": ("http/server/",),
    "sqlalchemy": ("persistence/",),
    "alembic": ("persistence/migrations/",),
    "prometheus_client": ("telemetry/", "admin/status/", "http/routes/health.py"),
    "cryptography": ("persistence/archives/", "http/tls/certificates.py"),
    "pyarrow": ("monitoring/prediction_log/",),
    "opentelemetry": ("telemetry/otlp.py",),
}


def sources(room: str) -> list[Path]:
    paths = (path for path in (ROOT / room).rglob("*.py") if not path.name.endswith("_pb2.py"))
    # The benchmark's work folder holds other people's code.
    return sorted(path for path in paths if "out" not in path.relative_to(ROOT / room).parts[:-1])


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where an arrow points"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def below(package: str) -> set[str]:
    """Return the package and all that it may import."""
    return {package}.union(*(below(each) for each in PACKAGES[package]))


@pytest.mark.parametrize("room", [*ROOMS, "client"])
def test_rooms_do_not_import_each_other(room: str) -> None:
    assert sources(room)
    for path in sources(room):
        for name in imports(path):
            if path != ROOT / f"{WORKERS_PROGRAM.replace('.', '/')}.py":
                assert name.split(".")[0] not in FORBIDDEN[room], f"{path.relative_to(ROOT)} imports {name}"
            assert name != WORKERS_PROGRAM, "it is a program, for a process of its own"


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_inside_the_gateway_point_one_way(package: str) -> None:
    paths = [
        path for path in sources("service") if path.relative_to(ROOT / "service").parts[0] in {package, f"{package}.py"}
    ]
    assert paths
    for path in paths:
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "service" and len(parts) > 1:
                assert parts[1] in below(package), f"{path.relative_to(ROOT)} imports {name}"


def test_every_package_has_its_row() -> None:
    found = {path.relative_to(ROOT / "service").parts[0].removesuffix(".py") for path in sources("service")}
    assert found - {"__init__"} == set(PACKAGES)


def test_outside_packages_are_known_in_one_place() -> None:
    for path in sources("service"):
        place = path.relative_to(ROOT / "service").as_posix()
        for name in imports(path):
            allowed = ONLY_IN.get(name.split(".")[0])
            assert allowed is None or place.startswith(allowed), f"{place} imports {name}"


@pytest.mark.parametrize("room", [*ROOMS, "client", "benchmarks", "tests"])
def test_files_are_rooms_not_attics(room: str) -> None:
    for path in sources(room):
        assert path.stem not in {"utils", "common", "helpers", "base", "types", "misc"}, path
        num_lines = len(path.read_text().splitlines())
        assert num_lines <= 300 or room == "tests", f"{path.relative_to(ROOT)} has {num_lines} lines"


@pytest.mark.parametrize("room", ["service", "handlers"])
def test_folders_have_at_most_twelve_modules(room: str) -> None:
    folders: dict[Path, list[str]] = {}
    for path in sources(room):
        if path.stem != "__init__":
            folders.setdefault(path.parent, []).append(path.stem)
    crowded = {str(folder.relative_to(ROOT)): len(names) for folder, names in folders.items() if len(names) > 12}
    assert crowded == {}
