"""What is public is documented: the README's tables are the code's."""

import re

import pytest

from tests import documented
from tests.torchserve_process import ROOT

README = (ROOT / "README.md").read_text()


def table(heading: str) -> list[str]:
    """Return the rows of the tables under a heading, without their heads."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [row for row in rows if "`" in row]  # neither a table's head nor the line below it has code in it


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Routes", documented.route_rows()),
        ("Metrics", documented.metric_rows()),
    ],
)
def test_tables_are_the_codes(heading: str, expected: list[str]) -> None:
    assert expected
    assert table(heading) == expected, "python -m tests.documented prints the rows"


def test_every_setting_is_documented() -> None:
    expected = documented.setting_rows()
    assert table("Settings")[: len(expected)] == expected, "python -m tests.documented prints the rows"


def test_every_variable_of_the_launcher_is_documented() -> None:
    launcher = (ROOT / "deploy" / "torchserve.sh").read_text()
    documented_names = set(re.findall(r"`(\w+)`", "\n".join(table("Settings"))))
    assert set(re.findall(r"\bTORCHGATE_\w+", launcher)) <= documented_names


def test_every_error_is_documented() -> None:
    rows = table("Errors")
    expected = documented.error_rows()
    assert rows[: len(expected)] == expected, "python -m tests.documented prints the rows"
    codes = {code for row in rows[len(expected) :] for code in re.findall(r"^\| `(\w+)`", row)}
    assert codes == documented.image_codes()


def test_every_verb_is_documented_and_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE)) - {"help"}
    assert verbs == set(re.findall(r"`?make ([a-z][a-z-]*)", README)) - {"help"}


def test_every_fault_has_its_test() -> None:
    rows = table("Faults")
    assert rows
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
