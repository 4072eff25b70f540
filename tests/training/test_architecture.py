"""Reads the imports of training: its packages point one way, and none grows into an attic."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "training"
MOST_MODULES, MOST_LINES = 12, 300

# Every package, the lowest first: one imports only those above its own line. The loose modules of training are below
# all of them, but __main__, which is above.
PACKAGES = (
    "options",
    "models",
    "data",
    "parallel",
    "engine",
    "evaluation",
    "int8",
    "export",
    "archive",
    "profiling",
    "tracking",
    "sweep",
    "prediction_log",
    "commands",
)


def modules() -> dict[str, Path]:
    """Return the files of training by their dotted names; a package has its own."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(TRAINING.rglob("*.py"))
    }


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Return the modules of training that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def rank(module: str) -> int:
    """Return the place of a module's package."""
    package = module.split(".")[1] if "." in module else ""
    if (TRAINING / package).is_dir() and package:
        return PACKAGES.index(package)
    return len(PACKAGES) if package == "__main__" else -1


def test_packages_import_only_lower_ones() -> None:
    known = modules()
    for name, path in known.items():
        for other in imported(path, known):
            assert rank(other) <= rank(name), f"{name} imports {other}"


def test_modules_import_each_other_in_no_circle() -> None:
    known = modules()
    TopologicalSorter({name: set(imported(path, known)) for name, path in known.items()}).prepare()


def test_folders_and_files_stay_small() -> None:
    for folder in {path.parent for path in modules().values()}:
        names = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(names) <= MOST_MODULES, f"{folder.relative_to(ROOT)} has {len(names)} modules"
    for path in modules().values():
        num_lines = len(path.read_text().splitlines())
        assert num_lines <= MOST_LINES, f"{path.relative_to(ROOT)} has {num_lines} lines"
