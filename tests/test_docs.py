"""What is public is documented: the reference is the code's, and no link is broken."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.reference import make
from service.errors.catalog import IMAGE_CODES, errors_with_code
from tests.torchserve_process import ROOT

DOCS = ROOT / "docs"


def test_every_variable_of_the_launcher_is_documented() -> None:
    launcher = (ROOT / "deploy" / "torchserve.sh").read_text()
    documented = set(re.findall(r"`(\w+)`", make.texts()["docs/reference/settings.md"]))
    assert set(re.findall(r"\bTORCHGATE_\w+", launcher)) <= documented


def test_every_code_of_an_image_is_documented() -> None:
    handler = "".join(path.read_text() for path in sorted((ROOT / "handlers").glob("*.py")))
    body = (ROOT / "service" / "http" / "images" / "json_document.py").read_text()
    codes = set(re.findall(r'(?:problem|Refused)\("(\w+)"', handler)) | set(re.findall(r'ItemError\("(\w+)"', body))
    assert codes == set(IMAGE_CODES)


def test_every_error_says_the_next_step() -> None:
    for error in errors_with_code():
        assert error.hint.endswith("."), error


@pytest.mark.parametrize(("name", "text"), make.texts().items(), ids=make.texts())
def test_a_page_of_the_reference_is_the_codes(name: str, text: str) -> None:
    assert (ROOT / name).read_text() == text, "python -m deploy.reference.make writes it"


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 180
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    for name in ("docs", "zensical.toml"):  # a copy: the builder keeps files beside its configuration
        (tmp_path / name).symlink_to(ROOT / name)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    env = {**os.environ, "NO_COLOR": "1"}
    built = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert built.returncode == 0, built.stdout + built.stderr


def test_every_verb_is_documented_and_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE)) - {"help"}
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert verbs == set(re.findall(r"`make ([a-z][a-z-]*)", guide)) - {"help"}


def test_every_fault_has_its_test() -> None:
    page = (DOCS / "how-to" / "operate" / "faults.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) >= 20
    for row in rows:
        *_, seconds, named, _ = (cell.strip() for cell in row.split("|"))
        assert float(seconds) >= 0, row
        file, name = named.strip("`").split("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), named


def test_the_ports_are_written_once_for_each_program() -> None:
    from service.config.settings import Settings  # noqa: PLC0415

    properties = (ROOT / "handlers" / "torchserve.properties").read_text()
    ports = {
        "torchserve_rest_port": r"^inference_address=http://[0-9.]+:(\d+)$",
        "torchserve_management_port": r"^management_address=http://[0-9.]+:(\d+)$",
        "torchserve_grpc_port": r"^grpc_inference_port=(\d+)$",
    }
    for name, pattern in ports.items():
        (port,) = re.findall(pattern, properties, re.MULTILINE)
        assert Settings.model_fields[name].default == int(port), name
