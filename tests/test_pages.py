"""Every code block of the documentation is run, is read by a parser, or says why not."""

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Mapping

import pytest
import yaml

from tests.pages import NOT_RUN, REASONS, RUN_BY, Block, blocks, blocks_of
from tests.torchserve_process import ROOT


def read_json(code: str) -> None:
    """Read an answer in which … stands for what is left out."""
    json.loads(re.sub(r",?…", "", code))


def read_query(code: str) -> None:
    """Find each metric of a query among those that the gateway or a rule writes."""
    written = (ROOT / "docs/reference/metrics.md").read_text() + (ROOT / "deploy/prometheus/recording.yml").read_text()
    for name in re.findall(r"\b(?:torchgate_\w+|job\w*:[\w:]+)", code):
        assert re.search(rf"\b{re.sub('_(sum|count|bucket)$', '', name)}\b", written), name


PARSERS: Mapping[str, Callable[[str], object]] = {
    "ini": lambda code: configparser.ConfigParser(interpolation=None).read_string(code),
    "json": read_json,
    "promql": read_query,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
DRAWING = "text"  # output, or a drawing: there is nothing to run


def complaint(block: Block) -> str:
    """Return what is wrong with a block's excuse, or with having none; "" if nothing is."""
    named = re.findall(r"tests/[\w/]+\.py", block.comment)
    if missing := [test for test in named if not (ROOT / test).exists()]:
        return f"there is no {missing[0]}"
    if RUN_BY.fullmatch(block.comment):
        page = block.page.rpartition("/")[2]
        return "" if page in (ROOT / named[0]).read_text() else f"{named[0]} does not name {page}"
    if excuse := NOT_RUN.fullmatch(block.comment):
        return "" if excuse["reason"] in REASONS else f"{excuse['reason']!r} is none of {REASONS}"
    if block.comment:
        return f"{block.comment} is neither `not run: REASON; MORE` nor `run by TEST`"
    if block.runs or block.language in PARSERS or block.language == DRAWING:
        return ""
    return f"no test runs {block.language or 'a block without a language'}; say why it is not run"


def test_every_block_is_run_or_says_why_not() -> None:
    assert len(blocks()) > 150
    assert [f"{block.place}: {wrong}" for block in blocks() if (wrong := complaint(block))] == []


@pytest.mark.parametrize(
    "block", [each for each in blocks() if each.language in PARSERS], ids=lambda block: block.place
)
def test_a_block_of_data_can_be_read(block: Block) -> None:
    PARSERS[block.language](block.code)


def test_blocks_are_found_where_pages_have_them() -> None:
    text = """
```sh
first
```

1. A list:

    <!-- not run: takes minutes; it measures -->

    ```sh
    second
    ```

<!-- not run: because; of nothing -->

```sh
third
```

```sql
fourth
```
"""
    found = list(blocks_of("page.md", text))
    assert [(each.line, each.code, each.runs) for each in found] == [
        (2, "first\n", True),
        (10, "second\n", False),
        (16, "third\n", False),
        (20, "fourth\n", False),
    ]
    assert [bool(complaint(each)) for each in found] == [False, False, True, True]
    with pytest.raises(ValueError, match="admonition"):
        list(blocks_of("page.md", '!!! note "N"\n    ```sh\n    hidden\n    ```\n'))
