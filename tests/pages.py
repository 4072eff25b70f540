"""The code blocks of the documentation's pages: which are run, by which test, and why the others are not.

A comment of the page, before the block, says what is not obvious:

    <!-- not run: trains for minutes; tests/end_to_end/test_own_images.py trains a smaller model -->
    <!-- run by tests/test_own_model.py -->

All other blocks in `sh` and `python` are run by tests/end_to_end/test_pages.py, as they stand.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt

from tests.torchserve_process import ROOT

# Why a block is not run; the comment says more, and names the test that covers it where there is one.
REASONS = (
    "changes what runs",  # the shared gateway, the model store or the machine
    "needs Docker",
    "needs Kubernetes",
    "needs another program",
    "needs packages",  # of Debian or PyPI
    "needs several machines",
    "needs your values",  # paths, names and addresses that only the reader has
    "runs until stopped",
    "takes minutes",
    "trains for minutes",
)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^;]+); (?P<more>.+) -->")
RUN_BY = re.compile(r"<!-- run by (?P<test>tests/\S+) -->")
FENCE = re.compile(r"^ *```", re.MULTILINE)
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the HTML comment before it."""

    page: str
    line: int
    language: str
    code: str
    comment: str

    @property
    def place(self) -> str:
        """Return where it is."""
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether the test of the pages runs it."""
        return self.language in {"sh", "python"} and not self.comment


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order; a comment holds for the one block after it."""
    tokens = MarkdownIt("commonmark").parse(text)
    fences = [(before, token) for before, token in zip([None, *tokens], tokens, strict=False) if token.type == "fence"]
    if 2 * len(fences) != len(FENCE.findall(text)):
        raise ValueError(f"{page}: a fence is where Markdown sees none, in an admonition perhaps; write it elsewhere")
    for before, token in fences:
        assert token.map is not None
        comment = before.content.strip() if before and before.type == "html_block" else ""
        yield Block(page, token.map[0] + 1, token.info, token.content, comment)


@cache
def blocks() -> tuple[Block, ...]:
    """Return the blocks of all pages."""
    return tuple(block for page in PAGES for block in blocks_of(page, (ROOT / page).read_text()))
