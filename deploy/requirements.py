"""Prints what pyproject.toml asks for, a line each: the base dependencies, or with an argument those of that extra."""

import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

project = tomllib.loads(PYPROJECT.read_text())["project"]
wanted = project["optional-dependencies"][sys.argv[1]] if len(sys.argv) > 1 else project["dependencies"]
print(*wanted, sep="\n")
