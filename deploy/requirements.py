"""Prints what parts of pyproject.toml ask for, a line each: `base`, `build`, or an extra.

In place of torchgate-client, which is installed from client/ and never from an index, stands what it asks for itself.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OWN = "torchgate-client"


def parts() -> dict[str, set[str]]:
    """Return what each part asks for."""
    pyproject: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    client: dict[str, Any] = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
    project = pyproject["project"]
    found = {"base": project["dependencies"], "build": pyproject["build-system"]["requires"]}
    found |= project["optional-dependencies"]
    own = set(client["project"]["dependencies"])
    return {part: {*wanted} - {OWN} | (own if OWN in wanted else set()) for part, wanted in found.items()}


if __name__ == "__main__":
    asked = parts()
    print(*sorted({wanted for part in sys.argv[1:] for wanted in asked[part]}), sep="\n")
