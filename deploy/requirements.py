"""Prints what parts of pyproject.toml ask for, a line each: `base`, `build`, or an extra."""

import sys
import tomllib
from pathlib import Path

PYPROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())

project = PYPROJECT["project"]
parts = {"base": project["dependencies"], "build": PYPROJECT["build-system"]["requires"]}
parts |= project["optional-dependencies"]
print(*sorted({wanted for part in sys.argv[1:] for wanted in parts[part]}), sep="\n")
