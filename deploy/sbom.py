"""Writes a CycloneDX SBOM of the image that it runs in: Debian's packages, and those of its Python environment.

python sbom.py NAME
"""

import json
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

SBOM = Path("/usr/share/doc/torchgate/sbom.cdx.json")
DEBIAN = "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${db:Status-Status}\n"


def debian_component(line: str) -> dict[str, Any]:
    """Return the component of a line of dpkg-query: vulnerabilities are reported by the name of the source package."""
    name, version, architecture, source, _ = line.split("\t")
    purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}"
    purl += f"&upstream={quote(source, safe='')}" if source != name else ""
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def python_component(distribution: Distribution) -> dict[str, Any]:
    """Return the component of an installed distribution, with its licence if its metadata has an SPDX expression."""
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    purl = f"pkg:pypi/{name}@{quote(distribution.version, safe='')}"
    licence = distribution.metadata["License-Expression"]
    licences = {"licenses": [{"expression": licence}]} if licence else {}
    return {"type": "library", "bom-ref": purl, "name": name, "version": distribution.version, **licences, "purl": purl}


def sbom(name: str) -> dict[str, Any]:
    """Return the SBOM. It has no time and no serial number: the same image has the same one."""
    query = ["dpkg-query", "--show", "--showformat", DEBIAN]
    debian = subprocess.run(query, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    components = [debian_component(line) for line in debian if line.endswith("\tinstalled")]
    components += [python_component(each) for each in distributions()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name}},
        "components": sorted({each["purl"]: each for each in components}.values(), key=lambda each: each["purl"]),
    }


if __name__ == "__main__":
    SBOM.parent.mkdir(parents=True, exist_ok=True)
    SBOM.write_text(json.dumps(sbom(sys.argv[1]), indent=1) + "\n")
