"""What an archive asks of TorchServe, in YAML: never more workers than allowed."""

import io
import json
import zipfile
from typing import Any

import hypothesis.strategies as st
import yaml
from hypothesis import example, given

from service.domain.archive import StoreError
from service.persistence.archives.contents import ARCHIVE_MANIFEST, require_few_workers
from tests.fuzz.profile import fuzzed

# What an archive asks of TorchServe, in YAML.

KEYS = st.sampled_from(
    [
        "minWorkers",
        "maxWorkers",
        '"minWorkers"',
        "'maxWorkers'",
        '"min\\x57orkers"',
        '? "min\\\n  Workers"\n',
        "!!str maxWorkers",
        "&a minWorkers",
        "? minWorkers\n",
        "batchSize",
        "handler",
    ]
)
VALUES = st.sampled_from(
    [
        "1",
        "4",
        "5",
        "100",
        "0x64",
        "0o144",
        "0144",
        "1_000",
        "1:40",
        '"100"',
        "!!int 100",
        "+100",
        "1e3",
        "100.0",
        " 9 # x",
        "&a 100",
        "*a",
        "[100]",
        "99999999999",
        "\n  100",
        "|\n  100",
        "",
    ]
)
LINES = st.builds(
    lambda before, key, colon, value, end: before + key + colon + value + end,
    st.sampled_from(["", "", " ", "\t", "{", "{a: 1, ", "- ", "<<: *a\n", "x: y\u2028", "a: b\r", "# "]),
    KEYS,
    st.sampled_from([": ", ":", " : ", ":\t", ":\n"]),
    VALUES,
    st.sampled_from(["\n", "\n", "}\n", "", "\r", ", "]),
)
CONFIGS = st.builds(
    lambda lines, encoding: "".join(lines).encode(encoding),
    st.lists(LINES, max_size=4),
    st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig"]),
)


def workers_in(document: Any) -> list[int]:
    """Return the numbers of workers that a parsed configFile asks for."""
    if not isinstance(document, dict):
        return []
    return [int(document[key]) for key in ("minWorkers", "maxWorkers") if isinstance(document.get(key), int | float)]


# A pattern found only numbers of the plainest form: TorchServe reads all of YAML.
@fuzzed(300)
@example(config=b"{minWorkers: 100}\n")
@example(config=b"minWorkers: 0x64\n")
@example(config=b'"min\\x57orkers": 100\n')
@example(config="minWorkers: 100\n".encode("utf-16"))
@example(config=b'? "min\\\n  Workers"\n: 100\n')
@given(config=CONFIGS)
def test_no_config_asks_for_more_workers_than_allowed(config: bytes) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archived:
        archived.writestr(ARCHIVE_MANIFEST, json.dumps({"model": {"configFile": "config.yaml"}}))
        archived.writestr("config.yaml", config)
    try:
        require_few_workers(content, 4)
    except StoreError:
        return
    try:
        asked = workers_in(yaml.safe_load(config))
    except (yaml.YAMLError, ValueError, TypeError):
        return
    assert all(number <= 4 for number in asked)
