"""Reads the imports: arrows between rooms point one way, and importing does nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("service", "handlers", "training")

# What each room may import of the others, and of outside packages that weigh.
FORBIDDEN = {
    "service": ("handlers", "training", "benchmarks", "tests", "torch", "numpy", "PIL", "ts"),
    "handlers": ("service", "training", "benchmarks", "tests", "ts", "fastapi", "httpx"),
    "training": ("service", "handlers", "benchmarks", "tests", "ts", "fastapi", "httpx"),
}
# Runs in processes of its own, where torch and TorchServe are.
WORKERS_PROGRAM = ROOT / "service" / "workers" / "launch.py"
# Inside the gateway: a module may import only modules of a lower or the same rank; nothing below app knows HTTP.
RANKS = {
    "environment": 0,
    "settings": 0,
    "objectives": 0,
    "errors": 0,
    "request_errors": 1,
    "backend": 1,
    "contract": 1,
    "schemas": 1,
    "logs": 1,
    "metric_labels": 2,
    "instruments": 1,
    "model_metrics": 2,
    "exposition": 1,
    "loop_lag": 3,
    "metrics": 2,
    "families": 1,
    "hub": 2,
    "version_metrics": 2,
    "drift": 2,
    "answer_window": 0,
    "quality": 3,
    "catalog": 2,
    "traffic": 0,
    "control_errors": 2,
    "database": 3,
    "ledger": 4,
    "guards": 0,
    "rollout": 2,
    "state": 3,
    "store": 4,
    "policy_metrics": 4,
    "registry": 5,
    "intake": 6,
    "peers": 6,
    "lifecycle": 5,
    "access": 3,
    "cost": 1,
    "crowd": 1,
    "circuit": 1,
    "forecast": 2,
    "admission": 3,
    "trace_context": 0,
    "tracing": 1,
    "otlp": 3,
    "queue": 3,
    "batch_trace": 4,
    "profile_schemas": 1,
    "profile_order": 3,
    "profile_report": 4,
    "profiling": 9,
    "deadlines": 4,
    "batch": 4,
    "head_start": 4,
    "batcher": 4,
    "torchserve": 3,
    "workers": 3,
    "deployment": 4,
    "fleet": 7,
    "router": 8,
    "operations": 8,
    "rollouts": 10,
    "conductor": 9,
    "feedback": 9,
    "receipts": 2,
    "prediction_log": 3,
    "control_schemas": 3,
    "shadow": 8,
    "status": 8,
    "cli": 1,
    "api": 11,
    "parts": 11,
    "app": 12,
    "processes": 13,
    "__main__": 13,
    "member": 14,
}
ONLY_IN: dict[str, str | tuple[str, ...]] = {
    "grpc": "service/torchserve/",
    "google": "service/torchserve/",
    "httpx": ("service/torchserve/", "service/cli/"),
    "fastapi": ("service/api/", "service/app.py"),
    "starlette": ("service/api/", "service/app.py"),
    "uvicorn": ("service/__main__.py", "service/api/protocol.py"),
    "sqlalchemy": ("service/database.py", "service/store.py", "service/ledger.py"),
    "prometheus_client": (
        "service/metrics.py",
        "service/model_metrics.py",
        "service/instruments.py",
        "service/families.py",
        "service/hub.py",
        "service/exposition.py",
        "service/status/",
    ),
    "pyarrow": "service/prediction_log/columns.py",
    "opentelemetry": "service/otlp.py",
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


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_do_not_import_each_other(room: str) -> None:
    assert sources(room)
    for path in sources(room):
        for name in imports(path):
            if path != WORKERS_PROGRAM:
                assert name.split(".")[0] not in FORBIDDEN[room], f"{path.relative_to(ROOT)} imports {name}"
            assert name != f"{room}.workers.launch", "it is a program, for a process of its own"


def test_arrows_inside_the_gateway_point_one_way() -> None:
    for path in sources("service"):
        here = path.relative_to(ROOT / "service").parts[0].removesuffix(".py")
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "service" and len(parts) > 1 and here != "__init__":
                assert RANKS[parts[1]] <= RANKS[here], f"service/{here} imports {name}"


def test_outside_things_are_known_in_one_place() -> None:
    for path in sources("service"):
        place = path.relative_to(ROOT).as_posix()
        for name in imports(path):
            allowed = ONLY_IN.get(name.split(".")[0])
            assert allowed is None or place.startswith(allowed), f"{place} imports {name}"


@pytest.mark.parametrize("room", [*ROOMS, "benchmarks", "tests"])
def test_files_are_rooms_not_attics(room: str) -> None:
    for path in sources(room):
        assert path.stem not in {"utils", "common", "helpers", "base", "types", "misc"}, path
        num_lines = len(path.read_text().splitlines())
        assert num_lines <= 300 or room == "tests", f"{path.relative_to(ROOT)} has {num_lines} lines"
